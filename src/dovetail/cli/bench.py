"""`dovetail bench`: a moment of load for any server."""

import asyncio
import math
import time
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.arguments import read_arguments
from dovetail.cli.call import find_tool
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import Seconds, asked, options
from dovetail.errors import MCPError

_SHARES = (50, 90, 99)


@click.command("bench")
@options("[TOOL]", "[NAME=VALUE]...")
@click.option("-c", "--concurrency", type=click.IntRange(1), default=10, show_default=True, help="Calls at a time.")
@click.option("-n", "--requests", type=click.IntRange(1), help="Stop after this many.")
@click.option("-d", "--duration", type=Seconds(), default=5.0, show_default=True, help="Stop after these seconds.")
@click.option("--rate", type=Seconds(), help="At most so many calls a second.")
@click.pass_context
def command(
    ctx: click.Context, concurrency: int, requests: int | None, duration: float, rate: float | None, **given: Any
) -> int:
    """Put a server under load for a moment: calls of a tool, or signs of life; exits with 5 if one fails.

    One client, one server: over stdio all calls share a process, over HTTP they use as many connections as are
    answered at a time.

    \b
    dovetail bench server.py add a=1 b=2
    dovetail bench https://example.com/mcp -c 50 -d 10
    """

    async def work(spoken: Spoken) -> int:
        client = spoken.client
        if spoken.words:
            name, *words = spoken.words
            arguments = read_arguments(words, (await find_tool(spoken, name)).input_schema)

            async def once() -> bool:
                return not (await client.call_tool(name, arguments)).is_error
        else:

            async def once() -> bool:
                await client.ping()
                return True

        load = Load(once, concurrency, requests, None if requests else duration, rate)
        await once()  # what is only done the first time is not what is measured
        await load.run(spoken.bar.show)
        figures = load.figures()
        spoken.print(figures, lambda: _shown(figures))
        return exits.TOOL if figures["errors"] else exits.OK

    return converse(asked(ctx, **given), work)


class Load:
    """Calls by several workers until there were enough, or the time is over."""

    def __init__(
        self, once: Any, concurrency: int, requests: int | None, duration: float | None, rate: float | None
    ) -> None:
        self._once = once
        self._concurrency = concurrency
        self._requests = requests
        self._duration = duration
        self._pause = 1 / rate if rate else 0.0
        self._begun = 0
        self._times: list[float] = []
        self._errors: dict[str, int] = {}
        self._took = 0.0

    async def run(self, show: Any) -> None:
        """Do it; `show` is told how far it is."""
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work(start, show))
        self._took = time.perf_counter() - start

    async def _work(self, start: float, show: Any) -> None:
        while self._more(start):
            turn, self._begun = self._begun, self._begun + 1
            wait = start + turn * self._pause - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
                if not self._timely(start):
                    return
            begun = time.perf_counter()
            try:
                good = await self._once()
            except MCPError as exc:
                self._failed(type(exc).__name__)
            else:
                if not good:
                    self._failed("the tool failed")
            self._times.append(time.perf_counter() - begun)
            if len(self._times) % 100 == 0:
                show(len(self._times), self._requests)

    def _more(self, start: float) -> bool:
        return self._timely(start) and (self._requests is None or self._begun < self._requests)

    def _timely(self, start: float) -> bool:
        return self._duration is None or time.perf_counter() - start < self._duration

    def _failed(self, why: str) -> None:
        self._errors[why] = self._errors.get(why, 0) + 1

    def figures(self) -> dict[str, Any]:
        """What came of it."""
        times = sorted(self._times)
        shares = {f"p{share}": 1000 * times[math.ceil(len(times) * share / 100) - 1] for share in _SHARES if times}
        return {
            "requests": len(times),
            "errors": self._errors,
            "seconds": self._took,
            "per_second": len(times) / self._took if self._took else 0.0,
            "milliseconds": shares | ({"worst": 1000 * times[-1]} if times else {}),
        }


def _shown(figures: dict[str, Any]) -> str:
    told = [f"{figures['requests']} calls in {figures['seconds']:.2f} s: {figures['per_second']:.0f} a second"]
    told += [", ".join(f"{name} {value:.2f} ms" for name, value in figures["milliseconds"].items())]
    told += [f"failed: {count} times {text.line(why)}" for why, count in figures["errors"].items()]
    return "\n".join(told)

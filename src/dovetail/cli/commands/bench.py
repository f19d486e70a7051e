"""`dovetail bench`: run a short load test against a server."""

import asyncio
import math
import time
from typing import Any

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.commands.call import find_tool
from dovetail.cli.target_argument import PositiveNumber, read_target_options, target_options
from dovetail.cli.tool_arguments import read_arguments
from dovetail.errors import MCPError
from dovetail.terminal import output

_PERCENTILES = (50, 90, 99)


@click.command("bench")
@target_options("[TOOL]", "[NAME=VALUE]...")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1), default=10, show_default=True, help="Number of concurrent calls."
)
@click.option("-n", "--requests", type=click.IntRange(1), help="Stop after this many calls.")
@click.option(
    "-d", "--duration", type=PositiveNumber(), default=5.0, show_default=True, help="Stop after this many seconds."
)
@click.option("--rate", type=PositiveNumber(), help="Maximum calls per second.")
@click.pass_context
def command(
    ctx: click.Context, concurrency: int, requests: int | None, duration: float, rate: float | None, **params: Any
) -> int:
    """Run a short load test against a server.

    Calls a tool, or pings the server if no tool is given. Exits with 5 if a call fails. Over stdio, all calls share one
    process. Over HTTP, each concurrent call has its own connection.

    \b
    dovetail bench server.py add a=1 b=2
    dovetail bench https://example.com/mcp -c 50 -d 10
    """

    async def execute(command_run: CommandRun) -> int:
        client = command_run.client
        if command_run.args:
            name, *args = command_run.args
            arguments = read_arguments(args, (await find_tool(command_run, name)).input_schema)

            async def send_request() -> bool:
                return not (await client.call_tool(name, arguments)).is_error
        else:

            async def send_request() -> bool:
                await client.ping()
                return True

        load_test = LoadTest(send_request, concurrency, requests, None if requests else duration, rate)
        # The first request is a warm-up and is not measured.
        await send_request()
        await load_test.run(command_run.progress_bar.draw)
        figures = load_test.summarize()
        command_run.print_result(figures, lambda: _format_figures(figures))
        return error_report.EXIT_TOOL_ERROR if figures["errors"] else error_report.EXIT_OK

    return run_command(read_target_options(ctx, **params), execute)


class LoadTest:
    """Sends requests from several workers until enough requests are sent or the time is over."""

    def __init__(
        self, send_request: Any, concurrency: int, requests: int | None, duration: float | None, rate: float | None
    ) -> None:
        self._send_request = send_request
        self._concurrency = concurrency
        self._requests = requests
        self._duration = duration
        self._interval_s = 1 / rate if rate else 0.0
        self._started_count = 0
        self._durations: list[float] = []
        self._errors: dict[str, int] = {}
        self._elapsed_s = 0.0

    async def run(self, show_progress: Any) -> None:
        """Run the load test. Call `show_progress` after every 100 requests."""
        started_at = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._run_worker(started_at, show_progress))
        self._elapsed_s = time.perf_counter() - started_at

    async def _run_worker(self, started_at: float, show_progress: Any) -> None:
        while self._should_continue(started_at):
            index, self._started_count = self._started_count, self._started_count + 1
            delay = started_at + index * self._interval_s - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
                if not self._has_time_left(started_at):
                    return
            request_started_at = time.perf_counter()
            try:
                is_ok = await self._send_request()
            except MCPError as exc:
                self._count_error(type(exc).__name__)
            else:
                if not is_ok:
                    self._count_error("ToolError")
            self._durations.append(time.perf_counter() - request_started_at)
            if len(self._durations) % 100 == 0:
                show_progress(len(self._durations), self._requests)

    def _should_continue(self, started_at: float) -> bool:
        return self._has_time_left(started_at) and (self._requests is None or self._started_count < self._requests)

    def _has_time_left(self, started_at: float) -> bool:
        return self._duration is None or time.perf_counter() - started_at < self._duration

    def _count_error(self, reason: str) -> None:
        self._errors[reason] = self._errors.get(reason, 0) + 1

    def summarize(self) -> dict[str, Any]:
        """Return the counts, the rate and the latencies."""
        durations = sorted(self._durations)
        percentiles = {
            f"p{percentile}": 1000 * durations[math.ceil(len(durations) * percentile / 100) - 1]
            for percentile in _PERCENTILES
            if durations
        }
        return {
            "requests": len(durations),
            "errors": self._errors,
            "duration": self._elapsed_s,
            "per_second": len(durations) / self._elapsed_s if self._elapsed_s else 0.0,
            "milliseconds": percentiles | ({"max": 1000 * durations[-1]} if durations else {}),
        }


def _format_figures(figures: dict[str, Any]) -> str:
    lines = [f"{figures['requests']} calls in {figures['duration']:.2f} s: {figures['per_second']:.0f} per second"]
    lines += [", ".join(f"{name} {value:.2f} ms" for name, value in figures["milliseconds"].items())]
    lines += [f"{count} failed: {output.escape_line(reason)}" for reason, count in figures["errors"].items()]
    return "\n".join(lines)

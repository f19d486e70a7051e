"""`dovetail bench`: run a short load test against a server."""

import asyncio
import contextlib
import math
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.commands.call import format_result
from dovetail.cli.target_argument import PositiveNumber, read_target_options, target_options
from dovetail.cli.tool_arguments import read_arguments
from dovetail.cli.tool_lookup import get_tool
from dovetail.errors import MCPError, ToolError
from dovetail.terminal import output
from dovetail.terminal.live import ProgressBar

_PERCENTILES: Final = (50, 90, 99)
_REFRESH_INTERVAL_S: Final = 0.1
_MAX_RECENT: Final = 1000  # While the test runs, `bench` shows the median of this many calls.
_MAX_FAILURES: Final = 10  # the maximum number of error messages to list
_MAX_MESSAGE_CHARS: Final = 200
_LOG_REFERENCE_PATTERN: Final = re.compile(r"(?<= has the details under )\S+")  # different for each call


@click.command("bench")
@target_options("[TOOL]", "[NAME=VALUE]...")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1), default=10, show_default=True, help="Number of concurrent calls."
)
@click.option("-n", "--requests", type=click.IntRange(1), help="Stop after this many calls.")
@click.option(
    "-d", "--duration", type=PositiveNumber(), default=5.0, show_default=True, help="Stop after this many seconds."
)
@click.option("--rate", type=PositiveNumber("calls per second"), help="Maximum calls per second.")
@click.pass_context
def command(
    ctx: click.Context, concurrency: int, requests: int | None, duration: float, rate: float | None, **params: Any
) -> int:
    """Run a short load test against a server.

    Calls a tool, or pings the server if no tool is given. Exits with 5 if a call fails. Over stdio, all calls share one
    process. Over HTTP, each concurrent call has its own connection. After Ctrl-C, prints the figures until then.

    \b
    dovetail bench server.py add a=1 b=2
    dovetail bench https://example.com/mcp -c 50 -d 10
    """

    async def execute(command_run: CommandRun) -> int:
        client = command_run.client
        if command_run.args:
            name, *args = command_run.args
            arguments = read_arguments(args, (await get_tool(client, name)).input_schema)

            async def send_request() -> None:
                result = await client.call_tool(name, arguments)
                if result.is_error:
                    raise ToolError(format_result(result))
        else:

            async def send_request() -> None:
                await client.ping()

        load_test = LoadTest(send_request, concurrency, requests, None if requests else duration, rate)
        command_run.progress_bar.start(f"bench {command_run.args[0] if command_run.args else 'ping'}")
        # The first request is a warm-up and is not measured.
        # If the tool fails in this request, ignore the error, because the measured requests report it.
        with contextlib.suppress(ToolError):
            await send_request()
        is_interrupted = not await load_test.run(command_run.progress_bar)
        figures = load_test.summarize()
        command_run.print_result(figures, lambda: _format_figures(figures))
        if is_interrupted:
            output.print_note("interrupted: these are the calls until then")
            return error_report.EXIT_INTERRUPTED
        return error_report.EXIT_TOOL_ERROR if figures["errors"] else error_report.EXIT_OK

    return run_command(read_target_options(ctx, **params), execute)


class LoadTest:
    """Sends requests from several workers until enough requests are sent or the time is over."""

    def __init__(
        self,
        send_request: Callable[[], Awaitable[None]],
        concurrency: int,
        requests: int | None,
        duration: float | None,
        rate: float | None,
    ) -> None:
        self._send_request = send_request
        self._concurrency = concurrency
        self._requests = requests
        self._duration = duration
        self._interval_s = 1 / rate if rate else 0.0
        self._started_count = 0
        self._durations: list[float] = []
        self._failures: Counter[tuple[str, str]] = Counter()  # the name of each error, and its message
        self._started_at = 0.0
        self._elapsed_s = 0.0

    async def run(self, progress_bar: ProgressBar) -> bool:
        """Run the load test. Return False if the user has interrupted it."""
        self._started_at = time.perf_counter()
        workers = asyncio.gather(*(self._run_worker() for _ in range(self._concurrency)))
        try:
            while not workers.done():
                await asyncio.wait([workers], timeout=_REFRESH_INTERVAL_S)
                self._show_progress(progress_bar)
            await workers
        except asyncio.CancelledError:
            # `asyncio.run` cancels its task after Ctrl-C.
            workers.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await workers
            task = asyncio.current_task()
            if task is None or task.uncancel() > 0:
                raise
            return False
        finally:
            self._elapsed_s = time.perf_counter() - self._started_at
        return True

    def _show_progress(self, progress_bar: ProgressBar) -> None:
        elapsed_s = time.perf_counter() - self._started_at
        count, failed = len(self._durations), self._failures.total()
        median = statistics.median(self._durations[-_MAX_RECENT:]) if self._durations else 0.0
        detail = f"{count / elapsed_s:.0f} per second, p50 {1000 * median:.2f} ms"
        if failed:
            detail += f", {failed} failed"
        if self._duration is not None:
            detail = f"{count} calls, {detail}"
            progress_bar.draw(round(min(elapsed_s, self._duration), 1), self._duration, unit="s", detail=detail)
        else:
            progress_bar.draw(count, self._requests, detail=detail)

    async def _run_worker(self) -> None:
        while self._should_continue():
            index, self._started_count = self._started_count, self._started_count + 1
            delay = self._started_at + index * self._interval_s - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
                if not self._has_time_left():
                    return
            request_started_at = time.perf_counter()
            try:
                await self._send_request()
            except MCPError as exc:
                self._count_failure(exc)
            self._durations.append(time.perf_counter() - request_started_at)

    def _should_continue(self) -> bool:
        return self._has_time_left() and (self._requests is None or self._started_count < self._requests)

    def _has_time_left(self) -> bool:
        return self._duration is None or time.perf_counter() - self._started_at < self._duration

    def _count_failure(self, exc: MCPError) -> None:
        message = _LOG_REFERENCE_PATTERN.sub("…", str(exc.args[0])) if exc.args else ""
        failure = (type(exc).__name__, message[:_MAX_MESSAGE_CHARS])
        # Each message may contain a different number, so only the first messages are listed.
        is_listed = failure in self._failures or len(self._failures) < _MAX_FAILURES
        self._failures[failure if is_listed else (failure[0], "other messages")] += 1

    def summarize(self) -> dict[str, Any]:
        """Return the counts, the rate and the latencies."""
        durations = sorted(self._durations)
        percentiles = {
            f"p{percentile}": 1000 * durations[math.ceil(len(durations) * percentile / 100) - 1]
            for percentile in _PERCENTILES
            if durations
        }
        errors: Counter[str] = Counter()
        for (name, _), count in self._failures.items():
            errors[name] += count
        return {
            "requests": len(durations),
            "errors": dict(errors),
            "failures": [
                {"error": name, "message": message, "count": count}
                for (name, message), count in self._failures.most_common()
            ],
            "duration": self._elapsed_s,
            "per_second": len(durations) / self._elapsed_s if self._elapsed_s else 0.0,
            "milliseconds": percentiles | ({"max": 1000 * durations[-1]} if durations else {}),
        }


def _format_figures(figures: dict[str, Any]) -> str:
    rate = output.style(f"{figures['per_second']:.0f} per second", bold=True)
    lines = [f"{figures['requests']} calls in {figures['duration']:.2f} s: {rate}"]
    latencies = {name: f"{value:.2f} ms" for name, value in figures["milliseconds"].items()}
    if sys.stdout.isatty() and latencies:
        lines += ["", output.format_table([[*latencies.values()]], [*latencies])]
    else:
        lines.append(", ".join(f"{name} {value}" for name, value in latencies.items()))
    lines += [""] if sys.stdout.isatty() and figures["failures"] else []
    for failure in figures["failures"]:
        reason = output.escape_line(f"{failure['error']}: {failure['message']}")
        count = f"{failure['count']} failed"
        text = output.fit_to_stdout(f"{count}: {reason}")
        lines.append(output.style(count, fg="red") + text.removeprefix(count))
    return "\n".join(lines)

"""The client of a command: it opens, or says at once why a program it was to start is none that it can speak to."""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from dovetail.cli import exits
from dovetail.cli.targets import DOVETAIL_COMMAND, SCRIPT_SUFFIXES
from dovetail.connect import Client
from dovetail.errors import CannotStart

_LOCAL_URL_REGEX: Final = (
    r"https?://(?:127\.|localhost\b|0\.0\.0\.0\b|\[::)[^\s'\"]*"  # a page elsewhere is only mentioned
)
_URL_ANNOUNCEMENT_PATTERN: Final = re.compile(
    rf"(?:running on|listening on|listening at|is at)\W+({_LOCAL_URL_REGEX})", re.IGNORECASE
)
_ERROR_LINE_PATTERN: Final = re.compile(r"^error: (.+)", re.MULTILINE)
_MAX_KEPT_LINES: Final = 5  # lines
_HTTP_ONLY_TIMEOUT_S: Final = 3.0  # for a program that serves HTTP, and stdin and stdout besides


class CommandClient(Client):
    """A client that listens to what a program says while it starts."""

    def __init__(self, target: Any, **options: Any) -> None:
        self.is_program = _is_program(target)
        self._runs_dovetail = isinstance(target, list) and tuple(target[: len(DOVETAIL_COMMAND)]) == DOVETAIL_COMMAND
        self._has_user_timeout = "timeouts" in options  # the user says how long to wait
        self._stderr_monitor = _StderrMonitor(options.get("stderr"))
        if self.is_program:
            options["stderr"] = self._stderr_monitor
        super().__init__(target, **options)

    async def connect(self) -> None:
        """Open the conversation; UsageError if it is the target that is wrong."""
        try:
            await (self._connect_monitored() if self.is_program and not self._has_user_timeout else super().connect())
        except CannotStart as exc:
            error_line = (
                _ERROR_LINE_PATTERN.search(exc.stderr or "")
                if self._runs_dovetail and exc.exit_code == exits.EXIT_USAGE
                else None
            )
            if error_line is None:
                raise
            raise click.UsageError(error_line[1]) from None

    @property
    def last_stderr_lines(self) -> list[str]:
        """What it said last on stderr."""
        return [*self._stderr_monitor.last_lines]

    async def _connect_monitored(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = asyncio.timeout(None)  # until it says that it is on the web
        self._stderr_monitor.on_url = lambda: deadline.reschedule(loop.time() + _HTTP_ONLY_TIMEOUT_S)
        try:
            async with deadline:
                return await super().connect()
        except TimeoutError:
            if not deadline.expired():
                raise
        finally:
            self._stderr_monitor.on_url = _do_nothing
        await self.close()
        raise CannotStart("the program serves HTTP, and says nothing on stdout").at(
            server=self.name,
            hint=f"let it run, and use its URL as the target: {self._stderr_monitor.url}, often with /mcp; "
            "if it speaks on "
            "stdout too, --timeout SECONDS waits for it",
        )


class _StderrMonitor:
    """What a program says on stderr, passed on to who wants it."""

    def __init__(self, sink: Callable[[str], object] | None) -> None:
        self.on_url: Callable[[], None] = _do_nothing  # called when it says where it is on the web,
        self.url = ""  # namely here
        self.last_lines: deque[str] = deque(maxlen=_MAX_KEPT_LINES)
        self._sink = sink

    def __call__(self, line: str) -> None:
        if not self.url and (match := _URL_ANNOUNCEMENT_PATTERN.search(line)):
            self.url = match[1]
            self.on_url()
        self.last_lines.append(line)
        if self._sink is not None:
            self._sink(line)


def _do_nothing() -> None:
    """Nobody waits."""


def _is_program(target: Any) -> bool:
    if isinstance(target, dict):
        return "command" in target
    return isinstance(target, list) or (isinstance(target, str) and Path(target).suffix in SCRIPT_SUFFIXES)

"""The client of a command: it opens, or says at once why a program it was to start is none that it can speak to."""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from dovetail.cli import exits
from dovetail.cli.targets import OURS, SCRIPTS
from dovetail.connect import Client
from dovetail.errors import CannotStart

_HERE: Final = r"https?://(?:127\.|localhost\b|0\.0\.0\.0\b|\[::)[^\s'\"]*"  # a page elsewhere is only mentioned
_AT: Final = re.compile(rf"(?:running on|listening on|listening at|is at)\W+({_HERE})", re.IGNORECASE)
_WRONG: Final = re.compile(r"^error: (.+)", re.MULTILINE)
_LAST: Final = 5  # lines
_PATIENCE: Final = 3.0  # for a program that serves HTTP, and stdin and stdout besides


class Opening(Client):
    """A client that listens to what a program says while it starts."""

    def __init__(self, target: Any, **options: Any) -> None:
        self.is_program = _is_program(target)
        self._ours = isinstance(target, list) and tuple(target[: len(OURS)]) == OURS
        self._patient = "timeouts" in options  # the user says how long to wait
        self._said = _Said(options.get("stderr"))
        if self.is_program:
            options["stderr"] = self._said
        super().__init__(target, **options)

    async def connect(self) -> None:
        """Open the conversation; UsageError if it is the target that is wrong."""
        try:
            await (self._watched() if self.is_program and not self._patient else super().connect())
        except CannotStart as exc:
            wrong = _WRONG.search(exc.stderr or "") if self._ours and exc.exit_code == exits.USAGE else None
            if wrong is None:
                raise
            raise click.UsageError(wrong[1]) from None

    @property
    def last_words(self) -> list[str]:
        """What it said last on stderr."""
        return [*self._said.last]

    async def _watched(self) -> None:
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)  # until it says that it is on the web
        self._said.on_web = lambda: limit.reschedule(loop.time() + _PATIENCE)
        try:
            async with limit:
                return await super().connect()
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            self._said.on_web = _nothing
        await self.close()
        raise CannotStart("the program serves HTTP, and says nothing on stdout").at(
            server=self.name,
            hint=f"let it run, and use its URL as the target: {self._said.url}, often with /mcp; if it speaks on "
            "stdout too, --timeout SECONDS waits for it",
        )


class _Said:
    """What a program says on stderr, passed on to who wants it."""

    def __init__(self, sink: Callable[[str], object] | None) -> None:
        self.on_web: Callable[[], None] = _nothing  # called when it says where it is on the web,
        self.url = ""  # namely here
        self.last: deque[str] = deque(maxlen=_LAST)
        self._sink = sink

    def __call__(self, line: str) -> None:
        if not self.url and (found := _AT.search(line)):
            self.url = found[1]
            self.on_web()
        self.last.append(line)
        if self._sink is not None:
            self._sink(line)


def _nothing() -> None:
    """Nobody waits."""


def _is_program(target: Any) -> bool:
    if isinstance(target, dict):
        return "command" in target
    return isinstance(target, list) or (isinstance(target, str) and Path(target).suffix in SCRIPTS)

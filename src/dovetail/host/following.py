"""Following configuration files: what they name becomes servers of a host, and so does what is written into them later.

A file that cannot be read, perhaps because it is just being written, changes nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dovetail.host.config import known_files, read_file
from dovetail.host.entries import Entry, Problem, Settings
from dovetail.host.quotas import quota
from dovetail.host.secrets import Level, Secrets
from dovetail.protocol.limits import Timeouts

log = logging.getLogger("dovetail")

_LOOK: Final = 1.0  # seconds between two looks


class Following:
    """The configuration of one host."""

    def __init__(self, paths: Sequence[str | Path], level: Level, secrets: Secrets, *, watch: bool) -> None:
        self._paths = [Path(path) for path in paths]
        self._level: Level = level
        self._secrets = secrets
        self.watch = watch
        self.known: dict[str, Entry] = {}  # as the host has them
        self._seen: list[Any] = []
        self._kept: dict[Path, list[Entry]] = {}  # as each file said when it could be read

    def read(self) -> tuple[dict[str, Entry], list[Problem]]:
        """The servers by name, of several with one name the first; and what is wrong."""
        self._seen = self._marks()
        entries: list[Entry] = []
        problems: list[Problem] = []
        for source, path, level in self._files():
            found, wrong = read_file(path, source, level=level)
            if not any(one.unread for one in wrong):
                self._kept[path] = found
            entries += self._kept.get(path, [])
            problems += wrong
        named: dict[str, Entry] = {}
        for entry in entries:
            if named.setdefault(entry.name, entry) is not entry:
                text = f"{entry.name}: there is one of this name in {named[entry.name].path}"
                problems.append(Problem(entry.source, entry.path, text, severe=False))
        return named, problems

    def _files(self) -> list[tuple[str | None, Path, Level]]:
        if self._paths:
            return [(None, path, self._level) for path in self._paths]
        return [*known_files()]

    def gone(self, entries: Mapping[str, Entry]) -> list[str]:
        """The servers that are no longer what they were; they are forgotten here."""
        names = [name for name, entry in self.known.items() if entries.get(name) != entry]
        for name in names:
            del self.known[name]
        return names

    def target(self, entry: Entry) -> Callable[[], dict[str, Any]]:
        """How it is reached, found out when it is started: what it refers to is looked up then."""
        return lambda: entry.target(secrets=self._secrets)

    def options(self, entry: Entry) -> dict[str, Any]:
        """What a host is told of it."""
        return {
            "identity": entry.identity,
            "source": str(entry.path),
            "enabled": entry.enabled,
            "foreign": entry.level == "project",
            "shown": entry.shown(),
            **_said(entry.settings),
        }

    async def watched(self, reload: Callable[[], Awaitable[None]]) -> None:
        """Call a function whenever one of the files is another than before."""
        while True:
            await asyncio.sleep(_LOOK)
            if self._marks() != self._seen:
                try:
                    await reload()
                except Exception as exc:
                    log.error("the configuration could not be followed", exc_info=exc)

    def _marks(self) -> list[Any]:
        found: list[Any] = []
        for _, path, _ in self._files():
            with contextlib.suppress(OSError):
                there = path.stat()
                found.append((path, there.st_mtime_ns, there.st_size, there.st_ino))
        return found


def check_files(paths: Sequence[Any]) -> None:
    """FileNotFoundError for one that is not there."""
    for path in paths:
        if not isinstance(path, str | Path):
            raise TypeError(f"files are given one after another: from_config(a, b), not {type(path).__name__}")
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r}")


def _said(own: Settings) -> dict[str, Any]:
    """What the file says of how it is treated; about all else the host's own options speak."""
    start_time = own.start_time or own.timeouts.get("initialize")
    times = own.timeouts if start_time is None else {"initialize": start_time} | own.timeouts
    found: dict[str, Any] = {
        "trust": own.trust or None,
        "start": own.start,
        "start_time": start_time,
        "allow": None if own.tools.allow is None else tuple(own.tools.allow),
        "deny": tuple(own.tools.deny) or None,
        "quota": quota(own.limits) if own.limits else None,
        "roots": tuple(own.roots) or None,
        "timeouts": Timeouts(**times) if times else None,
    }
    return {name: value for name, value in found.items() if value is not None}

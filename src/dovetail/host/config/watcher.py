"""Watch configuration files, and update the servers of a host when a file changes.

If a file cannot be read, for example while it is being written, the servers do not change.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dovetail.host.config.config_files import find_config_files, load_config
from dovetail.host.config.secret_lookup import ConfigLevel, SecretResolver
from dovetail.host.config.server_entry import ConfigProblem, ServerConfig
from dovetail.log import log

_POLL_INTERVAL_S: Final = 1.0  # the seconds between two checks of the files


class ConfigWatcher:
    """Reads the configuration files of a host, and watches them for changes."""

    def __init__(
        self, paths: Sequence[str | Path], level: ConfigLevel, secrets: SecretResolver, *, should_watch: bool
    ) -> None:
        self._paths = [Path(path) for path in paths]
        self._level: ConfigLevel = level
        self._secrets = secrets
        self.should_watch = should_watch
        self.applied_entries: dict[str, ServerConfig] = {}  # the entries that the host uses now
        self._seen_stats: list[Any] = []
        # The last valid entries of each file.
        self._last_valid_entries: dict[Path, list[ServerConfig]] = {}

    def read(self) -> tuple[dict[str, ServerConfig], list[ConfigProblem]]:
        """Return a dict of the servers, and all problems. If several entries have the same name, use the first."""
        self._seen_stats = self._stat_files()
        entries: list[ServerConfig] = []
        problems: list[ConfigProblem] = []
        for source, path, level in self._list_files():
            file_entries, file_problems = load_config(path, source, level=level)
            if not any(problem.is_unreadable for problem in file_problems):
                self._last_valid_entries[path] = file_entries
            entries += self._last_valid_entries.get(path, [])
            problems += file_problems
        entries_by_name: dict[str, ServerConfig] = {}
        for entry in entries:
            if entries_by_name.setdefault(entry.name, entry) is not entry:
                text = f"{entry.name}: already defined in {entries_by_name[entry.name].path}"
                problems.append(ConfigProblem(entry.source, entry.path, text, is_error=False))
        return entries_by_name, problems

    def _list_files(self) -> list[tuple[str | None, Path, ConfigLevel]]:
        if self._paths:
            return [(None, path, self._level) for path in self._paths]
        return [*find_config_files()]

    def forget_changed(self, entries: Mapping[str, ServerConfig]) -> list[str]:
        """Remove the entries that have changed or no longer exist, and return their server names."""
        names = [name for name, entry in self.applied_entries.items() if entries.get(name) != entry]
        for name in names:
            del self.applied_entries[name]
        return names

    def create_target(self, entry: ServerConfig) -> Callable[[], dict[str, Any]]:
        """Return a function that resolves secrets and returns the target. The function is called when the server
        starts.
        """
        return lambda: entry.to_target(secrets=self._secrets)

    async def watch_files(self, reload: Callable[[], Awaitable[None]]) -> None:
        """Call `reload` whenever one of the files changes."""
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            if self._stat_files() != self._seen_stats:
                try:
                    await reload()
                except Exception as exc:
                    log.error("cannot watch the configuration files", exc_info=exc)

    def _stat_files(self) -> list[Any]:
        stats: list[Any] = []
        for _, path, _ in self._list_files():
            with contextlib.suppress(OSError):
                file_stat = path.stat()
                stats.append((path, file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino))
        return stats


def check_files_exist(paths: Sequence[Any]) -> None:
    """Raise FileNotFoundError if one of the configuration files does not exist."""
    for path in paths:
        if not isinstance(path, str | Path):
            raise TypeError(
                f"pass each file as a separate argument, as in from_config(a, b), not {type(path).__name__}"
            )
        if not Path(path).is_file():
            raise FileNotFoundError(f"file not found: {str(path)!r}")

"""Report changed tasks to the code in this process that watches them.

Changes by this process are reported at once. To find changes by other processes, each event loop regularly reads the
versions of all watched tasks.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Collection, Generator
from typing import TypeAlias

from dovetail.log import log

# Maps the ID of each task to its version. Deleted tasks are missing.
Versions: TypeAlias = dict[str, int]
# A function that reads the versions of tasks. Its parameters are the marker from its last call, and the task IDs.
# The function returns a new marker and the versions, or None if the store has not changed since the last call.
StartPoll: TypeAlias = Callable[[int | None, list[str]], "asyncio.Future[tuple[int, Versions | None]]"]


class TaskWatchers:
    """The watchers of all event loops in this process. The poll interval is None if no other process uses the store."""

    def __init__(self, start_poll: StartPoll, poll_interval_s: float | None) -> None:
        self._start_poll = start_poll
        self._poll_interval_s = poll_interval_s
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopWatchers] = {}

    @contextlib.contextmanager
    def watch(self, ids: Collection[str]) -> Generator[AsyncIterator[str]]:
        """Watch tasks for changes. The iterator first yields every ID, and then the ID of each changed task."""
        loop = asyncio.get_running_loop()
        watchers = self._by_loop.get(loop)
        if watchers is None:
            watchers = self._by_loop[loop] = _LoopWatchers(loop, self._start_poll, self._poll_interval_s)
        watcher = _Watcher(ids)
        watchers.add(watcher)
        try:
            yield watcher
        finally:
            watchers.remove(watcher)
            if not watchers.has_watchers:
                self._by_loop.pop(loop, None)

    def notify(self, id: str, version: int | None) -> None:
        """Report that this process has changed or deleted a task."""
        for loop, watchers in [*self._by_loop.items()]:
            if loop is asyncio.get_running_loop():
                watchers.notify(id, version)
            else:
                with contextlib.suppress(RuntimeError):  # The other event loop is closed.
                    loop.call_soon_threadsafe(watchers.notify, id, version)

    def report_version(self, id: str, version: int | None) -> None:
        """Report the version that a task has now to this event loop. Do nothing if the version is already known."""
        watchers = self._by_loop.get(asyncio.get_running_loop())
        if watchers is not None:
            watchers.compare([id], {} if version is None else {id: version})


class _Watcher:
    """An iterator over the IDs of changed tasks. It may yield an ID only once for several changes."""

    def __init__(self, ids: Collection[str]) -> None:
        self.ids = frozenset(ids)
        self._changed_ids = dict.fromkeys(ids)
        self._has_changes = asyncio.Event()

    def report(self, id: str) -> None:
        self._changed_ids[id] = None
        self._has_changes.set()

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while not self._changed_ids:
            self._has_changes.clear()
            await self._has_changes.wait()
        id = next(iter(self._changed_ids))
        del self._changed_ids[id]
        return id


class _LoopWatchers:
    def __init__(self, loop: asyncio.AbstractEventLoop, start_poll: StartPoll, poll_interval_s: float | None) -> None:
        self._loop = loop
        self._start_poll = start_poll
        self._poll_interval_s = poll_interval_s
        self._watchers: dict[str, set[_Watcher]] = {}
        self._versions: dict[str, int | None] = {}
        self._marker: int | None = None
        self._add_count = 0
        self._polled_add_count = 0
        self._is_polling = False

    @property
    def has_watchers(self) -> bool:
        return bool(self._watchers)

    def add(self, watcher: _Watcher) -> None:
        for id in watcher.ids:
            self._watchers.setdefault(id, set()).add(watcher)
        self._add_count += 1
        self._schedule_poll()

    def remove(self, watcher: _Watcher) -> None:
        for id in watcher.ids:
            watchers = self._watchers[id]
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[id]
                self._versions.pop(id, None)

    def notify(self, id: str, version: int | None) -> None:
        if id in self._watchers:
            self._versions[id] = version
            for watcher in self._watchers[id]:
                watcher.report(id)

    def _schedule_poll(self) -> None:
        if self._poll_interval_s is not None and self._watchers and not self._is_polling:
            self._is_polling = True
            self._loop.call_later(self._poll_interval_s, self._poll, context=contextvars.Context())

    def _poll(self) -> None:
        if not self._watchers:
            self._is_polling = False
            return
        ids, add_count = [*self._watchers], self._add_count
        # A new watcher needs the versions of its tasks even if no task has changed.
        marker = self._marker if add_count == self._polled_add_count else None
        try:
            future = self._start_poll(marker, ids)
        except RuntimeError:  # The store is closed.
            return
        self._polled_add_count = add_count
        future.add_done_callback(lambda future: self._end_poll(future, ids))

    def _end_poll(self, future: "asyncio.Future[tuple[int, Versions | None]]", ids: list[str]) -> None:
        self._is_polling = False
        if future.cancelled():
            return
        if (exc := future.exception()) is not None:
            log.warning("cannot read the changes of tasks: %s", exc)
            self._marker = None
        else:
            self._marker, versions = future.result()
            if versions is not None:
                self.compare(ids, versions)
        self._schedule_poll()

    def compare(self, ids: list[str], versions: Versions) -> None:
        for id in ids:
            # Without a known version, assume that the task has changed.
            if id not in self._versions or self._versions[id] != versions.get(id):
                self.notify(id, versions.get(id))

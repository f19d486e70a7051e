"""Task handles for users of a client, and task references, with which another process finds a task."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any, Final, Protocol

import msgspec

from dovetail.error_context import clip
from dovetail.log import log_failure
from dovetail.tasks.task_messages import Task
from dovetail.tasks.task_record import TaskStatus, is_final
from dovetail.wire.base import Struct
from dovetail.wire.base64url import decode_base64url
from dovetail.wire.codec import encode
from dovetail.wire.tools import CallToolResult

_REFERENCE_PREFIX: Final = "task"
_REFERENCE_FORMAT: Final = "1"  # the format version of a reference
_MAX_REFERENCE_CHARS: Final = 16_384


class TaskUpdate(Struct, frozen=True, kw_only=True):
    """The state of a task at one time."""

    status: TaskStatus  # "working", "input_required", "completed", "failed" or "cancelled".
    message: str | None = None  # A message about what the task does now.
    created_at: str | None = None  # The creation time in ISO 8601. None if the server did not create a task.
    updated_at: str | None = None  # The time of the last change in ISO 8601.
    ttl: float | None = None  # The server keeps the task for this many seconds after its creation. None for no limit.

    @property
    def is_final(self) -> bool:
        """Return whether the task has ended."""
        return is_final(self.status)


class TaskReference(Struct, frozen=True, kw_only=True):
    """The data that `TaskHandle.reference` contains."""

    server: str | None
    tool: str
    id: str

    def encode(self) -> str:
        """Return the reference as a text, with the version of its format."""
        data = base64.urlsafe_b64encode(encode(self)).decode("ascii").rstrip("=")
        return f"{_REFERENCE_PREFIX}{_REFERENCE_FORMAT}.{data}"

    @classmethod
    def decode(cls, reference: Any) -> "TaskReference":
        """Decode a reference. Raise ValueError if it is invalid. The reference is a secret, so no error shows it."""
        if not isinstance(reference, str):
            raise TypeError(f"a task reference must be a string, not {type(reference).__name__}")
        prefix, _, data = reference.strip().partition(".")
        version = prefix.removeprefix(_REFERENCE_PREFIX)
        if prefix == version or not version.isdecimal() or not data or len(data) > _MAX_REFERENCE_CHARS:
            raise ValueError("invalid task reference. Pass the text of TaskHandle.reference")
        if version != _REFERENCE_FORMAT:
            raise ValueError(
                f"the task reference has the format version {clip(version)}, but this version of dovetail supports "
                f"only {_REFERENCE_FORMAT}. Update dovetail"
            )
        try:
            return msgspec.json.decode(decode_base64url(data), type=cls)
        except (ValueError, RecursionError):
            raise ValueError("the task reference is damaged. Pass the whole text of TaskHandle.reference") from None


def build_update(task: Task) -> TaskUpdate:
    """Return the state of a task for users."""
    return TaskUpdate(
        status=task.status,
        message=task.status_message,
        created_at=task.created_at,
        updated_at=task.last_updated_at,
        ttl=None if task.ttl_ms is None else min(task.ttl_ms, 1e15) / 1000,
    )


OnUpdate = Callable[[TaskUpdate], None]


class TaskSource(Protocol):
    """A call that a handle waits for. All functions run in the event loop of the client."""

    update: TaskUpdate  # the state of the task when the handle is created
    is_local: bool  # True if the call is not a task on the server. Such a call continues even if no caller waits.

    async def wait(self, on_update: OnUpdate) -> CallToolResult:
        """Wait for the result, and call `on_update` after each change."""
        ...

    async def fetch(self) -> TaskUpdate:
        """Return the state of the task as it is now."""
        ...

    async def cancel(self) -> None:
        """Ask the server to cancel the task."""
        ...

    def get_reference(self) -> str:
        """Return the reference of the task. Raise NotSupported if it has none."""
        ...


class TaskWatcher:
    """Watches a task while at least one caller waits for it. All callers share one watcher."""

    def __init__(self, source: TaskSource) -> None:
        self.source = source
        self.update = source.update
        self._watcher: asyncio.Task[CallToolResult] | None = None
        self._waiter_count = 0
        self._version = 0
        self._changed = asyncio.Event()
        if source.is_local:
            self._start()

    def _start(self) -> asyncio.Task[CallToolResult]:
        """Return the asyncio task that waits for the result. If it has failed, start a new one to try again."""
        loop, watcher = asyncio.get_running_loop(), self._watcher
        if watcher is None or (
            not self.source.is_local and (watcher.get_loop() is not loop or (watcher.done() and _has_failed(watcher)))
        ):
            self._changed = asyncio.Event()
            watcher = self._watcher = loop.create_task(self.source.wait(self.set_update))
            watcher.add_done_callback(self._handle_done)
        return watcher

    def _handle_done(self, watcher: asyncio.Task[CallToolResult]) -> None:
        log_failure(watcher)
        self._notify()

    def set_update(self, update: TaskUpdate) -> None:
        if update != self.update:
            self.update = update
            self._version += 1
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self) -> CallToolResult:
        self._waiter_count += 1
        try:
            return await asyncio.shield(self._start())
        finally:
            self.leave()

    async def join(self) -> None:
        """Add a waiter. The caller then calls `next_update` for each change, and `leave` at the end."""
        self._waiter_count += 1
        self._start()

    def leave(self) -> None:
        """Remove a waiter. After the last waiter, stop watching the task, but do not cancel it."""
        self._waiter_count -= 1
        watcher = self._watcher
        if self._waiter_count == 0 and not self.source.is_local and watcher is not None and not watcher.done():
            watcher.cancel()
            self._watcher = None  # The next waiter needs a new watcher, because this one is being cancelled.

    async def next_update(self, seen_version: int | None) -> tuple[int, TaskUpdate] | None:
        """Return the next state and its version. Return None after the final state."""
        while seen_version == self._version:
            if self.update.is_final:
                return None
            changed, watcher = self._changed, self._start()
            if not watcher.done():
                await changed.wait()
            if watcher.done() and seen_version == self._version:
                await watcher  # This raises the error.
                return None
        return self._version, self.update


class TaskHandle:
    """A call that runs as a task on the server. `Client.start_task` and `Client.get_task` create it.

    `await handle` waits for the result, which is that of `Client.call_tool`, and raises the error of the call if the
    task failed. `async for update in handle` yields a `TaskUpdate` for each change, and ends with the task. While you
    wait, the handlers of the client answer the questions of the task. If you stop waiting, the task continues.
    """

    def __init__(self, _source: TaskSource, _run: Callable[..., Awaitable[Any]]) -> None:
        self._source = _source
        self._watcher = TaskWatcher(_source)
        self._run = _run

    @property
    def status(self) -> TaskStatus:
        """Return the last known status: "working", "input_required", "completed", "failed" or "cancelled".

        The handle learns about changes only while you wait for it. `refresh` asks the server.
        """
        return self._watcher.update.status

    @property
    def is_task(self) -> bool:
        """Return whether the server runs the call as a task. Without a task, the handle has no reference."""
        return not self._source.is_local

    @property
    def reference(self) -> str:
        """Return a text for `Client.get_task`, which finds the task even in another process.

        Store it like a password, because it may be enough to read the result. It contains the name of the server, the
        name of the tool and the task ID.

        Raises:
            NotSupported: the server ran the call without a task.
        """
        return self._source.get_reference()

    def __repr__(self) -> str:
        return f"<TaskHandle {self.status}>"

    def __await__(self) -> Generator[Any, Any, CallToolResult]:
        return self._wait().__await__()

    async def _wait(self) -> CallToolResult:
        return await self._run(self._watcher.wait)

    async def __aiter__(self) -> AsyncIterator[TaskUpdate]:
        version: int | None = None
        await self._run(self._watcher.join)
        try:
            while (current := await self._run(self._watcher.next_update, version)) is not None:
                version, update = current
                yield update
        finally:
            await self._run(self._leave)

    async def _leave(self) -> None:
        self._watcher.leave()

    async def refresh(self) -> TaskUpdate:
        """Ask the server for the state of the task, and return it. Open questions are not answered."""
        return await self._run(self._refresh)

    async def _refresh(self) -> TaskUpdate:
        self._watcher.set_update(await self._source.fetch())
        return self._watcher.update

    async def cancel(self) -> None:
        """Ask the server to cancel the task.

        The task may still end in another way. Await the handle to see how, which raises TaskCancelled if the task was
        cancelled. If the task has ended already, nothing happens.
        """
        await self._run(self._source.cancel)


class SyncTaskHandle:
    """A call that runs as a task on the server. `SyncClient.start_task` and `SyncClient.get_task` create it.

    `for update in handle` yields a `TaskUpdate` for each change.
    """

    def __init__(self, _handle: TaskHandle, _run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._handle = _handle
        self._run = _run

    @property
    def status(self) -> TaskStatus:
        """Return the last known status. The handle learns about changes only while you wait for it."""
        return self._handle.status

    @property
    def is_task(self) -> bool:
        """Return whether the server runs the call as a task. Without a task, the handle has no reference."""
        return self._handle.is_task

    @property
    def reference(self) -> str:
        """Return a text for `SyncClient.get_task`. See `TaskHandle.reference`."""
        return self._handle.reference

    def __repr__(self) -> str:
        return f"<SyncTaskHandle {self.status}>"

    def result(self, timeout: float | None = None) -> CallToolResult:
        """Wait for the result, and return it as `SyncClient.call_tool` does.

        Args:
            timeout: Seconds to wait before TimeoutError is raised. The task continues. None for no limit.
        """
        return self._run(_wait_for(self._handle, timeout))

    def __iter__(self) -> Iterator[TaskUpdate]:
        updates: Any = aiter(self._handle)
        try:
            while True:
                try:
                    update = self._run(_next_update(updates))
                except StopAsyncIteration:
                    return
                yield update
        finally:
            # At the end of the program, the event loop of the client may already be closed.
            with contextlib.suppress(RuntimeError):
                self._run(updates.aclose())

    def refresh(self) -> TaskUpdate:
        """Ask the server for the state of the task, and return it."""
        return self._run(self._handle.refresh())

    def cancel(self) -> None:
        """Ask the server to cancel the task. See `TaskHandle.cancel`."""
        self._run(self._handle.cancel())


async def _wait_for(handle: TaskHandle, timeout: float | None) -> CallToolResult:
    async with asyncio.timeout(timeout):
        return await handle


async def _next_update(updates: Any) -> TaskUpdate:
    return await anext(updates)


def _has_failed(watcher: asyncio.Task[Any]) -> bool:
    return watcher.cancelled() or watcher.exception() is not None

"""Run OAuth flows: perform the actions that they yield, and send them the results."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from dovetail.oauth.flow import AcquireLock, Await, Flow, Now, Pause

T = TypeVar("T")

ActionHandlers: TypeAlias = Mapping[type[Any], Callable[[Any], Awaitable[Any]]]


class FlowRunner:
    """Runs OAuth flows for a client, a guard or an authorization server.

    `handlers` maps each type of action to the function that performs it. The runner itself handles the clock, pauses,
    awaitables and the lock.
    """

    def __init__(self, handlers: ActionHandlers) -> None:
        self._handlers = handlers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flow_lock = asyncio.Lock()
        self._thread_lock = asyncio.Lock()

    async def run(self, flow: Flow[T], *, in_thread: bool = False) -> T:
        """Run a flow and return its result.

        If `in_thread` is True, each step runs in a thread, because a token store may block.
        """
        result: Any = None
        error: Exception | None = None  # If an awaitable fails, the flow receives its exception.
        held_lock: asyncio.Lock | None = None
        try:
            while True:
                is_done, action = (
                    await self._advance_in_thread(flow, result, error) if in_thread else _advance(flow, result, error)
                )
                error = None
                if is_done:
                    return action
                if isinstance(action, Now):
                    result = time.time()
                elif isinstance(action, AcquireLock):
                    self._renew_locks()
                    await self._flow_lock.acquire()
                    held_lock, result = self._flow_lock, None
                elif isinstance(action, Await):
                    try:
                        result = await action.awaitable
                    except Exception as exc:
                        error = exc
                else:
                    result = await self._perform(action)
        finally:
            if held_lock is not None:
                held_lock.release()

    async def _perform(self, action: Any) -> Any:
        if isinstance(action, Pause):
            return await asyncio.sleep(action.seconds)
        handler = self._handlers.get(type(action))
        if handler is None:
            raise TypeError(f"no handler for the OAuth flow action {type(action).__name__}")
        return await handler(action)

    async def _advance_in_thread(self, flow: Flow[Any], value: Any, error: Exception | None) -> tuple[bool, Any]:
        """Run one step of a flow in a thread. Flows are not thread-safe, so only one step runs at a time."""
        self._renew_locks()
        async with self._thread_lock:
            return await asyncio.to_thread(_advance, flow, value, error)

    def _renew_locks(self) -> None:
        """Create new locks for a new event loop, because a lock works in only one event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._flow_lock, self._thread_lock = loop, asyncio.Lock(), asyncio.Lock()


def _advance(flow: Flow[Any], value: Any, error: Exception | None) -> tuple[bool, Any]:
    try:
        return False, flow.send(value) if error is None else flow.throw(error)
    except StopIteration as done:
        return True, done.value

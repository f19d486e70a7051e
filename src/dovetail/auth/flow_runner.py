"""Run flows of a server, which need only HTTP calls and the time.

No redirect is followed, nothing large is read, nothing is waited for long.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from dovetail.auth.safe_fetch import send_request
from dovetail.oauth.flow import (
    AcquireLock,
    Await,
    CheckUserActive,
    FetchUntrusted,
    Flow,
    HTTPRequest,
    Now,
    Pause,
    VerifyPassword,
)
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.http_client.http_client import HTTPClient

_MAX_DOCUMENT_BYTES: Final = 256 * 1024

T = TypeVar("T")


class FlowRunner:
    """One loop's connections for such calls, made when first needed."""

    def __init__(
        self,
        *,
        is_allowed_address: Callable[[str], bool]
        | None = None,  # which addresses may be fetched from for somebody unknown
        max_untrusted_bytes: int = _MAX_DOCUMENT_BYTES,
        perform: Callable[[Any], Awaitable[Any]] | None = None,  # what else a flow may wish for
    ) -> None:
        self._is_allowed_address = is_allowed_address
        self._max_untrusted_bytes = max_untrusted_bytes
        self._perform = perform
        self._fetcher: HTTPClient | None = None
        self._filtered_fetcher: HTTPClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exclusive_lock = asyncio.Lock()
        self._thread_lock = asyncio.Lock()

    async def run(self, flow: Flow[T], *, in_thread: bool = False) -> T:
        """What the flow comes to; its steps in a thread, if they may take a while."""
        result: Any = None
        async with AsyncExitStack() as locks:
            while True:
                done, action = await self._advance_in_thread(flow, result) if in_thread else _advance(flow, result)
                if done:
                    return action
                match action:
                    case Now():
                        result = time.time()
                    case Pause():
                        result = await asyncio.sleep(action.seconds)
                    case HTTPRequest():
                        result = await send_request(self._get_fetcher(), action)
                    case FetchUntrusted() if self._is_allowed_address is not None:
                        result = await send_request(self._get_fetcher(is_filtered=True), HTTPRequest(url=action.url))
                    case AcquireLock():
                        self._get_fetcher()
                        result = await locks.enter_async_context(self._exclusive_lock)
                    case Await():
                        result = await action.awaitable
                    case VerifyPassword() | CheckUserActive() if self._perform is not None:
                        result = await self._perform(action)
                    case _:
                        raise TypeError(f"nobody here can grant {action!r}")

    async def _advance_in_thread(self, flow: Flow[Any], value: Any) -> tuple[bool, Any]:
        """A step in a thread; one flow at a time, for flows know nothing of threads."""
        async with self._thread_lock:
            return await asyncio.to_thread(_advance, flow, value)

    def _get_fetcher(self, *, is_filtered: bool = False) -> HTTPClient:
        """The connections of the loop that is running."""
        loop = asyncio.get_running_loop()
        if self._fetcher is None or self._filtered_fetcher is None or self._loop is not loop:
            self._loop, self._exclusive_lock = loop, asyncio.Lock()
            self._fetcher = HTTPClient(limits=FetchLimits(max_body_bytes=_MAX_DOCUMENT_BYTES), idle_timeout=1.0)
            # Not by a proxy of the environment: then the address that is connected to would be the proxy's.
            self._filtered_fetcher = HTTPClient(
                limits=FetchLimits(max_body_bytes=self._max_untrusted_bytes),
                address_filter=self._is_allowed_address,
                idle_timeout=1.0,
                trust_env=False,
            )
        return self._filtered_fetcher if is_filtered else self._fetcher

    async def close(self) -> None:
        """Let go of the connections."""
        fetchers, self._fetcher, self._filtered_fetcher = (self._fetcher, self._filtered_fetcher), None, None
        for fetcher in fetchers:
            if fetcher is not None and self._loop is asyncio.get_running_loop():
                await fetcher.close()


def _advance(flow: Flow[Any], value: Any) -> tuple[bool, Any]:
    """The next wish of a flow, or what it came to."""
    try:
        return False, flow.send(value)
    except StopIteration as done:
        return True, done.value

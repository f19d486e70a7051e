"""Limits for the duration, result size, concurrency and rate of tool calls."""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from dovetail.background_tasks import BackgroundTasks
from dovetail.error_context import add_context
from dovetail.errors import PolicyError
from dovetail.keys import build_key
from dovetail.protocol.interfaces.shared_state import EventLimiter, SharedStateUnavailable, SharedWorker
from dovetail.protocol.rate_limiter import RateLimiter
from dovetail.wire.base import UNSET, Struct, replace
from dovetail.wire.codec import encode
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult

_RATE_PATTERN: Final = re.compile(r"(\d{1,9}) ?/ ?(s|sec|min|h|hour|day)")
_MIN_POLL_S: Final = 0.02  # the first delay before a call checks the calls of other workers again
_MAX_POLL_S: Final = 0.5  # The delay doubles up to this value.
_SECONDS_BY_UNIT: Final = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86400.0}


class ToolLimits(Struct, frozen=True, kw_only=True):
    """The limits for calls of one tool. None means no limit."""

    timeout: float | None = None  # the maximum seconds for a call
    max_result_bytes: int | None = None  # the maximum size of a result. Larger results are shortened
    max_concurrency: int | None = None  # the maximum number of calls at the same time
    rate: str | None = None  # the maximum number of calls in a period, such as "60/min"

    def __post_init__(self) -> None:
        for name in ("timeout", "max_result_bytes", "max_concurrency"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
                raise ValueError(f"the limit {name} must be a number greater than 0, not {value!r}")
        for name in ("max_result_bytes", "max_concurrency"):
            if isinstance(value := getattr(self, name), float):
                raise ValueError(f"the limit {name} must be an integer, not {value!r}")
        if self.rate is not None:
            parse_rate(self.rate)

    def __str__(self) -> str:
        limits = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} {value}" for name, value in limits if value is not None)


def combine_limits(first: ToolLimits, second: ToolLimits) -> ToolLimits:
    """Combine two sets of limits. The stricter value of each limit applies."""
    return ToolLimits(
        timeout=_min_or_none(first.timeout, second.timeout),
        max_result_bytes=_min_or_none(first.max_result_bytes, second.max_result_bytes),
        max_concurrency=_min_or_none(first.max_concurrency, second.max_concurrency),
        rate=min((rate for rate in (first.rate, second.rate) if rate is not None), key=_rate_order, default=None),
    )


def parse_limits(limits: ToolLimits | str | Mapping[str, Any]) -> ToolLimits:
    """Parse the limits of a policy, given as a rate or a table. Raise ValueError if a value is invalid."""
    if isinstance(limits, ToolLimits):
        return limits
    table: dict[str, Any] = {"rate": limits} if isinstance(limits, str) else dict(limits)
    if unknown := table.keys() - set(ToolLimits.__struct_fields__):
        raise ValueError(
            f"unknown limit {', '.join(sorted(unknown))}. Known limits: {', '.join(ToolLimits.__struct_fields__)}"
        )
    return ToolLimits(**table)


def parse_rate(rate: str) -> tuple[int, float]:
    """Parse a rate such as "60/min" into a number of calls and seconds. Raise ValueError if the rate is invalid."""
    match = _RATE_PATTERN.fullmatch(rate) if isinstance(rate, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if match is None or int(match[1]) == 0:
        raise ValueError(f'invalid rate {rate!r}. A rate is a number and a period, such as "60/min"')
    return int(match[1]), _SECONDS_BY_UNIT[match[2]]


def _rate_order(text: str) -> tuple[float, int]:
    count, seconds = parse_rate(text)
    return count / seconds, count


def _min_or_none(left: Any, right: Any) -> Any:
    return right if left is None else left if right is None else min(left, right)


class Meter:
    """Counts calls and enforces the limits. Tools are counted by name, and other requests by server and kind.

    URIs and prompt names are not counted separately, because callers choose them. With many different names, a caller
    could bypass the limits and fill the memory.
    """

    def __init__(self) -> None:
        self._limiters: dict[str, RateLimiter] = {}  # The keys are rates.
        self._semaphores: dict[tuple[str, str], tuple[int, asyncio.Semaphore]] = {}
        self._cluster: SharedWorker | None = None
        self._shared_limiters: dict[str, EventLimiter] = {}  # The keys are rates.
        self._place_count = 0
        self._tasks = BackgroundTasks()

    def join_cluster(self, cluster: SharedWorker) -> None:
        """From now on, count the calls of all workers of a cluster together."""
        self._cluster = cluster

    @asynccontextmanager
    async def limit_call(
        self, server: str, tool: str, limits: ToolLimits, kind: str = "tool.call"
    ) -> AsyncGenerator[None]:
        """Run one call within its limits.

        Wait if too many calls are running. Raise PolicyError if the rate is exceeded.
        """
        tool = tool if kind == "tool.call" else kind
        if limits.rate is not None:
            await self.record_call(server, tool, limits.rate)
        if limits.max_concurrency is None:
            yield
            return
        size, semaphore = self._semaphores.get((server, tool), (0, None))
        if semaphore is None or size != limits.max_concurrency:
            semaphore = asyncio.Semaphore(limits.max_concurrency)
            self._semaphores[server, tool] = limits.max_concurrency, semaphore
        async with semaphore:
            if self._cluster is None:
                yield
            else:
                async with self._take_place(
                    self._cluster, build_key("concurrency", server, tool), limits.max_concurrency
                ):
                    yield

    @asynccontextmanager
    async def _take_place(self, cluster: SharedWorker, name: str, limit: int) -> AsyncGenerator[None]:
        """Wait until the workers together run fewer than `limit` calls. If the back end cannot be used, do not wait."""
        from dovetail.cluster.background_work import release_place  # Few gateways are in a cluster.

        self._place_count += 1
        holder, delay = f"{cluster.name}.{self._place_count}", _MIN_POLL_S
        try:
            with suppress(SharedStateUnavailable):
                while not await cluster.state.acquire(name, holder, limit, None):
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, _MAX_POLL_S)
            yield
        finally:
            # A place is freed even if `acquire` failed, because the back end may have given a place.
            self._tasks.start(release_place(cluster, name, holder))

    async def record_call(self, server: str, tool: str, rate: str) -> None:
        """Count one call. Raise PolicyError if its rate limit is exceeded."""
        now = asyncio.get_running_loop().time()
        if self._cluster is None:
            limiter = self._limiters.get(rate)
            if limiter is None:
                limiter = self._limiters[rate] = RateLimiter(*parse_rate(rate))
            wait = limiter.take((server, tool), now)
        else:
            shared_limiter = self._shared_limiters.get(rate)
            if shared_limiter is None:
                shared_limiter = self._cluster.create_rate_limiter(f"quota {rate}", *parse_rate(rate))
                self._shared_limiters[rate] = shared_limiter
            wait = await shared_limiter.take(build_key(server, tool), now)
        if wait:
            message = f"{server}.{tool}: rate limit of {rate} exceeded. Try again in {math.ceil(wait)} s"
            raise add_context(PolicyError(message), server=server)


def truncate_result(result: CallToolResult, max_bytes: int | None) -> CallToolResult:
    """Shorten the text of a tool result to `max_bytes` bytes. Append a note with the original size."""
    if max_bytes is None:
        return result
    size = len(encode(result))
    if size <= max_bytes:
        return result
    text = result.text
    kept_text = text.encode()[:max_bytes].decode("utf-8", "ignore")
    note = f"[result cut: it has {size} bytes, and the limit is {max_bytes} bytes]"
    content = [TextContent(text=kept_text), TextContent(text=note)] if kept_text else [TextContent(text=note)]
    return replace(result, content=content, structured_content=UNSET)

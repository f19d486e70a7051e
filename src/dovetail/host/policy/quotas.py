"""Quotas: how long, how large, how many at once and how often, for the tools a policy limits."""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final

from dovetail.error_context import add_context
from dovetail.errors import PolicyError
from dovetail.wire.base import UNSET, Struct, replace
from dovetail.wire.codec import encode
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult

_RATE_PATTERN: Final = re.compile(r"(\d{1,9}) ?/ ?(s|sec|min|h|hour|day)")
_SECONDS_BY_UNIT: Final = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86400.0}


class Rate(Struct, frozen=True):
    """So many in so many seconds."""

    count: int
    seconds: float

    def __str__(self) -> str:
        unit = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "day"}[self.seconds]
        return f"{self.count}/{unit}"


class ToolLimits(Struct, frozen=True, kw_only=True):
    """The limits of one tool. None: no limit."""

    timeout: float | None = None  # seconds
    max_result_bytes: int | None = None
    max_concurrency: int | None = None
    rate: str | None = None  # such as "60/min"

    def __post_init__(self) -> None:
        for name in ("timeout", "max_result_bytes", "max_concurrency"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
                raise ValueError(f"{name} must be a number greater than 0, not {value!r}")
        for name in ("max_result_bytes", "max_concurrency"):
            if isinstance(value := getattr(self, name), float):
                raise ValueError(f"{name} must be an integer, not {value!r}")
        if self.rate is not None:
            parse_rate(self.rate)

    def __str__(self) -> str:
        limits = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} {value}" for name, value in limits if value is not None)


def combine_limits(first: ToolLimits, second: ToolLimits) -> ToolLimits:
    """Return the stricter limit of each kind."""
    return ToolLimits(
        timeout=_min_or_none(first.timeout, second.timeout),
        max_result_bytes=_min_or_none(first.max_result_bytes, second.max_result_bytes),
        max_concurrency=_min_or_none(first.max_concurrency, second.max_concurrency),
        rate=min((rate for rate in (first.rate, second.rate) if rate is not None), key=_rate_order, default=None),
    )


def parse_limits(limits: ToolLimits | str | Mapping[str, Any]) -> ToolLimits:
    """Return limits as a policy has them: a rate, or a table. Raise ValueError if a value is invalid."""
    if isinstance(limits, ToolLimits):
        return limits
    table: dict[str, Any] = {"rate": limits} if isinstance(limits, str) else dict(limits)
    if unknown := table.keys() - set(ToolLimits.__struct_fields__):
        raise ValueError(
            f"unknown limit {', '.join(sorted(unknown))}. Known limits: {', '.join(ToolLimits.__struct_fields__)}"
        )
    return ToolLimits(**table)


@lru_cache
def parse_rate(rate: str) -> Rate:
    """Return a rate such as "60/min". Raise ValueError if it is invalid."""
    match = _RATE_PATTERN.fullmatch(rate) if isinstance(rate, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if match is None or int(match[1]) == 0:
        raise ValueError(f'invalid rate {rate!r}. Write it as "60/min"')
    return Rate(int(match[1]), _SECONDS_BY_UNIT[match[2]])


def _rate_order(text: str) -> tuple[float, int]:
    rate = parse_rate(text)
    return rate.count / rate.seconds, rate.count


def _min_or_none(left: Any, right: Any) -> Any:
    return right if left is None else left if right is None else min(left, right)


class Meter:
    """What was used of the limits: for each tool of each server, and for each other kind of thing of each server.

    Addresses and names of prompts are the caller's to choose: counted one by one they would be no limit, and no end.
    """

    def __init__(self) -> None:
        self._call_times: dict[tuple[str, str], deque[float]] = {}
        self._semaphores: dict[tuple[str, str], tuple[int, asyncio.Semaphore]] = {}

    @asynccontextmanager
    async def limit_call(
        self, server: str, tool: str, limits: ToolLimits, kind: str = "tool.call"
    ) -> AsyncGenerator[None]:
        """One call; PolicyError if there were too many of late, a wait if there are too many now."""
        tool = tool if kind == "tool.call" else kind
        if limits.rate is not None:
            self.record_call(server, tool, parse_rate(limits.rate))
        async with contextlib.AsyncExitStack() as stack:
            if limits.max_concurrency is not None:
                size, semaphore = self._semaphores.get((server, tool), (0, None))
                if semaphore is None or size != limits.max_concurrency:
                    semaphore = asyncio.Semaphore(limits.max_concurrency)
                    self._semaphores[server, tool] = limits.max_concurrency, semaphore
                await stack.enter_async_context(semaphore)
            yield

    def record_call(self, server: str, tool: str, rate: Rate) -> None:
        """One more; PolicyError if that is one too many."""
        now = asyncio.get_running_loop().time()
        call_times = self._call_times.setdefault((server, tool), deque())
        while call_times and now - call_times[0] >= rate.seconds:
            call_times.popleft()
        if len(call_times) >= rate.count:
            wait = rate.seconds - (now - call_times[0])
            raise add_context(PolicyError(f"{server}.{tool}: more than {rate}; again in {wait:.0f} s"), server=server)
        call_times.append(now)


def truncate_result(result: CallToolResult, max_bytes: int | None) -> CallToolResult:
    """A result of at most so many bytes: what is longer gives way to its beginning, and says so."""
    if max_bytes is None:
        return result
    size = len(encode(result))
    if size <= max_bytes:
        return result
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    kept_text = text.encode()[:max_bytes].decode("utf-8", "ignore")
    note = f"[the result has {size} bytes, of which {max_bytes} may be passed on]"
    content = [TextContent(text=kept_text), TextContent(text=note)] if kept_text else [TextContent(text=note)]
    return replace(result, content=content, structured_content=UNSET)

"""Quotas: how long, how large, how many at once and how often, for the tools a policy limits."""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
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
    """The limits of one tool; None where there is none."""

    timeout: float | None = None
    max_result_bytes: int | None = None
    max_concurrency: int | None = None
    rate: Rate | None = None

    def combine_strictest(self, other: "ToolLimits") -> "ToolLimits":
        """The strictest of each kind."""
        return ToolLimits(
            timeout=_min_or_none(self.timeout, other.timeout),
            max_result_bytes=_min_or_none(self.max_result_bytes, other.max_result_bytes),
            max_concurrency=_min_or_none(self.max_concurrency, other.max_concurrency),
            rate=min(
                (rate for rate in (self.rate, other.rate) if rate is not None),
                key=lambda rate: (rate.count / rate.seconds, rate.count),
                default=None,
            ),
        )

    def __str__(self) -> str:
        limits = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} {value}" for name, value in limits if value is not None)


def parse_limits(limits: str | Mapping[str, Any]) -> ToolLimits:
    """A quota as a policy has it: a rate alone, or a table; ValueError if it is neither."""
    table: dict[str, Any] = {"rate": limits} if isinstance(limits, str) else dict(limits)
    if unknown := table.keys() - set(ToolLimits.__struct_fields__):
        raise ValueError(
            f"no limit is called {', '.join(sorted(unknown))}; there are {', '.join(ToolLimits.__struct_fields__)}"
        )
    for name in ("timeout", "max_result_bytes", "max_concurrency"):
        value = table.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise ValueError(f"the limit {name} is a number over 0, not {value!r}")
    for name in ("max_result_bytes", "max_concurrency"):
        if isinstance(table.get(name), float):
            raise ValueError(f"the limit {name} is a whole number, not {table[name]!r}")
    return ToolLimits(
        timeout=table.get("timeout"),
        max_result_bytes=table.get("max_result_bytes"),
        max_concurrency=table.get("max_concurrency"),
        rate=_parse_rate(table["rate"]) if "rate" in table else None,
    )


def _parse_rate(rate: Any) -> Rate:
    match = _RATE_PATTERN.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f'a rate is written "60/min", not {rate!r}')
    return Rate(int(match[1]), _SECONDS_BY_UNIT[match[2]])


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
            self.record_call(server, tool, limits.rate)
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

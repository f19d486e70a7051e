"""Test that list methods collect all pages of any server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.pagination import PageCollector
from dovetail.errors import InvalidResult
from dovetail.protocol.limits import ClientLimits
from dovetail.wire.tools import ListToolsResult, Tool

LIMITS = ClientLimits(max_pages=6, max_items=20)
pages = st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["a", "b", "c", "d", "", None])), min_size=1, max_size=10)


async def collect(fetch: Callable[[str | None], Awaitable[Any]]) -> list[Any]:
    collector = PageCollector("tools", LIMITS)
    cursor = collector.add(await fetch(None))
    while cursor is not None:
        cursor = collector.add(await fetch(cursor))
    return collector.items


@given(pages)
def test_a_list_ends_is_whole_or_is_refused(given_pages: list[Any]) -> None:
    asked: list[str | None] = []
    numbers = iter(range(10_000))

    async def fetch(cursor: str | None) -> Any:
        size, following = given_pages[len(asked) % len(given_pages)]
        asked.append(cursor)
        tools = [Tool(name=str(next(numbers)), input_schema={}) for _ in range(size)]
        return ListToolsResult(tools=tools, next_cursor=following)

    try:
        found = asyncio.run(collect(fetch))
    except InvalidResult:
        repeated = len(set(asked)) < len(asked) or given_pages[(len(asked) - 1) % len(given_pages)][1] in asked
        assert repeated or len(asked) == LIMITS.max_pages or next(numbers) > LIMITS.max_items
        return
    assert [one.name for one in found] == [str(number) for number in range(len(found))]
    assert not given_pages[(len(asked) - 1) % len(given_pages)][1]
    assert len(asked) <= LIMITS.max_pages


async def test_the_limits_are_named() -> None:
    async def endless(cursor: str | None) -> Any:
        return ListToolsResult(tools=[], next_cursor=f"{cursor}x")

    with pytest.raises(InvalidResult) as caught:
        await collect(endless)
    assert caught.value.hint == "raise ClientLimits(max_pages=...)"

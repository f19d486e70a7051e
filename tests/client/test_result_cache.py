"""Test the result cache against a model, and concurrent requests that share a result."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.result_cache import ResultCache
from dovetail.wire.tools import ListToolsResult, Tool

KEYS = st.sampled_from(["tools/list", "prompts/list", "resources/list", "resources/read"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), KEYS, st.integers(0, 2), st.sampled_from([None, 0, -1, 1000, 5000])),
        st.tuples(st.just("pass"), st.integers(0, 4)),
        st.tuples(
            st.just("hear"), st.sampled_from(["tools/list_changed", "resources/list_changed", "resources/updated"])
        ),
        st.tuples(st.just("clear")),
    ),
    max_size=40,
)
STALE = {
    "tools/list_changed": {"tools/list"},
    "resources/list_changed": {"resources/list"},
    "resources/updated": {"resources/read"},
}


@given(STEPS)
def test_nothing_is_kept_longer_or_shorter_than_it_may(steps: list[Any]) -> None:
    asyncio.run(played(steps))


async def played(steps: list[Any]) -> None:
    now, serial = 0.0, itertools.count()
    cache = ResultCache(100, lambda: now)
    model: dict[Any, tuple[float, Any]] = {}
    for step in steps:
        match step:
            case "get", method, number, lifetime:
                made = ListToolsResult(tools=[], ttl_ms=lifetime, next_cursor=str(next(serial)))

                async def fetch(made: Any = made) -> Any:
                    return made

                found = await cache.get(method, {"n": number}, fetch)
                until, kept = model.get((method, number), (0.0, None))
                assert found == (kept if now < until else made)
                if found is made:
                    model[method, number] = (now + (lifetime or 0) / 1000, made)
            case "pass", seconds:
                now += seconds
            case "hear", method:
                cache.invalidate("notifications/" + method)
                model = {key: value for key, value in model.items() if key[0] not in STALE[method]}
            case _:
                cache.clear()
                model = {}


async def test_the_longest_unused_give_way() -> None:
    cache = ResultCache(2)
    fetched: list[int] = []

    async def get(number: int) -> None:
        async def fetch() -> Any:
            fetched.append(number)
            return ListToolsResult(tools=[], ttl_ms=60_000)

        await cache.get("tools/list", {"n": number}, fetch)

    for number in (1, 2, 1, 3, 1, 2):
        await get(number)
    assert fetched == [1, 2, 3, 2]


async def test_a_failure_is_everyones_who_waited_and_is_not_kept() -> None:
    cache = ResultCache(2)
    gate = asyncio.Event()
    fetched = 0

    async def fetch() -> Any:
        nonlocal fetched
        fetched += 1
        await gate.wait()
        raise LookupError("no")

    tasks = [asyncio.get_running_loop().create_task(cache.get("a", {}, fetch)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set()
    assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [LookupError] * 3
    assert fetched == 1
    with pytest.raises(LookupError):
        await cache.get("a", {}, fetch)
    assert fetched == 2


async def test_what_changed_on_the_way_is_not_kept_nor_shared_with_later_ones() -> None:
    cache = ResultCache(2)
    gate = asyncio.Event()
    fetched = 0

    async def fetch() -> Any:
        nonlocal fetched
        fetched += 1
        await gate.wait()
        return ListToolsResult(tools=[], ttl_ms=60_000)

    early = asyncio.get_running_loop().create_task(cache.get("tools/list", {}, fetch))
    await asyncio.sleep(0)
    cache.invalidate("notifications/tools/list_changed")
    late = asyncio.get_running_loop().create_task(cache.get("tools/list", {}, fetch))
    await asyncio.sleep(0)
    gate.set()
    assert await early is not await late
    assert fetched == 2


async def test_each_caller_has_its_own() -> None:
    """Whoever changes what it got, the one who fetched or one who waited, changes nothing for the others."""
    cache, go = ResultCache(10), asyncio.Event()

    async def fetch() -> Any:
        await go.wait()
        return ListToolsResult(tools=[Tool(name="a", input_schema={"type": "object"})], ttl_ms=60_000)

    async def spoiling() -> str:
        found = await cache.get("tools/list", {}, fetch)
        said = str(found)
        found.tools[0].input_schema["type"] = "spoilt"
        found.tools.clear()
        return said

    together = asyncio.gather(*(spoiling() for _ in range(3)))
    await asyncio.sleep(0)
    go.set()
    said = {*await together, await spoiling(), await spoiling()}
    assert len(said) == 1
    assert "spoilt" not in said.pop()

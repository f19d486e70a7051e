"""Test counting calls against quotas: rate, concurrency and result size."""

import asyncio

import pytest

from dovetail.errors import PolicyError
from dovetail.host.policy.quotas import Meter, parse_limits, truncate_result
from dovetail.wire.base import UNSET
from dovetail.wire.content import ImageContent, TextContent
from dovetail.wire.tools import CallToolResult


async def test_one_too_many_is_refused_and_other_tools_are_not() -> None:
    meter, limit = Meter(), parse_limits("2/h")
    for _ in range(2):
        async with meter.limit_call("s", "t", limit):
            pass
    with pytest.raises(PolicyError, match=r"s\.t.* 2/h.* \d+ s"):
        async with meter.limit_call("s", "t", limit):
            raise AssertionError
    async with meter.limit_call("s", "other", limit), meter.limit_call("r", "t", limit):
        pass


async def test_addresses_are_counted_together() -> None:
    """A caller chooses them: counted one by one they would be no limit."""
    meter, limit = Meter(), parse_limits("2/h")
    for uri in ("a:1", "a:2"):
        async with meter.limit_call("s", uri, limit, "resource.read"):
            pass
    with pytest.raises(PolicyError):
        async with meter.limit_call("s", "a:3", limit, "resource.read"):
            raise AssertionError


async def test_what_is_too_much_at_once_waits_its_turn() -> None:
    meter, limit = Meter(), parse_limits({"max_concurrency": 2})
    running, most = 0, 0

    async def one() -> None:
        nonlocal running, most
        async with meter.limit_call("s", "t", limit):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(one() for _ in range(8)))
    assert (running, most) == (0, 2)


async def test_room_is_given_back_by_what_fails() -> None:
    meter, limit = Meter(), parse_limits({"max_concurrency": 1})
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with meter.limit_call("s", "t", limit):
                raise ZeroDivisionError


def test_a_short_result_stays_what_it_is() -> None:
    result = CallToolResult(content=[TextContent(text="x")], structured_content={"a": 1})
    assert truncate_result(result, None) is result
    assert truncate_result(result, 1_000) is result


def test_a_long_result_says_how_much_is_missing() -> None:
    """And no character is cut in two."""
    result = CallToolResult(content=[TextContent(text="é" * 500)], structured_content={"a": 1})
    cut = truncate_result(result, 101)
    text, note = cut.content
    assert isinstance(text, TextContent)
    assert isinstance(note, TextContent)
    assert text.text == "é" * 50
    assert "1067" in note.text
    assert "101" in note.text
    assert cut.structured_content is UNSET


def test_a_large_image_is_replaced_by_a_note() -> None:
    (note,) = truncate_result(
        CallToolResult(content=[ImageContent(data="A" * 999, mime_type="image/png")]), 100
    ).content
    assert isinstance(note, TextContent)

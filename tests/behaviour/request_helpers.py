"""Helpers of the behaviour tests: call a tool, read its text, expect an error."""

from collections.abc import Awaitable
from typing import Any

import pytest

from dovetail.errors import RemoteError
from support.driver import Peer

# A valid image of one pixel and a valid sound of one sample.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="


async def call(peer: Peer, tool: str, /, **arguments: Any) -> Any:
    """Call a tool, answer its input requests, and return the complete result."""
    return await peer.call("tools/call", {"name": tool, "arguments": arguments})


def text(result: Any) -> str:
    """Return the single text block of a successful result."""
    assert not result.get("isError"), result
    return error_text(result)


def error_text(result: Any) -> str:
    """Return the single text block of a result, failed or not."""
    assert [block["type"] for block in result["content"]] == ["text"], result
    return result["content"][0]["text"]


async def expect_error(request: Awaitable[Any]) -> RemoteError:
    """Return the error that a request raises."""
    with pytest.raises(RemoteError) as caught:
        await request
    return caught.value


async def list_names(peer: Peer, method: str) -> list[str]:
    """Return the names in all pages of a list, in order."""
    field = {"resources/templates/list": "resourceTemplates"}.get(method, method.partition("/")[0])
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await peer.request(method, {} if cursor is None else {"cursor": cursor})
        found += [one["name"] for one in page[field]]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found

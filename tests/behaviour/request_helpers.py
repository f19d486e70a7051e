"""Small words the behaviour tests share: calling a tool, reading its text, expecting a refusal."""

from collections.abc import Awaitable
from typing import Any

import pytest

from dovetail.errors import RemoteError
from driver import Peer

# An image of one pixel and a sound of one sample, for whoever needs some that are real.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="


async def call(peer: Peer, tool: str, /, **arguments: Any) -> Any:
    """The complete result of a tool; questions on the way are answered from the peer's table."""
    return await peer.call("tools/call", {"name": tool, "arguments": arguments})


def text(result: Any) -> str:
    """The one text block of a successful result."""
    assert not result.get("isError"), result
    return error_text(result)


def error_text(result: Any) -> str:
    """The one text block of a result."""
    assert [block["type"] for block in result["content"]] == ["text"], result
    return result["content"][0]["text"]


async def expect_error(request: Awaitable[Any]) -> RemoteError:
    """The error a request is answered with."""
    with pytest.raises(RemoteError) as caught:
        await request
    return caught.value


async def list_names(peer: Peer, method: str) -> list[str]:
    """What a list method names, page by page, in order."""
    field = {"resources/templates/list": "resourceTemplates"}.get(method, method.partition("/")[0])
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await peer.request(method, {} if cursor is None else {"cursor": cursor})
        found += [one["name"] for one in page[field]]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found

"""What a client remembers of a server it has met: the era it found out, never one it was told to speak."""

import sys
from typing import Any

import pytest

from dovetail import Client

PROGRAM = "from dovetail import Server; Server('both').run()  # {}"


@pytest.mark.parametrize("wish", [{"era": "handshake"}, {"revision": "2025-06-18"}])
async def test_a_wish_is_not_a_discovery(wish: dict[str, Any]) -> None:
    both = [sys.executable, "-c", PROGRAM.format(wish)]  # a server not met in another test
    async with Client(both, **wish) as insisting:
        assert insisting.revision != "2026-07-28"
    async with Client(both) as open_to_anything:
        assert open_to_anything.revision == "2026-07-28"

"""The event loops and fixtures of the transport tests."""

import asyncio
import socket
import sys
from collections.abc import Callable

import pytest


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use asyncio's event loop, and also uvloop in modules with `BOTH_LOOPS = True`."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if getattr(getattr(item, "module", None), "BOTH_LOOPS", False) and sys.platform != "win32":
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture
def ipv6() -> None:
    """Skip a test on a machine without IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("platform: no IPv6")

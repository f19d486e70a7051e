"""Fixtures of the tests of the core: clients of one server, in both eras, in memory and over HTTP.

These tests use only public names, and nothing of the other test folders. They also run in copies of the package without
one of its folders, see `tests/architecture/test_removable_folders.py`.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from core.library_server import create_server, hello
from core.server_process import start_server
from dovetail import Client, Server


@pytest.fixture(scope="module")
def http_url() -> Iterator[str]:
    with start_server("http") as url:
        yield url


@pytest.fixture(params=["handshake", "stateless"])
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["memory", "http"])
async def target(request: pytest.FixtureRequest) -> AsyncIterator[Server | str]:
    """Yield the target of a client: a server in this process, or a URL."""
    if request.param == "http":
        yield request.getfixturevalue("http_url")
        return
    server = create_server()
    yield server
    await server.stop()


@pytest.fixture
async def client(target: Server | str, era: str) -> AsyncIterator[Client]:
    async with Client(target, protocol_version=era, name="library", extensions=[hello]) as client:
        yield client

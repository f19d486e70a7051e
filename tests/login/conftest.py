"""A guarded place and its user, for the tests of logins."""

import socket
from collections.abc import AsyncIterator

import pytest

from login.place import Place, User, guarded


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with guarded() as one:
        yield one


@pytest.fixture
async def user() -> AsyncIterator[User]:
    one = User()
    yield one
    await one.leave()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

"""Fixtures of the login tests: a guarded server and its user."""

import socket
from collections.abc import AsyncIterator

import pytest

from support.guarded_server import GuardedServer, User, run_guarded_server


@pytest.fixture
async def place() -> AsyncIterator[GuardedServer]:
    async with run_guarded_server() as server:
        yield server


@pytest.fixture
async def user() -> AsyncIterator[User]:
    user = User()
    yield user
    await user.close()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

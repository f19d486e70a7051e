"""Test that our client logs in to servers of the official SDK and FastMCP."""

import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client
from dovetail.auth import BearerAuth
from dovetail.errors import Unauthorized
from support.guarded_server import User, oauth_settings

SCRIPT = Path(__file__).with_name("guarded_servers.py")
LIBRARIES = {"official": "mcp", "fast": "fastmcp"}

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=LIBRARIES)
def url(request: pytest.FixtureRequest, start: Callable[..., Any], free_port: Callable[[], int]) -> str:
    pytest.importorskip(LIBRARIES[request.param], reason=f"{LIBRARIES[request.param]} is not installed")
    port = free_port()
    place = f"http://127.0.0.1:{port}/mcp"
    start([sys.executable, str(SCRIPT), request.param, str(port)], url=place, leaves=-signal.SIGTERM)
    return place


@pytest.fixture
async def user() -> AsyncIterator[User]:
    one = User()
    yield one
    await one.close()


async def test_a_user_logs_in(url: str, user: User) -> None:
    async with Client(url, auth=oauth_settings(user)) as client:
        assert await client.call("greet", name="Ada") == "Hello, Ada!"
    assert len(user.opened) == 1
    assert "scope=read" in user.opened[0]


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_in_either_era(url: str, user: User, era: Any) -> None:
    async with Client(url, auth=oauth_settings(user), protocol_version=era) as client:
        assert await client.call("greet", name="Ada") == "Hello, Ada!"


async def test_a_token_that_was_taken_back_is_renewed(url: str, user: User) -> None:
    async with Client(url, auth=oauth_settings(user)) as client:
        assert await client.call("forget") >= 1
        assert await client.call("greet", name="Ada") == "Hello, Ada!"
        assert await client.call("greet", name="Bob") == "Hello, Bob!"
    assert len(user.opened) == 1


async def test_a_login_is_taken_up_by_the_next_run(url: str, user: User, tmp_path: Path) -> None:
    for _ in range(2):
        async with Client(url, auth=oauth_settings(user, token_store=str(tmp_path))) as client:
            assert await client.call("greet", name="Ada") == "Hello, Ada!"
    assert len(user.opened) == 1


@pytest.mark.parametrize("auth", [None, BearerAuth("made-up")])
async def test_other_callers_are_refused(url: str, auth: Any) -> None:
    with pytest.raises(Unauthorized) as refused:
        async with Client(url, auth=auth):
            pass
    assert "resource_metadata=" in refused.value.challenge

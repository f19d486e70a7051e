"""Test that third-party clients log in to our guarded server: discovery, registration, consent, token, call and a later
scope.
"""

import asyncio
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

import httpx2
from fastmcp import Client as FastClient
from fastmcp.client.auth import OAuth as FastOAuth
from fastmcp.client.transports import StreamableHttpTransport
from mcp import Client as OfficialClient
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from dovetail import Context, Server
from dovetail.auth import AuthorizationServer, Guard
from support.live_server import serve_app

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

REDIRECT = "http://127.0.0.1:7777/callback"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    def make(url: str) -> Any:
        authority = AuthorizationServer(issuer=url, users={"ada": "pw"}, resources=[url + "/mcp"])
        app = Server("guarded", auth=Guard(authority.verifier(), scopes_supported=[]))

        @app.tool
        def who(ctx: Context) -> str:
            assert ctx.principal is not None
            return ctx.principal.subject

        @app.tool(scopes=["write"])
        def write() -> str:
            return "written"

        return authority.wrap(app.asgi())

    async with serve_app(make) as served:
        yield served + "/mcp"


def said(result: Any) -> str:
    return result.content[0].text


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class User:
    """Opens what a client shows, agrees, and reads what the client would be sent."""

    def __init__(self) -> None:
        self.logins = 0
        self._answer: dict[str, str] = {}

    async def visit(self, address: str) -> None:
        self._answer = await asyncio.to_thread(self._agree, address)
        self.logins += 1

    def _agree(self, address: str) -> dict[str, str]:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(), Stay)
        with browser.open(address, timeout=10) as reply:
            page = reply.read().decode()
        fields = dict(re.findall(r'name="(request|csrf)" value="([^"]+)"', page))
        fields |= {"decision": "allow", "username": "ada", "password": "pw"}
        action = re.findall(r'action="([^"]+)"', page)[0]
        with pytest.raises(urllib.error.HTTPError) as redirect:
            browser.open(action, urllib.parse.urlencode(fields).encode(), timeout=10)
        query = urllib.parse.urlsplit(redirect.value.headers["location"]).query
        redirect.value.close()
        return dict(urllib.parse.parse_qsl(query))

    async def answer(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(**self._answer)


class Memory:
    """Where the official client keeps what it was given."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_logs_in(url: str, mode: str) -> None:
    user, memory = User(), Memory()
    about = OAuthClientMetadata.model_validate({"client_name": "official", "redirect_uris": [REDIRECT]})
    auth = OAuthClientProvider(url, about, memory, user.visit, user.answer)
    kind: Any = mode
    async with (
        httpx2.AsyncClient(auth=auth, timeout=20) as http,
        OfficialClient(streamable_http_client(url, http_client=http), mode=kind) as client,
    ):
        assert said(await client.call_tool("who", {})) == "ada"
        assert said(await client.call_tool("write", {})) == "written"
    assert memory.tokens is not None
    assert "write" in (memory.tokens.scope or "")
    assert user.logins == 2  # the second for the scope


@pytest.fixture
async def notes() -> AsyncIterator[str]:
    """A server that takes one scope for everything and another for one tool, as `examples/guarded.py`."""

    def make(url: str) -> Any:
        users, scopes = {"ada": "pw"}, "notes:read notes:write"
        authority = AuthorizationServer(issuer=url, users=users, resources=[url + "/mcp"], scopes_supported=scopes)
        app = Server("guarded", auth=Guard(authority.verifier(), required_scopes=["notes:read"], list_restricted=True))

        @app.tool
        def whoami(ctx: Context) -> str:
            assert ctx.principal is not None
            return " ".join(sorted(ctx.principal.scopes))

        @app.tool(scopes=["notes:write"])
        def write(text: str) -> str:
            return f"kept {text}"

        return authority.wrap(app.asgi())

    async with serve_app(make) as served:
        yield served + "/mcp"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_keeps_its_scopes_when_it_asks_for_more(notes: str, mode: str) -> None:
    user, memory = User(), Memory()
    about = OAuthClientMetadata.model_validate({"client_name": "official", "redirect_uris": [REDIRECT]})
    auth = OAuthClientProvider(notes, about, memory, user.visit, user.answer)
    kind: Any = mode
    async with (
        httpx2.AsyncClient(auth=auth, timeout=20) as http,
        OfficialClient(streamable_http_client(notes, http_client=http), mode=kind) as client,
    ):
        assert said(await client.call_tool("whoami", {})) == "notes:read"
        assert said(await client.call_tool("write", {"text": "this"})) == "kept this"
        assert said(await client.call_tool("whoami", {})) == "notes:read notes:write"
    assert user.logins == 2


async def test_the_official_client_of_the_older_line_keeps_its_scopes_when_it_asks_for_more(notes: str) -> None:
    python = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"
    if not python.is_file():
        pytest.skip("the older peers are not installed: make setup")
    process = await asyncio.create_subprocess_exec(
        python,
        Path(__file__).with_name("older_login.py"),
        notes,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    found = json.loads(out)
    assert found["results"] == ["notes:read", "kept this", "notes:read notes:write"]
    assert found["logins"] == [["notes:read"], ["notes:read", "notes:write"]]


class FastLogin(FastOAuth):
    """The peer's login, with a user instead of a browser."""

    user: User

    async def redirect_handler(self, authorization_url: str) -> None:
        await self.user.visit(authorization_url)

    async def callback_handler(self) -> AuthorizationCodeResult:
        return await self.user.answer()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # that its tokens are kept in memory
async def test_the_fastmcp_client_logs_in(url: str, mode: str) -> None:
    auth = FastLogin(url, callback_port=7777)
    auth.user = User()
    async with FastClient(StreamableHttpTransport(url, auth=auth), mode=mode) as client:
        assert said(await client.call_tool("who")) == "ada"
        assert said(await client.call_tool("write")) == "written"
    assert auth.user.logins == 2

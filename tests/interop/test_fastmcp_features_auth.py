"""Test rows of fastmcp_features.csv about authentication, authorization and the state of users."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

import uvicorn
from fastmcp import Client as FastClient
from fastmcp import FastMCP
from fastmcp.client.auth import BearerAuth as FastBearerAuth
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.server.auth import AccessToken, AuthContext, MultiAuth, RemoteAuthProvider, require_scopes, restrict_tag
from fastmcp.server.auth import TokenVerifier as FastVerifier
from fastmcp.server.auth.providers.jwt import JWTVerifier as FastJWTVerifier
from fastmcp.server.auth.providers.jwt import RSAKeyPair
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier as FastTokenVerifier
from fastmcp.server.dependencies import get_access_token
from fastmcp.server.middleware import AuthMiddleware
from fastmcp.server.sessions import UserSession
from joserfc import jwt
from joserfc.jwk import OctKey
from mcp import MCPError as SdkError

from dovetail import Client, Context, Server, current_principal
from dovetail.auth import BearerAuth, Guard, JWTVerifier, Principal, StaticTokenVerifier
from dovetail.errors import MCPError
from dovetail.testing import TokenIssuer
from interop.fastmcp_pairs import call, create_pair, greet, leave

pytestmark = [
    pytest.mark.interop,
    # fastmcp warns about its own dependencies.
    pytest.mark.filterwarnings("ignore::Warning"),
]

VERSION = "2026-07-28"
ORIGIN, RESOURCE, ISSUER = "http://localhost", "http://localhost/mcp", "https://issuer.example"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@asynccontextmanager
async def serve(app: Any) -> AsyncGenerator[httpx.AsyncClient, None]:
    """Serve over HTTP in memory."""
    if isinstance(app, FastMCP):
        web: Any = app.http_app(json_response=True)
        lifespan = web.router.lifespan_context(web)
    else:
        web = app.asgi(public_url=RESOURCE)
        lifespan = _stop(app)
    async with lifespan, httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url=ORIGIN) as http:
        yield http


@asynccontextmanager
async def _stop(app: Server) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await app.stop()


async def post(http: httpx.AsyncClient, token: str | None, tool: str | None = None, **arguments: Any) -> httpx.Response:
    """Call a tool, or list all tools."""
    method, params = ("tools/call", {"name": tool, "arguments": arguments}) if tool else ("tools/list", {})
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION, "mcp-method": method}
    headers |= {"mcp-name": tool} if tool else {}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": META}}
    return await http.post("/mcp", json=body, headers=headers)


async def list_statuses(app: Any, *tokens: str | None) -> list[int]:
    """Return the HTTP status that each token gets."""
    async with serve(app) as http:
        return [(await post(http, token)).status_code for token in tokens]


def list_names(response: httpx.Response) -> list[str]:
    return sorted(tool["name"] for tool in response.json()["result"]["tools"])


def read_text(response: httpx.Response) -> str:
    return response.json()["result"]["content"][0]["text"]


SCOPES = {"reader": ["read"], "writer": ["read", "write"]}


def create_guarded_pair() -> tuple[Any, Any]:
    """Return servers with the tokens `reader` and `writer` of the users with these names."""
    tokens = {name: {"client_id": name, "sub": name, "scopes": scopes} for name, scopes in SCOPES.items()}
    principals = {name: Principal(name, scopes=scopes) for name, scopes in SCOPES.items()}
    return FastMCP("x", auth=FastTokenVerifier(tokens=tokens)), Server("x", auth=StaticTokenVerifier(principals))


async def test_static_tokens() -> None:
    for app in create_guarded_pair():
        app.tool(greet)
        assert await list_statuses(app, None, "wrong", "reader") == [401, 401, 200]
        async with serve(app) as http:
            assert (await post(http, None)).headers["www-authenticate"].startswith("Bearer")


async def test_jwt_tokens() -> None:
    """Both verify the signature, the issuer, the audience and the expiry, and each has a helper for tests."""
    keys, issuer = RSAKeyPair.generate(), TokenIssuer(ISSUER, audience=RESOURCE)
    fast = FastMCP("x", auth=FastJWTVerifier(public_key=keys.public_key, issuer=ISSUER, audience=RESOURCE))
    app = Server("x", auth=issuer.create_verifier())
    foreign = TokenIssuer("https://other.example", audience=RESOURCE)
    fast_tokens = [
        keys.create_token(issuer=ISSUER, audience=RESOURCE),
        keys.create_token(issuer="https://other.example", audience=RESOURCE),
        keys.create_token(issuer=ISSUER, audience="https://other.example"),
        keys.create_token(issuer=ISSUER, audience=RESOURCE, expires_in_seconds=-60),
        RSAKeyPair.generate().create_token(issuer=ISSUER, audience=RESOURCE),
    ]
    tokens = [
        issuer.create_token("ada"),
        foreign.create_token("ada"),
        issuer.create_token("ada", aud="https://other.example"),
        issuer.create_token("ada", expires_in=-60),
        TokenIssuer(ISSUER, audience=RESOURCE).create_token("ada"),
    ]
    for server, own_tokens in ((fast, fast_tokens), (app, tokens)):
        server.tool(greet)
        assert await list_statuses(server, *own_tokens) == [200, 401, 401, 401, 401]


async def test_keys_as_text() -> None:
    """Both accept a public key in PEM."""
    keys = RSAKeyPair.generate()
    token = keys.create_token(subject="ada", issuer=ISSUER, audience=RESOURCE)
    fast = FastMCP("x", auth=FastJWTVerifier(public_key=keys.public_key, issuer=ISSUER, audience=RESOURCE))
    app = Server("x", auth=JWTVerifier(issuer=ISSUER, audience=RESOURCE, public_keys=keys.public_key))
    for server in (fast, app):
        server.tool(greet)
        assert await list_statuses(server, token) == [200]


async def test_shared_secrets() -> None:
    """Only fastmcp accepts tokens that are signed with a shared secret."""
    secret = "a" * 64
    token = jwt.encode(
        {"alg": "HS256"}, {"iss": ISSUER, "aud": RESOURCE, "exp": time.time() + 60}, OctKey.import_key(secret)
    )
    verifier = FastJWTVerifier(public_key=secret, issuer=ISSUER, audience=RESOURCE, algorithm="HS256")
    fast = FastMCP("x", auth=verifier)
    fast.tool(greet)
    assert await list_statuses(fast, token) == [200]
    with pytest.raises(ValueError, match="PEM"):
        JWTVerifier(issuer=ISSUER, public_keys=secret, algorithms=["HS256"])


async def test_own_verifiers() -> None:
    class FastTeamTokens(FastVerifier):
        async def verify_token(self, token: str) -> AccessToken | None:
            return AccessToken(token=token, client_id="ada", scopes=[]) if token == "team" else None

    class TeamTokens:
        issuer = None

        async def verify(self, token: str, resource: object) -> Principal | None:
            return Principal("ada") if token == "team" else None

    for app in (FastMCP("x", auth=FastTeamTokens()), Server("x", auth=TeamTokens())):
        app.tool(greet)
        assert await list_statuses(app, "team", "other") == [200, 401]


async def test_metadata_for_clients() -> None:
    keys, issuer = RSAKeyPair.generate(), TokenIssuer(ISSUER, audience=RESOURCE)
    verifier = FastJWTVerifier(public_key=keys.public_key, issuer=ISSUER)
    provider: Any = RemoteAuthProvider
    fast = FastMCP("x", auth=provider(token_verifier=verifier, authorization_servers=[ISSUER], base_url=ORIGIN))
    app = Server("x", auth=issuer.create_verifier())
    for server in (fast, app):
        server.tool(greet)
        async with serve(server) as http:
            challenge = (await post(http, None)).headers["www-authenticate"]
            url = challenge.split('resource_metadata="')[1].split('"')[0]
            metadata = (await http.get(url)).json()
        assert metadata["resource"] == RESOURCE
        assert [str(item).rstrip("/") for item in metadata["authorization_servers"]] == [ISSUER]


async def test_several_verifiers() -> None:
    fast_verifiers = {name: FastTokenVerifier(tokens={name: {"client_id": name, "scopes": []}}) for name in "ab"}
    fast = FastMCP("x", auth=MultiAuth(verifiers=fast_verifiers))
    app = Server("x", auth=[StaticTokenVerifier({name: name}) for name in "ab"])
    for server in (fast, app):
        server.tool(greet)
        assert await list_statuses(server, "a", "b", "c") == [200, 200, 401]


async def test_required_scopes() -> None:
    fast = FastMCP(
        "x",
        auth=FastTokenVerifier(
            tokens={"none": {"client_id": "ada", "scopes": []}, "read": {"client_id": "ada", "scopes": ["read"]}},
            required_scopes=["read"],
        ),
    )
    tokens = StaticTokenVerifier({"none": Principal("ada"), "read": Principal("ada", scopes=["read"])})
    app = Server("x", auth=Guard(tokens, required_scopes=["read"]))
    for server, status in ((fast, 401), (app, 403)):
        server.tool(greet)
        assert await list_statuses(server, "none", "read") == [status, 200]


async def test_scopes_of_tools() -> None:
    """Both hide the tool. dovetail tells the client which scopes are missing."""
    fast, app = create_guarded_pair()
    fast.tool(leave, auth=require_scopes("write"))
    app.tool(leave, scopes=["write"])
    for server in (fast, app):
        server.tool(greet)
        async with serve(server) as http:
            assert list_names(await post(http, "reader")) == ["greet"]
            assert list_names(await post(http, "writer")) == ["greet", "leave"]
            assert read_text(await post(http, "writer", "leave", name="Ada")) == "Bye, Ada!"
            refusal = await post(http, "reader", "leave", name="Ada")
        if server is fast:
            assert (refusal.status_code, refusal.json()["result"]["isError"]) == (200, True)
        else:
            assert refusal.status_code == 403
            assert 'scope="write"' in refusal.headers["www-authenticate"]


async def test_own_access_rules() -> None:
    def fast_may_write(ctx: AuthContext) -> bool:
        return ctx.token is not None and ctx.token.client_id == "writer"

    def may_write(principal: Principal | None) -> bool:
        return principal is not None and principal.subject == "writer"

    fast, app = create_guarded_pair()
    fast.tool(leave, auth=fast_may_write)
    app.tool(leave, visible_to=may_write)
    for server in (fast, app):
        async with serve(server) as http:
            assert list_names(await post(http, "reader")) == []
            assert list_names(await post(http, "writer")) == ["leave"]


async def test_rules_for_tags() -> None:
    """Rules of the whole server, for items with a tag."""
    fast, app = create_guarded_pair()
    fast.add_middleware(AuthMiddleware(auth=restrict_tag("admin", scopes=["write"])))
    app.restrict(tags=["admin"], scopes=["write"])
    for server in (fast, app):
        server.tool(greet)
        server.tool(leave, tags={"admin"})
        async with serve(server) as http:
            assert list_names(await post(http, "reader")) == ["greet"]
            assert list_names(await post(http, "writer")) == ["greet", "leave"]


async def test_callers_in_tools() -> None:
    fast, app = create_guarded_pair()

    @fast.tool(name="who")
    def fast_who() -> str:
        token = get_access_token()
        assert token is not None
        return f"{token.client_id} {token.scopes}"

    @app.tool
    def who() -> str:
        principal: Any = current_principal()
        return f"{principal.subject} {sorted(principal.scopes)}"

    for server in (fast, app):
        async with serve(server) as http:
            assert read_text(await post(http, "writer", "who")) == "writer ['read', 'write']"


# Clients


async def test_tokens_of_clients() -> None:
    """Both clients send a token that you pass as text, as an object or as a header."""
    requests: list[dict[bytes, bytes]] = []

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        requests.append(dict(scope["headers"]))
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = uvicorn.Server(uvicorn.Config(refuse, log_level="critical", lifespan="off"))
        serving = asyncio.create_task(web.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        headers = {"authorization": "Bearer secret"}
        clients: list[Any] = [
            FastClient(url, auth="secret"),
            FastClient(url, auth=FastBearerAuth("secret")),
            FastClient(StreamableHttpTransport(url, headers=headers)),
            Client(url, auth="secret"),
            Client(url, auth=BearerAuth("secret")),
            Client(url, headers=headers),
        ]
        for client in clients:
            requests.clear()
            with pytest.raises((SdkError, MCPError)):
                await client.__aenter__()
            assert {request[b"authorization"] for request in requests} == {b"Bearer secret"}
        web.should_exit = True
        await serving


# State of a user


async def test_state_of_a_user() -> None:
    """Both keep values for each user. Only a session of fastmcp has `clear`."""
    fast, app = create_guarded_pair()

    @fast.tool(name="count")
    async def fast_count(session: UserSession) -> str:
        assert hasattr(session, "clear")
        number = await session.get("count", default=0) + 1
        await session.set("count", number)
        return str(number)

    @app.tool
    async def count(ctx: Context) -> str:
        assert not hasattr(ctx.user_state, "clear")
        number = await ctx.user_state.get("count", 0) + 1
        await ctx.user_state.set("count", number)
        return str(number)

    @fast.tool(name="forget")
    async def fast_forget(session: UserSession) -> str:
        await session.delete("count")
        return "forgotten"

    @app.tool
    async def forget(ctx: Context) -> str:
        await ctx.user_state.delete("count")
        return "forgotten"

    for server in (fast, app):
        async with serve(server) as http:
            callers = ["reader", "reader", "writer"]
            assert [read_text(await post(http, caller, "count")) for caller in callers] == ["1", "2", "1"]
            await post(http, "reader", "forget")
            assert read_text(await post(http, "reader", "count")) == "1"


async def test_state_of_a_user_needs_a_login() -> None:
    async def fast_remember(session: UserSession) -> str:
        await session.set("a", 1)
        return "done"

    async def remember(ctx: Context) -> str:
        await ctx.user_state.set("a", 1)
        return "done"

    for app, function in zip(create_pair(), (fast_remember, remember), strict=True):
        app.tool(function, name="remember")
        assert (await call(app, "remember")).is_error

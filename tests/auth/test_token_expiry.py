"""Test that streams and subscriptions end when their token expires, and that running calls may finish."""

import asyncio
import json
import time
from typing import Any

import pytest

from dovetail import Client, Context, Server
from dovetail.auth import BearerAuth, Guard, JWTVerifier, Principal, StaticTokenVerifier
from dovetail.oauth.flow import FetchResponse
from dovetail.oauth.guard.verifiers import IntrospectionVerifier
from support.fake_issuer import Issuer, current_claims, run_flow
from support.fake_service import (
    INITIALIZED,
    LATEST_HANDSHAKE,
    TIMEOUT_S,
    AsgiRequest,
    initialize,
    request,
    start_post,
    stateless_request,
)
from support.live_server import serve_app

SOON = 1.0
EVERYTHING = {"toolsListChanged": True}


class Tokens(StaticTokenVerifier):
    """Tokens of one user, of which `brief` ends soon."""

    def __init__(self) -> None:
        ends = time.time() + SOON
        people = {
            "lasting": Principal("ada"),
            "brief": Principal("ada", expires_at=ends),
            "renewed": Principal("ada", expires_at=ends + 3600),
        }
        super().__init__(people)


def guarded(tokens: StaticTokenVerifier | None = None) -> Server:
    app = Server("x", auth=Guard(tokens or Tokens()))

    @app.tool
    async def slow(ctx: Context) -> str:
        assert ctx.principal is not None
        assert ctx.principal.expires_at is not None
        await asyncio.sleep(ctx.principal.expires_at - time.time() + 0.2)
        return "done"

    @app.tool
    def last() -> str:
        return "last"

    return app


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def session(endpoint: Any, token: str) -> dict[str, str]:
    first = await start_post(endpoint, initialize(LATEST_HANDSHAKE), bearer(token)).wait_done()
    headers = bearer(token) | {
        "mcp-session-id": first.headers["mcp-session-id"],
        "mcp-protocol-version": LATEST_HANDSHAKE,
    }
    await start_post(endpoint, INITIALIZED, headers).wait_done()
    return headers


async def left_open(*streams: AsgiRequest) -> None:
    for one in streams:
        assert not one.task.done()
        one.disconnect()
        await one.wait_done()


async def test_a_subscription() -> None:
    endpoint = guarded().asgi()
    listen = stateless_request("subscriptions/listen", notifications=EVERYTHING)
    brief, lasting = start_post(endpoint, listen, bearer("brief")), start_post(endpoint, listen, bearer("lasting"))
    await brief.wait_done()
    assert [one.get("method", "result") for one in brief.messages] == [
        "notifications/subscriptions/acknowledged",
        "result",
    ]
    await left_open(lasting)


async def test_the_stream_of_a_session() -> None:
    endpoint = guarded().asgi()
    headers = await session(endpoint, "brief")
    stream = await AsgiRequest(endpoint, "GET", headers=headers).wait_done()
    assert stream.status == 200
    again = AsgiRequest(endpoint, "GET", headers=headers | bearer("renewed"))
    await start_post(endpoint, request("ping"), headers | bearer("renewed")).wait_done()
    assert again.status == 200
    await left_open(again)


async def test_the_old_stream() -> None:
    """It ends with the newest token that was shown on it."""
    endpoint = guarded().asgi()
    ended = await AsgiRequest(endpoint, "GET", "/sse", headers=bearer("brief")).wait_done()
    assert ended.status == 200
    endpoint = guarded().asgi()
    kept = AsgiRequest(endpoint, "GET", "/sse", headers=bearer("brief"))
    ended = AsgiRequest(endpoint, "GET", "/sse", headers=bearer("brief"))
    async with asyncio.timeout(TIMEOUT_S):
        while not kept.events:  # noqa: ASYNC110 - nothing tells of them
            await asyncio.sleep(0)
    query = kept.events[0].data.partition("?")[2].encode()
    body = json.dumps(initialize("2024-11-05")).encode()
    sent = AsgiRequest(endpoint, "POST", "/messages", body, bearer("renewed"), query_string=query)
    assert (await sent.wait_done()).status == 202
    await ended.wait_done()
    await left_open(kept)


@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_a_call_that_was_let_in_may_finish(era: str) -> None:
    endpoint = guarded().asgi()
    if era == "stateless":
        answer = await start_post(endpoint, stateless_request(name="slow", arguments={}), bearer("brief")).wait_done()
    else:
        headers = await session(endpoint, "brief")
        answer = await start_post(endpoint, request("tools/call", name="slow", arguments={}), headers).wait_done()
    assert answer.last["result"]["content"][0]["text"] == "done"


class Turning(StaticTokenVerifier):
    """One token that ends soon whenever it is looked at, as long as `brief` says so."""

    def __init__(self) -> None:
        super().__init__({"t": "ada"})
        self.brief = True
        self.looked = 0

    def verify(self, token: str, resource: Any) -> Any:
        found = yield from super().verify(token, resource)
        self.looked += 1
        return Principal(found, expires_at=time.time() + 0.2) if self.brief else found


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_a_client_that_listens_goes_on(revision: str) -> None:
    """It opens another stream by itself, and hears what changes afterwards."""
    tokens = Turning()
    app = guarded(tokens)
    async with (
        asyncio.timeout(TIMEOUT_S),
        serve_app(lambda url: app.asgi()) as url,
        Client(f"{url}/mcp", auth=BearerAuth("t"), protocol_version=revision) as client,
        client.listen(tools=True) as changes,
    ):
        looked = tokens.looked
        while tokens.looked < looked + 2:  # noqa: ASYNC110 - the server's own doing
            await asyncio.sleep(0.01)
        tokens.brief = False
        telling = asyncio.create_task(_tell(app))
        async for change in changes:
            if change.kind == "tools" and not change.maybe_missed:
                break
        telling.cancel()


async def _tell(app: Server) -> None:
    while True:
        app.notify_tools_changed()
        await asyncio.sleep(0.05)


def test_the_end_of_a_token_is_known() -> None:
    """With the leeway: whoever is let in can open a stream that lasts for a moment."""
    issuer = Issuer()
    verifier = JWTVerifier(issuer=issuer.url, public_keys=issuer.jwks(), leeway=30.0)
    claims = current_claims()
    token = issuer.token(**claims)
    principal = run_flow(verifier.verify(token, ["https://mcp.example/mcp"]), now=claims["iat"])
    assert principal.expires_at == claims["exp"] + 30.0
    assert not principal.is_expired(claims["exp"])
    assert principal.is_expired(claims["exp"] + 30.0)
    assert not Principal("ada").is_expired(1e12)


@pytest.mark.parametrize(("said", "ends"), [({}, None), ({"exp": 2000}, 2030.0)])
def test_and_of_one_that_was_asked_about(said: dict[str, Any], ends: float | None) -> None:
    verifier = IntrospectionVerifier(introspection_endpoint="https://login.example/i", client_id="x", client_secret="y")
    claims = {"active": True, "sub": "ada", "aud": "https://mcp.example/mcp"} | said
    answer = FetchResponse(200, {}, json.dumps(claims).encode())
    assert run_flow(verifier.verify("t", ["https://mcp.example/mcp"]), lambda _: answer, 1000.0).expires_at == ends

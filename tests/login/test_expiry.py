"""What was opened with a token ends with it: streams and subscriptions. A call that was let in may finish."""

import asyncio
import json
import time
from typing import Any

import pytest

from auth.issuing import Issuer, drive, real_time
from dovetail import Bearer, Client, Context, Guard, JwtVerifier, Principal, Server, StaticTokens
from dovetail.auth.flow import HttpAnswer
from dovetail.auth.verify import IntrospectionVerifier
from login.hosting import running
from transports.scene import INITIALIZED, LAST, PATIENCE, Visit, initialize, modern, request, visit

SOON = 1.0
EVERYTHING = {"toolsListChanged": True}


class Tokens(StaticTokens):
    """Tokens of one user, of which `brief` ends soon."""

    def __init__(self) -> None:
        ends = time.time() + SOON
        people = {
            "lasting": Principal("ada"),
            "brief": Principal("ada", expires_at=ends),
            "renewed": Principal("ada", expires_at=ends + 3600),
        }
        super().__init__(people)


def guarded() -> Server:
    app = Server("x", auth=Guard(Tokens()))

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
    first = await visit(endpoint, initialize(LAST), bearer(token)).done()
    headers = bearer(token) | {"mcp-session-id": first.headers["mcp-session-id"], "mcp-protocol-version": LAST}
    await visit(endpoint, INITIALIZED, headers).done()
    return headers


async def left_open(*streams: Visit) -> None:
    for one in streams:
        assert not one.task.done()
        one.leave()
        await one.done()


async def test_a_subscription() -> None:
    endpoint = guarded().asgi()
    listen = modern("subscriptions/listen", notifications=EVERYTHING)
    brief, lasting = visit(endpoint, listen, bearer("brief")), visit(endpoint, listen, bearer("lasting"))
    await brief.done()
    assert [one.get("method", "result") for one in brief.messages] == [
        "notifications/subscriptions/acknowledged",
        "result",
    ]
    await left_open(lasting)


async def test_the_stream_of_a_session() -> None:
    endpoint = guarded().asgi()
    headers = await session(endpoint, "brief")
    stream = await Visit(endpoint, "GET", headers=headers).done()
    assert stream.status == 200
    again = Visit(endpoint, "GET", headers=headers | bearer("renewed"))
    await visit(endpoint, request("ping"), headers | bearer("renewed")).done()
    assert again.status == 200
    await left_open(again)


async def test_the_old_stream() -> None:
    """It ends with the newest token that was shown on it."""
    endpoint = guarded().asgi()
    ended = await Visit(endpoint, "GET", "/sse", headers=bearer("brief")).done()
    assert ended.status == 200
    endpoint = guarded().asgi()
    kept = Visit(endpoint, "GET", "/sse", headers=bearer("brief"))
    ended = Visit(endpoint, "GET", "/sse", headers=bearer("brief"))
    async with asyncio.timeout(PATIENCE):
        while not kept.events:  # noqa: ASYNC110 - nothing tells of them
            await asyncio.sleep(0)
    query = kept.events[0].data.partition("?")[2].encode()
    body = json.dumps(initialize("2024-11-05")).encode()
    sent = Visit(endpoint, "POST", "/messages", body, bearer("renewed"), query_string=query)
    assert (await sent.done()).status == 202
    await ended.done()
    await left_open(kept)


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_a_call_that_was_let_in_may_finish(era: str) -> None:
    endpoint = guarded().asgi()
    if era == "modern":
        answer = await visit(endpoint, modern(name="slow", arguments={}), bearer("brief")).done()
    else:
        headers = await session(endpoint, "brief")
        answer = await visit(endpoint, request("tools/call", name="slow", arguments={}), headers).done()
    assert answer.last["result"]["content"][0]["text"] == "done"


class Turning(StaticTokens):
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
    tokens, app = Turning(), guarded()
    app.auth = tokens
    async with (
        asyncio.timeout(PATIENCE),
        running(lambda url: app.asgi()) as url,
        Client(f"{url}/mcp", auth=Bearer("t"), revision=revision) as client,
        client.listen(tools=True) as changes,
    ):
        looked = tokens.looked
        while tokens.looked < looked + 2:  # noqa: ASYNC110 - the server's own doing
            await asyncio.sleep(0.01)
        tokens.brief = False
        telling = asyncio.create_task(_tell(app))
        async for change in changes:
            if change.kind == "tools" and not change.missed:
                break
        telling.cancel()


async def _tell(app: Server) -> None:
    while True:
        app.changed("tools")
        await asyncio.sleep(0.05)


def test_the_end_of_a_token_is_known() -> None:
    """With the leeway: whoever is let in can open a stream that lasts for a moment."""
    issuer = Issuer()
    verifier = JwtVerifier(issuer=issuer.url, keys=issuer.jwks(), leeway=30.0)
    claims = real_time()
    token = issuer.token(**claims)
    principal = drive(verifier.verify(token, ["https://mcp.example/mcp"]), now=claims["iat"])
    assert principal.expires_at == claims["exp"] + 30.0
    assert principal.with_scopes(["x"]).expires_at == principal.expires_at
    assert principal.lasts(claims["exp"]) == 30.0
    assert principal.lasts(claims["exp"] + 100.0) == 0.0
    assert Principal("ada").lasts(0.0) is None


@pytest.mark.parametrize(("said", "ends"), [({}, None), ({"exp": 2000}, 2030.0)])
def test_and_of_one_that_was_asked_about(said: dict[str, Any], ends: float | None) -> None:
    verifier = IntrospectionVerifier(endpoint="https://login.example/i", client_id="x", client_secret="y")
    claims = {"active": True, "sub": "ada", "aud": "https://mcp.example/mcp"} | said
    answer = HttpAnswer(200, {}, json.dumps(claims).encode())
    assert drive(verifier.verify("t", ["https://mcp.example/mcp"]), lambda _: answer, 1000.0).expires_at == ends

"""Handles of one principal are useless for others, and stay valid with a new token."""

from typing import Any

import pytest

from dovetail import Context, LargeResultSettings, Server
from dovetail.auth import Guard, Principal, StaticTokenVerifier
from support.fake_service import (
    INITIALIZED,
    LATEST_HANDSHAKE,
    META,
    AsgiRequest,
    initialize,
    request,
    start_post,
    stateless_request,
)

# Two tokens of one user; the same name with another issuer; a program of that name; a user of another.
WHO = {
    "ada-1": Principal("ada", issuer="https://a.example", scopes=["x"]),
    "ada-2": Principal("ada", issuer="https://a.example", client_id="other"),
    "other-issuer": Principal("ada", issuer="https://b.example"),
    "program": Principal("", client_id="ada", issuer="https://a.example"),
    "bob": Principal("bob", issuer="https://a.example"),
    "spelled": Principal("ada ", issuer="https://a.example"),
}
FOREIGN = ["other-issuer", "program", "bob", "spelled"]


@pytest.fixture
def endpoint() -> Any:
    app = Server(
        "x",
        auth=Guard(StaticTokenVerifier(WHO)),
        page_size=1,
        large_results=LargeResultSettings(max_text_chars=100, preview_chars=10),
    )

    @app.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit("How many?", int))

    @app.tool
    async def chatter(ctx: Context) -> str:
        for number in range(3):
            await ctx.progress(number)
        return "said"

    @app.tool
    def long(ctx: Context) -> str:
        return "y" * 200

    @app.tool(visible_to=lambda principal: principal is not None and principal.subject == "ada")
    def hidden() -> str:
        return "seen"

    @app.tool
    def last() -> str:
        return "last"

    return app.asgi()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_sessions(endpoint: Any) -> None:
    first = await start_post(endpoint, initialize(LATEST_HANDSHAKE), bearer("ada-1")).wait_done()
    session = {"mcp-session-id": first.headers["mcp-session-id"], "mcp-protocol-version": LATEST_HANDSHAKE}
    await start_post(endpoint, INITIALIZED, bearer("ada-1") | session).wait_done()
    for who in FOREIGN:
        for method in ("POST", "GET", "DELETE"):
            body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}' if method == "POST" else b""
            refused = await AsgiRequest(endpoint, method, body=body, headers=bearer(who) | session).wait_done()
            assert refused.status == 404, (who, method)
    for who in ("ada-1", "ada-2"):
        assert (await start_post(endpoint, request("ping"), bearer(who) | session).wait_done()).status == 200


async def test_states(endpoint: Any) -> None:
    capable = META | {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    message = stateless_request(name="ask", arguments={})
    message["params"]["_meta"] = capable
    first = (await start_post(endpoint, message, bearer("ada-1")).wait_done()).last["result"]
    assert first["resultType"] == "input_required"
    key = next(iter(first["inputRequests"]))
    answer = {key: {"action": "accept", "content": {"value": 7}}}
    message["params"] |= {"requestState": first["requestState"], "inputResponses": answer}
    for who in FOREIGN:
        refused = await start_post(endpoint, message, bearer(who)).wait_done()
        assert refused.last["error"]["code"] == -32602
        assert "requestState" in refused.last["error"]["message"]
    mine = await start_post(endpoint, message, bearer("ada-2")).wait_done()
    assert mine.last["result"]["content"][0]["text"] == "7"


async def test_cursors(endpoint: Any) -> None:
    shown: dict[str, list[str]] = {}
    cursors: dict[str, list[str]] = {}
    for who in ("ada-1", "bob"):
        cursor, shown[who], cursors[who] = None, [], []
        while True:
            params = {} if cursor is None else {"cursor": cursor}
            page = (
                await start_post(endpoint, stateless_request("tools/list", **params), bearer(who)).wait_done()
            ).last["result"]
            shown[who] += [one["name"] for one in page["tools"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
            cursors[who].append(cursor)
    assert shown == {"ada-1": ["ask", "chatter", "long", "hidden", "last"], "bob": ["ask", "chatter", "long", "last"]}
    for cursor in cursors["ada-1"]:
        answer = await start_post(endpoint, stateless_request("tools/list", cursor=cursor), bearer("bob")).wait_done()
        names = [one["name"] for one in answer.last.get("result", {}).get("tools", [])]
        assert "hidden" not in names


async def test_event_ids(endpoint: Any) -> None:
    async def session_of(who: str) -> dict[str, str]:
        first = await start_post(endpoint, initialize(LATEST_HANDSHAKE), bearer(who)).wait_done()
        session = {"mcp-session-id": first.headers["mcp-session-id"], "mcp-protocol-version": LATEST_HANDSHAKE}
        await start_post(endpoint, INITIALIZED, bearer(who) | session).wait_done()
        return bearer(who) | session

    mine, theirs = await session_of("ada-1"), await session_of("bob")
    message = request(name="chatter", _meta={"progressToken": 1})
    stream = await start_post(endpoint, message, mine).wait_done()
    last = next(event.id for event in stream.events if event.id)
    foreign = await AsgiRequest(endpoint, "GET", headers=theirs | {"last-event-id": last}).wait_done()
    assert foreign.status in (400, 404)


async def test_links_to_results_that_were_kept_back(endpoint: Any) -> None:
    """The link is a secret, but knowing it is not enough."""
    first = await start_post(endpoint, stateless_request(name="long", arguments={}), bearer("ada-1")).wait_done()
    _, link = first.last["result"]["content"]
    read = stateless_request("resources/read", uri=link["uri"])
    for who in FOREIGN:
        refused = await start_post(endpoint, read, bearer(who)).wait_done()
        assert "y" * 200 not in refused.body.decode()
        assert "error" in refused.last, who
    mine = await start_post(endpoint, read, bearer("ada-2")).wait_done()
    assert mine.last["result"]["contents"][0]["text"] == "y" * 200
    assert mine.last["result"]["cacheScope"] == "private"

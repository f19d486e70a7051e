"""A client backs off from a server that ends every stream at once, asks for immediate retries or is down."""

import asyncio
from typing import Any

import pytest
from harness import record_measurement

from dovetail import Client, MCPError, Timeouts
from support.scripted_server import (
    CLOSE,
    RST,
    Messages,
    ScriptedServer,
    create_notification,
    encode_http_reply,
    serve_over_http,
)

WATCHED = 4.0  # seconds
MOST = 5  # attempts in that time: at 0, 0.5, 1.5, 3.5 s, and one for luck


def acknowledged(message: Any) -> Any:
    meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
    agreed = create_notification("notifications/subscriptions/acknowledged", notifications={}, _meta=meta)
    return Messages([b"retry: 0\n\n", agreed])


STREAMS: dict[str, Any] = {
    "retry 0": Messages([b"retry: 0\n\n"]),
    "503": encode_http_reply(b"", status=503, retry_after="0"),
    "fin": CLOSE,
    "rst": RST,
}


@pytest.mark.parametrize("how", STREAMS)
async def test_the_stream_of_a_session(how: str) -> None:
    script = ScriptedServer("handshake", session="s", http_get_reaction=STREAMS[how])
    async with serve_over_http(script) as at, Client(at) as client:
        await asyncio.sleep(WATCHED)
        tries = sum(method == "GET" for method, _ in script.heads)
        record_measurement(f"streams of a session opened in {WATCHED:g} s, {how}", tries, "")
        assert 2 <= tries <= MOST
        assert await client.call("go") == "ok"
        assert script.count("initialize") == 1


@pytest.mark.parametrize("how", ["retry 0", "fin", "rst"])
async def test_a_subscription(how: str) -> None:
    first = [acknowledged]
    script = ScriptedServer("stateless")
    script.reactions = {
        "subscriptions/listen": lambda m: (
            first.pop()(m) if first else (acknowledged(m) if how == "retry 0" else STREAMS[how])
        )
    }
    async with serve_over_http(script) as at, Client(at) as client, client.listen():
        await asyncio.sleep(WATCHED)
        tries = script.count("subscriptions/listen")
        record_measurement(f"subscriptions opened in {WATCHED:g} s, {how}", tries, "")
        assert 2 <= tries <= MOST
        assert await client.call("go") == "ok"


async def test_a_server_that_cannot_be_opened_is_not_hammered_by_callers() -> None:
    """Callers in a loop share one attempt at a time, and the attempts keep their distance."""
    script = ScriptedServer(
        "handshake",
        {"initialize": encode_http_reply(b"", status=500), "server/discover": encode_http_reply(b"", status=500)},
    )
    async with serve_over_http(script) as at:
        client = Client(at, timeout=Timeouts(discover=1))

        async def insist() -> None:
            while True:
                try:
                    await client.call("go")
                except MCPError:
                    await asyncio.sleep(0)

        tasks = [asyncio.get_running_loop().create_task(insist()) for _ in range(10)]
        await asyncio.sleep(WATCHED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        tries = script.count("initialize")
        record_measurement(f"attempts to open in {WATCHED:g} s, ten callers", tries, "")
        assert tries <= MOST
        await client.close()

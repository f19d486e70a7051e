"""A hundred thousand notifications before one response: memory is bounded, they are merged, and the response
arrives.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from client_process import run_client
from harness import measure_cpu_unit, record_measurement

from dovetail import Client, ClientLimits
from support.fake_service import wait_until
from support.scripted_server import (
    STREAM_HEAD,
    Messages,
    ScriptedServer,
    create_notification,
    encode_event,
    serve_on_socket,
    serve_over_http,
    text_result,
)

MANY = 100_000
BOUND = 1000  # units of work; the target is 100
HOSTILE = 64.0

KINDS = {
    "logs": create_notification("notifications/message", level="info", data={"a": "x" * 50}, logger="l"),
    "progress": create_notification("notifications/progress", progressToken=3, progress=1, total=2),
    "changes": create_notification("notifications/tools/list_changed"),
    "updates": create_notification("notifications/resources/updated", uri="a"),
    "strange": create_notification("notifications/none/such", a=[1, 2, 3]),
}


def line(kind: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **KINDS[kind]}).encode()


def flooding(kind: str, on: Any) -> Any:
    async def pieces(message: Any) -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        for _ in range(MANY // 1000):
            yield encode_event(line(kind)) * 1000
        yield encode_event(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": text_result("done")}).encode())

    def reaction(message: Any) -> Any:
        if message["params"]["name"] != "go":
            return text_result()
        if on is serve_over_http:
            return pieces(message)
        return Messages([*[(line(kind) + b"\n") * 1000] * (MANY // 1000), text_result("done")])

    return reaction


@pytest.mark.parametrize("on", [serve_on_socket, serve_over_http], ids=["socket", "web"])
@pytest.mark.parametrize(("era", "kind"), [*(("stateless", kind) for kind in KINDS), ("handshake", "progress")])
async def test_a_flood_before_an_answer(kind: str, era: str, on: Any) -> None:
    async with on(ScriptedServer(era, {"tools/call": flooding(kind, on)}, session="s")) as at:
        seen = await run_client(at, era=era, hear=kind == "logs")
    assert seen["outcome"] == "4", seen  # "done"
    assert seen["usable"]
    record_measurement(f"{kind}, {era}, {on.__name__}", seen["cpu"], "s CPU")
    record_measurement(f"{kind}, {era}, {on.__name__}", seen["mib"], "MiB")
    assert seen["cpu"] < BOUND * measure_cpu_unit()
    assert seen["mib"] < HOSTILE
    if kind == "logs":
        assert seen["heard"] == MANY


async def test_a_slow_listener_of_logs_loses_the_oldest_and_nothing_grows() -> None:
    gate, heard = asyncio.Event(), list[Any]()

    async def slow(message: Any) -> None:
        await gate.wait()
        heard.append(message)

    flood = [(line("logs") + b"\n") * 1000] * (MANY // 1000)
    last = create_notification("notifications/message", level="info", data="last", logger="l")
    script = ScriptedServer("handshake", {"tools/call": lambda _: Messages([*flood, last, text_result("done")])})
    async with (
        serve_on_socket(script) as at,
        Client(at, log_handler=slow, limits=ClientLimits(max_queued_notifications=50)) as client,
    ):
        assert await client.call("go") == "done"
        gate.set()
        await wait_until(lambda: heard and heard[-1].data == "last")
        assert len(heard) <= 52


async def test_changes_not_yet_read_are_reported_once_each() -> None:
    script = ScriptedServer("handshake", {"tools/call": flooding("changes", serve_on_socket)})
    async with serve_on_socket(script) as at, Client(at) as client, client.listen() as changes:
        assert await client.call("go") == "done"
        taken = aiter(changes)
        assert (await anext(taken)).kind == "tools"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(taken), 0.1)


async def test_questions_without_number_are_refused_beyond_a_few() -> None:
    asked = 0
    gate = asyncio.Event()

    async def roots() -> list[str]:
        nonlocal asked
        asked += 1
        await gate.wait()
        return []

    questions = Messages([{"id": f"q{n}", "method": "roots/list"} for n in range(500)])
    script = ScriptedServer(
        "handshake",
        {
            "tools/call": lambda m: (
                Messages([*questions, text_result()]) if m["params"]["name"] == "go" else text_result()
            )
        },
    )
    async with serve_on_socket(script) as at, Client(at, roots=roots) as client:
        await client.call("go")
        await wait_until(lambda: any("error" in one for one in script.received))
        assert await client.call("other") == "ok"
        assert asked == 32
        gate.set()

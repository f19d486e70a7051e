"""T25: a hundred thousand notices before one answer: taken, bounded, told together, and the answer still comes."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from calling import called
from lab import figure, pace

from dovetail import Client, ClientLimits
from stand_ins import STREAM_HEAD, Messages, Play, event, notice, on_socket, on_web, text
from transports.scene import until

MANY = 100_000
BOUND = 1000  # units of work; the target is 100
HOSTILE = 64.0

KINDS = {
    "logs": notice("notifications/message", level="info", data={"a": "x" * 50}, logger="l"),
    "progress": notice("notifications/progress", progressToken=3, progress=1, total=2),
    "changes": notice("notifications/tools/list_changed"),
    "updates": notice("notifications/resources/updated", uri="a"),
    "strange": notice("notifications/none/such", a=[1, 2, 3]),
}


def line(kind: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **KINDS[kind]}).encode()


def flooding(kind: str, on: Any) -> Any:
    async def pieces(message: Any) -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        for _ in range(MANY // 1000):
            yield event(line(kind)) * 1000
        yield event(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": text("done")}).encode())

    def reaction(message: Any) -> Any:
        if message["params"]["name"] != "go":
            return text()
        if on is on_web:
            return pieces(message)
        return Messages([*[(line(kind) + b"\n") * 1000] * (MANY // 1000), text("done")])

    return reaction


@pytest.mark.parametrize("on", [on_socket, on_web], ids=["socket", "web"])
@pytest.mark.parametrize(("era", "kind"), [*(("stateless", kind) for kind in KINDS), ("handshake", "progress")])
async def test_a_flood_before_an_answer(kind: str, era: str, on: Any) -> None:
    async with on(Play(era, {"tools/call": flooding(kind, on)}, session="s")) as at:
        seen = await called(at, era=era, hear=kind == "logs")
    assert seen["outcome"] == "4", seen  # "done"
    assert seen["usable"]
    figure(f"T25 {kind}, {era}, {on.__name__}", seen["cpu"], "s CPU")
    figure(f"T25 {kind}, {era}, {on.__name__}", seen["mib"], "MiB")
    assert seen["cpu"] < BOUND * pace()
    assert seen["mib"] < HOSTILE
    if kind == "logs":
        assert seen["heard"] == MANY


async def test_a_slow_listener_of_logs_loses_the_oldest_and_nothing_grows() -> None:
    gate, heard = asyncio.Event(), list[Any]()

    async def slow(message: Any) -> None:
        await gate.wait()
        heard.append(message)

    flood = [(line("logs") + b"\n") * 1000] * (MANY // 1000)
    last = notice("notifications/message", level="info", data="last", logger="l")
    play = Play("handshake", {"tools/call": lambda _: Messages([*flood, last, text("done")])})
    async with on_socket(play) as at, Client(at, on_log=slow, limits=ClientLimits(waiting=50)) as client:
        assert await client.call("go") == "done"
        gate.set()
        await until(lambda: heard and heard[-1].data == "last")
        assert len(heard) <= 52


async def test_changes_not_yet_taken_are_told_once_each() -> None:
    play = Play("handshake", {"tools/call": flooding("changes", on_socket)})
    async with on_socket(play) as at, Client(at) as client, client.listen() as changes:
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
    play = Play(
        "handshake", {"tools/call": lambda m: Messages([*questions, text()]) if m["params"]["name"] == "go" else text()}
    )
    async with on_socket(play) as at, Client(at, roots=roots) as client:
        await client.call("go")
        await until(lambda: any("error" in one for one in play.seen))
        assert await client.call("other") == "ok"
        assert asked == 32
        gate.set()

"""Test passing requests of one server to another: as bytes if both use the same version, with safe errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from dovetail import Client, Context, Server
from dovetail.auth import Principal
from dovetail.client.client import mount_client
from dovetail.errors import InternalError, ProtocolError, ResourceNotFound
from dovetail.mounts.mounted_client import MountedClient
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.wire.base import Result
from dovetail.wire.lifecycle import ClientCapabilities, ElicitationCapability
from support.full_server import run_target

OLD, NEW = "2025-06-18", "2026-07-28"
ASKABLE = ClientCapabilities(elicitation=ElicitationCapability(form={}))


def far() -> Server:
    app = Server("far")

    @app.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @app.tool
    async def steps(context: Context) -> str:
        await context.progress(1, 2, "half")
        return "done"

    @app.tool
    async def ask(context: Context) -> str:
        return await context.elicit("Name?", str)

    @app.resource("note:{name}")
    async def note(name: str) -> str:
        return name

    return app


def forwarding(revision: str) -> MountedClient:
    made = mount_client(Client(far(), protocol_version=revision))
    assert isinstance(made, MountedClient)
    return made


def caller(revision: str = NEW, **options: Any) -> Caller:
    return Caller(protocol_version=revision, is_stateless=revision == NEW, **options)


def call(name: str, asker: Caller, meta: dict[str, Any] | None = None, **arguments: Any) -> IncomingExchange:
    return IncomingExchange(
        id=1, method="tools/call", params={"name": name, "arguments": arguments}, meta=meta or {}, caller=asker
    )


def read(uri: str, asker: Caller) -> IncomingExchange:
    return IncomingExchange(id=1, method="resources/read", params={"uri": uri}, meta={}, caller=asker)


@pytest.mark.parametrize("revision", [OLD, NEW])
async def test_bytes_go_through_where_both_sides_speak_alike(revision: str) -> None:
    one = forwarding(revision)
    said = await one.handle(call("add", caller(revision), a=1, b=2))
    assert isinstance(said, bytes)
    assert json.loads(said)["content"][0]["text"] == "3"
    await one.stop()


@pytest.mark.parametrize(("above", "below"), [(OLD, NEW), (NEW, OLD)])
async def test_a_result_is_translated_where_they_do_not(above: str, below: str) -> None:
    one = forwarding(below)
    said: Any = await one.handle(call("add", caller(above), a=1, b=2))
    assert isinstance(said, Result)
    assert said.content[0].text == "3"  # pyright: ignore[reportAttributeAccessIssue]
    await one.stop()


@pytest.mark.parametrize("revision", [OLD, NEW])
async def test_progress_goes_to_the_requesting_caller_under_its_token(revision: str) -> None:
    one, told = forwarding(revision), list[Any]()

    async def emit(data: bytes) -> None:
        told.append(json.loads(data)["params"])

    wants, wants_not = (call("steps", caller(revision), meta) for meta in ({"progressToken": "mine"}, {}))
    wants.emit = wants_not.emit = emit
    await one.handle(wants_not)
    assert told == []
    await one.handle(wants)
    assert [(note["progressToken"], note["progress"], note["total"]) for note in told] == [("mine", 1, 2)]
    await one.stop()


@pytest.mark.parametrize("revision", [OLD, NEW])
async def test_a_refusal_travels_as_this_sides_own(revision: str) -> None:
    one = forwarding(revision)
    with pytest.raises(ResourceNotFound):
        await one.handle(read("other:1", caller(revision)))
    with pytest.raises(ProtocolError) as told:
        await one.handle(call("nothing", caller(revision)))
    assert told.value.code == -32602
    await one.stop()


async def test_local_details_are_logged_and_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    one = mount_client(Client("tcp://127.0.0.1:9", name="far"))
    with pytest.raises(InternalError, match="far") as told:
        await one.handle(call("add", caller(), a=1, b=2))
    assert "127.0.0.1" not in str(told.value)
    assert "127.0.0.1:9" in caplog.text
    await one.stop()


@pytest.mark.parametrize("below", [OLD, NEW])
async def test_a_question_goes_to_the_caller_it_is_about(below: str) -> None:
    one = forwarding(below)

    async def served(name: str) -> Any:
        async def answer(method: str, _: Any) -> Any:
            await asyncio.sleep(0)
            return {"action": "accept", "content": {"value": name}}

        asking = call("ask", caller(OLD, client_capabilities=ASKABLE))
        asking.ask = answer
        return await one.handle(asking)

    assert "anna" in repr(await served("anna"))
    await one.stop()


def asking(asker: Caller, heard: list[str], name: str, origin: str | None = None) -> IncomingExchange:
    async def answer(*_: Any) -> Any:
        heard.append(name)
        return {"action": "decline"}

    made = call("ask", asker)
    made.ask, made.origin = answer, origin
    return made


class Held:
    """A server over a socket, one of whose calls is at work until the test ends it."""

    def __init__(self) -> None:
        self.app = far()
        self.app.add_tool(self.hold)
        self.begun, self.free = asyncio.Event(), asyncio.Event()

    async def hold(self) -> str:
        self.begun.set()
        await self.free.wait()
        return "held"

    @asynccontextmanager
    async def during(self, exchange: IncomingExchange) -> AsyncIterator[MountedClient]:
        """While the call is held for this exchange."""
        exchange.params["name"] = "hold"
        async with run_target("tcp", self.app) as at, asyncio.timeout(20):
            one = mount_client(Client(at, protocol_version=OLD))
            held = asyncio.ensure_future(one.handle(exchange))
            await self.begun.wait()
            yield one
            self.free.set()
            await held
            await one.stop()


@pytest.mark.parametrize("origin", [None, "10.0.0.1"])
async def test_a_question_that_could_be_of_either_of_two_callers_is_put_to_neither(origin: str | None) -> None:
    """Those who come from one address are not one."""
    asked = list[str]()
    anna, otto = (
        asking(caller(OLD, client_capabilities=ASKABLE, session_id=name), asked, name, origin)
        for name in ("anna", "otto")
    )
    async with Held().during(anna) as one:
        assert b"isError" in cast("bytes", await one.handle(otto))
    assert asked == []


@pytest.mark.parametrize("who", [{"session_id": "one"}, {"principal": Principal("anna")}])
async def test_a_question_that_can_only_be_of_one_caller_is_put_to_it(who: dict[str, Any]) -> None:
    asked = list[str]()
    first, second = (
        asking(caller(OLD, client_capabilities=ASKABLE, **who), asked, name) for name in ("first", "second")
    )
    async with Held().during(first) as one:
        await one.handle(second)
    assert asked == ["second"]


async def test_a_call_that_was_cancelled_before_it_was_sent_keeps_no_question_from_others() -> None:
    asked = list[str]()
    anna, otto = (
        asking(caller(OLD, client_capabilities=ASKABLE, session_id=name), asked, name) for name in ("anna", "otto")
    )
    async with run_target("tcp", far()) as at, asyncio.timeout(20):
        one = mount_client(Client(at, protocol_version=OLD))
        cancelled = asyncio.create_task(one.handle(anna))
        await asyncio.sleep(0)  # the client begins to connect
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await one.handle(otto)
        await one.stop()
    assert asked == ["otto"]


async def test_a_question_may_be_about_a_call_that_was_sent_and_cancelled() -> None:
    asked, held = list[str](), Held()
    anna, otto = (
        asking(caller(OLD, client_capabilities=ASKABLE, session_id=name), asked, name) for name in ("anna", "otto")
    )
    anna.params["name"] = "hold"
    async with run_target("tcp", held.app) as at, asyncio.timeout(20):
        one = mount_client(Client(at, protocol_version=OLD))
        cancelled = asyncio.create_task(one.handle(anna))
        await held.begun.wait()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert b"isError" in cast("bytes", await one.handle(otto))
        await one.stop()
    assert asked == []


async def test_a_caller_who_waits_elsewhere_counts_too() -> None:
    """A call that waits for its caller's answer is at work at the server, which may ask more about it."""
    asked = list[str]()
    async with run_target("tcp", far()) as at, asyncio.timeout(20):
        one = mount_client(Client(at, protocol_version=OLD))
        waits: Any = await one.handle(call("ask", caller(NEW, client_capabilities=ASKABLE)))
        assert waits.result_type == "input_required"
        otto = asking(caller(OLD, client_capabilities=ASKABLE), asked, "otto")
        assert b"isError" in cast("bytes", await one.handle(otto))
        await one.stop()
    assert asked == []


async def test_lists_and_what_a_template_may_stand_for() -> None:
    one, any_call = forwarding(NEW), call("add", caller())
    await one.start()
    assert set(await one.list_items("tool", any_call)) == {"add", "steps", "ask"}
    assert await one.list_items("prompt", any_call) == {}
    assert await one.has_item("tool", "add", any_call)
    assert not await one.has_item("tool", "subtract", any_call)
    assert await one.has_item("resource", "note:1", any_call)
    await one.stop()

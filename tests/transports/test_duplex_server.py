"""Test duplex connections: every request is answered once, requests run concurrently, both eras at once."""

import asyncio
import itertools
import json
import re
from collections import Counter
from typing import Any

import pytest

from dovetail.errors import ConnectionLost, InvalidParams, RemoteError, ResourceNotFound
from dovetail.protocol.exchange import IncomingExchange
from dovetail.transports.duplex_server import DuplexServer
from support.fake_service import (
    BATCHING,
    DRAFT,
    FIRST,
    INITIALIZED,
    LATEST_HANDSHAKE,
    META,
    NEWEST,
    TIMEOUT_S,
    VERSION,
    FakeService,
    PausedWork,
    create_notification,
    echo,
    initialize,
    request,
    run_pending_callbacks,
    stateless_request,
    text_result,
    wait_until,
)


class Line:
    """The other end of one connection."""

    def __init__(self, stand: FakeService | None = None, **options: Any) -> None:
        self.stand = stand or FakeService()
        self.written: list[Any] = []
        self.duplex = DuplexServer(self.stand, lambda data: self.written.append(json.loads(data)), **options)

    def send(self, *messages: Any) -> None:
        """All in one chunk: nothing happens between two of them."""
        for message in messages:
            self.duplex.receive(json.dumps(message).encode())

    def open(self, revision: str = LATEST_HANDSHAKE, **changes: Any) -> "Line":
        self.send(initialize(revision, **changes), INITIALIZED)
        assert self.written.pop()["result"]["protocolVersion"] == revision
        return self

    async def answers(self, count: int = 1) -> list[Any]:
        await wait_until(lambda: len(self.written) >= count)
        await run_pending_callbacks()
        assert len(self.written) == count
        taken, self.written = self.written, []
        return taken

    async def answer(self) -> Any:
        return (await self.answers())[0]

    async def quiet(self) -> None:
        await run_pending_callbacks()
        assert self.written == []


def text(answer: dict[str, Any]) -> str:
    return answer["result"]["content"][0]["text"]


# Both eras on one connection


async def test_a_modern_request_needs_nothing_before_it() -> None:
    line = Line()
    line.send(stateless_request(id="a", text="hello"))
    answer = await line.answer()
    assert (answer["id"], text(answer), answer["result"]["resultType"]) == ("a", "hello", "complete")
    assert line.stand.seen[0].caller.is_stateless


async def test_a_handshake_opens_a_session() -> None:
    line = Line(principal="alice").open("2025-06-18")
    line.send(request(id=5, text="hello"))
    answer = await line.answer()
    assert (answer["id"], text(answer)) == (5, "hello")
    assert "resultType" not in answer["result"]
    caller = line.stand.seen[0].caller
    assert (caller.protocol_version, caller.is_stateless, caller.principal) == ("2025-06-18", False, "alice")


async def test_both_eras_at_once() -> None:
    line = Line().open()
    line.send(request(id=1, text="old"), stateless_request(id=2, text="new"))
    old, new = await line.answers(2)
    assert ("resultType" in old["result"], "resultType" in new["result"]) == (False, True)


async def test_before_the_handshake_only_pings_are_answered() -> None:
    line = Line()
    line.send(request("ping", 1))
    assert await line.answer() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    line.send(request("tools/list", 2), create_notification("notifications/initialized"))
    assert (await line.answer())["error"]["code"] == -32600
    assert line.stand.listeners == []


class Description:
    """A description that takes its time."""

    def __init__(self) -> None:
        self.is_known = asyncio.Event()
        self.stand = FakeService()
        self.stand.refresh_description = self.refresh

    async def refresh(self) -> None:
        await self.is_known.wait()
        self.stand.instructions = "known"


async def test_the_answer_to_initialize_waits_for_the_description() -> None:
    description = Description()
    line = Line(description.stand)
    line.send(initialize(id=1), INITIALIZED, request(id=2, text="early"))
    assert (await line.answer())["id"] == 2  # the session is open
    description.is_known.set()
    assert (await line.answer())["result"]["instructions"] == "known"


@pytest.mark.parametrize("grace", [0.0, 5.0])
async def test_a_connection_that_closes_answers_initialize_within_the_grace_period(grace: float) -> None:
    description = Description()
    line = Line(description.stand)
    line.send(initialize(id=1))
    asyncio.get_running_loop().call_later(0.01, description.is_known.set)
    await line.duplex.close(grace)
    assert [answer["id"] for answer in line.written] == ([1] if grace else [])


async def test_a_connection_that_closes_answers_each_initialize_within_the_grace_period() -> None:
    stand = FakeService()
    events = [asyncio.Event(), asyncio.Event()]
    waiting = iter(events)

    async def refresh() -> None:
        await next(waiting).wait()

    stand.refresh_description = refresh
    line = Line(stand)
    line.send(initialize(id=1), initialize(id=2))
    await run_pending_callbacks()
    closing = asyncio.create_task(line.duplex.close(TIMEOUT_S))
    events[1].set()
    assert (await line.answer())["id"] == 2
    events[0].set()
    assert (await line.answer())["id"] == 1
    await closing


async def test_the_description_is_read_once_for_each_initialize(monkeypatch: pytest.MonkeyPatch) -> None:
    description, read_count = Description(), 0
    capabilities = description.stand.capabilities

    def count_capabilities() -> Any:
        nonlocal read_count
        read_count += 1
        return capabilities()

    monkeypatch.setattr(description.stand, "capabilities", count_capabilities)
    line = Line(description.stand)
    line.send(initialize(id=1))
    description.is_known.set()
    assert (await line.answer())["result"]["instructions"] == "known"
    assert read_count == 1


async def test_a_second_initialize_starts_over_and_running_requests_still_get_their_responses() -> None:
    held = PausedWork()
    line = Line(FakeService(held)).open()
    line.send(request(id=1, text="first"))
    await wait_until(lambda: held.started)
    line.send(initialize(FIRST, id=9))
    answer = await line.answer()
    assert (answer["id"], answer["result"]["protocolVersion"]) == (9, FIRST)
    line.send(request(id=2, text="second"))
    await wait_until(lambda: len(held.started) == 2)
    assert [exchange.caller.protocol_version for exchange in line.stand.seen] == [LATEST_HANDSHAKE, FIRST]
    held.release("first")
    assert (await line.answer())["id"] == 1
    held.release("second")
    assert (await line.answer())["id"] == 2


async def test_a_batch_cannot_start_over() -> None:
    line = Line().open("2025-03-26")
    line.send([initialize(FIRST, id=9)])
    assert [answer["error"]["code"] for answer in await line.answer()] == [-32600]


async def test_a_failed_handshake_may_be_tried_again() -> None:
    line = Line()
    line.send(initialize(capabilities=None))
    assert (await line.answer())["error"]["code"] == -32602
    line.open()


async def test_a_server_of_one_era_does_not_speak_the_other() -> None:
    line = Line(FakeService(protocol_versions=(LATEST_HANDSHAKE,)))
    line.send(stateless_request())
    assert (await line.answer())["error"]["code"] == -32600
    line = Line(FakeService(protocol_versions=(NEWEST,)))
    line.send(initialize())
    assert (await line.answer())["error"]["code"] == -32022


async def test_what_the_session_answers_by_itself() -> None:
    line = Line().open()
    line.send(
        request("ping", 1),
        request("logging/setLevel", 2, level="error"),
        request("resources/subscribe", 3, uri="a:b"),
        request("logging/setLevel", 4, level="loud"),
    )
    answers = await line.answers(4)
    assert [one.get("result") for one in answers[:3]] == [{}, {}, {}]
    assert answers[3]["error"]["code"] == -32602
    assert line.stand.seen == []


async def test_a_shutdown_request_is_answered_and_reported() -> None:
    told: list[int] = []
    line = Line(on_shutdown=lambda: told.append(1)).open()
    line.send(request("shutdown", 1))
    assert await line.answer() == {"jsonrpc": "2.0", "id": 1, "result": None}
    assert told == [1]


# What is not a message


@pytest.mark.parametrize(
    ("data", "code", "id"),
    [
        (b"", -32700, None),
        (b"{", -32700, None),
        (b'{"a":1,"a":2}', -32700, None),
        (b"5", -32600, None),
        (b"{}", -32600, None),
        (b'{"jsonrpc":"2.0","id":7}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":"x","method":5}', -32600, "x"),
        (b"[]", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
    ],
)
@pytest.mark.parametrize("opened", [True, False])
async def test_an_invalid_message_is_refused_with_its_id(data: bytes, code: int, id: Any, opened: bool) -> None:
    line = Line().open() if opened else Line()
    line.duplex.receive(data)
    answer = await line.answer()
    assert (answer["error"]["code"], answer.get("id")) == (code, id)


async def test_what_never_became_a_message_can_be_refused() -> None:
    line = Line()
    line.duplex.send_refusal(InvalidParams("too long"))
    assert await line.answer() == {"jsonrpc": "2.0", "error": {"code": -32602, "message": "too long"}}


async def test_unknown_notices_and_answers_to_nothing_are_ignored() -> None:
    line = Line().open()
    line.send(
        create_notification("notifications/whatever"),
        create_notification("notifications/cancelled"),
        create_notification("notifications/cancelled", requestId=99),
        create_notification("notifications/cancelled", requestId=None),
        create_notification("notifications/cancelled", requestId=[1]),
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}},
        {"jsonrpc": "2.0", "id": "1", "result": {}},
    )
    await line.quiet()


# Errors


@pytest.mark.parametrize(("revision", "code"), [(NEWEST, -32602), (LATEST_HANDSHAKE, -32002), (DRAFT, -32002)])
async def test_an_error_has_the_code_of_the_revision(revision: str, code: int) -> None:
    async def work(exchange: IncomingExchange) -> Any:
        raise ResourceNotFound("a:b")

    line = Line(FakeService(work))
    line = line if revision == NEWEST else line.open(revision)
    line.send(stateless_request() if revision == NEWEST else request())
    assert (await line.answer())["error"] == {"code": code, "message": "Resource not found", "data": {"uri": "a:b"}}


async def test_a_result_that_cannot_be_sent_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def work(exchange: IncomingExchange) -> Any:
        return text_result("x") if exchange.id == 1 else object()

    line = Line(FakeService(work)).open()
    line.send(stateless_request(id=2), request(id=3), stateless_request(id=1))
    answers = {one["id"]: one for one in await line.answers(3)}
    assert answers[2]["error"] == answers[3]["error"]
    assert (answers[2]["error"]["code"], answers[2]["error"].keys()) == (-32603, {"code", "message"})
    assert text(answers[1]) == "x"
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert line.duplex.running_count == 0


async def test_methods_of_the_other_era_do_not_exist() -> None:
    line = Line().open()
    line.send(request("server/discover", 1), stateless_request("ping", 2), stateless_request("initialize", 3))
    assert [one["error"]["code"] for one in await line.answers(3)] == [-32601] * 3


async def test_a_large_meta_is_refused_also_in_a_batch() -> None:
    large = {"x": "y" * 200}
    line = Line(FakeService(max_meta_bytes=100)).open(BATCHING)
    line.send(request(id=1, _meta=large), stateless_request(id=2) | {"params": {"name": "echo", "_meta": META | large}})
    for answer in await line.answers(2):
        assert answer["error"]["code"] == -32602
        assert re.search("_meta.*100", answer["error"]["message"])
    line.send([request(id=3, _meta=large), request(id=4, text="x" * 200)])
    refused, served = sorted(await line.answer(), key=lambda one: one["id"])
    assert "_meta" in refused["error"]["message"]
    assert text(served) == "x" * 200


# Side by side


async def test_requests_are_answered_as_they_finish() -> None:
    held = PausedWork()
    line = Line(FakeService(held))
    line.send(*(stateless_request(id=name, text=name) for name in "abc"))
    await wait_until(lambda: len(held.started) == 3)
    assert line.duplex.running_count == 3
    for name in "cab":
        held.release(name)
        assert (await line.answer())["id"] == name
    assert line.duplex.running_count == 0


async def test_ids_of_different_types_are_different_ids() -> None:
    held = PausedWork()
    line = Line(FakeService(held))
    line.send(stateless_request(id=1, text="number"), stateless_request(id="1", text="text"))
    await wait_until(lambda: len(held.started) == 2)
    line.send(create_notification("notifications/cancelled", requestId="1"))
    held.release("number")
    assert text(await line.answer()) == "number"
    assert held.outcomes == {"text": "cancelled", "number": "done"}


@pytest.mark.parametrize(("revision", "code"), [(LATEST_HANDSHAKE, -32600), (DRAFT, -32001), (NEWEST, -32600)])
async def test_an_id_in_use_is_refused_and_the_first_request_goes_on(revision: str, code: int) -> None:
    held = PausedWork()
    line = Line(FakeService(held))
    if revision != NEWEST:
        line.open(revision)
    make = stateless_request if revision == NEWEST else request
    line.send(make(id=1, text="first"), make(id=1, text="second"))
    answer = await line.answer()
    assert (answer["id"], answer["error"]["code"]) == (1, code)
    held.release("first")
    assert text(await line.answer()) == "first"
    assert held.started == ["first"]
    line.send(make(id=1, text="third"))
    held.release("third")
    assert text(await line.answer()) == "third"


async def test_requests_in_flight_have_a_limit() -> None:
    held = PausedWork()
    line = Line(FakeService(held, max_calls_per_connection=2))
    line.send(stateless_request(id=1, text="a"), stateless_request(id=2, text="b"), stateless_request(id=3, text="c"))
    answer = await line.answer()
    assert (answer["id"], answer["error"]["code"]) == (3, 429)
    held.release("a", "b")
    await line.answers(2)
    line.send(stateless_request(id=3, text="a"))
    await line.answer()


async def test_work_that_cancels_itself_is_answered() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        raise asyncio.CancelledError

    line = Line(FakeService(work))
    line.send(stateless_request(id=5))
    answer = await line.answer()
    assert (answer["id"], answer["error"]["code"]) == (5, -32603)


async def test_calls_count_toward_the_share_of_the_principal() -> None:
    line = Line(principal="alice")
    line.send(stateless_request())
    await line.answer()
    assert line.stand.seen[0].origin == "alice"


# Notifications on the way


async def test_messages_before_the_result_come_before_the_response() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        await exchange.notify("notifications/message", {"n": 1})
        await exchange.notify("notifications/message", {"n": 2})
        return text_result("done")

    line = Line(FakeService(work))
    line.send(stateless_request())
    first, second, answer = await line.answers(3)
    assert (first["params"], second["params"], text(answer)) == ({"n": 1}, {"n": 2}, "done")


async def test_nothing_is_sent_about_a_request_that_was_cancelled() -> None:
    held = PausedWork()
    line = Line(FakeService(held))
    line.send(stateless_request(id=1))
    await wait_until(lambda: held.started)
    line.send(create_notification("notifications/cancelled", requestId=1))
    await line.stand.seen[0].notify("notifications/progress", {"progressToken": 1, "progress": 1})
    await line.quiet()


async def test_an_exchange_knows_how_large_its_message_was() -> None:
    line = Line().open(BATCHING)
    for message in (stateless_request(text="x"), request(id=2, text="y"), [request(id=3, text="z")]):
        line.send(message)
        await line.answer()
        assert line.stand.seen[-1].size == len(json.dumps(message))


@pytest.mark.parametrize("batch", [True, False])
async def test_a_notification_knows_how_large_its_message_was(batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    line, received = Line().open(BATCHING), list[IncomingExchange]()
    monkeypatch.setattr(line.stand, "receive_notification", received.append)
    message = create_notification("notifications/roots/list_changed", text="x" * 1000)
    data = json.dumps([message] if batch else message).encode()
    line.duplex.receive(data)
    assert [exchange.size for exchange in received] == [len(data)]


async def test_a_peer_that_does_not_read_is_waited_for() -> None:
    room, steps = asyncio.Event(), []

    async def drain() -> None:
        steps.append("waiting")
        await room.wait()

    async def work(exchange: IncomingExchange) -> Any:
        await exchange.notify("notifications/message", {})
        steps.append("said")
        return text_result("done")

    line = Line(FakeService(work), drain=drain)
    line.send(stateless_request())
    await wait_until(lambda: steps)
    await run_pending_callbacks()
    assert steps == ["waiting"]
    room.set()
    await line.answers(2)


# Cancellation


@pytest.mark.parametrize("revision", [NEWEST, LATEST_HANDSHAKE, DRAFT])
@pytest.mark.parametrize("when", ["in the same chunk", "before it waits", "while it waits"])
async def test_a_cancelled_request_stops_and_gets_no_answer(revision: str, when: str) -> None:
    held = PausedWork()
    line = Line(FakeService(held))
    if revision != NEWEST:
        line.open(revision)
    asked = (stateless_request if revision == NEWEST else request)(id="x", text="a")
    stop = create_notification("notifications/cancelled", requestId="x", reason="changed my mind")
    if when == "in the same chunk":
        line.send(asked, stop)
    else:
        line.send(asked)
        if when == "while it waits":
            await wait_until(lambda: held.started)
        line.send(stop)
    if revision == DRAFT:
        assert (await line.answer())["error"]["code"] == -32000
    await line.quiet()
    assert line.duplex.running_count == 0
    assert held.outcomes == ({"a": "cancelled"} if when == "while it waits" else {})
    line.send(stop)
    await line.quiet()


@pytest.mark.parametrize("stubborn", [False, True])
async def test_an_id_is_free_again_after_a_cancel(stubborn: bool) -> None:
    """Even while the cancelled work is still winding down, or goes on and returns something nobody wants."""
    winding, seen = asyncio.Event(), Counter[str]()

    async def work(exchange: IncomingExchange) -> Any:
        name = exchange.params["text"]
        seen[name] += 1
        if name == "first":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await winding.wait()
                if not stubborn:
                    raise
        return text_result(name)

    line = Line(FakeService(work))
    line.send(stateless_request(id=1, text="first"))
    await wait_until(lambda: seen["first"])
    line.send(create_notification("notifications/cancelled", requestId=1), stateless_request(id=1, text="second"))
    assert text(await line.answer()) == "second"
    winding.set()
    await line.quiet()
    line.send(stateless_request(id=1, text="third"))
    assert text(await line.answer()) == "third"


async def test_cancel_and_reuse_in_one_chunk() -> None:
    line = Line()
    line.send(
        stateless_request(id=1, text="first"),
        create_notification("notifications/cancelled", requestId=1),
        stateless_request(id=1, text="second"),
        create_notification("notifications/cancelled", requestId=1),
        stateless_request(id=1, text="third"),
    )
    assert text(await line.answer()) == "third"
    assert [one.params["text"] for one in line.stand.seen] == ["third"]


async def test_a_cancel_after_the_answer_changes_nothing() -> None:
    line = Line()
    line.send(stateless_request(id=1))
    await line.answer()
    line.send(create_notification("notifications/cancelled", requestId=1), stateless_request(id=1, text="again"))
    assert text(await line.answer()) == "again"


# Questions to the client


async def asking(exchange: IncomingExchange) -> Any:
    assert exchange.ask is not None
    try:
        answer = await exchange.ask("roots/list", {"n": exchange.id})
    except RemoteError as exc:
        return text_result(f"error {exc.code} {exc.message} {exc.data}")
    return text_result(json.dumps(answer))


async def test_a_question_and_its_answer() -> None:
    line = Line(FakeService(asking)).open()
    line.send(request(id="a"), request(id="b"))
    first, second = await line.answers(2)
    assert (first["method"], first["params"]) == ("roots/list", {"n": "a"})
    assert first["id"] != second["id"]
    line.send({"jsonrpc": "2.0", "id": second["id"], "result": {"for": "b"}})
    answer = await line.answer()
    assert (answer["id"], text(answer)) == ("b", '{"for": "b"}')
    error = {"code": -5, "message": "no", "data": [1]}
    line.send({"jsonrpc": "2.0", "id": first["id"], "error": error})
    answer = await line.answer()
    assert (answer["id"], text(answer)) == ("a", "error -5 no [1]")
    line.send({"jsonrpc": "2.0", "id": first["id"], "result": {}})
    await line.quiet()


async def test_modern_requests_cannot_ask() -> None:
    line = Line().open()
    line.send(stateless_request())
    await line.answer()
    assert line.stand.seen[0].ask is None


async def test_a_cancelled_request_withdraws_its_question() -> None:
    line = Line(FakeService(asking)).open()
    line.send(request(id="a"))
    question = await line.answer()
    line.send(create_notification("notifications/cancelled", requestId="a"))
    assert await line.answer() == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": question["id"]},
    }
    line.send({"jsonrpc": "2.0", "id": question["id"], "result": {}})
    await line.quiet()


async def test_a_question_cancelled_before_it_was_sent_is_not_waited_for() -> None:
    full = asyncio.Event()

    async def drain() -> None:
        await full.wait()

    line = Line(FakeService(asking), drain=drain).open()
    line.send(request(id="a"))
    (question,) = await line.answers()
    line.send(create_notification("notifications/cancelled", requestId="a"))
    await wait_until(lambda: line.written)
    assert line.written.pop()["params"] == {"requestId": question["id"]}
    assert line.duplex.open_questions == 0


async def test_a_client_that_leaves_answers_nothing_more() -> None:
    outcomes: list[BaseException] = []

    async def work(exchange: IncomingExchange) -> Any:
        assert exchange.ask is not None
        for _ in range(2):
            try:
                await exchange.ask("roots/list", {})
            except ConnectionLost as exc:
                outcomes.append(exc)
        return text_result("done")

    line = Line(FakeService(work)).open()
    line.send(request())
    await line.answer()
    await line.duplex.close(grace=TIMEOUT_S)
    assert len(outcomes) == 2
    assert text(await line.answer()) == "done"


# Changes


async def test_a_session_hears_of_changes_once_it_is_open() -> None:
    line = Line()
    line.send(initialize())
    await line.answer()
    assert line.stand.listeners == []
    line.send(INITIALIZED, INITIALIZED, request("resources/subscribe", 1, uri="a:1"))
    await line.answer()
    assert len(line.stand.listeners) == 1
    line.stand.publish("notifications/tools/list_changed")
    line.stand.publish("notifications/resources/updated", "a:1")
    line.stand.publish("notifications/resources/updated", "a:2")
    assert await line.answers(2) == [
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
        {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "a:1"}},
    ]
    listener = line.stand.listeners[0]
    await line.duplex.close()
    assert line.stand.listeners == []
    listener.deliver("notifications/tools/list_changed", None)
    await line.quiet()


async def test_changes_for_a_busy_client_are_sent_once_each() -> None:
    room = asyncio.Event()

    async def drain() -> None:
        await room.wait()

    line = Line(drain=drain).open()
    for _ in range(100):
        line.stand.publish("notifications/tools/list_changed")
        line.stand.publish("notifications/prompts/list_changed")
        await run_pending_callbacks(1)
    await line.quiet()
    room.set()
    assert [one["method"] for one in await line.answers(2)] == [
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
    ]


# Closing


@pytest.mark.parametrize("when", ["before they start", "while they run"])
async def test_closing_stops_what_runs_and_says_nothing(when: str) -> None:
    held = PausedWork()
    line = Line(FakeService(held)).open()
    line.send(stateless_request(id=1, text="a"), request(id=2, text="b"))
    if when == "while they run":
        await wait_until(lambda: len(held.started) == 2)
    await line.duplex.close()
    assert held.outcomes == ({"a": "gone", "b": "gone"} if when == "while they run" else {})
    assert line.duplex.running_count == 0
    await line.quiet()


async def test_closing_with_grace_lets_what_runs_finish() -> None:
    held = PausedWork()
    line = Line(FakeService(held))
    line.send(stateless_request(id=1, text="a"), stateless_request("subscriptions/listen", id=2, text="listener"))
    await wait_until(lambda: len(held.started) == 2)
    closing = asyncio.create_task(line.duplex.close(grace=TIMEOUT_S))
    await run_pending_callbacks()
    assert not closing.done()
    assert held.outcomes == {"listener": "gone"}
    held.release("a")
    await closing
    assert held.outcomes == {"listener": "gone", "a": "done"}
    assert text(await line.answer()) == "a"


async def test_the_grace_has_an_end() -> None:
    held = PausedWork()
    line = Line(FakeService(held))
    line.send(stateless_request(text="a"))
    await wait_until(lambda: held.started)
    async with asyncio.timeout(TIMEOUT_S):
        await line.duplex.close(grace=0.01)
    assert held.outcomes == {"a": "gone"}


async def test_closing_does_not_wait_for_work_that_will_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    go, seen = asyncio.Event(), []

    async def stubborn(exchange: IncomingExchange) -> Any:
        seen.append(1)
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return text_result("late")

    line = Line(FakeService(stubborn))
    line.send(stateless_request())
    await wait_until(lambda: seen)
    async with asyncio.timeout(TIMEOUT_S):
        await line.duplex.close()
    go.set()
    await line.quiet()


async def test_a_closed_connection_takes_nothing_more() -> None:
    line = Line().open()
    await line.duplex.close()
    line.send(stateless_request(id=1), request(id=2), [request(id=3)], request("ping", 4))
    line.duplex.receive(b"{")
    await line.quiet()
    assert line.stand.seen == []
    await line.duplex.close()


# Batches


KINDS = ("answer", "error", "wait", "cancelled", "notice", "ping", "invalid", "duplicate", "response", "unknown")
ANSWERED = {"answer", "error", "wait", "ping", "invalid", "duplicate", "unknown"}


async def batch_work(exchange: IncomingExchange) -> Any:
    match exchange.params["text"]:
        case "error":
            raise InvalidParams("no")
        case "wait":
            await asyncio.sleep(0.001)
        case "cancelled" | "holder":
            await asyncio.Event().wait()
    return await echo(exchange)


def member(kind: str, id: int) -> list[Any]:
    """The messages that make one member of this kind."""
    match kind:
        case "notice":
            return [create_notification("notifications/whatever")]
        case "ping":
            return [request("ping", id)]
        case "invalid":
            return [{"jsonrpc": "2.0", "id": id}]
        case "duplicate":
            return [request(id=999, text="again")]
        case "response":
            return [{"jsonrpc": "2.0", "id": id, "result": {}}]
        case "unknown":
            return [request("tools/fly", id)]
        case "cancelled":
            return [request(id=id, text=kind), create_notification("notifications/cancelled", requestId=id)]
        case _:
            return [request(id=id, text=kind)]


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_every_mixture_settles_with_one_array_of_what_was_answered(size: int) -> None:
    for kinds in itertools.product(KINDS, repeat=size):
        line = Line(FakeService(batch_work)).open(BATCHING)
        line.send(request(id=999, text="holder"))  # for duplicates
        await run_pending_callbacks(2)
        parts = [member(kind, place + 1) for place, kind in enumerate(kinds)]
        line.send([message for part in parts for message in part])
        expected = {999 if kind == "duplicate" else place + 1 for place, kind in enumerate(kinds) if kind in ANSWERED}
        if expected:
            (answers,) = await line.answers()
            assert Counter(one["id"] for one in answers) == Counter(
                999 if kind == "duplicate" else place + 1 for place, kind in enumerate(kinds) if kind in ANSWERED
            ), kinds
        else:
            await line.quiet()
        assert line.duplex.running_count == 1
        await line.duplex.close()


async def test_a_batch_cancelled_from_outside_settles_without_that_member() -> None:
    held = PausedWork()
    line = Line(FakeService(held)).open(BATCHING)
    line.send([request(id=1, text="a"), request(id=2, text="b")])
    await wait_until(lambda: len(held.started) == 2)
    line.send(create_notification("notifications/cancelled", requestId=1))
    await line.quiet()
    held.release("b")
    (answers,) = await line.answers()
    assert [one["id"] for one in answers] == [2]


async def test_a_batch_of_which_everything_is_cancelled_is_not_answered() -> None:
    held = PausedWork()
    line = Line(FakeService(held)).open(BATCHING)
    line.send([request(id=1, text="a"), request(id=2, text="b")])
    await wait_until(lambda: len(held.started) == 2)
    line.send(
        create_notification("notifications/cancelled", requestId=1),
        create_notification("notifications/cancelled", requestId=2),
    )
    await line.quiet()
    assert line.duplex.running_count == 0


async def test_a_batch_does_not_hold_up_what_is_beside_it() -> None:
    held = PausedWork()
    line = Line(FakeService(held)).open(BATCHING)
    line.send([request(id=1, text="a"), request(id=2, text="b")], request(id=3, text="c"))
    await wait_until(lambda: len(held.started) == 3)
    held.release("a", "c")
    assert (await line.answer())["id"] == 3
    held.release("b")
    assert {one["id"] for one in await line.answer()} == {1, 2}


async def test_messages_of_a_batch_are_not_part_of_its_response() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        await exchange.notify("notifications/message", {"n": exchange.id})
        return text_result("done")

    line = Line(FakeService(work)).open(BATCHING)
    line.send([request(id=1), request(id=2)])
    *notices, answers = await line.answers(3)
    assert [one["params"] for one in notices] == [{"n": 1}, {"n": 2}]
    assert {one["id"] for one in answers} == {1, 2}


@pytest.mark.parametrize("revision", [FIRST, "2025-06-18", LATEST_HANDSHAKE, DRAFT])
async def test_batches_are_part_of_one_revision_only(revision: str) -> None:
    line = Line().open(revision)
    line.send([request("ping", 1)])
    answer = await line.answer()
    assert answer["error"]["code"] == -32600
    assert "id" not in answer


async def test_a_batch_has_a_size() -> None:
    line = Line(FakeService(max_calls_per_connection=3)).open(BATCHING)
    line.send([request("ping", number) for number in range(3)])
    assert len(await line.answer()) == 3
    line.send([request("ping", number) for number in range(4)])
    assert (await line.answer())["error"]["code"] == -32600
    line.send([])
    assert (await line.answer())["error"]["code"] == -32600


async def test_a_modern_request_may_stand_in_a_batch_of_the_session() -> None:
    line = Line().open(BATCHING)
    line.send([request(id=1, text="old"), stateless_request(id=2, text="new")])
    old, new = sorted(await line.answer(), key=lambda one: one["id"])
    assert ("resultType" in old["result"], "resultType" in new["result"]) == (False, True)
    assert VERSION in META

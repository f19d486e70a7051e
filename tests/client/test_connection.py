"""Test a connection to a server that violates the protocol: no call waits for a response that cannot arrive."""

import asyncio
import json
from typing import Any

import pytest

from dovetail import Client, ClientLimits, TextContent, Timeouts
from dovetail.client.client import get_session
from dovetail.errors import InputRequestError, InvalidResult
from support.fake_service import wait_until
from support.mentions import mentions, values
from support.scripted_server import (
    ERAS,
    Messages,
    ScriptedServer,
    create_notification,
    encode_event,
    encode_event_stream,
    encode_http_reply,
    serve_on_socket,
    serve_over_http,
    text_result,
)

PATIENT = Timeouts(connect=5, discover=5, initialize=60, call=600, request=600)

both = pytest.mark.parametrize("era", ERAS)


def misanswered(change: dict[str, Any] | bytes) -> Any:
    """A reaction to a call: a response with something wrong in it."""

    def answer(message: dict[str, Any]) -> bytes:
        if isinstance(change, bytes):
            return change.replace(b"ID", str(message["id"]).encode())
        ids = {"float": float(message["id"]), "text": str(message["id"])}
        made = {"jsonrpc": "2.0", "id": message["id"]} | change
        return json.dumps(made | {"id": ids.get(made["id"], made["id"])}).encode()

    return answer


BROKEN = {
    "text as code": {"error": {"code": "E_NO", "message": "no"}},
    "null as message": {"error": {"code": -32000, "message": None}},
    "text as error": {"error": "no"},
    "float as id": {"id": "float", "result": {"content": []}},
    "text as id": {"id": "text", "result": {"content": []}},
    "nothing in it": {},
    "cut off": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[',
    "no JSON": b'{"jsonrpc":"2.0","id":ID,"result":{"n":NaN}}',
}


@both
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_malformed_answer_fails_its_call_at_once_and_no_other(era: str, broken: Any) -> None:
    answer = misanswered(broken)
    other = asyncio.Event()

    async def called(message: dict[str, Any]) -> Any:
        if message["params"]["name"] == "bad":
            return answer(message) + b"\n"
        await other.wait()
        return {"content": [{"type": "text", "text": "fine"}], "resultType": "complete"}

    script = ScriptedServer(era, {"tools/call": called})
    async with serve_on_socket(script) as at, Client(at, name="it", timeout=PATIENT) as one, asyncio.timeout(10):
        waiting = asyncio.create_task(one.call("good"))
        with pytest.raises(InvalidResult) as caught:
            await one.call("bad")
        assert (caught.value.server, caught.value.step) == ("it", "tools/call bad")
        other.set()
        assert await waiting == "fine"


@both
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("streaming", [False, True], ids=["json", "events"])
async def test_a_malformed_answer_over_http(era: str, broken: Any, streaming: bool) -> None:
    answer = misanswered(broken)

    def called(message: dict[str, Any]) -> Any:
        if not streaming:
            return encode_http_reply(answer(message))
        return _open_ended(encode_event_stream(Messages([encode_event(answer(message))]), message))

    script = ScriptedServer(era, {"tools/call": called})
    async with serve_over_http(script) as at, Client(at, name="it", timeout=PATIENT) as one, asyncio.timeout(10):
        with pytest.raises(InvalidResult) as caught:
            await one.call("bad")
        assert (caught.value.server, caught.value.step) == ("it", "tools/call bad")
        assert script.count("tools/call") == 1


async def _open_ended(pieces: list[bytes]) -> Any:
    """An event stream that says no more and does not end."""
    for piece in pieces:
        yield piece
    await asyncio.Event().wait()


@both
async def test_an_answer_that_is_too_large_fails_its_call_at_once(era: str) -> None:
    large = {"content": [{"type": "text", "text": "x" * 5000}], "resultType": "complete"}
    script = ScriptedServer(era, {"tools/call": large})
    limits = ClientLimits(max_response_bytes=4000)
    async with serve_on_socket(script) as at, Client(at, timeout=PATIENT, limits=limits) as one, asyncio.timeout(10):
        with pytest.raises(InvalidResult) as caught:
            await one.call("go")
        assert "ClientLimits(max_response_bytes=" in str(caught.value)


@both
async def test_a_line_of_a_log_is_not_taken_for_an_answer(era: str) -> None:
    def called(message: dict[str, Any]) -> Any:
        noise = json.dumps({"level": "info", "id": message["id"], "message": "working"}).encode()
        return Messages([noise + b"\n", {"content": [{"type": "text", "text": "fine"}], "resultType": "complete"}])

    async with serve_on_socket(ScriptedServer(era, {"tools/call": called})) as at, Client(at, timeout=PATIENT) as one:
        assert await one.call("go") == "fine"


# Questions whose handler fails: which call is told, where the wire does not say


def asks(message: dict[str, Any]) -> Any:
    """A call during which the server asks, and which ends when that was answered."""
    return Messages([{"id": 70, "method": "roots/list"}])


async def test_a_failed_handler_is_reported_to_the_server_and_to_the_call(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise LookupError("no disk")

    script = ScriptedServer("handshake", {"tools/call": asks})
    async with serve_on_socket(script) as at, Client(at, roots=broken, timeout=PATIENT) as one, asyncio.timeout(10):
        with pytest.raises(InputRequestError, match=values("roots", "LookupError: no disk")):
            await one.call("go")
        await wait_until(lambda: script.count("notifications/cancelled"))
        (refusal,) = [message for message in script.received if message.get("id") == 70]
        assert refusal["error"]["code"] == -32603
        assert "no disk" not in str(refusal)
    assert not caplog.records


async def test_among_several_calls_none_is_blamed_for_a_question_of_one(caplog: pytest.LogCaptureFixture) -> None:
    answered = asyncio.Event()

    def broken() -> Any:
        raise LookupError("no disk")

    async def called(message: dict[str, Any]) -> Any:
        if message["params"]["name"] == "asking":
            return asks(message)
        await answered.wait()
        return {"content": [{"type": "text", "text": "fine"}]}

    script = ScriptedServer("handshake", {"tools/call": called})
    async with serve_on_socket(script) as at, Client(at, roots=broken, timeout=PATIENT) as one, asyncio.timeout(10):
        other = asyncio.create_task(one.call("other"))
        await wait_until(lambda: script.count("tools/call"))
        asking = asyncio.create_task(one.call("asking"))
        await wait_until(lambda: any(message.get("id") == 70 for message in script.received))
        answered.set()
        assert await other == "fine"
        assert not asking.done()
        asking.cancel()
    assert mentions(caplog.text, "roots", "LookupError: no disk")


async def test_over_http_the_call_whose_reply_brought_the_question_is_blamed() -> None:
    answered = asyncio.Event()

    def broken() -> Any:
        raise LookupError("no disk")

    async def called(message: dict[str, Any]) -> Any:
        if message["params"]["name"] == "asking":
            return _open_ended(encode_event_stream(asks(message), message))
        await answered.wait()
        return {"content": [{"type": "text", "text": "fine"}]}

    script = ScriptedServer("handshake", {"tools/call": called})
    async with serve_over_http(script) as at, Client(at, roots=broken, timeout=PATIENT) as one, asyncio.timeout(10):
        other = asyncio.create_task(one.call("other"))
        await wait_until(lambda: script.count("tools/call"))
        with pytest.raises(InputRequestError, match="no disk"):
            await one.call("asking")
        answered.set()
        assert await other == "fine"


@pytest.mark.parametrize("at_fault", ["server", "client"])
async def test_a_failing_recorder_affects_no_response_and_is_not_called_again(
    at_fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    told, heard = list[str](), list[str]()

    def failing(to: str, data: bytes, _: Any) -> None:
        if b"tools/call" in data or (told and b"content" in data):
            told.append(to)
            if to == at_fault:
                raise OSError("the disk is full")

    script = ScriptedServer("handshake")
    async with serve_on_socket(script) as at, Client(at, name="it", timeout=PATIENT) as one, asyncio.timeout(10):
        get_session(one).recorders += [failing, lambda to, data, _: heard.append(to)]
        for _ in range(3):
            assert await one.call("pay") == "ok"
    assert script.count("tools/call") == 3
    assert told == ["server", "client"][: 1 if at_fault == "server" else 2]
    assert heard == ["server", "client"] * 3
    (record,) = caplog.records
    assert mentions(record.getMessage(), "it")
    assert record.exc_info


def _progressing(message: dict[str, Any]) -> Any:
    token = message["params"]["_meta"]["progressToken"]
    return Messages(
        [create_notification("notifications/progress", progressToken=token, progress=1), text_result("paid")]
    )


@both
async def test_progress_after_the_response_is_recorded_but_not_reported(era: str) -> None:
    def answer(message: dict[str, Any]) -> Messages:
        progress, result = _progressing(message)
        return Messages([progress, result, progress])

    reported, recorded = list[Any](), list[bytes]()
    script = ScriptedServer(era, {"tools/call": answer})
    async with serve_on_socket(script) as at, Client(at, timeout=PATIENT) as one, asyncio.timeout(10):
        get_session(one).recorders.append(lambda to, data, _: recorded.append(data))
        await one.call_tool("pay", progress_handler=lambda *progress: reported.append(progress))
        await wait_until(lambda: sum(b"notifications/progress" in data for data in recorded) == 2)
    assert len(reported) == 1


@both
async def test_a_slow_handler_of_progress_holds_an_answer_no_longer_than_the_call_may_take(era: str) -> None:
    async def slow(*_: object) -> None:
        await asyncio.Event().wait()

    script = ScriptedServer(era, {"tools/call": _progressing})
    async with serve_on_socket(script) as at, Client(at, timeout=PATIENT) as one, asyncio.timeout(10):
        result = await one.call_tool("pay", timeout=0.2, total_timeout=0.2, progress_handler=slow)
    assert result.content == [TextContent(text="paid")]


@both
async def test_a_handler_of_progress_may_call_from_tasks_of_its_own(era: str) -> None:
    async def inner(*_: object) -> None: ...

    async def outer(*_: object) -> None:
        results.extend(await asyncio.gather(*(one.call_tool("pay", progress_handler=inner) for _ in range(2))))

    results = list[Any]()
    script = ScriptedServer(era, {"tools/call": _progressing})
    async with serve_on_socket(script) as at, Client(at, timeout=PATIENT) as one, asyncio.timeout(10):
        await one.call_tool("pay", progress_handler=outer)
    assert [result.content for result in results] == [[TextContent(text="paid")]] * 2

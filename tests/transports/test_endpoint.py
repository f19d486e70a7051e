"""Test the HTTP endpoint: checks before a request is parsed, and responses in the stateless era."""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import Forbidden, InternalError, InvalidParams, MethodNotFound, ServerBusy, Unauthorized
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.limits import CallerBusy
from dovetail.transports.http_server.endpoint import Endpoint
from support.fake_service import (
    LATEST_HANDSHAKE,
    META,
    NEWEST,
    TIMEOUT_S,
    AsgiRequest,
    FakeService,
    PausedWork,
    create_notification,
    initialize,
    mirror_headers,
    open_session,
    post,
    request,
    run_pending_callbacks,
    start_post,
    stateless_request,
    text_result,
    wait_until,
)


def endpoint(stand: FakeService | None = None, **options: Any) -> Endpoint:
    return Endpoint(stand or FakeService(), **options)


def body(message: Any) -> bytes:
    return json.dumps(message).encode()


def text(answer: AsgiRequest) -> str:
    return answer.last["result"]["content"][0]["text"]


# Modern exchanges


async def test_a_request_is_answered_with_a_document() -> None:
    stand = FakeService()
    answer = await post(endpoint(stand), stateless_request(id="x", text="hello"))
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert (answer.last["id"], text(answer)) == ("x", "hello")
    assert "mcp-session-id" not in answer.headers
    assert stand.seen[0].headers[b"mcp-method"] == b"tools/call"


async def test_a_message_before_the_result_makes_it_a_stream() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        await exchange.notify("notifications/message", {"n": 1})
        return text_result("done")

    answer = await post(endpoint(FakeService(work)), stateless_request())
    assert answer.streaming
    assert [one.get("method") for one in answer.messages] == ["notifications/message", None]
    assert text(answer) == "done"
    assert all(event.id is None for event in answer.events)


@pytest.mark.parametrize(("accept", "streaming"), [("application/json", False), ("text/event-stream", True)])
async def test_the_client_decides_what_it_takes(accept: str, streaming: bool) -> None:
    async def work(exchange: IncomingExchange) -> Any:
        await exchange.notify("notifications/message", {"n": 1})
        return text_result("done")

    answer = await post(endpoint(FakeService(work)), stateless_request(), {"accept": accept})
    assert (answer.streaming, len(answer.messages)) == (streaming, 2 if streaming else 1)
    assert text(answer) == "done"


@pytest.mark.parametrize("responses", ["json", "sse"])
async def test_the_server_decides_where_the_client_takes_both(responses: Any) -> None:
    app = endpoint(response_mode=responses)
    assert (await post(app, stateless_request())).streaming == (responses == "sse")
    assert not (await post(app, stateless_request(), {"accept": "application/json"})).streaming
    assert (await post(app, stateless_request(), {"accept": "text/event-stream"})).streaming


async def test_a_subscription_is_a_stream_whatever_the_server_is_set_to() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        await exchange.notify("notifications/subscriptions/acknowledged", {})
        return b"{}"

    listening = stateless_request("subscriptions/listen", notifications={})
    for responses in ("json", "auto", "sse"):
        app = endpoint(FakeService(work), response_mode=responses)
        assert len((await post(app, listening)).messages) == 2
        assert (await post(app, listening, {"accept": "text/event-stream"})).streaming
        assert (await post(app, listening, {"accept": "application/json"})).status == 406
        assert (await post(app, stateless_request(), {"accept": "application/json"})).status == 200


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("gzip, identity", 415), ("Identity", 200)])
async def test_a_compressed_body_is_refused(encoding: str, status: int) -> None:
    answer = await post(endpoint(), stateless_request(), {"content-encoding": encoding})
    assert answer.status == status
    if status == 415:
        assert encoding in answer.last["error"]["message"]
        assert answer.headers["accept-encoding"] == "identity"


async def test_an_empty_body_is_named() -> None:
    answer = await AsgiRequest(endpoint()).wait_done()
    assert (answer.status, answer.last["error"]["code"]) == (400, -32700)
    assert "empty" in answer.last["error"]["message"]


async def test_a_body_over_the_limit_names_the_setting() -> None:
    answer = await post(endpoint(FakeService(max_body_bytes=10)), stateless_request())
    assert answer.status == 413
    assert "max_body_bytes" in answer.last["error"]["message"]


async def test_a_slow_body_names_the_setting() -> None:
    slow = AsgiRequest(endpoint(FakeService(body_timeout=0.01)), body=[b"{", b"}"])
    slow.coming.pop()
    answer = await slow.wait_done()
    assert answer.status == 408
    assert "body_timeout" in answer.last["error"]["message"]


@pytest.mark.parametrize("path", ["/live", "/ready/"])
def test_the_path_cannot_be_that_of_a_health_check(path: str) -> None:
    with pytest.raises(ValueError, match="health=True"):
        endpoint(path=path, health=True)
    assert endpoint(path=path).path == path.rstrip("/")


async def test_a_notice_is_accepted() -> None:
    stand = FakeService()
    answer = await post(endpoint(stand), create_notification("notifications/cancelled", requestId=1, _meta=META))
    assert (answer.status, answer.body) == (202, b"")
    assert stand.seen == []


@pytest.mark.parametrize(
    ("message", "headers", "status", "code", "id"),
    [
        (stateless_request(id=5), {"mcp-method": "tools/list"}, 400, -32020, 5),
        (stateless_request(id=5), {"mcp-name": "other"}, 400, -32020, 5),
        (stateless_request("tools/fly", id=5), {}, 404, -32601, 5),
        (stateless_request(id=5) | {"id": None}, {}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": 5, "result": {}}, {"mcp-protocol-version": NEWEST}, 400, -32600, 5),
        ([stateless_request()], {"mcp-protocol-version": NEWEST}, 400, -32600, None),
        (request(id=5), {"mcp-protocol-version": NEWEST}, 400, -32602, 5),
        (
            request(id=5, name="echo", _meta=META | {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}),
            {"mcp-protocol-version": "1999-01-01"},
            400,
            -32022,
            5,
        ),
    ],
)
async def test_a_refusal_has_the_status_of_its_code(
    message: Any, headers: dict[str, str], status: int, code: int, id: Any
) -> None:
    answer = await post(endpoint(), message, headers)
    assert (answer.status, answer.last["error"]["code"], answer.last.get("id")) == (status, code, id)
    assert not answer.streaming


@pytest.mark.parametrize(
    ("exc", "status", "retry"),
    [
        (InvalidParams("no"), 400, None),
        (MethodNotFound("x"), 404, None),
        (InternalError("x"), 200, None),
        (ServerBusy("later", 3.0), 503, "3"),
        (CallerBusy("later"), 429, "1"),
    ],
)
async def test_an_error_of_the_work_has_the_status_of_its_code(exc: Exception, status: int, retry: str | None) -> None:
    async def work(exchange: IncomingExchange) -> Any:
        raise exc

    answer = await post(endpoint(FakeService(work)), stateless_request(id=5))
    assert (answer.status, answer.headers.get("retry-after"), answer.last["id"]) == (status, retry, 5)


async def test_an_error_after_the_first_word_is_an_event() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        await exchange.notify("notifications/message", {})
        raise InvalidParams("no")

    answer = await post(endpoint(FakeService(work)), stateless_request())
    assert (answer.status, answer.streaming, answer.last["error"]["code"]) == (200, True, -32602)


async def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        return object()

    answer = await post(endpoint(FakeService(work)), stateless_request(id=5))
    assert answer.last.keys() == {"jsonrpc", "id", "error"}
    assert (answer.last["id"], answer.last["error"]["code"]) == (5, -32603)
    assert answer.last["error"].keys() == {"code", "message"}


async def test_a_large_meta_is_refused() -> None:
    message = request(id=5, name="echo", _meta=META | {"x": "y" * 200})
    answer = await post(endpoint(FakeService(max_meta_bytes=100)), message)
    assert (answer.status, answer.last["error"]["code"]) == (400, -32602)
    assert (await post(endpoint(FakeService(max_meta_bytes=200)), stateless_request(text="y" * 300))).status == 200


async def test_an_exchange_knows_how_large_its_message_was() -> None:
    stand = FakeService()
    app = endpoint(stand)
    session = await open_session(app, "2025-03-26")
    for message, headers in ((stateless_request(), {}), (request(), session), ([request()], session)):
        await post(app, message, headers)
        assert stand.seen[-1].size == len(body(message))


async def test_equal_ids_of_different_requests_are_no_matter() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held))
    first, second = (
        start_post(app, stateless_request(id=1, text="a")),
        start_post(app, stateless_request(id=1, text="b")),
    )
    await wait_until(lambda: len(held.started) == 2)
    held.release("b")
    assert text(await second.wait_done()) == "b"
    held.release("a")
    assert text(await first.wait_done()) == "a"


async def test_nothing_is_sent_after_the_response() -> None:
    stand = FakeService()
    answer = await post(endpoint(stand), stateless_request())
    sent = len(answer.sent)
    await stand.seen[0].notify("notifications/message", {})
    assert len(answer.sent) == sent


# Clients that leave


@pytest.mark.parametrize("spoken", [True, False])
async def test_a_client_that_leaves_stops_the_work(spoken: bool) -> None:
    held = PausedWork()

    async def work(exchange: IncomingExchange) -> Any:
        if spoken:
            await exchange.notify("notifications/message", {})
        return await held(exchange)

    going = start_post(endpoint(FakeService(work)), stateless_request(text="a"))
    await wait_until(lambda: held.started)
    going.disconnect()
    await going.wait_done()
    assert held.outcomes == {"a": "gone"}
    # Middleware of Starlette logs a traceback if a response never begins.
    assert (going.status, going.complete) == ((200, False) if spoken else (499, True))
    assert going.task.cancelling() == 0


async def test_a_client_that_is_gone_before_the_work_waits_is_noticed_when_it_does() -> None:
    held = PausedWork()
    going = start_post(endpoint(FakeService(held)), stateless_request(text="a"))
    going.disconnect()
    await going.wait_done()
    assert held.outcomes == {"a": "gone"}


async def test_work_that_never_waits_is_not_watched_over() -> None:
    going = start_post(endpoint(), stateless_request(text="a"))
    before = len(asyncio.all_tasks())
    await going.wait_done()
    assert len(asyncio.all_tasks()) <= before


async def test_a_task_cancelled_by_the_server_stays_cancelled() -> None:
    held = PausedWork()
    going = start_post(endpoint(FakeService(held)), stateless_request(text="a"))
    await wait_until(lambda: held.started)
    going.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going.task
    assert held.outcomes == {"a": "cancelled from outside"}


async def test_the_watch_ends_with_the_work() -> None:
    held = PausedWork()
    going = start_post(endpoint(FakeService(held)), stateless_request(text="a"))
    await wait_until(lambda: held.started)
    held.release("a")
    await going.wait_done()
    await run_pending_callbacks()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# The head


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "attacker.example"}, 421),
        ({"origin": "https://attacker.example"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"accept": "text/html"}, 406),
        ({"accept": "*/*"}, 200),
    ],
)
async def test_the_head_is_screened(headers: dict[str, str], status: int) -> None:
    stand = FakeService()
    answer = await post(endpoint(stand), stateless_request(), headers)
    assert answer.status == status
    assert (len(stand.seen) == 1) == (status == 200)
    if status != 200:
        assert answer.last["error"]["code"] == -32600
        assert "id" not in answer.last


async def test_a_header_that_decides_is_given_once() -> None:
    message = stateless_request()
    pairs = [(name.encode(), value.encode()) for name, value in mirror_headers(message).items()]
    pairs += [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"mcp-name", b"echo")]
    answer = await AsgiRequest(endpoint(), body=body(message), headers=pairs).wait_done()
    assert (answer.status, "mcp-name" in answer.last["error"]["message"]) == (400, True)


async def test_a_missing_host_is_refused() -> None:
    answer = await AsgiRequest(endpoint(), body=b"{}", headers=[(b"content-type", b"application/json")]).wait_done()
    assert answer.status == 421


async def test_the_address_that_was_called_is_ours() -> None:
    headers = {"host": "192.168.1.20:8000"}
    assert (await post(endpoint(), stateless_request(), headers)).status == 421
    assert (await post(endpoint(), stateless_request(), headers, server=("192.168.1.20", 8000))).status == 200
    assert (await post(endpoint(), stateless_request(), headers, server=None)).status == 421


@pytest.mark.parametrize(
    ("method", "status"), [("PUT", 405), ("PATCH", 405), ("HEAD", 405), ("OPTIONS", 405), ("GET", 400)]
)
async def test_other_methods(method: str, status: int) -> None:
    answer = await AsgiRequest(endpoint(), method, headers={}).wait_done()
    assert answer.status == status
    if status == 405:
        assert answer.headers["allow"] == "POST, GET, DELETE"
    without = await AsgiRequest(endpoint(sessions=False), method).wait_done()
    assert (without.status, without.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("path", "root", "status"),
    [
        ("/mcp", "", 200),
        ("/mcp/", "", 200),
        ("/app/mcp", "/app", 200),
        ("/mcp", "/app", 200),
        ("/", "", 404),
        ("/mcp/x", "", 404),
        ("/MCP", "", 404),
        ("/app/mcp", "", 404),
        ("//mcp", "", 404),
        ("/mcp//", "", 404),
        ("/app//mcp", "/app", 404),
    ],
)
async def test_paths(path: str, root: str, status: int) -> None:
    assert (await post(endpoint(), stateless_request(), path=path, root_path=root)).status == status


@pytest.mark.parametrize(
    ("raw_path", "path", "root", "status"),
    [
        (b"/mcp", "/mcp", "", 200),
        (b"/%6dcp", "/mcp", "", 404),
        (b"/mcp%2f", "/mcp/", "", 404),
        (b"/%2fmcp", "//mcp", "", 404),
        (b"/a%20b/mcp", "/a b/mcp", "/a b", 200),
        (b"/a%20b/mcp/", "/a b/mcp/", "/a b", 200),
        (b"/a%20b/mc%70", "/a b/mcp", "/a b", 404),
    ],
)
async def test_only_the_plain_spelling_of_the_path_is_served(
    raw_path: bytes, path: str, root: str, status: int
) -> None:
    answer = await post(endpoint(), stateless_request(), path=path, raw_path=raw_path, root_path=root)
    assert answer.status == status


async def test_a_path_that_needs_percent_encoding() -> None:
    answer = await post(endpoint(path="/my tools"), stateless_request(), path="/my tools", raw_path=b"/my%20tools")
    assert answer.status == 200


@pytest.mark.parametrize(
    ("encoding", "version", "status"),
    [("chunked", "1.1", 200), ("Chunked ", "1.1", 200), ("gzip, chunked", "1.1", 501), ("chunked", "1.0", 400)],
)
async def test_a_body_has_one_plain_transfer_encoding(encoding: str, version: str, status: int) -> None:
    answer = await post(endpoint(), stateless_request(), {"transfer-encoding": encoding}, http_version=version)
    assert answer.status == status


async def test_blanks_around_a_header_do_not_count() -> None:
    message = stateless_request()
    padded = {name: f" {value}\t " for name, value in mirror_headers(message).items()}
    length = str(len(json.dumps(message)))
    extra = {"host": "localhost ", "content-type": "application/json ", "content-length": f"{length} "}
    assert (await post(endpoint(), message, padded | extra)).status == 200
    app = endpoint()
    session = {name: f"{value} " for name, value in (await open_session(app)).items()}
    assert (await post(app, request(), session)).status == 200


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_version_without_sessions_has_only_post(method: str) -> None:
    answer = await AsgiRequest(endpoint(), method, headers={"mcp-protocol-version": NEWEST}).wait_done()
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


async def test_an_upload_that_finds_the_disk_full_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    app = endpoint(FakeService(max_buffered_bytes=10))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"type": "http.request", "body": b"x", "more_body": not sent}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    template = AsgiRequest(app, body=b"{}")
    await template.wait_done()
    async with asyncio.timeout(TIMEOUT_S):  # two uploads, because one alone may exceed the budget
        await asyncio.gather(*(app(template.scope, receive, send) for _ in range(2)))
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert starts[0]["status"] == 503
    assert b"retry-after" in dict(starts[0]["headers"])
    assert app.stats().buffered_bytes == 0


@pytest.mark.parametrize("given", ["/tools/", "tools", "/tools"])
async def test_a_path_of_its_own(given: str) -> None:
    assert (await post(endpoint(path=given), stateless_request(), path="/tools")).status == 200
    answer = await post(endpoint(path=given), stateless_request())
    assert "/tools" in answer.last["error"]["message"]


# The body


async def test_a_body_comes_in_pieces() -> None:
    message = stateless_request(text="x" * 100)
    raw = body(message)
    pieces = [raw[start : start + 7] for start in range(0, len(raw), 7)]
    answer = await AsgiRequest(endpoint(), body=pieces, headers=mirror_headers(message)).wait_done()
    assert text(answer) == "x" * 100


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":1,"a":1}', b"\xff"])
async def test_a_body_that_is_not_json(raw: bytes) -> None:
    answer = await AsgiRequest(endpoint(), body=raw).wait_done()
    assert (answer.status, answer.last["error"]["code"]) == (400, -32700)
    assert "id" not in answer.last


@pytest.mark.parametrize("pieces", [1, 5])
async def test_a_body_at_and_over_the_limit(pieces: int) -> None:
    message = stateless_request()
    raw = body(message)

    async def status(limit: int) -> int:
        size = -(-len(raw) // pieces)
        cut = [raw[start : start + size] for start in range(0, len(raw), size)]
        return (
            await AsgiRequest(
                endpoint(FakeService(max_body_bytes=limit)), body=cut, headers=mirror_headers(message)
            ).wait_done()
        ).status

    assert await status(len(raw)) == 200
    assert await status(len(raw) - 1) == 413


@pytest.mark.parametrize("length", ["101", "9" * 13, "-1", "+5", "5x", "", "²"])
async def test_a_length_that_is_too_large_or_none_is_refused_unread(length: str) -> None:
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", length.encode("latin-1", "replace")),
    ]
    answer = AsgiRequest(endpoint(FakeService(max_body_bytes=100)), body=[b"{", b"}"], headers=headers)
    assert (await answer.wait_done()).status == 413
    assert len(answer.coming) == 2


async def test_a_body_that_takes_too_long() -> None:
    app = endpoint(FakeService(body_timeout=0.01))
    slow = AsgiRequest(app, body=[b"{", b"}"])
    slow.coming.pop()
    assert (await slow.wait_done()).status == 408
    assert slow.headers["connection"] == "close"
    assert app.stats().buffered_bytes == 0


async def test_a_client_that_leaves_in_the_middle_of_a_body() -> None:
    app = endpoint()
    slow = AsgiRequest(app, body=[b"{", b"}"])
    slow.coming.pop()
    slow.disconnect()
    assert (await slow.wait_done()).status == 400
    assert app.stats().buffered_bytes == 0


# Who calls


async def whoever(headers: Mapping[bytes, bytes]) -> str | None:
    match headers.get(b"authorization"):
        case None:
            raise Unauthorized
        case b"Bearer bad":
            raise Forbidden("Not you")
        case b"Bearer odd":
            raise Unauthorized("Try again", challenge='Bearer realm="x"')
        case given:
            return given.decode().removeprefix("Bearer ")


async def test_the_principal_is_who_the_caller_proved_to_be() -> None:
    stand = FakeService()
    app = endpoint(stand, authenticate=whoever)
    assert (await post(app, stateless_request(), {"authorization": "Bearer alice"})).status == 200
    assert stand.seen[0].caller.principal == "alice"
    assert stand.seen[0].origin == "alice"


@pytest.mark.parametrize(
    ("token", "status", "challenge"),
    [(None, 401, "Bearer"), ("Bearer bad", 403, None), ("Bearer odd", 401, 'Bearer realm="x"')],
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_who_proves_nothing_is_turned_away(
    token: str | None, status: int, challenge: str | None, method: str
) -> None:
    stand = FakeService()
    headers = {} if token is None else {"authorization": token}
    answer = await AsgiRequest(
        endpoint(stand, authenticate=whoever), method, body=body(stateless_request()), headers=headers
    ).wait_done()
    assert (answer.status, answer.headers.get("www-authenticate")) == (status, challenge)
    assert stand.seen == []


@pytest.mark.parametrize(
    ("client", "origin"), [(("10.0.0.9", 5), "10.0.0.9"), (("127.0.0.1", 5), None), (("::1", 5), None), (None, None)]
)
async def test_anonymous_callers_are_distinguished_by_their_address(client: Any, origin: str | None) -> None:
    stand = FakeService()
    await post(endpoint(stand), stateless_request(), client=client)
    assert stand.seen[0].origin == origin


# Other origins


async def test_pages_that_are_named_may_call_and_read() -> None:
    app = endpoint(cors_origins=["https://App.example/"])
    answer = await post(app, stateless_request(), {"origin": "https://app.example"})
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "mcp-session-id" in answer.headers["access-control-expose-headers"]
    assert answer.headers["vary"] == "origin"
    refused = await post(app, stateless_request(), {"origin": "https://app.example", "accept": "text/html"})
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    stranger = await post(app, stateless_request(), {"origin": "https://other.example"})
    assert stranger.status == 403
    assert "access-control-allow-origin" not in stranger.headers
    assert "access-control-allow-origin" not in (await post(app, stateless_request())).headers


async def test_a_preflight_is_answered_without_credentials() -> None:
    app = endpoint(cors_origins=["https://app.example"], authenticate=whoever)
    headers = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "Mcp-Param-Region, x-evil, content-type",
    }
    for path in ("/mcp", "/sse", "/messages"):
        answer = await AsgiRequest(app, "OPTIONS", path, headers=headers).wait_done()
        assert answer.status == 204
        assert answer.headers["access-control-allow-methods"] == "POST, GET, DELETE, OPTIONS"
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert {"mcp-method", "mcp-name", "authorization", "mcp-param-region"} <= set(allowed)
        assert "x-evil" not in allowed
    assert (
        await AsgiRequest(app, "OPTIONS", headers=headers | {"origin": "https://x.example"}).wait_done()
    ).status == 403


async def test_any_origin_if_the_author_says_so() -> None:
    answer = await post(endpoint(cors_origins=["*"]), stateless_request(), {"origin": "https://any.example"})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://any.example")


async def test_an_origin_that_may_call_may_not_yet_read() -> None:
    answer = await post(
        endpoint(allowed_origins=["https://a.example"]), stateless_request(), {"origin": "https://a.example"}
    )
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


# Eras


async def test_both_eras_on_one_path() -> None:
    stand = FakeService()
    app = endpoint(stand)
    session = await open_session(app)
    assert text(await post(app, request(text="old"), session)) == "old"
    assert text(await post(app, stateless_request(text="new"))) == "new"
    assert [one.caller.protocol_version for one in stand.seen] == [LATEST_HANDSHAKE, NEWEST]


async def test_a_server_without_the_modern_era() -> None:
    app = endpoint(FakeService(protocol_versions=(LATEST_HANDSHAKE,)))
    assert (await post(app, stateless_request())).status == 400
    assert (await post(app, initialize())).status == 200


async def test_a_server_without_the_handshake_era() -> None:
    app = endpoint(FakeService(protocol_versions=(NEWEST,)))
    assert text(await post(app, stateless_request(text="x"))) == "x"
    refused = await post(app, initialize())
    assert (refused.status, refused.last["error"]["code"]) == (400, -32022)
    assert refused.last["error"]["data"]["supported"] == [NEWEST]
    missing = await post(app, request())
    assert (missing.status, missing.last["error"]["code"]) == (400, -32020)
    other = await post(app, request(), {"mcp-protocol-version": LATEST_HANDSHAKE})
    assert (other.status, other.last["error"]["code"]) == (400, -32022)
    for method in ("GET", "DELETE"):
        assert (await AsgiRequest(app, method).wait_done()).status == 405
    assert (await AsgiRequest(app, "GET", "/sse").wait_done()).status == 404


# Around it


async def test_health() -> None:
    app = endpoint(health=True)
    for path in ("/live", "/ready"):
        answer = await AsgiRequest(app, "GET", path, headers={"host": "anything.example"}).wait_done()
        assert (answer.status, answer.body) == (200, b"ok")
        assert (await AsgiRequest(endpoint(), "GET", path).wait_done()).status == 404
    await app.close()
    assert (await AsgiRequest(app, "GET", "/live").wait_done()).status == 200
    assert (await AsgiRequest(app, "GET", "/ready").wait_done()).status == 503


async def test_a_closed_endpoint_sends_everyone_away_and_may_start_again() -> None:
    steps: list[str] = []

    async def start() -> None:
        steps.append("start")

    async def stop() -> None:
        steps.append("stop")

    app = endpoint(on_start=start, on_stop=stop)
    for _ in range(2):
        await lifespan(app, "lifespan.startup", "lifespan.shutdown")
        answer = await post(app, stateless_request())
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert steps == ["start", "stop"] * 2
    await app.close()
    assert steps == ["start", "stop"] * 2


async def lifespan(app: Any, *messages: str) -> list[dict[str, Any]]:
    coming, sent = list(messages), []

    async def receive() -> dict[str, Any]:
        return {"type": coming.pop(0)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async with asyncio.timeout(TIMEOUT_S):
        await app({"type": "lifespan"}, receive, send)
    return sent


async def test_the_lifespan_of_an_application() -> None:
    assert await lifespan(endpoint(), "lifespan.startup", "lifespan.shutdown") == [
        {"type": "lifespan.startup.complete"},
        {"type": "lifespan.shutdown.complete"},
    ]


async def test_a_failed_start_is_reported() -> None:
    async def start() -> None:
        raise InternalError("no database")

    assert await lifespan(endpoint(on_start=start), "lifespan.startup") == [
        {"type": "lifespan.startup.failed", "message": "no database"}
    ]


async def test_an_application_without_a_lifespan_serves_too() -> None:
    assert (await post(endpoint(), stateless_request())).status == 200


async def test_websockets_are_turned_away() -> None:
    sent = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await endpoint()({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    await endpoint()({"type": "other"}, receive, send)
    assert len(sent) == 1


async def test_a_subscription_needs_a_client_that_takes_streams() -> None:
    listen = stateless_request("subscriptions/listen")
    answer = await post(endpoint(FakeService()), listen, {"accept": "application/json"})
    assert answer.status == 406


async def test_an_authenticator_that_fails_is_not_a_dead_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: Mapping[bytes, bytes]) -> str:
        raise KeyError("table")

    answer = await post(endpoint(FakeService(), authenticate=broken), stateless_request())
    assert answer.status == 500
    assert "table" not in answer.last["error"]["message"]
    assert "KeyError: 'table'" in caplog.text


@pytest.mark.parametrize("value", [True, 5, ""])
async def test_an_authenticator_must_return_a_name(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def careless(_: Mapping[bytes, bytes]) -> Any:
        return value

    stand = FakeService()
    answer = await post(endpoint(stand, authenticate=careless), stateless_request())
    assert answer.status == 500
    assert stand.seen == []
    assert "authenticate failed" in caplog.text

"""Test reconnecting: which requests are repeated or reported, and that no tool runs twice."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, ClientLimits, MCPError, RemoteError, Server, Timeouts, ToolAnnotations
from dovetail.client.reconnect import Reconnector
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    NotSupported,
    OutcomeUnknown,
    ProcessStartError,
    RequestTimeout,
)
from dovetail.server.server import get_dispatcher
from support.driver import serve, serve_asgi
from support.fake_service import wait_until
from support.full_server import TESTS, server_command
from support.scripted_server import (
    CAPABILITIES,
    CLOSE,
    ERAS,
    LATEST_HANDSHAKE,
    RST,
    SILENCE,
    ErrorReply,
    Messages,
    ScriptedServer,
    create_notification,
    encode_event,
    encode_http_reply,
    encode_message,
    serve_on_socket,
    serve_over_http,
    text_result,
    tool_definition,
)

QUICK = Timeouts(connect=2, discover=0.3, initialize=5, call=5, request=5)
LISTEN = "subscriptions/listen"
OPENED = {
    "protocolVersion": LATEST_HANDSHAKE,
    "capabilities": CAPABILITIES,
    "serverInfo": {"name": "stand-in", "version": "1"},
}
SOON = ClientLimits(reconnect_delay=0.02)
both = pytest.mark.parametrize("era", ERAS)
lost = pytest.mark.parametrize("loss", [CLOSE, RST], ids=["fin", "rst"])


def client(at: Any, **options: Any) -> Client:
    return Client(at, name="it", **({"timeout": QUICK, "limits": SOON} | options))


def once(reaction: Any, then: Any) -> Any:
    """A reaction to the first message, and another to all later ones."""
    left = [reaction]
    return lambda _: left.pop() if left else then


@both
@lost
@pytest.mark.parametrize("on", [serve_on_socket, serve_over_http])
async def test_a_call_that_may_have_run_is_reported_and_the_client_lives_on(era: str, loss: Any, on: Any) -> None:
    script = ScriptedServer(era, {"tools/call": once(loss, text_result())}, session="s")
    async with on(script) as at, client(at) as one:
        with pytest.raises(OutcomeUnknown) as caught:
            await one.call("go")
        assert (caught.value.server, caught.value.step) == ("it", "tools/call go")
        assert script.count("tools/call") == 1
        assert await one.call("go") == "ok"
        assert script.count("tools/call") == 2


@both
@lost
@pytest.mark.parametrize("on", [serve_on_socket, serve_over_http])
async def test_what_is_safe_is_sent_again(era: str, loss: Any, on: Any) -> None:
    harmless = tool_definition("peek", annotations={"readOnlyHint": True})
    same = tool_definition("put", annotations={"idempotentHint": True})
    listed = {"tools": [harmless, same, tool_definition("go")]}
    script = ScriptedServer(era, {"tools/list": once(loss, listed)})
    async with on(script) as at, client(at) as one:
        assert len(await one.list_tools()) == 3
        for name in ("peek", "put"):
            script.reactions = {"tools/list": listed, "tools/call": once(loss, text_result(name))}
            await one.list_tools()
            assert await one.call(name) == name
        script.reactions = {"tools/call": once(loss, text_result("twice"))}
        result = await one.call_tool("go", retry=True)
        assert result.content[0].text == "twice"  # pyright: ignore[reportAttributeAccessIssue]
        script.reactions = {"tools/list": listed, "tools/call": once(loss, text_result())}
        await one.list_tools()
        with pytest.raises(OutcomeUnknown):
            await one.call_tool("peek", retry=False)


@both
async def test_patience_ends_after_the_stated_number_of_tries(era: str) -> None:
    script = ScriptedServer(era, {"tools/list": CLOSE})
    async with serve_over_http(script) as at, client(at) as one:
        with pytest.raises(ConnectionLost):
            await one.list_tools()
        assert script.count("tools/list") == 3


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_busy_moments_of_a_proxy(status: int) -> None:
    page = encode_http_reply(b"<h1>busy</h1>", status=status, kind="text/html", retry_after="0")
    script = ScriptedServer("stateless", {"tools/list": once(page, {"tools": []}), "tools/call": page})
    async with serve_over_http(script) as at, client(at) as one:
        assert await one.list_tools() == []
        with pytest.raises(MCPError) as caught:
            await one.call("go")
        assert caught.value.status_code == status
        # A proxy sends 502 or 504 if the server was lost during the call. The server may have run the call.
        assert isinstance(caught.value, OutcomeUnknown) == (status in (502, 504))
        assert script.count("tools/call") == 1


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_other_errors_are_not_repeated(status: int) -> None:
    script = ScriptedServer("stateless", {"tools/list": encode_http_reply(b"no", status=status, kind="text/plain")})
    async with serve_over_http(script) as at, client(at) as one:
        with pytest.raises(MCPError) as caught:
            await one.list_tools()
        assert caught.value.status_code == status
        assert script.count("tools/list") == 1


# Sessions


async def test_a_lost_session_is_opened_again_once_for_all_who_wait() -> None:
    script = ScriptedServer("handshake", session="first")
    known = {"first"}

    def called(_: Any) -> Any:
        session = script.heads[-1][1].get("mcp-session-id")
        return text_result(session or "none") if session in known else encode_http_reply(b"", status=404)

    script.reactions = {"tools/call": called}
    async with serve_over_http(script) as at, client(at) as one:
        assert await one.call("go") == "first"
        script.session, known = "second", {"second"}
        # Refused without its session, so nothing ran, and each may be sent again.
        assert await asyncio.gather(*(one.call("go") for _ in range(20))) == ["second"] * 20
        assert script.count("initialize") == 2


def _refusal(code: int, words: str, **id: Any) -> Any:
    def refused(message: dict[str, Any]) -> bytes:
        error = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": words}}
        return encode_http_reply(encode_message(error | id), status=400)

    return refused


@pytest.mark.parametrize(
    "refusal",
    [
        _refusal(-32602, "charge refused: unknown session id in argument 'checkout'"),
        _refusal(-32000, "Bad Request: No valid session ID provided"),
        _refusal(-32602, "unknown session", id=None),
        _refusal(-32000, "charge refused: unknown session id", id=None),
    ],
    ids=["an argument", "an answer", "another code", "other words"],
)
async def test_a_refusal_that_mentions_sessions_is_not_a_lost_session(refusal: Any) -> None:
    script = ScriptedServer("handshake", {"tools/call": refusal}, session="s")
    async with serve_over_http(script) as at, client(at) as one:
        with pytest.raises(RemoteError, match="session"):
            await one.call("pay")
        assert script.count("tools/call") == script.count("initialize") == 1


@pytest.mark.parametrize(
    ("code", "words", "id"),
    [
        (-32000, "Bad Request: No valid session ID provided", None),
        (-32600, "Bad Request: Missing session ID", "server-error"),
        (-32001, "Session not found", None),
    ],
)
async def test_servers_that_tell_a_lost_session_in_words_are_understood(code: int, words: str, id: str | None) -> None:
    script = ScriptedServer("handshake", session="s")
    refusals = [_refusal(code, words, id=id)]
    script.reactions = {"tools/call": lambda message: refusals.pop()(message) if refusals else text_result("done")}
    async with serve_over_http(script) as at, client(at) as one:
        assert await one.call("go") == "done"
        assert script.count("initialize") == 2


@pytest.mark.parametrize("era", ERAS)
async def test_a_restarted_server_is_found_again_and_nothing_runs_twice(era: str) -> None:
    ran: list[str] = []

    def make() -> Server:
        app = Server("counting", version="1")

        @app.tool
        async def run(name: str) -> str:
            ran.append(name)
            return name

        @app.tool(annotations=ToolAnnotations(read_only_hint=True))
        async def peek() -> str:
            return "seen"

        return app

    async with serve(make()) as web:
        one = client(f"http://127.0.0.1:{web.port}/mcp", protocol_version=era)
        await one.connect()
        assert await one.call("run", name="before") == "before"
        port = web.port
    with pytest.raises(ConnectError):
        await one.call("run", name="while it is away")
    app = make()
    async with serve_asgi(app.asgi(), get_dispatcher(app).limits, port):
        names = [f"after {number}" for number in range(10)]
        assert await asyncio.gather(*(one.call("run", name=name) for name in names)) == names
        assert await one.call("peek") == "seen"
        await one.close()
    assert sorted(ran) == sorted(["before", *names])


@pytest.mark.parametrize("listing", [SILENCE, CLOSE], ids=["silent", "lost"])
async def test_a_result_is_not_lost_over_the_list_of_tools_asked_for_after_it(listing: Any) -> None:
    def listed(_: Any) -> Any:
        return {"tools": [tool_definition("pay")]} if script.connections == 1 else listing

    script = ScriptedServer("handshake", {"tools/list": listed, "tools/call": once(CLOSE, text_result("paid"))})
    timeouts = Timeouts(connect=2, discover=0.3, initialize=5, call=0.5, request=0.5)
    async with serve_on_socket(script) as at, client(at, timeout=timeouts) as one:
        await one.list_tools()
        with pytest.raises(OutcomeUnknown):
            await one.call("die")
        async with asyncio.timeout(20):
            assert await one.call("pay") == "paid"
        assert script.connections > 1
        assert script.count("tools/call") == 2


async def test_a_server_that_failed_a_thousand_times_is_still_reported() -> None:
    opened = 0

    async def refuse() -> Any:
        nonlocal opened
        opened += 1
        raise ConnectError("away")

    keeper = Reconnector("it", refuse, ClientLimits(reconnect_delay=0.0))
    for _ in range(1100):
        with pytest.raises(ConnectError):
            await keeper.get_connection()
    assert opened == 1100


# Listening through a loss


@both
@pytest.mark.parametrize("on", [serve_on_socket, serve_over_http])
async def test_listening_goes_on_after_a_loss_and_tells_what_may_be_missed(era: str, on: Any) -> None:
    def listen(message: dict[str, Any]) -> Any:
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        agreed = create_notification(
            "notifications/subscriptions/acknowledged", notifications=message["params"]["notifications"], _meta=meta
        )
        return Messages([agreed])

    script = ScriptedServer(era, {"subscriptions/listen": listen, "tools/call": CLOSE}, session="s")
    script.http_get_reaction = SILENCE
    listening = {"tools": True, "uris": ["a"]}
    async with on(script) as at, client(at) as one, one.listen(**listening) as changes:
        if era == "handshake" and on is serve_over_http:
            script.reactions = {"tools/list": once(encode_http_reply(b"", status=404), {"tools": []})}
            await one.list_tools()
        elif on is serve_on_socket:
            with pytest.raises(OutcomeUnknown):
                await one.call("go")
        heard: list[Any] = []
        async with asyncio.timeout(5):
            async for change in changes:
                heard.append((change.kind, change.uri, change.maybe_missed))
                if len(heard) == 2:
                    break
        assert heard == [("tools", None, True), ("resource", "a", True)]


async def test_a_stream_that_ends_again_and_again_is_not_followed_for_ever() -> None:
    def listen(message: dict[str, Any]) -> Any:
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        return Messages([create_notification("notifications/subscriptions/acknowledged", notifications={}, _meta=meta)])

    script = ScriptedServer("stateless", {"subscriptions/listen": listen})
    limits = ClientLimits(reconnect_delay=0.01, max_reconnects=3)
    async with serve_over_http(script) as at, client(at, limits=limits) as one:
        with pytest.raises(ConnectionLost, match="4 times"):
            await asyncio.wait_for(anext(aiter(one.listen(tools=False, prompts=False, resources=False))), 5)
        assert script.count("subscriptions/listen") == 4
        assert await one.call("go") == "ok"


def _confirmed(message: dict[str, Any]) -> Any:
    meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
    wanted = message["params"]["notifications"]
    return Messages([create_notification("notifications/subscriptions/acknowledged", notifications=wanted, _meta=meta)])


@pytest.mark.parametrize(
    "slip", [SILENCE, encode_http_reply(b"<p>soon</p>", kind="text/html")], ids=["silent", "a page"]
)
async def test_a_listener_outlives_one_attempt_that_is_slow_or_odd(slip: Any) -> None:
    script = ScriptedServer("stateless")
    slips = [slip]
    script.reactions = {
        "subscriptions/listen": lambda message: (
            slips.pop() if slips and script.count(LISTEN) > 1 else _confirmed(message)
        )
    }
    timeouts = Timeouts(connect=2, discover=5, initialize=5, call=5, request=0.3)
    async with serve_over_http(script) as at, client(at, timeout=timeouts) as one, asyncio.timeout(10):
        changes = aiter(one.listen(prompts=False, resources=False))
        assert (await anext(changes)).maybe_missed
        assert not slips
        assert script.count(LISTEN) >= 3
        await changes.aclose()  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_listener_outlives_an_opening_that_is_slow() -> None:
    script = ScriptedServer("handshake")
    slow = [SILENCE]
    script.reactions = {
        "initialize": lambda _: slow.pop() if slow and script.connections == 2 else OPENED,
        "tools/call": CLOSE,
    }
    timeouts = Timeouts(connect=2, discover=0.1, initialize=0.3, call=5, request=5)
    async with (
        serve_on_socket(script) as at,
        client(at, timeout=timeouts, protocol_version="handshake") as one,
        asyncio.timeout(10),
    ):
        async with one.listen() as changes:
            with pytest.raises(OutcomeUnknown):
                await one.call("go")
            async for change in changes:
                assert change.maybe_missed
                break
        assert not slow


async def test_attempts_that_are_never_confirmed_come_to_an_end() -> None:
    script = ScriptedServer("stateless")
    script.reactions = {LISTEN: lambda message: _confirmed(message) if script.count(LISTEN) == 1 else SILENCE}
    timeouts = Timeouts(connect=2, discover=5, initialize=5, call=5, request=0.5)
    limits = ClientLimits(reconnect_delay=0.01, max_reconnect_delay=0.02, max_reconnects=3)
    async with serve_over_http(script) as at, client(at, timeout=timeouts, limits=limits) as one, asyncio.timeout(10):
        with pytest.raises(ConnectionLost, match="4 times") as caught:
            async for _ in one.listen():
                pass
        assert isinstance(caught.value.__cause__, RequestTimeout)
        assert script.count(LISTEN) == 4


async def test_a_server_that_refuses_to_be_listened_to_says_so_at_once() -> None:
    script = ScriptedServer("stateless", {"subscriptions/listen": ErrorReply(-32601, "no such thing", status=404)})
    async with serve_over_http(script) as at, client(at) as one:
        with pytest.raises(NotSupported):
            async with one.listen():
                pass


async def test_a_broken_stream_is_taken_up_where_it_ended() -> None:
    """A handshake server may end the stream of a reply; the rest comes over a GET with the last event's id."""
    script = ScriptedServer("handshake", {"tools/call": Messages([encode_event(b"", id="7", retry="1")])}, session="s")

    def resumed() -> Any:
        _, head = script.heads[-1]
        if head.get("last-event-id") != "7":
            return SILENCE
        (asked,) = (one["id"] for one in script.received if one["method"] == "tools/call")
        return Messages([{"jsonrpc": "2.0", "id": asked, "result": text_result("the rest")}])

    script.http_get_reaction = resumed
    async with serve_over_http(script) as at, client(at) as one:
        assert await one.call("go") == "the rest"
        assert script.count("tools/call") == 1


class Relay:
    """Passes connections on to another port. It can stop listening, while open connections continue."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._copy(reader, target_writer), self._copy(target_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


async def test_a_call_is_not_repeated_if_the_server_cannot_be_reached_to_resume_its_stream() -> None:
    script = ScriptedServer("handshake", session="s", http_get_reaction=SILENCE)
    async with serve_over_http(script) as at:
        relay = Relay(int(at.rpartition(":")[2].partition("/")[0]))
        await relay.listen()

        def call(message: Any) -> Any:
            relay.stop_listening()
            asyncio.get_running_loop().call_later(0.3, lambda: setattr(script, "later", create_listen_task()))
            return Messages([encode_event(b"", id="7", retry="1")])

        def create_listen_task() -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(relay.listen())

        script.reactions = {"tools/call": call}
        limits = ClientLimits(reconnect_delay=0.02, max_reconnects=1)
        async with client(f"http://127.0.0.1:{relay.port}/mcp", limits=limits) as one:
            with pytest.raises(OutcomeUnknown):
                await one.call("go")
            await wait_until(lambda: hasattr(script, "later") and script.later.done())
            relay.stop_listening()
        assert script.count("tools/call") == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_stream_is_resumed_after_a_server_was_not_available_for_a_moment(status: int) -> None:
    script = ScriptedServer("handshake", {"tools/call": Messages([encode_event(b"", id="7", retry="1")])}, session="s")
    refusals = [encode_http_reply(b"", status=status)] * 2

    def resumed() -> Any:
        _, head = script.heads[-1]
        if head.get("last-event-id") != "7":
            return SILENCE
        if refusals:
            return refusals.pop()
        (asked,) = (one["id"] for one in script.received if one["method"] == "tools/call")
        return Messages([{"jsonrpc": "2.0", "id": asked, "result": text_result("the rest")}])

    script.http_get_reaction = resumed
    async with serve_over_http(script) as at, client(at) as one:
        assert await one.call("go") == "the rest"
        assert (script.count("tools/call"), refusals) == (1, [])


@pytest.mark.parametrize("status", [400, 404, 409])
async def test_a_stream_that_is_gone_ends_its_call_at_once(status: int) -> None:
    script = ScriptedServer("handshake", {"tools/call": Messages([encode_event(b"", id="7", retry="1")])}, session="s")
    script.http_get_reaction = lambda: (
        SILENCE if script.heads[-1][1].get("last-event-id") is None else encode_http_reply(b"", status=status)
    )
    async with serve_over_http(script) as at, client(at) as one:
        with pytest.raises(OutcomeUnknown) as caught:
            await one.call("go")
        assert caught.value.status_code == status
        assert sum(head.get("last-event-id") == "7" for _, head in script.heads) == 1
        assert script.count("tools/call") == 1


async def test_a_lost_worker_is_reported_and_its_call_is_not_repeated() -> None:
    lost = ErrorReply(-32603, "The worker was lost", {"reason": "worker-lost"})
    script = ScriptedServer("handshake", {"tools/call": lost})
    async with serve_over_http(script) as at, client(at) as one:
        with pytest.raises(OutcomeUnknown, match="worker was lost") as caught:
            await one.call("go")
        assert caught.value.hint is not None
        assert script.count("tools/call") == 1


# Processes


def child(file: Path, *options: str) -> list[str]:
    return [sys.executable, str(TESTS / "client" / "crashing_server.py"), str(file), *options]


def executed(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


@both
async def test_a_crashed_child_is_started_again_and_the_call_is_not_repeated(era: str, tmp_path: Path) -> None:
    file = tmp_path / "ran"
    async with client(child(file), protocol_version=era) as one:
        with pytest.raises(OutcomeUnknown) as caught:
            await one.call("die", name="first")
        assert caught.value.exit_code == 3
        assert "about to die" in str(caught.value)
        first = await one.call("pid", into=int)
        assert await asyncio.gather(*(one.call("pid", into=int) for _ in range(5))) == [first] * 5
        os.kill(first, signal.SIGKILL)
        await wait_until(lambda: not one.is_connected)
        assert await one.call("pid", into=int) != first
    assert executed(file) == ["first"]


async def test_a_child_that_cannot_stay_says_why_each_time() -> None:
    one = client([sys.executable, "-c", "import sys; sys.exit('the \x1b[31mkey\x1b[0m is missing')"])
    for _ in range(2):
        with pytest.raises(ProcessStartError) as caught:
            await one.connect()
        assert caught.value.exit_code == 1
        assert "key" in (caught.value.stderr or "")
        assert "\x1b" not in str(caught.value)
    await one.close()


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ProcessStartError, match="no-such-program") as caught:
        await client(["no-such-program-anywhere"]).connect()
    assert caught.value.server == "it"


@both
async def test_junk_on_stdout_is_reported_and_skipped(
    era: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(child(tmp_path / "ran", "junk"), protocol_version=era) as one:
        for _ in range(5):
            assert isinstance(await one.call("pid", into=int), int)
    reports = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(reports) == 3
    assert "Starting \\x1b[1mup" in reports[0]


@both
async def test_one_bad_byte_costs_nothing_but_itself(era: str, tmp_path: Path) -> None:
    async with client(child(tmp_path / "ran", "bytes"), protocol_version=era) as one:
        assert await one.call("echo", text="x") == "x\ufffd"
        assert await one.call("echo", text="y") == "y\ufffd"


async def test_a_command_runs_our_own_server() -> None:
    env = {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    async with client(server_command(), env=env) as one:
        assert await one.call("add", a=1) == 2


async def test_a_list_that_may_have_changed_unheard_is_asked_for_again() -> None:
    def listen(message: dict[str, Any]) -> Any:
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        wanted = message["params"]["notifications"]
        return Messages(
            [create_notification("notifications/subscriptions/acknowledged", notifications=wanted, _meta=meta)]
        )

    fresh = {"tools": [], "ttlMs": 60_000, "cacheScope": "private"}
    script = ScriptedServer("stateless", {"subscriptions/listen": listen, "tools/list": fresh})
    async with serve_over_http(script) as at, client(at) as one:
        await one.list_tools()
        async with one.listen(prompts=False, resources=False) as changes, asyncio.timeout(5):
            change = await anext(aiter(changes))
        assert change.maybe_missed
        await one.list_tools()
        assert script.count("tools/list") == 2


async def test_a_server_that_never_confirms_is_not_waited_for() -> None:
    script = ScriptedServer("stateless", {"subscriptions/listen": SILENCE})
    async with serve_on_socket(script) as at, client(at, timeout=Timeouts(request=0.2)) as one:
        with pytest.raises(RequestTimeout, match=r"0\.2 s"):
            async with asyncio.timeout(5), one.listen():
                pass
        assert await one.call("go") == "ok"


async def test_a_subscription_that_fails_takes_no_other_along() -> None:
    def subscribe(message: dict[str, Any]) -> Any:
        return ErrorReply(-32602, "no") if message["params"]["uri"] == "bad" else {}

    reactions = {"resources/subscribe": subscribe, "resources/unsubscribe": {}}
    script = ScriptedServer("handshake", reactions)
    async with serve_on_socket(script) as at, client(at) as one:
        with pytest.raises(MCPError):
            async with one.listen(uris=["bad", "good"]):
                pass
        async with one.listen(uris=["good"]):
            async with one.listen(uris=["good"]):
                pass
            gone = [
                message["params"]["uri"] for message in script.received if "unsubscribe" in message.get("method", "")
            ]
            assert gone == ["bad"]


# Openings given up

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(sys.platform == "win32", reason="platform: no signals to ignore")
@pytest.mark.parametrize("how", ["cancelled", "cancelled twice"])
def test_no_child_outlives_an_opening_that_was_cancelled(how: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def use() -> None:
        one = Client([sys.executable, "-c", STUBBORN, str(file)], protocol_version="handshake")
        opening = asyncio.create_task(one.connect())
        await wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
        opening.cancel()
        if how == "cancelled twice":
            await asyncio.sleep(0.01)
            opening.cancel()
        await asyncio.wait([opening])
        if how == "cancelled twice":
            await one.close()

    asyncio.run(use())
    # The process is killed by now. On a busy machine it may take a moment until it is gone.
    pid, deadline = int(file.read_text()), time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)

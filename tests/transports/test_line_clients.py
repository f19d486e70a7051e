"""Test the client's newline-delimited connections: framing in any chunks, the end, and the errors."""

import asyncio
import contextlib
import json
import re
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Timeouts
from dovetail.errors import ConnectError, ConnectionLost, InvalidResult
from dovetail.protocol.interfaces.client_transport import EncodedRequest
from dovetail.transports.line_client import LineClient
from dovetail.transports.socket_client import SocketClient
from dovetail.transports.stdio_client import StdioClient
from dovetail.wire.raw_message import RawMessage
from support.fake_service import wait_until
from support.scripted_server import CLOSE, RST, Messages, ScriptedServer, serve_on_socket, text_result
from transports.test_memory import RecordingInbox


def asked(id: int, method: str = "tools/call", **params: Any) -> EncodedRequest:
    return EncodedRequest(id, method, json.dumps({"id": id, "method": method, "params": params}).encode())


async def reached(at: str, limit: int = 10_000) -> tuple[SocketClient, RecordingInbox]:
    caller, inbox = SocketClient(limit, host="127.0.0.1", port=int(at.rpartition(":")[2])), RecordingInbox()
    await caller.open(inbox)
    return caller, inbox


class Sink:
    """The writing half of a transport."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False


async def test_a_call_given_up_before_it_was_sent_is_never_sent() -> None:
    caller, sink = LineClient(100), Sink()
    caller.connection_made(sink)
    caller.pause_writing()  # the server does not read
    requests = [asked(id, text="x" * 1000) for id in range(3)]
    calls = [asyncio.create_task(caller.exchange(request)) for request in requests]
    await asyncio.sleep(0)
    assert sink.written == []
    assert caller.cancel(requests[1], "timeout") is None
    caller.resume_writing()
    assert sink.written == [requests[0].body + b"\n" + requests[2].body + b"\n"]
    assert caller.cancel(requests[0], "timeout") is not None  # the server may have read this one
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


async def test_a_message_leaves_at_once_and_those_that_follow_in_the_same_turn_together() -> None:
    caller, sink = LineClient(100), Sink()
    caller.connection_made(sink)
    loop = asyncio.get_running_loop()
    works = [loop.create_task(caller.exchange(EncodedRequest(id, "m", b"%d" % id))) for id in range(4)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert sink.written == [b"0\n", b"1\n2\n3\n"]
    for work in works:
        work.cancel()
    await asyncio.wait(works)


async def test_a_sender_waits_while_the_server_does_not_read() -> None:
    caller, sink = LineClient(100), Sink()
    caller.connection_made(sink)
    caller.pause_writing()
    waiting = asyncio.get_running_loop().create_task(caller.send_message(b"d"))
    await asyncio.sleep(0)
    assert not waiting.done()
    caller.resume_writing()
    await waiting
    assert sink.written == [b"d\n"]


class Connected(LineClient):
    """A caller whose connection is a sink."""

    async def connect(self) -> None:
        self.connection_made(Sink())


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
async def test_any_cut_gives_the_same(step: int) -> None:
    caller, inbox = Connected(200), RecordingInbox()
    await caller.open(inbox)
    data = b'{"method":"a"}\r\n\n{"method":"b"}\n' + b"x" * 300 + b'\njunk\n{"method":"c"}\n{"method":"d"}'
    for start in range(0, len(data), step):
        caller.data_received(data[start : start + step])
    caller.eof_received()
    assert [one.method for one in inbox.messages] == ["a", "b", "c", "d"]
    too_long, junk = inbox.junk_seen
    assert ("200" in too_long, junk) == (True, "junk")
    assert [type(one) for one in inbox.losses] == [ConnectionLost]


async def test_each_response_that_is_too_long_fails_its_own_request() -> None:
    caller, inbox = Connected(200), RecordingInbox()
    await caller.open(inbox)
    calls = [asyncio.create_task(caller.exchange(asked(id))) for id in range(3)]
    await asyncio.sleep(0)
    caller.data_received(b"".join(b'{"jsonrpc":"2.0","id":%d,"result":"%b"}\n' % (id, b"x" * 300) for id in (0, 1)))
    caller.data_received(b'{"jsonrpc":"2.0","id":2,"result":5}\n')
    async with asyncio.timeout(20):
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert (type(first), type(second)) == (InvalidResult, InvalidResult)
    assert isinstance(third, RawMessage)
    assert len(inbox.junk_seen) == 2


@pytest.mark.parametrize("loss", [CLOSE, RST], ids=["fin", "rst"])
async def test_everyone_who_waits_hears_of_the_end_with_an_error_of_their_own(loss: Any) -> None:
    scripted = ScriptedServer("handshake", {"a": lambda _: asyncio.Event().wait(), "b": loss})
    async with serve_on_socket(scripted) as at:
        caller, inbox = await reached(at)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(caller.exchange(asked(number, "a"))) for number in range(3)]
        tasks.append(loop.create_task(caller.exchange(asked(9, "b"))))
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert len({id(one) for one in errors}) == 4
        assert all(isinstance(one, ConnectionLost) and one.maybe_sent for one in errors)
        assert len(inbox.losses) == 1
        await caller.close()


async def test_notices_before_an_answer_come_before_it() -> None:
    scripted = ScriptedServer("handshake", {"tools/call": Messages([{"method": "n", "params": {}}, text_result("x")])})
    async with serve_on_socket(scripted) as at:
        caller, inbox = await reached(at)
        await caller.exchange(asked(1))
        assert [one.method for one in inbox.messages] == ["n"]
        await caller.close()


@pytest.mark.parametrize("code", [-32700, -32600])
async def test_a_server_that_could_not_read_the_only_request_has_answered_it(code: int) -> None:
    caller, inbox = Connected(1000), RecordingInbox()
    await caller.open(inbox)
    only = asyncio.create_task(caller.exchange(asked(1)))
    await asyncio.sleep(0)
    caller.data_received(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no such notification"}}\n')
    caller.data_received(b'{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"what?"}}\n' % code)
    answer = await only
    assert answer.error is not None
    assert answer.error.message == "what?"
    assert len(inbox.junk_seen) == 1


async def test_of_several_requests_none_is_taken_for_the_one_that_was_not_read() -> None:
    caller, inbox = Connected(1000), RecordingInbox()
    await caller.open(inbox)
    both = [asyncio.create_task(caller.exchange(asked(id))) for id in (1, 2)]
    await asyncio.sleep(0)
    caller.data_received(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}\n')
    caller.data_received(b'{"jsonrpc":"2.0","id":1,"result":{}}\n{"jsonrpc":"2.0","id":2,"result":{}}\n')
    assert [answer.error for answer in await asyncio.gather(*both)] == [None, None]
    assert len(inbox.junk_seen) == 1


async def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match=re.escape(str(tmp_path / "none"))):
        await SocketClient(10, path=str(tmp_path / "none")).open(RecordingInbox())
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:9"):
        await SocketClient(10, host="127.0.0.1", port=9).open(RecordingInbox())


@contextlib.contextmanager
def crowded() -> Iterator[int]:
    """The port of a server that takes no more connections, and refuses none."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        for _ in range(64):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
            if not select.select([], [one], [], 0.2)[1]:
                break
        yield port


async def test_a_server_that_cannot_be_reached_is_not_waited_for_longer_than_was_said() -> None:
    with crowded() as port:
        async with asyncio.timeout(20):
            with pytest.raises(ConnectError, match=rf"127\.0\.0\.1:{port}.*0\.05 s"):
                await SocketClient(10, host="127.0.0.1", port=port, connect_timeout=0.05).open(RecordingInbox())
            with pytest.raises(ConnectError, match=r"0\.05 s"):
                await Client(f"tcp://127.0.0.1:{port}", timeout=Timeouts(connect=0.05)).connect()


async def test_the_limit_of_a_unix_socket_is_the_one_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", never)
    async with asyncio.timeout(20):
        with pytest.raises(ConnectError, match=r"none.*0\.05 s"):
            await Client(f"unix:{tmp_path / 'none'}", timeout=Timeouts(connect=0.05)).connect()


# Processes


async def started(script: str, limit: int = 10_000) -> tuple[StdioClient, RecordingInbox]:
    caller, inbox = StdioClient(limit, [sys.executable, "-u", "-c", script]), RecordingInbox()
    await caller.open(inbox)
    return caller, inbox


async def test_a_process_is_known_by_how_it_ended() -> None:
    script = "import sys; sys.stdin.readline(); sys.stderr.write('because\\n'); sys.exit(7)"
    caller, inbox = await started(script)
    with pytest.raises(ConnectionLost, match="7") as caught:
        await caller.exchange(asked(1))
    assert (caught.value.exit_code, caught.value.stderr) == (7, "because")
    assert caller.get_diagnostics() == {"exit_code": 7, "stderr": "because"}
    assert len(inbox.losses) == 1
    await caller.close()


async def test_a_process_ended_by_a_signal() -> None:
    caller, _ = await started("import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ConnectionLost, match="SIGKILL"):
        await caller.exchange(asked(1))
    await caller.close()


async def test_a_process_that_closes_its_output_and_stays_is_gone() -> None:
    caller, inbox = await started("import os, sys, time; sys.stdin.readline(); os.close(1); time.sleep(60)")
    with pytest.raises(ConnectionLost):
        await caller.exchange(asked(1))
    await wait_until(lambda: inbox.losses)
    await caller.close()


async def test_the_last_line_of_a_process_needs_no_newline() -> None:
    script = 'import sys; sys.stdin.readline(); sys.stdout.write(\'{"id":1,"result":5}\')'
    caller, _ = await started(script)
    assert bytes((await caller.exchange(asked(1))).result) == b"5"
    await caller.close()


async def test_what_was_said_before_leaving_arrives(tmp_path: Path) -> None:
    file = tmp_path / "heard"
    caller, _ = await started(f"import sys; open({str(file)!r}, 'w').write(sys.stdin.read())")
    await caller.send_message(b"farewell")
    await caller.close()
    assert file.read_text() == "farewell\n"


async def test_leaving_a_server_that_does_not_read_is_bounded_and_closes_the_socket() -> None:
    deaf = socket.create_server(("127.0.0.1", 0))
    with deaf:
        caller = SocketClient(1000, host="127.0.0.1", port=deaf.getsockname()[1], close_timeout=0.05)
        await caller.open(RecordingInbox())
        end, _ = deaf.accept()
        with end:
            caller.write(b"x" * 50_000_000)
            async with asyncio.timeout(20):
                await caller.close()
                end.settimeout(10)
                with contextlib.suppress(ConnectionError):  # what was not read ends with a reset
                    while await asyncio.to_thread(end.recv, 1 << 20):
                        pass


async def test_leaving_a_server_that_reads_lets_it_have_the_last_word_said() -> None:
    scripted = ScriptedServer("handshake")
    async with serve_on_socket(scripted) as at:
        caller, _ = await reached(at)
        caller.write(b'{"method":"x","params":{"a":"' + b"x" * 5_000_000 + b'"}}')
        await caller.close()
        await wait_until(lambda: scripted.count("x"))

"""Test a server process over stdio, its exit, and the same framing over sockets."""

import asyncio
import contextlib
import json
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from behaviour import programs
from behaviour.manifest import requirement
from dovetail.server.server import get_dispatcher
from dovetail.transports.socket_server import serve_socket
from support import run_server
from support.controlled_server import ControlledServer, call_params, text
from support.driver import STATELESS, connect, spawn, stop_process
from support.raw_http import TIMEOUT_S

END_WITHIN = 5.0  # two seconds are promised; the machine may be busy
CHILD = Path(run_server.__file__)

NOISE = ("printing", "printing_in_a_thread", "descriptor", "original", "child", "child_of_a_thread")
STATES = ("idle", "waiting", "stubborn", "blocking", "loop_blocking")


def says(revision: str, method: str, params: Any, id: int | str) -> bytes:
    """A line as a client of the revision writes it."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method, "params": dict(params)}
    if revision == STATELESS:
        message["params"]["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    return json.dumps(message).encode() + b"\n"


@requirement("stdio.stdout")
async def test_nothing_but_messages_reaches_standard_output(revision: str) -> None:
    async with connect(programs.noisy, "stdio", revision) as peer:
        for tool in NOISE:
            assert text(await peer.request("tools/call", call_params(tool, text=f"said by {tool}"))) in ("ok", "0")
            await peer.wait_for_stderr_line(f"said by {tool}")
    # Every line of standard output was judged to be a message; this many there were.
    opening = 0 if revision == STATELESS else 1
    assert len(peer.messages) == len(NOISE) + opening


@requirement("stdio.stdin")
async def test_standard_input_is_empty_for_everyone_else(revision: str) -> None:
    async with connect(programs.noisy, "stdio", revision) as peer:
        assert json.loads(text(await peer.request("tools/call", call_params("reading")))) == ["end of file", "", ""]
        assert text(await peer.request("tools/call", call_params("child_reading"))) == "7"
        assert text(await peer.request("tools/call", call_params("printing", text="x"))) == "ok"


@requirement("stdio.ends")
@pytest.mark.parametrize("trigger", ["end of input", "SIGTERM", "SIGINT"])
async def test_a_process_ends_on_a_signal_whatever_it_is_doing(trigger: str) -> None:
    async def ends(state: str) -> None:
        async with connect(programs.busy, "stdio", STATELESS) as peer:
            peer.start("tools/call", call_params(state))
            await peer.wait_for_stderr_line("begun")
            process = peer.process
            assert process is not None
            if trigger == "end of input":
                assert peer.writer is not None
                peer.writer.close()
            else:
                process.send_signal(getattr(signal, trigger))
            try:
                async with asyncio.timeout(END_WITHIN):
                    assert await process.wait() == 0, state
            except TimeoutError:
                raise AssertionError(f"{state}: still running {END_WITHIN} s after {trigger}") from None
            # A blocked loop is reported with the place that blocks it; otherwise there is nothing to complain about.
            assert "Traceback" not in "\n".join(peer.stderr), state

    await asyncio.gather(*map(ends, STATES))


@requirement("stdio.ends")
async def test_a_signal_during_the_first_call_ends_the_process_well() -> None:
    process = await spawn(programs.ends_itself)
    assert process.stdin is not None
    process.stdin.write(says(STATELESS, "tools/call", {"name": "end", "arguments": {}}, id=1))
    async with asyncio.timeout(END_WITHIN):
        assert await process.wait() == 0


@requirement("stdio.ends")
async def test_a_process_ends_when_its_client_is_gone(revision: str) -> None:
    """Both pipes close at once, as when the client is killed."""
    process = await spawn(programs.plain)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(says(revision, "ping", {}, id=1))
    async with asyncio.timeout(TIMEOUT_S):
        await process.stdout.readline()
    process._transport.close()  # type: ignore[attr-defined]  # kills nothing: closes every pipe
    async with asyncio.timeout(END_WITHIN):
        await process.wait()


@requirement("stdio.flush")
async def test_what_is_running_is_answered_before_the_end(revision: str) -> None:
    async with connect(programs.busy, "stdio", revision) as peer:
        pending = [peer.start("tools/call", call_params("soon", seconds=0.2)) for _ in range(3)]
        await peer.wait_for_stderr_line("begun")
        assert peer.writer is not None
        peer.writer.close()
        for one in pending:
            assert text(await one) == "finished"
        assert peer.process is not None
        async with asyncio.timeout(END_WITHIN):
            assert await peer.process.wait() == 0


@requirement("stdio.file")
def test_input_may_be_a_file(tmp_path: Path, revision: str) -> None:
    lines = [
        says(revision, "tools/call", call_params("echo", text=f"line {number}"), id=number) for number in range(20)
    ]
    if revision != STATELESS:
        params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        lines.insert(0, says(revision, "initialize", params, id="open"))
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"".join(lines))
    command = [sys.executable, str(CHILD), programs.__file__, "plain", "stdio"]
    with source.open("rb") as given, sink.open("wb") as taken:
        run = subprocess.run(command, stdin=given, stdout=taken, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr
    answers = {message["id"]: message for message in map(json.loads, sink.read_text().splitlines())}
    assert len(answers) == len(lines)
    assert [text(answers[number]["result"]) for number in range(20)] == [f"line {number}" for number in range(20)]


@requirement("stdio.file")
def test_an_incomplete_last_line_is_reported(tmp_path: Path) -> None:
    whole = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    source = tmp_path / "in"
    source.write_text(whole + "\n" + whole[:-5])
    command = [sys.executable, str(CHILD), programs.__file__, "plain", "stdio"]
    with source.open("rb") as given:
        run = subprocess.run(command, stdin=given, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0
    answered, refused = map(json.loads, run.stdout.splitlines())
    assert answered["id"] == 1
    assert refused["error"]["code"] == -32700


@requirement("stdio.eras")
async def test_one_process_serves_both_eras(revision: str) -> None:
    async with connect(programs.plain, "stdio", STATELESS) as peer:
        assert STATELESS in (await peer.request("server/discover"))["supportedVersions"]
        await peer.initialize(revision)
        await peer.notify("notifications/initialized")
        for number in range(5):
            old = await peer.request("tools/call", call_params("echo", text=f"old {number}"))
            new = await peer.request("tools/call", call_params("echo", text=f"new {number}"), revision=STATELESS)
            assert (text(old), text(new)) == (f"old {number}", f"new {number}")
            assert ("resultType" in old, "resultType" in new) == (False, True)


@requirement("stdio.hooks")
def test_nothing_is_taken_over() -> None:
    """Serving in a thread of a program leaves its signals, streams and logging as they were."""
    code = """
import logging, os, signal, sys, threading
from dovetail import Server
before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.stdout, sys.stdin,
          list(logging.getLogger().handlers), logging.getLogger().level)
Server("x").run()
after = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.stdout, sys.stdin,
         list(logging.getLogger().handlers), logging.getLogger().level)
assert before == after, (before, after)
os.write(2, b"the same\\n")
print("printed")
"""
    run = subprocess.run([sys.executable, "-c", code], input=b"", capture_output=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr
    assert b"the same" in run.stderr
    assert run.stdout == b"printed\n"


# Sockets


@requirement("socket.serves")
async def test_many_clients_are_served_each_by_itself(revision: str, transport: str, tmp_path: Path) -> None:
    stage = ControlledServer()
    path = str(tmp_path / "s") if transport == "unix" else None
    async with serve_socket(get_dispatcher(stage.app), path=path) as door:

        async def client(name: str) -> Any:
            if path is not None:
                reader, writer = await asyncio.open_unix_connection(path)
            else:
                reader, writer = await asyncio.open_connection(*door.sockets[0].getsockname()[:2])
            sent = [says(revision, "tools/call", call_params("echo", text=name), id=1)]
            if revision != STATELESS:
                params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
                sent.insert(0, says(revision, "initialize", params, id=0))
            writer.write(b"".join(sent))
            answers = [json.loads(await reader.readline()) for _ in sent]
            writer.close()
            await writer.wait_closed()
            return text(answers[-1]["result"])

        names = [f"client {number}" for number in range(20)]
        async with asyncio.timeout(TIMEOUT_S):
            assert await asyncio.gather(*map(client, names)) == names


@requirement("socket.half-close")
async def test_a_client_that_says_no_more_is_left_at_once(transport: str) -> None:
    async with connect(ControlledServer().app, transport, STATELESS) as peer:
        assert peer.writer is not None
        assert (await peer.request("tools/list"))["tools"]
        peer.writer.write_eof()
        async with asyncio.timeout(TIMEOUT_S):
            await peer.ended.wait()


@requirement("socket.run")
async def test_a_process_serves_a_unix_socket_until_a_signal_comes(tmp_path: Path) -> None:
    path = tmp_path / "s"
    process = await spawn(programs.plain, "unix", path=str(path))
    try:
        reader, writer = await _connected(process, lambda: asyncio.open_unix_connection(str(path)))
        await _asks(reader, writer)
        assert stat.S_ISSOCK(path.stat().st_mode)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(END_WITHIN):
            assert await process.wait() == 0
        writer.close()
    finally:
        await stop_process(process)


@requirement("socket.run")
async def test_a_leftover_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = await spawn(programs.plain, "unix", path=str(path))
        try:
            reader, writer = await _connected(process, lambda: asyncio.open_unix_connection(str(path)))
            await _asks(reader, writer)
            writer.close()
            process.send_signal(number)
            async with asyncio.timeout(END_WITHIN):
                assert await process.wait() == (0 if number == signal.SIGTERM else -number)
        finally:
            await stop_process(process)


@requirement("socket.run")
async def test_a_process_serves_tcp_until_a_signal_comes(unused_tcp_port: int) -> None:
    process = await spawn(programs.plain, "tcp", port=unused_tcp_port)
    try:
        reader, writer = await _connected(process, lambda: asyncio.open_connection("127.0.0.1", unused_tcp_port))
        await _asks(reader, writer)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(END_WITHIN):
            assert await process.wait() == 0
        writer.close()
    finally:
        await stop_process(process)


async def _connected(process: asyncio.subprocess.Process, dial: Any) -> Any:
    """A connection, as soon as the process listens."""
    async with asyncio.timeout(TIMEOUT_S):
        while process.returncode is None:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return await dial()
            await asyncio.sleep(0.02)
    raise AssertionError("the process ended")


async def _asks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(says(STATELESS, "tools/call", call_params("echo", text="hi"), id=1))
    async with asyncio.timeout(TIMEOUT_S):
        assert text(json.loads(await reader.readline())["result"]) == "hi"

"""Test the commands against third-party servers: server-everything over HTTP and stdio, and mcp-server-time."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.command_process import TIMEOUT_S, RunCommand, ServerProcess
from dovetail.recording.playback import read_exchanges
from dovetail.recording.recording_format import read_frames
from support.processes import run_process

pytestmark = pytest.mark.interop

OURS = [sys.executable, "-m", "dovetail"]
TEXT = "demo://resource/dynamic/text/1"


@pytest.fixture(scope="module")
def far(everything: list[str]) -> Iterator[str]:
    """server-everything over HTTP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [*everything[:-1], "streamableHttp"]
    own = os.environ | {"PORT": str(port)}
    with run_process(command, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _reached(process, port)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.send_signal(signal.SIGTERM)


def _reached(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    pytest.fail("server-everything did not start")


def test_asking(run: RunCommand, far: str) -> None:
    assert "get-sum" in run("list", far, "tools").check_success().out
    assert "5" in run("call", far, "get-sum", "a=2", "b=3").check_success().out
    assert run("prompt", far, "simple-prompt").check_success().out.startswith("user: ")
    assert run("read", far, TEXT).check_success().out
    assert run("complete", far, "completable-prompt", "department=E").check_success().out == "Engineering\n"
    assert run("info", far, "--json").check_success().json["protocol_version"] == "2025-11-25"
    assert "2025-11-25" in run("ping", far).check_success().out
    assert run("call", far, "get-sum", "a=two").code == 2


def test_questions_are_answered_by_the_command_line(run: RunCommand, far: str) -> None:
    answers = {"name": "Ada", "check": "yes", "firstLine": "first", "email": "a@b.example", "integer": "7"}
    given = [word for name, value in answers.items() for word in ("-a", f"{name}={value}")]
    assert "Ada" in run("call", far, "trigger-elicitation-request", *given).check_success().out
    assert run("call", far, "trigger-elicitation-request").code == 8


def test_examining(run: RunCommand, far: str) -> None:
    steps = {step["name"]: step for step in run("doctor", far, "--json").json["checks"]}
    assert "2025-11-25" in steps["protocol"]["message"]
    assert run("lint", far, "--json").json["tokens"] > 0
    assert (
        run("bench", far, "get-sum", "a=1", "b=2", "-n", "20", "-c", "2", "--json").check_success().json["requests"]
        == 20
    )


def test_recording(run: RunCommand, far: str, tmp_path: Path, environment: dict[str, str]) -> None:
    path, tapped = tmp_path / "everything.jsonl", tmp_path / "tapped.jsonl"
    run("record", far, "-o", path, "--step", "call get-sum a=2 b=3", "--step", "prompt simple-prompt").check_success()
    assert "5" in run("call", path, "get-sum", "a=2", "b=3").check_success().out
    run("replay", far, path).check_success()
    run("diff", path, far).check_success()
    with ServerProcess([*OURS, "tap", far, "-o", str(tapped)], environment) as here:
        assert "5" in run("call", here, "get-sum", "a=2", "b=3").check_success().out
    assert "5" in run("call", tapped, "get-sum", "a=2", "b=3").check_success().out


def test_listening(far: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """It tells only those of a session in which that was switched on, so what it is asked is looked at."""
    tapped = tmp_path / "tapped.jsonl"
    with ServerProcess([*OURS, "tap", far, "-o", str(tapped)], environment) as here:
        words, pipe = [*OURS, "listen", here, TEXT, "--json"], subprocess.PIPE
        with run_process(words, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                assert process.stderr is not None
                assert process.stderr.readline()  # it listens
                process.send_signal(signal.SIGINT)
                assert process.wait(TIMEOUT_S) == 130
            finally:
                process.kill()
    (turn,) = [
        one
        for one in read_exchanges(read_frames(tapped.read_bytes().splitlines()))
        if one.method == "resources/subscribe"
    ]
    assert turn.params == {"uri": TEXT}
    assert (turn.response or {}).get("result") == {}


def test_over_stdio(run: RunCommand, everything: list[str]) -> None:
    assert "5" in run("call", "get-sum", "a=2", "b=3", "--", *OURS, "dev", "--", *everything).check_success().out
    printed = run("install", "--print", "--to", "mcp.json", "--name", "everything", "--", *everything).check_success()
    assert printed.json["mcpServers"]["everything"]["command"] == everything[0]


def test_time(run: RunCommand, clock: list[str]) -> None:
    words = ["time=12:00", "target_timezone=Asia/Tokyo"]
    assert "21:00" in run("call", "convert_time", "source_timezone=UTC", *words, "--", *clock).check_success().out
    wrong = run("call", "convert_time", "source_timezone=Nowhere", *words, "--", *clock)
    assert wrong.code == 5
    assert "Nowhere" in wrong.err

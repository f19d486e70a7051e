"""Test that a trace contains every message with time and direction, and no secrets."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, CommandTarget, Context, Server, testing
from dovetail.recording.recording_format import Frame, RecordingHeader, read_frames

PROGRAM = """
from dovetail import Server
app = Server("child")
@app.tool
def add(a: int, b: int) -> int:
    return a + b
app.run()
"""
FORK = """
import multiprocessing, os, sys
from pathlib import Path
from dovetail.recording.trace import RecordingWriter

folder = Path(sys.argv[1])
trace = RecordingWriter(folder / "{pid}.jsonl", "x")
assert [*folder.iterdir()] == []
process = multiprocessing.get_context("fork").Process(target=trace.record, args=("server", b"{}"))
process.start()
process.join(20)
trace.record("server", b"{}")
print(process.pid, os.getpid())
"""


def server(**options: Any) -> Server:
    app = Server("traced", **options)

    @app.tool
    async def login(password: str, ctx: Context) -> str:
        await ctx.progress(1)
        return "welcome"

    return app


def frames(file: Path) -> list[Frame]:
    with file.open("rb") as lines:
        parts = list(read_frames(lines))
    assert isinstance(parts[0], RecordingHeader)
    return [part for part in parts if isinstance(part, Frame)]


def shown(found: list[Frame]) -> list[tuple[str, str]]:
    return [(one.to, one.message.get("method") or "answer") for one in found if isinstance(one.message, dict)]


CALL = [("server", "tools/call"), ("client", "notifications/progress"), ("client", "answer")]


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
@pytest.mark.parametrize("transport", ["memory", "http", "tcp"])
async def test_a_server_traces_itself(tmp_path: Path, transport: str, revision: str) -> None:
    file = tmp_path / "recording.jsonl"
    async with testing.connect(
        server(recording=file), transport=transport, protocol_version=revision, headers=_secret(transport)
    ) as client:
        await client.call_tool("login", {"password": "hunter2"}, progress_handler=print)
    found = frames(file)
    seen = shown(found)
    place = seen.index(("server", "tools/call"))
    assert seen[place : place + 3] == CALL
    times = [one.at for one in found]
    assert times == sorted(times)
    text = file.read_text()
    assert "hunter2" not in text
    assert "s3cret" not in text
    if transport == "http":
        assert any((one.headers or {}).get("authorization") == "***" for one in found)
    assert file.stat().st_mode & 0o777 == 0o600


def _secret(transport: str) -> dict[str, str] | None:
    return {"Authorization": "Bearer s3cret-token"} if transport == "http" else None


async def test_a_client_traces_itself(tmp_path: Path) -> None:
    file = tmp_path / "client.jsonl"
    async with Client(server(), recording=file) as client:
        await client.call_tool("login", {"password": "hunter2"}, progress_handler=print)
    assert [one for one in shown(frames(file)) if one in CALL][-3:] == CALL
    assert "hunter2" not in file.read_text()


async def test_one_variable_traces_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_RECORDING", str(tmp_path / "{name}.jsonl"))
    script = tmp_path / "child.py"
    script.write_text(PROGRAM)
    async with Client(
        CommandTarget([sys.executable, str(script)], inherit_env=["DOVETAIL_RECORDING"]), name="parent"
    ) as client:
        assert await client.call("add", a=1, b=2) == 3
    for name in ("parent", "child"):
        assert ("server", "tools/call") in shown(frames(tmp_path / f"{name}.jsonl"))


async def test_two_may_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "both.jsonl"
    async with Client(server(recording=file), recording=file, name="client") as client:
        await client.call_tool("login", {"password": "x"})
    with file.open("rb") as lines:
        parts = list(read_frames(lines))
    assert {part.server for part in parts if isinstance(part, RecordingHeader)} == {"traced", "client"}
    assert (
        len([one for one in shown([part for part in parts if isinstance(part, Frame)]) if one[1] == "tools/call"]) == 2
    )


async def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOVETAIL_RECORDING", raising=False)
    async with Client(server()) as client:
        await client.call("login", password="x")
    assert os.listdir(tmp_path) == []


# Places that cannot be written


def test_an_unwritable_path_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "recording.jsonl"
    with pytest.raises(OSError, match=r"recording\.jsonl"):
        server(recording=file).asgi()
    with pytest.raises(OSError, match=r"recording\.jsonl"):
        Client(server(), recording=file)


async def test_a_place_that_is_lost_costs_nothing_but_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "place" / "recording.jsonl"
    file.parent.mkdir()
    async with Client(server(recording=file)) as client:
        file.unlink()
        file.parent.rmdir()
        for _ in range(2):
            assert await client.call("login", password="x") == "welcome"
    (record,) = caplog.records
    assert str(file) in record.getMessage()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
def test_each_worker_has_a_trace_of_its_own(tmp_path: Path) -> None:
    # The test process has threads, and Python warns before a process with threads forks.
    command = [sys.executable, "-c", FORK, str(tmp_path)]
    pids = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.split()
    assert len(pids) == 2
    assert {file.name for file in tmp_path.iterdir()} == {f"{pid}.jsonl" for pid in pids}

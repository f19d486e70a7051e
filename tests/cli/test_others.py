"""The commands against servers of others: server-everything from npm, mcp-server-time from PyPI."""

from pathlib import Path

import pytest

from cli.program import Run

pytestmark = pytest.mark.interop


def test_everything(run: Run, everything: list[str], tmp_path: Path) -> None:
    steps = ["call get-sum a=2 b=3", "prompt simple-prompt", "read demo://resource/dynamic/text/1"]
    path = tmp_path / "everything.jsonl"
    done = [word for step in steps for word in ("--do", step)]
    run("record", "-o", path, *done, "--", *everything).good()
    assert "get-sum" in run("list", path, "tools").good().out
    assert "5" in run("call", path, "get-sum", "a=2", "b=3").good().out
    assert run("read", path, "demo://resource/dynamic/text/1").good().out
    assert run("complete", "completable-prompt", "department=E", "--", *everything).good().out == "Engineering\n"
    info = run("info", "--json", "--", *everything).good()
    assert info.json["revision"] == "2025-11-25"


def test_time(run: Run, clock: list[str]) -> None:
    words = ["time=12:00", "target_timezone=Asia/Tokyo"]
    assert "21:00" in run("call", "convert_time", "source_timezone=UTC", *words, "--", *clock).good().out
    wrong = run("call", "convert_time", "source_timezone=Nowhere", *words, "--", *clock)
    assert wrong.code == 5
    assert "Nowhere" in wrong.err

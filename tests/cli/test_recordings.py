"""Test `record`, `mock`, `replay`, `diff` and `tap`, which share one file format."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command_process import ROOT, SAMPLE_SERVER, RunCommand, ServerProcess, read_first_line
from support.processes import run_process

OURS = [sys.executable, "-m", "dovetail"]
STEPS = ["call add a=1 b=2", "call refuse", "read notes://today", "prompt packing city=Oslo", "call book flight=Y"]


@pytest.fixture(scope="module", params=["stateless", "handshake"])
def recording(request: pytest.FixtureRequest, run: RunCommand, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / f"{request.param}.jsonl"
    steps = [word for step in STEPS for word in ("--step", step)]
    path.write_text("of before", encoding="utf-8")
    words = ("record", SAMPLE_SERVER, "-o", path, *steps, "--protocol-version", request.param, "-a", "value=3")
    assert run(*words).code == 2
    assert path.read_text(encoding="utf-8") == "of before"
    said = run(*words, "--force").check_success()
    assert str(path) in said.out
    return path


def test_a_recording_replaces_the_server(run: RunCommand, recording: Path) -> None:
    assert run("call", recording, "add", "a=1", "b=2").check_success().out == "3\n"
    assert run("call", recording, "refuse").code == 5
    assert run("read", recording, "notes://today").check_success().out == "milk"
    assert run("call", recording, "book", "flight=Y", "-a", "value=3").check_success().out == "Y in row 3\n"
    other = run("call", recording, "add", "a=2")
    assert other.code == 5
    assert "tools/call add" in other.err
    older = run("info", recording, "--protocol-version", "2025-03-26", "--json").check_success()
    assert older.json["name"] == "served"


@pytest.mark.skipif(sys.platform == "win32", reason="platform: modes as POSIX has them")
def test_only_its_user_can_read_a_recording(recording: Path) -> None:
    assert recording.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_the_query_of_a_url_is_not_printed(run: RunCommand, command: str) -> None:
    said = run(command, "http://127.0.0.1:1/mcp?api_key=s3cret")
    assert said.code != 0
    assert "127.0.0.1:1/mcp" in said.out + said.err
    assert "s3cret" not in said.out + said.err


def test_the_same_server_answers_the_same(run: RunCommand, recording: Path) -> None:
    run("replay", SAMPLE_SERVER, recording).check_success()
    run("diff", recording, SAMPLE_SERVER).check_success()


def test_another_server_is_found_out(run: RunCommand, recording: Path, tmp_path: Path) -> None:
    text = SAMPLE_SERVER.read_text(encoding="utf-8")
    changed = text.replace("return a + b", "return a - b").replace("times: int = 1", "times: str")
    other = tmp_path / "other.py"
    other.write_text(changed, encoding="utf-8")
    said = run("replay", other, recording)
    assert said.code == 6
    assert 'tools/call {"name": "add"' in said.out
    found = run("diff", recording, other)
    assert found.code == 6
    assert re.search("tool echo.*`times`", found.out)
    assert run("diff", other, recording, "--json").code == 6


def test_what_was_said_before_a_step_failed_is_kept(run: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    said = run(
        "record",
        SAMPLE_SERVER,
        "-o",
        path,
        "--step",
        "call add a=1",
        "--step",
        "read nowhere://at-all",
        "--step",
        "call echo",
    )
    assert said.code not in (0, 1)
    assert run("call", path, "add", "a=1").check_success().out == "2\n"


def test_a_recording_of_another_format_or_with_odd_messages(run: RunCommand, tmp_path: Path) -> None:
    later, odd = tmp_path / "later.jsonl", tmp_path / "odd.jsonl"
    later.write_text('{"recording":99}\n', encoding="utf-8")
    said = run("mock", later)
    assert said.code == 2
    assert "format 99" in said.err
    asked = {"at": 0, "to": "server", "message": {"id": 1, "method": "x", "params": [1]}}
    odd.write_text(f'{{"recording":1}}\n{json.dumps(asked)}\n', encoding="utf-8")
    said = run("mock", odd)
    assert said.code == 2
    assert "odd.jsonl" in said.err


def test_mock_over_http(run: RunCommand, recording: Path, environment: dict[str, str]) -> None:
    with ServerProcess([*OURS, "mock", str(recording), "--http", "--port", "0", "--any-arguments"], environment) as url:
        assert run("call", url, "add", "a=9").check_success().out == "3\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["mock", SAMPLE_SERVER], "line 1"),
        (["replay", SAMPLE_SERVER], "RECORDING"),
        (["replay", "x.jsonl", SAMPLE_SERVER], "pass the server first"),
        (["diff", SAMPLE_SERVER], "two"),
        (["record", SAMPLE_SERVER, "-o", "x.jsonl", "--step", "jump up"], "'jump up'"),
        (["record", SAMPLE_SERVER, "-o", "x.jsonl", "--step", "read a b"], "'read a b'"),
        (["record", SAMPLE_SERVER, "-o", "x.jsonl", "--step", "call 'add"], "call 'add"),
        (["record", SAMPLE_SERVER, "-o", "x.jsonl", "--step", " "], "prompt"),
        (["tap", SAMPLE_SERVER, "surplus", "-o", "x.jsonl"], "surplus"),
    ],
)
def test_what_is_missing_is_explained(run: RunCommand, words: list[str], why: str, tmp_path: Path) -> None:
    said = run(*words, cwd=tmp_path)
    assert said.code == 2
    assert why in said.err


def test_tap_before_a_command(run: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "tapped.jsonl"
    tapped = [*OURS, "tap", SAMPLE_SERVER, "-o", path]
    assert run("call", "add", "a=4", "--", *tapped).check_success().out == "5\n"
    kinds = [json.loads(line).get("to") for line in path.read_text(encoding="utf-8").splitlines()]
    assert kinds[0] is None
    assert kinds.count("server") == kinds.count("client") == 3
    assert path.stat().st_mode & 0o777 == 0o600
    assert run("call", path, "add", "a=4").check_success().out == "5\n"


@pytest.mark.interop
def test_tap_before_a_server_of_others(run: RunCommand, everything: list[str], tmp_path: Path) -> None:
    path = tmp_path / "everything.jsonl"
    tapped = [*OURS, "tap", "-o", path, "--", *everything]
    said = run("call", "get-sum", "a=2", "b=3", "--", *tapped).check_success()
    assert run("call", path, "get-sum", "a=2", "b=3").check_success().out == said.out


def test_tap_ends_with_its_server_and_as_it_did(environment: dict[str, str], tmp_path: Path) -> None:
    program = "import sys; sys.stdout.write('last words\\n'); sys.exit(9)"
    command = [*OURS, "tap", "-o", str(tmp_path / "t.jsonl"), "--", sys.executable, "-c", program]
    with run_process(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"last words\n"
        assert process.wait(30) == 9
    assert '"text":"last words"' in (tmp_path / "t.jsonl").read_text(encoding="utf-8")


def test_tap_before_a_url(run: RunCommand, url: str, environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "far.jsonl"
    with ServerProcess([*OURS, "tap", url, "-o", str(path)], environment) as here:
        assert run("call", here, "count", "to=2").check_success().out == "counted to 2\n"
        assert run("call", here, "add", "a=1", "--protocol-version", "handshake").check_success().out == "2\n"
    text = path.read_text(encoding="utf-8")
    assert '"notifications/progress"' in text
    assert '"initialize"' in text
    with ServerProcess(
        [sys.executable, str(ROOT / "examples" / "over_http.py"), "--port", "0"], environment
    ) as guarded:
        words = [*OURS, "tap", guarded, "-o", str(path), "-H", "Authorization: Bearer let-me-in"]
        with ServerProcess(words, environment) as here:
            assert run("call", here, "whoami").check_success().out.startswith("You are ada")
    assert "let-me-in" not in path.read_text(encoding="utf-8")
    nowhere = [*OURS, "tap", "http://127.0.0.1:1/mcp", "-o", str(path)]
    with ServerProcess(nowhere, environment) as here:
        assert run("list", here).code == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_tap_passes_on_what_it_cannot_write(run: RunCommand) -> None:
    tapped = [*OURS, "tap", SAMPLE_SERVER, "-o", "/dev/full"]
    said = run("call", "add", "a=4", "-v", "--", *tapped).check_success()
    assert said.out == "5\n"
    assert said.err.count("/dev/full") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([SAMPLE_SERVER, "-o", "nowhere/t.jsonl"], "'nowhere/t.jsonl': No such file"),
        (["unix:/nowhere", "-o", "t.jsonl"], "unix:/nowhere"),
        (["http://127.0.0.1:1/mcp", "--auth", "oauth", "-o", "t.jsonl"], "--auth"),
        (["http://127.0.0.1:1/mcp", "--cwd", ".", "-o", "t.jsonl"], "--cwd"),
        ([SAMPLE_SERVER, "--auth", "abcdefgh", "-o", "t.jsonl"], "--auth"),
    ],
)
def test_tap_says_at_once_what_is_wrong(run: RunCommand, tmp_path: Path, words: list[str], why: str) -> None:
    said = run("tap", *words, cwd=tmp_path)
    assert said.code == 2
    assert why in said.err


@pytest.mark.interop
def test_tap_reaches_what_is_configured(
    run: RunCommand, environment: dict[str, str], everything: list[str], tmp_path: Path
) -> None:
    (tmp_path / "inner").mkdir()
    program = "import os; print(os.path.basename(os.getcwd()), os.environ['WORD'])"
    near = {
        "command": sys.executable,
        "args": ["-c", program],
        "cwd": str(tmp_path / "inner"),
        "env": {"WORD": "given"},
    }
    (tmp_path / "near.json").write_text(json.dumps({"mcpServers": {"near": near}}), encoding="utf-8")
    words = [*OURS, "tap", "-o", "t.jsonl"]
    assert read_first_line([*words, "near.json"], environment, tmp_path) == "inner given\n"
    (tmp_path / "a.js").write_text("console.log('of node')", encoding="utf-8")
    found = f"{Path(everything[0]).parent}{os.pathsep}{environment['PATH']}"
    assert read_first_line([*words, "a.js"], environment | {"PATH": found}, tmp_path) == "of node\n"
    with ServerProcess(
        [sys.executable, str(ROOT / "examples" / "over_http.py"), "--port", "0"], environment
    ) as guarded:
        far = {"url": guarded, "headers": {"Authorization": "Bearer let-me-in"}}
        (tmp_path / "far.json").write_text(json.dumps({"mcpServers": {"far": far}}), encoding="utf-8")
        with ServerProcess([*OURS, "tap", str(tmp_path / "far.json"), "-o", str(tmp_path / "f")], environment) as here:
            assert run("call", here, "whoami").check_success().out.startswith("You are ada")


LOGIN = """
from dovetail import Server
app = Server("login")
@app.tool
def enter(name: str, password: str) -> dict[str, str]:
    return {"name": name, "token": f"t-{password}", "said": f"Bearer {password * 3} is yours"}
"""


def test_what_was_masked_may_be_anything(run: RunCommand, tmp_path: Path) -> None:
    server, path = tmp_path / "login.py", tmp_path / "login.jsonl"
    server.write_text(LOGIN, encoding="utf-8")
    run("record", server, "-o", path, "--step", "call enter name=Ada password=opensesame").check_success()
    assert "opensesame" not in path.read_text(encoding="utf-8")
    assert '"***"' in run("call", path, "enter", "name=Ada", "password=another").check_success().out
    assert run("call", path, "enter", "name=Bob", "password=another").code == 5
    same = run("replay", server, path).check_success()
    assert 'tools/call {"name": "enter"' in same.err
    server.write_text(LOGIN.replace('"name": name', '"name": "Eve", "secret": "hunter22"'), encoding="utf-8")
    other = run("replay", server, path)
    assert other.code == 6
    assert "Eve" in other.out
    assert "hunter22" not in other.out + other.err
    assert len(run("replay", server, path, "--json").json["masked_requests"]) == 1


def test_diff_takes_two(run: RunCommand, recording: Path) -> None:
    said = run("diff", "-m", "somewhere", recording, recording)
    assert said.code == 2
    assert "two" in said.err

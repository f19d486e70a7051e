"""Test the commands that call a server, each as a process against a dovetail server."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.command_process import ROOT, SAMPLE_SERVER, UNSAFE_CHARACTERS, RunCommand, ServerProcess
from cli.sample_server import HOSTILE
from support.processes import run_process


def test_list_shows_everything_on_lines_of_their_own(run: RunCommand, url: str) -> None:
    said = run("list", url).check_success().out
    rows = said.splitlines()
    assert rows[0].split() == ["tool", "arguments", "description"]
    assert any(row.split()[:3] == ["add", "a", "[b]"] for row in rows)
    assert any(row.startswith("notes://{name}") for row in rows)
    assert any(row.startswith("packing") for row in rows)
    (hostile,) = [row for row in rows if row.startswith("hostile")]
    assert "\\x1b]52;c;cHduZWQ=\\x07\\u202egpj.exe\\u200b" in hostile


def test_list_of_one_kind_as_json(run: RunCommand, url: str) -> None:
    said = run("list", url, "prompts", "--json").check_success()
    assert [one["name"] for one in said.json["prompts"]] == ["packing"]
    assert said.json.keys() == {"prompts"}
    assert run("list", url, "tols").code == 2


def test_call_coerces_by_the_schema(run: RunCommand, url: str) -> None:
    assert run("call", url, "add", "a=2", "b=3").check_success().out == "5\n"
    said = run("call", url, "echo", "value=a b", "times=2", "loud=yes", "tags=x,y", "--json").check_success()
    assert said.json["content"][0]["text"] == "A B A B #X #Y"
    assert run("call", url, "add", "--arguments", "-", stdin='{"a": 40, "b": 2}').check_success().out == "42\n"


def test_call_that_fails_exits_with_5_and_is_escaped(run: RunCommand, url: str) -> None:
    said = run("call", url, "refuse")
    assert said.code == 5
    assert said.err == "no\\x1b[31m way\\u202e\n"
    assert not said.out
    told = run("call", url, "refuse", "--json")
    assert told.code == 5
    assert told.json["isError"]


def test_call_of_no_tool_names_the_nearest(run: RunCommand, url: str) -> None:
    said = run("call", url, "ad")
    assert said.code == 2
    assert "'add'" in said.err


def test_what_a_tool_or_a_resource_holds_is_written_as_it_is(run: RunCommand, url: str, tmp_path: Path) -> None:
    assert run("call", url, "hostile").out == f"{HOSTILE}\n"
    family = "\U0001f468\u200d\U0001f469 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    text = f"from dovetail import Server\napp = Server('s')\napp.add_resource(lambda: {family!r}, 't://x', name='x')\n"
    (tmp_path / "s.py").write_text(text, encoding="utf-8")
    assert run("read", tmp_path / "s.py", "t://x").out == family


def test_hostile_text_is_escaped_in_a_document(run: RunCommand, url: str) -> None:
    document = run("call", url, "hostile", "--json").check_success()
    assert document.json["content"][0]["text"].startswith("\x1b]52")


def test_what_a_server_writes_on_stderr_is_shown_escaped_and_only_when_wanted(run: RunCommand) -> None:
    words = ["call", SAMPLE_SERVER, "say", "words=quiet\x1b[2J\u202e"]
    assert "quiet" not in run(*words).check_success().err
    assert "quiet\\x1b[2J\\u202e" in run(*words, "-v").check_success().err


@pytest.mark.parametrize("era", ["stateless", "handshake"])
def test_a_question_without_anybody_there_exits_with_8_at_once(run: RunCommand, url: str, era: str) -> None:
    said = run("call", url, "book", "flight=X", "--protocol-version", era)
    assert said.code == 8
    assert "Which row\\x1b[2J?" in said.err
    assert "--answer" in said.err
    assert (
        run("call", url, "book", "flight=X", "--protocol-version", era, "-a", "value=7").check_success().out
        == "X in row 7\n"
    )


def test_read(run: RunCommand, url: str, environment: dict[str, str]) -> None:
    assert run("read", url, "notes://today").check_success().out == "milk"
    assert run("read", url, "notes://today", "--json").check_success().json["contents"][0]["text"] == "milk"
    command = [sys.executable, "-m", "dovetail", "read", url, "bytes://some"]
    assert subprocess.run(command, env=environment, capture_output=True, check=True).stdout == b"\x00\xff\x1b"
    assert run("read", url, "nothing://there").code == 2
    assert run("read", url).code == 2


def test_prompt(run: RunCommand, url: str) -> None:
    assert run("prompt", url, "packing", "city=Oslo").check_success().out == "user: What to pack for Oslo?\\x1b[2J\n"
    assert "'city'" in run("prompt", url, "packing", "cty=Oslo").err
    assert "packing" in run("prompt", url, "pack").err


def test_complete(run: RunCommand, url: str) -> None:
    assert run("complete", url, "packing", "city=Os").check_success().out == "Oslo\nOsaka\n"
    assert run("complete", url, "packing", "city=R", "--json").check_success().json["values"] == ["Rome"]
    assert run("complete", url, "packing").code == 2


def test_info(run: RunCommand, url: str) -> None:
    said = run("info", url).check_success().out
    assert "served" in said
    assert "For tests.\\x1b[2J" in said
    assert "2026-07-28" in run("info", url, "--json").check_success().json["supported_versions"]
    older = run("info", url, "--protocol-version", "2025-06-18", "--json").check_success()
    assert older.json["protocol_version"] == "2025-06-18"


def test_ping(run: RunCommand, url: str) -> None:
    assert len(run("ping", url, "-n", "2", "--json").check_success().json["milliseconds"]) == 2
    assert "2026-07-28" in run("ping", url, "-n", "1").check_success().out


def test_listening_for_nothing_is_refused(run: RunCommand, url: str) -> None:
    said = run("listen", url, "-n", "0")
    assert said.code == 2
    assert "x>=1" in said.err


def test_listen(run: RunCommand, url: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "dovetail", "listen", url, "notes://today", "--json", "-n", "1"]
    with run_process(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert process.stderr.readline()  # it listens
        run("call", url, "write", "name=today", "text=milk").check_success()
        assert json.loads(process.stdout.readline())["uri"] == "notes://today"
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["http://127.0.0.1:1/mcp"], 3),
        (["--", "no-such-program-anywhere"], 3),
        (["--", sys.executable, "-c", "raise SystemExit('bye\x1b[2J')"], 3),
    ],
    ids=["refused", "missing", "dead"],
)
def test_a_server_that_cannot_be_reached_exits_with_3(run: RunCommand, words: list[str], code: int) -> None:
    said = run("info", *words)
    assert said.code == code
    assert said.err.startswith("error: ")
    assert not UNSAFE_CHARACTERS.search(said.err)


def test_an_error_as_json_is_one_document_on_stderr(run: RunCommand) -> None:
    said = run("info", "http://127.0.0.1:1/mcp", "--json")
    assert json.loads(said.err)["error"] == "ConnectError"
    assert not said.out


def test_a_server_that_breaks_the_contract_exits_with_6(run: RunCommand, tmp_path: Path) -> None:
    program = tmp_path / "liar.py"
    program.write_text(
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    answer = {'jsonrpc': '2.0', 'id': json.loads(line).get('id'), 'result': {'supportedVersions': 7}}\n"
        "    print(json.dumps(answer), flush=True)\n",
        encoding="utf-8",
    )
    assert run("info", "--protocol-version", "stateless", "--", sys.executable, program).code == 6


def test_a_server_that_wants_credentials_exits_with_4_and_says_how(
    run: RunCommand, environment: dict[str, str]
) -> None:
    with ServerProcess(
        [sys.executable, str(ROOT / "examples" / "over_http.py"), "--port", "0"], environment
    ) as guarded:
        said = run("list", guarded)
        assert said.code == 4
        assert "--auth TOKEN" in said.err
        assert "auth login" not in said.err  # this server has tokens, but no authorization server
        assert run("call", guarded, "whoami", "--auth", "let-me-in").check_success().out.startswith("You are ada")
        assert run("call", guarded, "whoami", "-H", "Authorization: Bearer let-me-in").code == 0


def test_a_server_that_says_no_exits_with_7(run: RunCommand) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(403)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = run("list", f"http://127.0.0.1:{server.server_port}/mcp")
        server.shutdown()
    assert said.code == 7


def test_the_list_of_configured_servers_shows_no_secret(
    run: RunCommand, tmp_path: Path, at_home: dict[str, str]
) -> None:
    servers = {
        "a": {"command": "npx", "args": ["mcp-a", "--api-key", "s3cret", "--token=s3cret"]},
        "b": {"url": "https://ada:s3cret@b.example/mcp?key=s3cret"},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    for options in ((), ("--json",)):
        listed = run("list", *options, cwd=tmp_path, **at_home).check_success().out
        assert "s3cret" not in listed
        assert "mcp-a" in listed
        assert "https://b.example/mcp" in listed

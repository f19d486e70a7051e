"""Test that every kind of target reaches the same server."""

import json
import re
import sys
from pathlib import Path

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand


@pytest.mark.parametrize(
    "words",
    [[SAMPLE_SERVER], [f"{SAMPLE_SERVER}:app"], ["-m", "sample_server"], ["--", sys.executable, SAMPLE_SERVER]],
    ids=["file", "object", "module", "command"],
)
def test_targets(run: RunCommand, words: list[str]) -> None:
    mark = words.index("--") if "--" in words else len(words)
    first = [*words[:mark], "add", "a=1"]
    assert run("call", *first, *words[mark:], cwd=SAMPLE_SERVER.parent).check_success().out == "2\n"


def test_a_name_from_a_configuration(run: RunCommand, url: str, tmp_path: Path) -> None:
    servers = {"mine": {"url": url}, "unset": {"command": "x", "env": {"A": "${NOT_SET_HERE}"}}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    assert run("call", "mine", "add", "a=1", cwd=tmp_path).check_success().out == "2\n"
    assert run("call", f"{tmp_path / 'mcp.json'}:mine", "add", "a=1").check_success().out == "2\n"
    assert "NOT_SET_HERE" in run("list", "unset", cwd=tmp_path).err
    assert "'mine'" in run("list", "mina", cwd=tmp_path).err
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    assert "cursor:mine, mcp.json:mine" in run("list", "mine", cwd=tmp_path).err
    assert sorted(re.findall(r"[\w.]*:?mine", run("list", "other", cwd=tmp_path).err)) == [
        "cursor:mine",
        "mcp.json:mine",
    ]
    assert run("call", "cursor:mine", "add", "a=1", cwd=tmp_path).check_success().out == "2\n"
    listed = run("list", cwd=tmp_path, MINE="1").check_success().out
    assert listed.count(url) == 2
    assert "${NOT_SET_HERE}" not in listed


def test_variables_are_given_only_when_asked_for(run: RunCommand, tmp_path: Path) -> None:
    program = tmp_path / "shows.py"
    program.write_text(
        "import os\nfrom dovetail import Server\napp = Server('s')\n"
        "@app.tool\ndef show() -> str:\n    return ' '.join(os.environ.get(n, '-') for n in ('A_SECRET', 'B'))\n",
        encoding="utf-8",
    )
    assert run("call", program, "show", A_SECRET="1").check_success().out == "- -\n"
    assert run("call", program, "show", "-e", "A_SECRET", "-e", "B=2", A_SECRET="1").check_success().out == "1 2\n"


def test_words_reach_a_program_as_they_are(run: RunCommand, tmp_path: Path) -> None:
    program = tmp_path / "argv.py"
    program.write_text(
        "import sys\nfrom dovetail import Server\napp = Server('s')\n"
        "@app.tool\ndef words() -> str:\n    return repr(sys.argv[1:])\napp.run()\n",
        encoding="utf-8",
    )
    given = ["$(touch here)", "; true", "a b", "-x", "%PATH%", "--", "`id`"]
    assert run("call", "words", "--", sys.executable, program, *given, cwd=tmp_path).check_success().out == f"{given}\n"
    assert not (tmp_path / "here").exists()


def test_of_two_servers_one_is_to_be_named(run: RunCommand, tmp_path: Path) -> None:
    text = "from dovetail import Server\none, two = Server('one'), Server('two')\n"
    (tmp_path / "both.py").write_text(text, encoding="utf-8")
    said = run("list", "both.py", cwd=tmp_path)
    assert said.code == 2
    assert "both.py:one, both.py:two" in said.err
    said = run("doctor", "both.py:three", cwd=tmp_path)
    assert said.code == 2
    assert "one, two" in said.err
    assert run("info", "both.py:two", "--json", cwd=tmp_path).check_success().json["name"] == "two"


def test_a_program_that_serves_http_gets_a_hint_with_its_url(run: RunCommand, tmp_path: Path) -> None:
    text = "from dovetail import Server\n\nif __name__ == '__main__':\n    Server('web').run('http', port=0)\n"
    (tmp_path / "web.py").write_text(text, encoding="utf-8")
    for words in (["list", "web.py"], ["list", "--", sys.executable, "web.py"]):
        said = run(*words, cwd=tmp_path)
        assert said.code == 3
        assert re.search(r"(?m)^try: .*http://127\.0\.0\.1:\d+", said.err)


def test_a_program_that_serves_both_ways_is_waited_for(run: RunCommand, tmp_path: Path) -> None:
    text = (
        "import sys\nfrom dovetail import Server\n"
        "sys.stderr.write('Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)\\n')\n"
        "sys.stderr.flush()\nServer('both').run()\n"
    )
    (tmp_path / "both.py").write_text(text, encoding="utf-8")
    assert run("info", "--json", "--", sys.executable, "both.py", cwd=tmp_path).check_success().json["name"] == "both"

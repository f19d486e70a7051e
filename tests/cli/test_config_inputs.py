"""Test the inputs and the mistakes of a configuration file, as processes."""

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.command_process import TIMEOUT_S, RunCommand
from cli.terminal import open_terminal
from dovetail import Client

HOSTED = Path(__file__).with_name("hosted_server.py")
GOOD = {"command": sys.executable, "args": [str(HOSTED)]}
KEY = {"id": "key", "type": "promptString", "description": "The key of the sums", "password": True}
PLACE = {"id": "place", "type": "pickString", "description": "Where", "options": ["here", "there"], "default": "here"}


def written(tmp_path: Path, *inputs: Any, name: str = "mcp.json", **servers: Any) -> Path:
    path = tmp_path / name
    path.write_text(json.dumps({"inputs": inputs, "servers": servers}))
    return path


def needing(*names: str) -> dict[str, Any]:
    return GOOD | {"env": {"HOSTED_SAYS": " ".join(f"${{input:{name}}}" for name in names)}}


def test_inputs_are_asked_for_once_and_passwords_not_shown(tmp_path: Path, alone: dict[str, str]) -> None:
    path = written(tmp_path, KEY, PLACE, sums=needing("key", "place"), more=needing("key"))
    with open_terminal(alone, "servers", str(path), "--json") as at:
        at.until_match(r"(?s)The key of the sums.*: $")
        at.type("open sesame\n")
        at.wait_for("2 there")
        at.wait_for("Where [here]: ")
        at.type("elsewhere\n")
        at.wait_for("'elsewhere'")
        at.type("there\n")
        said = at.read_screen().text
        assert at.process.wait(TIMEOUT_S) == 0
    assert said.count('"state": "ready"') == 2
    assert said.count("The key of the sums") == 1
    assert "sesame" not in said


def test_what_is_not_used_is_not_asked_for(tmp_path: Path, alone: dict[str, str]) -> None:
    path = written(tmp_path, KEY, sums=needing("key"), plain=GOOD, off=needing("key") | {"disabled": True})
    with open_terminal(alone, "servers", str(path), "--server", "plain", "--server", "off") as at:
        at.wait_for("plain")
        said = at.read_rest()
        assert at.process.wait(TIMEOUT_S) == 0
    assert "The key" not in said
    assert "sums" not in said
    with open_terminal(alone, "servers", str(path), "--no-start") as at:
        assert "The key" not in at.read_rest()


def test_an_interrupt_at_an_input_ends_the_command(tmp_path: Path, alone: dict[str, str]) -> None:
    with open_terminal(alone, "servers", str(written(tmp_path, KEY, sums=needing("key")))) as at:
        at.until_match(r"(?s)The key.*: $")
        at.process.send_signal(signal.SIGINT)
        at.read_rest()
        assert at.process.wait(TIMEOUT_S) == 130


def test_without_a_terminal_nothing_is_asked(run: RunCommand, tmp_path: Path, at_home: dict[str, str]) -> None:
    said = run("servers", written(tmp_path, KEY, sums=needing("key")), stdin="open sesame\n", **at_home)
    assert said.code == 3
    assert re.search(r"\bkey\b", said.out)


# What is wrong


@pytest.mark.parametrize(
    "words", [("servers",), ("gateway",), ("chat", "--model", "ollama:x", "-p", "hi"), ("pins", "check")]
)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"mcpServers": {"a"', ""),
        ('{"mcpServers": {"a": {"command": 7}}}', "command"),
        ('{"mcpServer": {"a": {"command": "a"}}}', "mcpServers"),
    ],
    ids=["no JSON", "no entry", "a typo"],
)
def test_a_file_without_servers_is_a_wrong_command_line(
    run: RunCommand, tmp_path: Path, at_home: dict[str, str], words: tuple[str, ...], content: str, said: str
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(content)
    found = run(*words, path, **at_home)
    assert found.code == 2
    assert said in found.err
    assert "mcp.json" in found.err


def test_a_dropped_entry_is_not_a_success(run: RunCommand, tmp_path: Path, at_home: dict[str, str]) -> None:
    path = written(tmp_path, sums=GOOD, odd={"command": 7})
    said = run("servers", path, **at_home)
    assert said.code == 6
    assert "ready" in said.out
    assert "odd" in said.err
    (tmp_path / ".mcp.json").write_text("{")
    assert run("servers", "--no-start", cwd=tmp_path, **at_home).code == 6


def test_an_empty_configuration_is_valid(run: RunCommand, tmp_path: Path, at_home: dict[str, str]) -> None:
    assert run("servers", written(tmp_path), "--json", **at_home).check_success().json == []


# Servers of the folder one is in


def test_the_fix_for_servers_without_consent(run: RunCommand, tmp_path: Path, at_home: dict[str, str]) -> None:
    written(tmp_path, sums=GOOD, name=".mcp.json")
    said = run("servers", cwd=tmp_path, **at_home)
    assert said.code == 3
    assert re.search("file.*server.start.*--policy", said.err)
    gateway = (sys.executable, "-m", "dovetail", "gateway")
    listed = run("list", "--", *gateway, cwd=tmp_path, **at_home)
    assert listed.out == "nothing\n"
    assert re.search(r"(?s)sums.*file.*server\.start.*--policy", listed.err)


# Following


async def test_a_gateway_follows_its_files(tmp_path: Path, alone: dict[str, str]) -> None:
    path = written(tmp_path, sums=GOOD)
    command = [sys.executable, "-m", "dovetail", "gateway", str(path), "--watch"]
    own = {"command": sys.executable, "args": ["-m", "dovetail", "gateway", str(path)]}

    async def names(client: Client) -> set[str]:
        return {one.name for one in await client.list_tools()}

    async with (
        Client(command, env=alone) as all_of_them,
        Client([*command, "--server", "sums"], env=alone) as only_one,
        all_of_them.listen(tools=True) as changes,
    ):
        before = {"sums__add", "sums__delete"}
        assert await names(all_of_them) == await names(only_one) == before
        written(tmp_path, sums=GOOD, more=GOOD, itself=own)
        async for _ in changes:
            if await names(all_of_them) != before:
                break
        assert await names(all_of_them) == before | {"more__add", "more__delete"}
        written(tmp_path, more=GOOD, itself=own)
        async for _ in changes:
            if await names(all_of_them) == {"more__add", "more__delete"}:
                break
        assert await names(only_one) <= before


# Inputs of one server


COMMANDS = [("list", "sums"), ("call", "sums", "add", "a=1", "b=2"), ("info", "sums"), ("doctor", "sums")]
PLAIN_KEY = KEY | {"password": False}


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_command_asks_for_the_inputs_of_its_target(
    tmp_path: Path, alone: dict[str, str], words: tuple[str, ...]
) -> None:
    path = written(tmp_path, PLAIN_KEY, sums=needing("key"))
    command, _, *rest = words
    with open_terminal(alone, command, f"{path}:sums", *rest) as at:
        at.wait_for("The key of the sums")
        at.type("open sesame\n")
        at.read_rest()
        assert at.process.wait(TIMEOUT_S) in (0, 6)  # doctor finds a problem of this server


def test_an_input_can_be_an_option_or_a_variable(run: RunCommand, tmp_path: Path, at_home: dict[str, str]) -> None:
    target = f"{written(tmp_path, KEY, sums=needing('key'))}:sums"
    missing = run("list", target, **at_home)
    assert missing.code == 2
    assert "--input key=VALUE" in missing.err
    assert "DOVETAIL_INPUT_KEY" in missing.err
    assert "add" in run("list", target, "--input", "key=x", **at_home).check_success().out
    assert "add" in run("list", target, DOVETAIL_INPUT_KEY="x", **at_home).check_success().out
    call = ("call", target, "add", "a=1", "b=2")
    assert run(*call, "--input", "key=x", **at_home).check_success().out == "3\n"


def test_hosts_take_inputs_from_options_and_variables(run: RunCommand, tmp_path: Path, at_home: dict[str, str]) -> None:
    path = written(tmp_path, KEY, sums=needing("key"))
    assert run("servers", path, "--input", "key=x", "--json", **at_home).json[0]["state"] == "ready"
    assert run("servers", path, "--json", DOVETAIL_INPUT_KEY="x", **at_home).json[0]["state"] == "ready"


@pytest.mark.parametrize(("option", "problem"), [("kye=x", "key"), ("key", "NAME=VALUE")])
def test_an_unknown_or_incomplete_input_is_refused(
    run: RunCommand, tmp_path: Path, at_home: dict[str, str], option: str, problem: str
) -> None:
    path = written(tmp_path, KEY, sums=needing("key"))
    words = ("--input", option)
    for said in (run("list", f"{path}:sums", *words, **at_home), run("servers", path, *words, **at_home)):
        assert said.code == 2
        assert problem in said.err


@pytest.mark.parametrize("target", [(str(HOSTED),), ("--", sys.executable, str(HOSTED))])
def test_an_input_needs_a_configured_server(run: RunCommand, target: tuple[str, ...]) -> None:
    assert run("list", "--input", "key=x", *target).code == 2

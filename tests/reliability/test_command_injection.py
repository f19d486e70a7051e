"""A host starts exactly the command of its configuration.

The tests use metacharacters, leading dashes, server names, programs of the same name in the folder and unrelated
environment variables.
"""

import itertools
import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import record_measurement

from dovetail import Client, MCPError, Policy
from dovetail.host import ServerSettings
from dovetail.host.host import Host, get_parts
from dovetail.transports.process.command import build_environment

# It tells what it was started with, and has no tool that could start anything.
PROGRAM = """
import json, os, sys
from dovetail import Server
app = Server("told")

@app.tool
def told() -> str:
    return json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()})

app.run()
"""
TOUCH = "touch {mark}"
HOSTILE = (
    "; {touch}", "& {touch}", "&& {touch}", "| {touch}", "|| {touch}", "$({touch})", "`{touch}`", "\n{touch}\n",
    "> {mark}", ">> {mark}", "< /dev/null > {mark}", "'; {touch}; '", '"; {touch}; "', '\\"; {touch}', "$IFS", "$HOME",
    "~", "*", "?", "{{a,b}}", "!!", "%PATH%", "^& {touch}", "--help", "-c", "--", "-", "", " ", "\t", "a b", "@{mark}",
    "\u00e9\u4e2d\u200b", "#{touch}", "%0a{touch}", "\\", "'", '"', "$", "=", "-c {touch}", "--eval={touch}",
)  # fmt: skip
# Of this process, and of no server's.
PRIVATE = {
    "AWS_SECRET_ACCESS_KEY": "p1", "OPENAI_API_KEY": "p2", "GITHUB_TOKEN": "p3", "DATABASE_URL": "p4",
    "SSH_AUTH_SOCK": "p5", "MY_OWN_PROJECT": "p6", "PYTHONSTARTUP": "p7", "LD_PRELOAD_NOT": "p8", "NODE_OPTIONS": "p9",
}  # fmt: skip


def words(mark: Path) -> list[str]:
    touch = TOUCH.format(mark=mark)
    return [one.format(touch=touch, mark=mark) for one in HOSTILE]


def written(folder: Path, servers: dict[str, Any]) -> Path:
    (folder / "told.py").write_text(PROGRAM)
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


async def told(host: Host, name: str) -> dict[str, Any]:
    result = await host.call(f"{name}.told")
    return json.loads(result.content[0].text)


async def test_a_command_is_what_its_words_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PRIVATE.items():
        monkeypatch.setenv(name, value)
    mark = tmp_path / "mark"
    given = words(mark)
    env = {f"V{number}": value for number, value in enumerate(given)}
    entry = {"command": sys.executable, "args": [str(tmp_path / "told.py"), *given], "env": env}
    async with Host.from_config(written(tmp_path, {"one": entry}), policy=Policy("allow")) as host:
        found = await told(host, "one")
    others = [one for one, meant in zip(found["argv"], given, strict=True) if one != meant]
    changed = [name for name, value in env.items() if found["env"].get(name) != value]
    allowed = {*env, *build_environment(None, "minimal", os.environ), "LC_CTYPE"}  # the last Python itself sets
    leaked = sorted(found["env"].keys() - allowed) + sorted(name for name in PRIVATE if name in found["env"])
    record_measurement(f"words that arrived as others, of {len(given) * 2}", len(others) + len(changed), "")
    record_measurement(f"variables of the host's that a server got, of {len(PRIVATE)} planted", len(leaked), "")
    assert (others, changed, leaked) == ([], [], [])
    assert not mark.exists()


async def test_no_name_of_a_server_and_no_command_of_one_word_reaches_a_shell(tmp_path: Path) -> None:
    """A command is a program's name, not a line of a shell."""
    mark = tmp_path / "mark"
    started = 0
    good = {"command": sys.executable, "args": [str(tmp_path / "told.py")]}
    lines = [
        f"{sys.executable} {tmp_path / 'told.py'}",
        *(f"{sys.executable} {one}" for one in words(mark)),
        *words(mark),
    ]
    servers: dict[str, Any] = {one or "empty": good for one in words(mark)}
    servers |= {f"c{number}": {"command": one} for number, one in enumerate(lines)}
    path = written(tmp_path, servers)
    async with Host.from_config(path, policy=Policy("allow"), defaults=ServerSettings(max_restarts=1)) as host:
        for number in range(len(lines)):
            if f"c{number}" in {one.name for one in host.servers}:
                with pytest.raises(MCPError):
                    await host.call(f"c{number}.told")
                started += get_parts(host).catalog.get_cached().find(f"c{number}.told") is not None
        named = [one.name for one in host.servers if not one.name.startswith("c")]
        for name in named[:3]:
            assert (await told(host, name))["argv"] == []
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", one) for one in named)
    record_measurement(f"lines of a shell that were run, of {len(lines)}", started + mark.exists(), "")
    assert (started, mark.exists()) == (0, False)


async def test_a_program_that_lies_in_the_folder_is_not_the_one_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    for name in ("npx", "uvx", "docker", "some-server"):
        fake = tmp_path / name
        fake.write_text(f"#!/bin/sh\ntouch {mark}\n")
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.chdir(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    hijacked = 0
    for path in (str(empty), f"{empty}{os.pathsep}{empty}"):
        monkeypatch.setenv("PATH", path)
        servers = {name: {"command": name, "cwd": str(tmp_path)} for name in ("npx", "uvx", "docker", "some-server")}
        async with Host.from_config(
            written(tmp_path, servers), policy=Policy("allow"), defaults=ServerSettings(max_restarts=1)
        ) as host:
            for name in servers:
                with pytest.raises(MCPError, match="PATH"):
                    await host.call(f"{name}.told")
                hijacked += mark.exists()
    record_measurement("programs of the folder started in place of one of PATH, of 8", hijacked, "")
    assert hijacked == 0


async def test_nothing_a_caller_of_a_gateway_says_starts_a_process(tmp_path: Path) -> None:
    """What is started is the configuration's business; there is no tool and no method for it."""
    mark = tmp_path / "mark"
    entry = {"command": sys.executable, "args": [str(tmp_path / "told.py")]}
    target = {"command": "sh", "args": ["-c", f"touch {mark}"], "name": "two", "url": "file:///bin/sh"}
    says = (target, {"name": "two.x", "arguments": target}, {"name": f"$(touch {mark})"}, {"name": "one", **target})
    names = ("add_server", "host__add", "servers/add", "call_tool", "describe_tool", f"$(touch {mark})", "sh")
    async with Host.from_config(written(tmp_path, {"one": entry}), policy=Policy("allow")) as host:
        app = host.as_server("search")
        async with Client(app) as client:
            for name, arguments in itertools.product(names, says):
                assert await failed(client, name, arguments)
        assert [one.name for one in host.servers] == ["one"]
        await app.stop()
    record_measurement(f"processes a caller of a gateway started, of {len(names) * len(says)} tries", mark.exists(), "")
    assert not mark.exists()


async def failed(client: Client, name: str, arguments: dict[str, Any]) -> bool:
    try:
        return bool((await client.call_tool(name, arguments)).is_error)
    except MCPError:
        return True

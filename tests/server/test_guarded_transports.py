"""Test that a server with `auth=` does not answer unauthenticated callers, on any transport."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from dovetail import Client
from dovetail.types import Transport
from support.processes import run_process

PATIENCE = 30.0
PROGRAM = """
import asyncio, json, sys
from dovetail import Server
from dovetail.auth import StaticTokenVerifier

app = Server("guarded", auth=StaticTokenVerifier({"token": "ada"}))

@app.tool
def secret() -> str:
    return "THE-SECRET"

options = json.loads(sys.argv[3])
if sys.argv[1] == "run":
    app.run(sys.argv[2], **options)
else:
    asyncio.run(app.serve(sys.argv[2], **options))
"""
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "secret",
        "arguments": {},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}

# "refuses": it does not start. "challenges": it answers 401. "answers": the program that starts it is its only caller.
EXPECTED = {"stdio": "answers", "http": "challenges", "unix": "refuses", "tcp": "refuses"}
ENTRY_POINTS = ("run", "serve")


@contextmanager
def started(entry_point: str, transport: str, options: dict[str, Any]) -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-c", PROGRAM, entry_point, transport, json.dumps(options)]
    pipe = subprocess.PIPE
    with run_process(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def options_for(transport: str, folder: Path) -> dict[str, Any]:
    return {"unix": {"path": str(folder / "s")}, "stdio": {}}.get(transport, {"port": 0})


def announced(process: "subprocess.Popen[bytes]") -> str:
    """The address that the server prints when it listens."""
    assert process.stderr is not None
    return process.stderr.readline().decode().split()[-1]


def test_every_transport_is_covered_here() -> None:
    assert set(get_args(Transport)) == EXPECTED.keys()


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("transport", EXPECTED)
def test_a_call_without_credentials_gets_nothing(entry_point: str, transport: str, tmp_path: Path) -> None:
    with started(entry_point, transport, options_for(transport, tmp_path)) as process:
        match EXPECTED[transport]:
            case "refuses":
                _, stderr = process.communicate(timeout=PATIENCE)
                assert process.returncode != 0
                assert b"ValueError: auth=" in stderr
                assert b"127.0.0.1" not in stderr
            case "challenges":
                assert unauthenticated_status(announced(process)) == 401
            case _:
                stdout, _ = process.communicate(json.dumps(CALL).encode() + b"\n", timeout=PATIENCE)
                assert b"THE-SECRET" in stdout


def unauthenticated_status(url: str) -> int:
    address = url.removeprefix("http://").partition("/")[0]
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    headers = {
        "content-type": "application/json",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "secret",
    }
    try:
        connection.request("POST", "/mcp", json.dumps(CALL), headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("transport", [name for name, expected in EXPECTED.items() if expected == "refuses"])
async def test_anonymous_serves_a_guarded_server_on_a_socket(entry_point: str, transport: str, tmp_path: Path) -> None:
    options = options_for(transport, tmp_path) | {"allow_anonymous": True}
    with started(entry_point, transport, options) as process:
        address = announced(process)
        target = f"unix:{address}" if transport == "unix" else f"tcp://{address}"
        async with Client(target) as client:
            assert "THE-SECRET" in str(await client.call_tool("secret"))

"""Run every block of the guide: compare the output of Python code, and replay the wire exchanges.

The blocks of one page share one module, from top to bottom. A `text wire=REVISION` block is a conversation with the
`app` of the page over `app.link`: `→` is sent, `←` must come back, `!` runs as Python in between. A line that begins
with a space continues the line before. "…" means any value. At the end of a text it means the rest of it. As a member
or as the last item of a list it means all others. The blocks leave out `jsonrpc`, the client's `_meta`, the server's
stamp and default lifetimes. A `text skills/PATH` block is written to that file.
"""

import asyncio
import contextlib
import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from dovetail import Server
from dovetail.server import runners, workers
from dovetail.testing import harness
from dovetail.transports.http1 import http_listener

# test_docker_page.py and test_http_examples.py check proxies, curl and systemd. Docker files cannot be checked here.
UNRUN_BLOCKS = (
    "console", "toml", "text", "text headers.txt", "ini", "nginx", "caddyfile", "text Caddyfile", "text haproxy.cfg",
    "dockerfile", "text handshake", "text session.txt", "text session",
)  # fmt: skip
ROOT = Path(__file__).parents[2]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
# These pages use the official SDK and Celery.
INTEROP_PAGES = ("migrating", "task-engines")
PAGES = [pytest.param(page, marks=pytest.mark.interop if page.stem in INTEROP_PAGES else ()) for page in GUIDE]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
WIRE = re.compile(r"text wire=(?P<revision>\S+)")
FILE = re.compile(r"text (?P<path>skills/\S+)")
ANY = "…"
PATIENCE = 10.0
CAPABILITIES: dict[str, Any] = {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
SERVER_INFO = "io.modelcontextprotocol/serverInfo"


@dataclass(frozen=True)
class Block:
    info: str
    text: str
    line: int  # of its first line of text


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield Block(found["info"].strip(), found["text"], text.count("\n", 0, found.start("text")) + 1)


@pytest.fixture
def nothing_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page must not block in `run` nor take a port, but its options must be ones that exist and go together."""

    monkeypatch.setattr(harness, "bind_socket", http_listener.bind_socket)  # what tests serve is served
    monkeypatch.setattr(http_listener, "bind_socket", lambda host, port: Mock(getsockname=lambda: (host, port)))
    # Between the checks of `run` and the moment it begins to serve.
    monkeypatch.setattr(runners, "run_in_process", lambda _: None)
    monkeypatch.setattr(workers, "fork_workers", lambda *_, **__: None)


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """Pages may configure logging; other tests must not notice."""
    ours, root = logging.getLogger("dovetail"), logging.getLogger()
    before = ours.level, root.level, list(root.handlers)
    yield
    ours.setLevel(before[0])
    root.setLevel(before[1])
    root.handlers[:] = before[2]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in GUIDE])
@pytest.mark.usefixtures("nothing_serves", "logging_restored")
def test_every_block_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("__main__")
    module.__file__ = str(tmp_path / "server.py")
    monkeypatch.setitem(sys.modules, "__main__", module)
    printed, ran = "", 0
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.info == "python":
            printed = _run(block, page, module)
            ran += 1
        elif block.info == "text output":
            assert printed.strip() == block.text.strip(), where
        elif block.info == "json":
            json.loads(block.text)
        elif found := FILE.fullmatch(block.info):
            (tmp_path / found["path"]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / found["path"]).write_text(block.text)
        elif found := WIRE.fullmatch(block.info):
            asyncio.run(_replay(block, found["revision"], module, where))
            ran += 1
        else:
            assert block.info in UNRUN_BLOCKS, f"{where}: no test checks a block of {block.info!r}"
    assert ran, f"{page.name} shows nothing that runs"


def _run(block: Block, page: Path, module: ModuleType) -> str:
    # Blank lines in front make a traceback point into the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, vars(module))  # noqa: S102 - running the page is the test
    return output.getvalue()


async def _replay(block: Block, revision: str, module: ModuleType, where: str) -> None:
    app: Server = vars(module)["app"]
    received: asyncio.Queue[bytes] = asyncio.Queue()
    link = app.open_connection(received.put_nowait)
    seen: dict[str, Any] = {}
    try:
        if revision != "2026-07-28":
            await _shake_hands(link, received, revision)
        for mark, text in _lines(block):
            if mark == "!":
                eval(text, vars(module))  # noqa: S307 - likewise
            elif mark == "→":
                link.receive(_outgoing(json.loads(text), revision, seen))
            else:
                message = json.loads(await asyncio.wait_for(received.get(), PATIENCE))
                seen |= message.get("result") or {}
                found = _bare(message)
                assert _matches(json.loads(text), found), f"{where}: expected\n{text}\ngot\n{json.dumps(found)}"
        assert received.empty(), f"{where}: not shown: {received.get_nowait()!r}"
    finally:
        await link.close()
        await app.stop()


def _lines(block: Block) -> Iterator[tuple[str, str]]:
    joined = re.sub(r"\n +", " ", block.text.strip("\n"))
    for line in joined.splitlines():
        mark, text = line[0], line[1:].strip()
        assert mark in "→←!", f"unknown line: {line}"
        yield mark, text


async def _shake_hands(link: Any, received: asyncio.Queue[bytes], revision: str) -> None:
    params = {
        "protocolVersion": revision,
        "capabilities": CAPABILITIES,
        "clientInfo": {"name": "docs", "version": "1"},
    }
    link.receive(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode())
    answer = json.loads(await asyncio.wait_for(received.get(), PATIENCE))
    assert answer["result"]["protocolVersion"] == revision
    link.receive(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')


def _outgoing(message: dict[str, Any], revision: str, seen: dict[str, Any]) -> bytes:
    params: dict[str, Any] = message.get("params", {})
    if params.get("requestState") == ANY:
        params["requestState"] = seen["requestState"]
    if revision == "2026-07-28" and "method" in message:
        own = {
            "io.modelcontextprotocol/protocolVersion": revision,
            "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
        }
        message["params"] = params | {"_meta": own | params.get("_meta", {})}
    return json.dumps({"jsonrpc": "2.0"} | message).encode()


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    del message["jsonrpc"]
    result = message.get("result")
    if isinstance(result, dict):
        if result.get("resultType") == "complete":
            del result["resultType"]
        if isinstance(meta := result.get("_meta"), dict):
            meta.pop(SERVER_INFO, None)
            if not meta:
                del result["_meta"]
        if result.get("ttlMs") == 0 and result.get("cacheScope") == "private":
            del result["ttlMs"], result["cacheScope"]
    return message


def _matches(expected: Any, found: Any) -> bool:
    if expected == ANY:
        return True
    if isinstance(expected, dict) and isinstance(found, dict):
        if ANY in expected:
            expected = {name: value for name, value in expected.items() if name != ANY}
            found = {name: value for name, value in found.items() if name in expected}
        return expected.keys() == found.keys() and all(_matches(expected[name], found[name]) for name in expected)
    if isinstance(expected, list) and isinstance(found, list):
        if expected and expected[-1] == ANY:
            expected, found = expected[:-1], found[: len(expected) - 1]
        return len(expected) == len(found) and all(map(_matches, expected, found))
    if isinstance(expected, str) and expected.endswith(ANY):
        return isinstance(found, str) and found.startswith(expected[: -len(ANY)])
    return type(expected) is type(found) and expected == found


def test_a_wrong_exchange_is_noticed() -> None:
    assert _matches({"a": [1, ANY], ANY: ANY}, {"a": [1, 2, 3], "b": 4})
    assert _matches({"a": ANY}, {"a": {"b": 1}})
    assert not _matches({"a": 1}, {"a": 1, "b": 2})
    assert not _matches({"a": 1, ANY: ANY}, {"b": 2})
    assert _matches("id: …", "id: 7")
    assert not _matches("id: …", "no: 7")
    assert not _matches([1, ANY], [2, 3])
    assert not _matches([1], [1, 2])
    assert not _matches(1, True)

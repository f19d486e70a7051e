"""`dovetail dev`: the server starts anew, whoever speaks to it stays and is told."""

import asyncio
import contextlib
import os
import py_compile
import sys
from pathlib import Path

import pytest

from cli.program import Run, serving
from dovetail import Client, MCPError

OURS = [sys.executable, "-m", "dovetail.cli"]
PATIENCE = 30.0
PROGRAM = """
from dovetail import Server
from words import WORD

app = Server("developed")


@app.tool
def word() -> str:
    return WORD
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(PROGRAM, encoding="utf-8")
    write(tmp_path, "one")
    return tmp_path / "server.py"


def write(folder: Path, word: str) -> None:
    file = folder / "words.py"
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(f"WORD = {word!r}\n" if word != "broken" else "def (", encoding="utf-8")
    stamp = max(before, file.stat().st_mtime_ns) + 10**9
    os.utime(file, ns=(stamp, stamp))


async def until(client: Client, word: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                if await client.call("word") == word:
                    return
            except MCPError:
                pass
            await asyncio.sleep(0.05)


async def test_over_stdio_the_client_stays(program: Path) -> None:
    said: list[str] = []
    command = [*OURS, "dev", str(program)]
    async with Client(command, stderr=said.append) as client, client.listen() as changes:
        assert await client.call("word") == "one"
        write(program.parent, "two")
        async with asyncio.timeout(PATIENCE):
            change = await anext(aiter(changes))
        assert (change.kind, change.missed) == ("tools", False)
        await until(client, "two")
        write(program.parent, "broken")
        async with asyncio.timeout(PATIENCE):
            while not any("SyntaxError" in line for line in said):  # noqa: ASYNC110 - the news is in another process
                await asyncio.sleep(0.05)
        write(program.parent, "three")
        await until(client, "three")
    told = "\n".join(said)
    assert "watching 2 files" in told
    assert "words.py changed" in told
    assert '→ tools/call {"name": "word", "arguments": {}}' in told


def test_over_http(run: Run, program: Path, environment: dict[str, str]) -> None:
    with serving([*OURS, "dev", str(program), "--http", "--port", "0"], environment) as url:
        assert run("call", url, "word").good().out == "one\n"

        async def change() -> None:
            async with Client(url) as client:
                write(program.parent, "two")
                await until(client, "two")

        asyncio.run(change())


async def test_a_change_within_the_second_is_a_change(program: Path) -> None:
    words = program.parent / "words.py"
    second = words.stat().st_mtime_ns // 10**9 * 10**9
    os.utime(words, ns=(second, second))
    py_compile.compile(str(words), doraise=True)  # by a run before this one
    async with Client([*OURS, "dev", str(program)]) as client:
        assert await client.call("word") == "one"
        for part, word in enumerate(("two", "six", "ten"), 1):
            words.write_text(f"WORD = {word!r}\n", encoding="utf-8")
            os.utime(words, ns=(second + part * 10**6, second + part * 10**6))
            await until(client, word)
    assert not [*program.parent.rglob("*.pyc")]


async def test_over_http_a_broken_server_refuses_at_once(program: Path, environment: dict[str, str]) -> None:
    with serving([*OURS, "dev", str(program), "--http", "--port", "0"], environment) as url:
        write(program.parent, "broken")
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with Client(url) as client:
                        await client.call("word")
                except MCPError as exc:
                    if "its error is on stderr" in str(exc):
                        break
        write(program.parent, "two")
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(MCPError):
                    async with Client(url) as client:
                        assert await client.call("word") == "two"
                        break


@pytest.mark.parametrize(
    ("words", "why"),
    [(["http://127.0.0.1:1/mcp"], "a file, a module or a command"), (["--http", "--", "true"], "over HTTP")],
)
def test_what_cannot_be_developed(run: Run, words: list[str], why: str) -> None:
    said = run("dev", *words)
    assert said.code == 2
    assert why in said.err

"""Test that `dovetail dev` restarts the server, keeps its clients connected and notifies them."""

import asyncio
import contextlib
import json
import os
import py_compile
import re
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from cli.command_process import RunCommand, ServerProcess, read_first_line
from dovetail import Client, CommandTarget, MCPError
from dovetail.cli.commands.dev import MessagePrinter

OURS = [sys.executable, "-m", "dovetail"]
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
    async with Client(CommandTarget(command, stderr=said.append)) as client, client.listen() as changes:
        assert await client.call("word") == "one"
        write(program.parent, "two")
        async with asyncio.timeout(PATIENCE):
            change = await anext(aiter(changes))
        assert (change.kind, change.maybe_missed) == ("tools", False)
        await until(client, "two")
        write(program.parent, "broken")
        async with asyncio.timeout(PATIENCE):
            while not any("SyntaxError" in line for line in said):  # noqa: ASYNC110 - the news is in another process
                await asyncio.sleep(0.05)
        write(program.parent, "three")
        await until(client, "three")
    told = "\n".join(said)
    assert "2 files" in told
    assert "words.py" in told
    assert '→ tools/call {"name": "word", "arguments": {}}' in told


def test_over_http(run: RunCommand, program: Path, environment: dict[str, str]) -> None:
    with ServerProcess([*OURS, "dev", str(program), "--http", "--port", "0"], environment) as url:
        assert run("call", url, "word").check_success().out == "one\n"

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
    with ServerProcess([*OURS, "dev", str(program), "--http", "--port", "0"], environment) as url:
        write(program.parent, "broken")
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with Client(url) as client:
                        await client.call("word")
                except MCPError as exc:
                    if exc.status_code == 503:
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
    [(["http://127.0.0.1:1/mcp"], "file"), (["--http", "--", "true"], "--http")],
)
def test_what_cannot_be_developed(run: RunCommand, words: list[str], why: str) -> None:
    said = run("dev", *words)
    assert said.code == 2
    assert why in said.err


ANSWERING = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}), flush=True)
"""


def touch(file: Path, text: str = "") -> None:
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text, encoding="utf-8")
    stamp = max(before, file.stat().st_mtime_ns) + 10**9
    os.utime(file, ns=(stamp, stamp))


class Dev:
    """`dovetail dev` before a command, spoken to line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, id: int) -> dict[str, object]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": "ping"}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            return json.loads(await self.process.stdout.readline())

    async def told(self, word: str) -> None:
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := await self.process.stderr.readline():
                if word in line.decode():
                    return
        pytest.fail(f"it never said {word!r}")


@contextlib.asynccontextmanager
async def developing(environment: dict[str, str], *words: str) -> AsyncGenerator[Dev]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *OURS, "dev", *words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        yield Dev(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has taken note of the end of does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
async def test_it_ends_with_all_that_was_started(tmp_path: Path, environment: dict[str, str]) -> None:
    """A server behind a shell, which holds stdout and does not care that stdin has ended."""
    deaf = tmp_path / "deaf.py"
    deaf.write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(600)"
    )
    shell = ["sh", "-c", f"{sys.executable} {deaf}; :"]
    async with developing(environment, "-q", "--reload-dir", str(tmp_path), "--", *shell) as dev:
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "pid").exists() or "." not in (tmp_path / "pid").read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        pid = int((tmp_path / "pid").read_text().rstrip("."))
        assert alive(pid)
        assert dev.process.stdin is not None
        dev.process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            assert await dev.process.wait() == 0
        assert not alive(pid)


async def test_a_failed_start_is_reported_and_fixed(tmp_path: Path, environment: dict[str, str]) -> None:
    program, looked_at = tmp_path / "program", tmp_path / "looked.py"
    program.write_text(f"#!{sys.executable}\n{ANSWERING}", encoding="utf-8")
    program.chmod(0o755)
    touch(looked_at)
    async with developing(environment, "--reload-dir", str(looked_at), "--", str(program)) as dev:
        assert (await dev.ask(1))["result"] == {}
        program.chmod(0o644)
        touch(looked_at)
        await dev.told(str(program))
        refused = await dev.ask(2)
        assert refused["id"] == 2
        assert "error" in refused
        program.chmod(0o755)
        touch(looked_at)
        await dev.told("looked.py")
        assert (await dev.ask(3))["result"] == {}


async def test_an_invalid_message_is_shown_as_text(environment: dict[str, str]) -> None:
    odd = 'print(42); print(\'{"id": [1], "method": "m", "params": [2]}\')'
    async with developing(environment, "--", sys.executable, "-u", "-c", f"{odd}\n{ANSWERING}") as dev:
        assert dev.process.stdout is not None
        assert await dev.process.stdout.readline() == b"42\n"
        assert b'"params"' in await dev.process.stdout.readline()
        assert (await dev.ask(1))["result"] == {}
        await dev.told("? 42")
        await dev.told("m [2]")


def test_variables_and_folders_are_handed_on(run: RunCommand, environment: dict[str, str], tmp_path: Path) -> None:
    told = "import os; print(os.environ['WORD'], os.path.basename(os.getcwd()))"
    (tmp_path / "inner").mkdir()
    words = [*OURS, "dev", "-q", "-e", "WORD=given", "--cwd", "inner", "--", sys.executable, "-c", told]
    assert read_first_line(words, environment, tmp_path) == "given inner\n"
    (tmp_path / "server.py").write_text(
        "import os\nfrom dovetail import Server\napp = Server(os.environ['WORD'] + os.path.basename(os.getcwd()))\n"
    )
    words = [*OURS, "dev", "-q", "-e", "WORD=given", "--cwd", str(tmp_path / "inner"), str(tmp_path / "server.py")]
    assert run("info", "--json", "--", *words).check_success().json["name"] == "giveninner"
    assert "unknown option" in run("dev", tmp_path / "server.py", "--auth", "abc").err


def test_a_command_that_is_not_there(run: RunCommand) -> None:
    said = run("dev", "--", "no-such-program-at-all")
    assert said.code == 3
    assert "no-such-program-at-all" in said.err


async def test_only_lists_that_the_server_has_are_said_to_have_changed(program: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *OURS, "dev", "-q", str(program), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    said: list[str] = []
    async with asyncio.timeout(PATIENCE):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}).encode())
        process.stdin.write(b"\n")
        answer = json.loads(await process.stdout.readline())
        assert {*answer["result"]["capabilities"]} & {"tools", "resources", "prompts"} == {"tools"}
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        process.stdin.write(b'{"jsonrpc":"2.0","id":2,"method":"ping"}\n')
        assert json.loads(await process.stdout.readline())["id"] == 2
        write(program.parent, "two")
        while "tools" not in "".join(said):
            said.append(json.loads(await process.stdout.readline())["method"])
        process.stdin.write(b'{"jsonrpc":"2.0","id":3,"method":"ping"}\n')
        while b'"id":3' not in (line := await process.stdout.readline()):
            said.append(json.loads(line)["method"])
        process.stdin.close()
        await process.wait()
    assert said == ["notifications/tools/list_changed"]


def test_a_port_requires_http(run: RunCommand, program: Path) -> None:
    result = run("dev", str(program), "--port", "8001")
    assert result.code == 2
    assert "--http" in result.err


# Printed messages


@pytest.fixture
def print_messages(capsys: pytest.CaptureFixture[str]) -> Any:
    def print_lines(*messages: tuple[str, Any]) -> list[str]:
        printer = MessagePrinter()
        for receiver, message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            printer.print_message(receiver, data)
        return capsys.readouterr().err.splitlines()

    return print_lines


def test_a_response_names_its_request_and_duration(print_messages: Any) -> None:
    _, response = print_messages(("server", {"id": 1, "method": "ping"}), ("client", {"id": 1, "result": {}}))
    assert re.fullmatch(r"← ping \d+\.\d ms \{\}", response)


@pytest.mark.parametrize(
    "earlier",
    [
        {"method": "notifications/progress", "params": {"progress": 1}},
        {"id": 2, "method": "ping"},
    ],
)
def test_a_response_without_a_known_request_has_no_duration(print_messages: Any, earlier: Any) -> None:
    error = {"code": -32700, "message": "no"}
    *_, response = print_messages(("server", earlier), ("client", {"id": None, "error": error}))
    assert response == f"← {json.dumps(error)}"


def test_a_cancelled_request_is_forgotten(print_messages: Any) -> None:
    cancelled = {"method": "notifications/cancelled", "params": {"requestId": 1}}
    *_, response = print_messages(
        ("server", {"id": 1, "method": "ping"}), ("server", cancelled), ("client", {"id": 1, "result": {}})
    )
    assert response == "← {}"


def test_secrets_in_messages_are_masked(print_messages: Any) -> None:
    call = {"id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {"api_token": "hunter2-hunter2"}}}
    lines = print_messages(
        ("server", call),
        ("client", {"id": 1, "result": {"password": "hunter2-hunter2"}}),
        ("client", b"Authorization: Bearer hunter2-hunter2\n"),
    )
    assert len(lines) == 3
    assert "hunter2" not in "\n".join(lines)


def test_each_message_of_a_batch_is_printed(print_messages: Any) -> None:
    lines = print_messages(("server", [{"id": 1, "method": "ping"}, {"method": "notifications/initialized"}]))
    assert lines == ["→ ping", "→ notifications/initialized"]


@pytest.mark.parametrize("data", [b"x" * 1_000_000 + b"\n", b"[]\n", b"[1]\n", b"no\x1b[2J\n"])
def test_an_invalid_line_is_one_short_line(print_messages: Any, data: bytes) -> None:
    (line,) = print_messages(("client", data))
    assert line.startswith("? ")
    assert len(line) < 5000
    assert line.isprintable()

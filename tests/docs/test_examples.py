"""Test that every example starts as its docstring says and shows the expected output."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.consenting_browser import main as agree
from dovetail import Client
from dovetail.auth import OAuth
from support.redis_servers import RedisServer

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 30.0
CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
}
OPENING = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "clientInfo": {"name": "t", "version": "1"}}

Message = dict[str, Any]


def test_every_example_has_a_test() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested


def test_hello() -> None:
    (answer,) = _stdio("hello.py", _call("greet", name="Ada"))
    assert _text(answer) == "Hello, Ada!"


def test_custom_extension() -> None:
    command = [sys.executable, str(EXAMPLES / "custom_extension.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert run.stdout.splitlines() == ["2026-07-28 Bonjour, Ada!", "2025-11-25 Bonjour, Ada!"]


async def test_tasks() -> None:
    async def answer(request: Any) -> Message:
        return {"value": True}

    async with Client(EXAMPLES / "tasks.py", elicitation_handler=answer) as client:
        handle = await client.start_task("build_report", {"month": "May"})
        messages = [update.message async for update in handle]
        result: Any = await handle
        assert result.content[0].text.splitlines() == [
            "Chapter 1 of May",
            "Chapter 2 of May",
            "Chapter 3 of May",
            "Summary",
        ]
        assert "writing chapter 3" in messages
        assert await client.call("search", query="Ada") == "No report mentions Ada."


def test_skills() -> None:
    listed, template, generated, outside = _stdio(
        "skills/server.py",
        ("skills/list", {}),
        ("resources/read", {"uri": "skill://meeting-notes/references/template.md"}),
        ("resources/read", {"uri": "skill://office-hours/SKILL.md"}),
        ("resources/read", {"uri": "skill://meeting-notes/../server.py"}),
    )
    assert [skill["uri"] for skill in listed["result"]["skills"]] == [
        "skill://git/release-notes/SKILL.md",
        "skill://meeting-notes/SKILL.md",
        "skill://office-hours/SKILL.md",
    ]
    assert template["result"]["contents"][0]["text"].startswith("# Meeting of {date}")
    assert "Oslo: 9 to 17" in generated["result"]["contents"][0]["text"]
    assert outside["error"]["code"] == -32602


def test_weather() -> None:
    forecast, page, prompt, completion, unknown = _stdio(
        "weather.py",
        _call("forecast", city="Oslo", days=2),
        ("resources/read", {"uri": "weather://cities/Paris"}),
        ("prompts/get", {"name": "packing_list", "arguments": {"city": "Oslo", "days": "2"}}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "packing_list"}, "argument": {"name": "city", "value": "ber"}},
        ),
        _call("forecast", city="../Oslo"),
    )
    assert [day["day"] for day in forecast["result"]["structuredContent"]["result"]] == [1, 2]
    assert page["result"]["contents"][0]["text"] == "Paris: rain"
    assert "2 days in Oslo" in prompt["result"]["messages"][0]["content"]["text"]
    assert completion["result"]["completion"]["values"] == ["Bergen", "Berlin"]
    assert unknown["result"]["isError"]
    assert "Known cities" in _text(unknown)


def test_booking() -> None:
    (asked,) = _stdio("booking.py", _call("book", flight="DY 814"))
    assert asked["result"]["resultType"] == "input_required"
    answer = {"q1": {"action": "accept", "content": {"row": 3}}}
    refused = {"q1": {"action": "decline"}}
    booked, declined = _stdio(
        "booking.py",
        ("tools/call", {"name": "book", "arguments": {"flight": "DY 814"}, "inputResponses": answer}),
        ("tools/call", {"name": "book", "arguments": {"flight": "DY 814"}, "inputResponses": refused}),
    )
    assert "row 3, window" in _text(booked)
    assert "Not booked" in _text(declined)


def test_files(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.md").write_text("# A", encoding="utf-8")
    (folder / "deep" / "b.bin").write_bytes(b"\xff\xfe")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    found, text, blob, climbed, escaped, linked = _stdio(
        "files.py",
        _call("find", pattern="*.md"),
        *(("resources/read", {"uri": f"folder:///{path}"}) for path in ("a.md", "deep/b.bin", "../secret.txt")),
        ("resources/read", {"uri": "folder:///%2e%2e/secret.txt"}),
        ("resources/read", {"uri": "folder:///link.txt"}),
        arguments=[str(folder)],
    )
    assert [link["uri"] for link in found["result"]["content"]] == ["folder:///a.md"]
    assert text["result"]["contents"][0]["text"] == "# A"
    assert text["result"]["contents"][0]["mimeType"] == "text/markdown"
    assert blob["result"]["contents"][0]["blob"] == "//4="
    assert {one["error"]["code"] for one in (climbed, escaped, linked)} == {-32602}


def test_files_are_not_found_outside_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "deep" / "own.txt").write_text("own", encoding="utf-8")
    patterns = ("../*", "../../*", "deep/../../*.txt", f"{tmp_path}/*", "/etc/pass*")
    linked, *refused = _stdio(
        "files.py",
        *(_call("find", pattern=pattern) for pattern in ("*.txt", *patterns)),
        arguments=[str(folder)],
    )
    assert [link["uri"] for link in linked["result"]["content"]] == ["folder:///deep/own.txt"]
    for one in refused:
        assert one["result"]["isError"]
        assert "pattern" in _text(one)
        assert "folder:///" not in _text(one)


def test_notes() -> None:
    program = [
        {"id": 0, "method": "initialize", "params": OPENING},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "resources/subscribe", "params": {"uri": "notes://one"}},
        {"id": 2, "method": "tools/call", "params": {"name": "write", "arguments": {"name": "one", "text": "a"}}},
    ]
    again = [{"id": 3, "method": "tools/call", "params": {"name": "write", "arguments": {"name": "one", "text": "b"}}}]
    with _started("notes.py") as process:
        created = _talk(process, program, lambda seen: _has(seen, "notifications/resources/list_changed", 2))
        updated = _talk(process, again, lambda seen: _has(seen, "notifications/resources/updated", 3))
    assert "Created" in _text(next(one for one in created if one.get("id") == 2))
    assert "Updated" in _text(next(one for one in updated if one.get("id") == 3))
    assert not any(one.get("method") == "notifications/resources/list_changed" for one in updated)


def test_over_http() -> None:
    with _listening("over_http.py") as port:
        status, _ = _post(port, "/mcp", *_call("whoami"))
        assert status == 401
        status, answer = _post(port, "/mcp", *_call("whoami"), {"Authorization": "Bearer let-me-in"})
    assert status == 200
    assert _text(answer) == "You are ada, speaking 2026-07-28."


async def test_guarded() -> None:
    """A login, a call, and another login for the scope that was missing: each agreed to by a visitor."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with _listening("guarded.py", "--port", str(port)):
        url, visits = f"http://127.0.0.1:{port}/mcp", list[str]()

        def visit(page: str) -> None:
            visits.append(page)
            agree(page)

        await asyncio.to_thread(_connectable, port)
        async with Client(url, auth=OAuth(open_browser=visit, token_store="memory")) as client:
            assert await client.call("whoami") == "developer, who may notes:read"
            assert await client.call("write", text="one") == "1 kept"
            assert await client.call("whoami") == "developer, who may notes:read, notes:write"
    assert len(visits) == 2


def _connectable(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


def test_mounted() -> None:
    with _listening("mounted.py") as port:
        _, forecast = _post(port, "/weather/mcp", *_call("forecast", city="Oslo", days=1))
        _, written = _post(port, "/notes/mcp", *_call("write", name="one", text="a"))
        _, note = _post(port, "/notes/mcp", "resources/read", {"uri": "notes://one"}, {"Mcp-Name": "notes://one"})
    assert len(forecast["result"]["structuredContent"]["result"]) == 1
    assert "Created" in _text(written)
    assert note["result"]["contents"][0]["text"] == "a"


def test_in_fastapi() -> None:
    with _listening("in_fastapi.py") as port:
        _, written = _post(port, "/notes/mcp", *_call("write", name="one", text="a"))
        _, found = _post(port, "/shelf/mcp", *_call("book", title="Emma"))
        _, missing = _post(port, "/shelf/mcp", *_call("book", title="Nothing"))
    assert "Created" in _text(written)
    assert json.loads(_text(found)) == {"year": 1815}
    assert "404" in _text(missing)


def test_imported() -> None:
    forecast, outside, wrong, reported = _stdio(
        "imported.py",
        _call("forecast", city="San José", days=2),
        _call("forecast", city="../alerts"),
        _call("forecast", city=".."),
        _call("report_alert", city="Oslo", what="hail"),
    )
    assert json.loads(_text(forecast)) == {"city": "San José", "sky": ["rain", "rain"]}
    assert outside["result"]["isError"]
    assert "city" in _text(outside)
    assert wrong["result"]["isError"]
    assert json.loads(_text(reported)) == {"reported": {"city": "Oslo", "what": "hail"}}


def test_gateway() -> None:
    tools, written, tomorrow, hidden, asked = _stdio(
        "gateway.py",
        ("tools/list", {}),
        _call("notes_write", name="one", text="a"),
        _call("tomorrow", city="Oslo"),
        _call("notes_erase", name="one"),
        _call("booking_book", flight="DY 814"),
    )
    names = {tool["name"] for tool in tools["result"]["tools"]}
    assert {"notes_write", "tomorrow", "booking_book"} <= names
    assert not {"notes_erase", "forecast"} & names
    assert "Created" in _text(written)
    assert len(tomorrow["result"]["structuredContent"]["result"]) == 1
    assert hidden["error"]["code"] == -32602
    assert "Which seat" in str(asked["result"]["inputRequests"])


def test_host(tmp_path: Path) -> None:
    """With servers that are here; with those of others it is run in tests/interop."""
    entries = {
        name: {"command": sys.executable, "args": [str(EXAMPLES / f"{name}.py")]} for name in ("notes", "weather")
    }
    config = tmp_path / "host.json"
    config.write_text(json.dumps({"mcpServers": entries}))
    command = [sys.executable, str(EXAMPLES / "host.py"), str(config)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "weather.forecast  (" in run.stdout
    assert "notes.write  (" in run.stdout
    assert run.stdout.endswith("notes is ready\nweather is ready\n")
    named = json.loads((EXAMPLES / "host.json").read_text())["mcpServers"]
    assert len(named) == 3


def test_examples_are_short() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert not {name: length for name, length in lengths.items() if length > 80 and name != "demo.py"}


def test_workers() -> None:
    with _listening("workers.py", "--workers", "2") as port:
        _, asked = _post(port, "/mcp", *_call("rename", path="a"))
        method, params = _call("rename", path="a")
        answers = {"q1": {"action": "accept", "content": {"value": "b"}}}
        params |= {"requestState": asked["result"]["requestState"], "inputResponses": answers}
        # Every connection may reach either process, so several make both likely; each must understand the state.
        replies = [_post(port, "/mcp", method, params)[1] for _ in range(8)]
    assert all(_text(reply).startswith("a is now b") for reply in replies)


def test_demo() -> None:
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^All 4 bookings succeeded\b.*\b\d+ messages\b", run.stdout, re.MULTILINE)
    assert run.stdout.count("list_changed") >= 4
    assert "input_required" in run.stdout


@pytest.mark.interop
def test_celery_tasks(tmp_path: Path) -> None:
    """The server creates a task, and a Celery worker that starts later runs it."""
    pytest.importorskip("celery", reason="celery is not installed")
    log = tmp_path / "worker.log"
    worker = [sys.executable, "-m", "celery", "--app", "celery_tasks:queue", "worker", "--pool", "threads"]
    meta = META | {
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    }
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisServer(tmp_path))
        environment = os.environ | {
            "BROKER_URL": f"redis+socket://{redis.path}",
            "TASKS": str(tmp_path / "tasks.sqlite"),
            "PORT": "0",
        }
        port = stack.enter_context(_listening("celery_tasks.py", environment=environment))
        method, params = _call("count_primes", below=20_000)
        _, created = _post(port, "/mcp", method, params | {"_meta": meta})
        id = created["result"]["taskId"]

        def get_task() -> Message:
            return _post(port, "/mcp", "tasks/get", {"taskId": id, "_meta": meta}, {"Mcp-Name": id})[1]["result"]

        assert (created["result"]["status"], get_task()["status"]) == ("working", "working")
        output = stack.enter_context(log.open("w"))
        process = stack.enter_context(_running(worker, env=environment, cwd=EXAMPLES, stdout=output, stderr=output))
        _wait_until(lambda: get_task()["status"] != "working" or process.poll() is not None)
        task = get_task()
        assert task["status"] == "completed", log.read_text()
        assert re.fullmatch(r"\d+ primes", task["statusMessage"])
        assert task["result"]["structuredContent"] == {"result": 2262}
        process.terminate()
        assert process.wait(PATIENCE) == 0, log.read_text()


def test_docket_tasks(tmp_path: Path) -> None:
    """The server only stores a task, and a worker that starts later runs it."""
    worker = [sys.executable, "-m", "dovetail", "worker", str(EXAMPLES / "docket_tasks.py")]
    meta = META | {
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    }
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisServer(tmp_path))
        environment = os.environ | {"REDIS_URL": redis.url, "SECRET_KEY": "a long random text", "PORT": "0"}
        port = stack.enter_context(_listening("docket_tasks.py", environment=environment))
        method, params = _call("count_primes", below=5_000)
        _, created = _post(port, "/mcp", method, params | {"_meta": meta})
        id = created["result"]["taskId"]

        def get_task() -> Message:
            return _post(port, "/mcp", "tasks/get", {"taskId": id, "_meta": meta}, {"Mcp-Name": id})[1]["result"]

        assert get_task()["status"] == "working"
        process = stack.enter_context(_running(worker, env=environment))
        _wait_until(lambda: get_task()["status"] != "working" or process.poll() is not None)
        assert get_task()["result"]["structuredContent"] == {"result": 669}
        process.terminate()
        assert process.wait(PATIENCE) == 0


@contextmanager
def _running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Over stdio


def _stdio(example: str, *requests: tuple[str, Message], arguments: list[str] | None = None) -> list[Message]:
    """Answers to requests, in their order."""
    messages: list[Message] = [
        {"id": number, "method": method, "params": params | {"_meta": META}}
        for number, (method, params) in enumerate(requests)
    ]
    with _started(example, *(arguments or [])) as process:
        seen = _talk(process, messages, lambda seen: sum("id" in one for one in seen) == len(requests))
    return sorted((one for one in seen if "id" in one), key=lambda one: one["id"])


@contextmanager
def _started(example: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _talk(process: subprocess.Popen[bytes], messages: list[Message], enough: Any) -> list[Message]:
    assert process.stdin is not None
    assert process.stdout is not None
    for message in messages:
        process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
    process.stdin.flush()
    seen: list[Message] = []
    while not enough(seen):
        line = process.stdout.readline()
        assert line, f"the server ended after {seen}"
        seen.append(json.loads(line))
    return seen


def _has(seen: list[Message], method: str, id: int) -> bool:
    return any(one.get("method") == method for one in seen) and any(one.get("id") == id for one in seen)


# Over HTTP


@contextmanager
def _listening(example: str, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[int]:
    command = [sys.executable, str(EXAMPLES / example), "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        yield _port(process)
        process.terminate()
        process.communicate(timeout=PATIENCE)
        # uvicorn, which serves `mounted.py` by itself, ends by the signal it was sent.
        assert process.returncode in ((0, -15) if example in ("mounted.py", "in_fastapi.py") else (0,))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    said = ""
    while line := process.stderr.readline():
        said += line
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    pytest.fail(f"the server did not start: {said}")


def _post(
    port: int, path: str, method: str, params: Message, headers: dict[str, str] | None = None
) -> tuple[int, Message]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    given = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
        "Mcp-Name": params.get("name", ""),
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META} | params}
    try:
        connection.request("POST", path, json.dumps(message), given | (headers or {}))
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def _call(name: str, /, **arguments: Any) -> tuple[str, Message]:
    return "tools/call", {"name": name, "arguments": arguments}


def _text(answer: Message) -> str:
    return answer["result"]["content"][0]["text"]

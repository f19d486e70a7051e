"""Test the records of dovetail's logger: short, on one line, with the exception and the author's frames first."""

import asyncio
import contextlib
import importlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.error_context import clip
from dovetail.errors import RemoteError, ServerBusy
from dovetail.host import SecretResolver
from dovetail.log import OwnText, log, log_and_suppress, log_failure
from dovetail.middleware import LogRequests
from dovetail.testing import connect

HOSTILE = "boom\n2026-11-16 CRITICAL root logged in\x1b[2J\x9b\u202e\u2028" + "x" * 5000
UNSAFE = ("\n2026", "\x1b", "\x9b", "\u202e", "\u2028")


def check_safe(text: str) -> None:
    assert len(text) < 12_000
    assert not [char for char in UNSAFE if char in text]
    assert not [line for line in text.splitlines() if line.startswith("2026")]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Return what a plain handler writes."""
    written: list[str] = []

    class Writer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler = Writer()
    log.addHandler(handler)
    try:
        yield written
    finally:
        log.removeHandler(handler)


@pytest.mark.parametrize("value", [HOSTILE, ValueError(HOSTILE), [HOSTILE]], ids=["text", "error", "list"])
def test_a_value_is_shortened_and_escaped(lines: list[str], value: Any) -> None:
    log.warning("%s said: %s", "s", value)
    log.warning("%(name)s", {"name": value})
    for line in lines:
        check_safe(line)
        assert len(line) < 2000


def test_numbers_and_own_texts_stay(lines: list[str]) -> None:
    log.warning("%d %.1f %s", 7, 1.25, OwnText("a\nb"))
    assert lines == ["7 1.2 a\nb"]


def test_a_traceback_is_shortened_and_escaped(lines: list[str]) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError as exc:
        log.error("failed", exc_info=exc)
    check_safe(lines[0])
    assert "ValueError: boom" in lines[0]


class Odd:
    pass


def make_server() -> Server:
    app = Server("failing")

    @app.tool
    def divide(a: int) -> float:
        return a / 0

    @app.resource("notes://{id}")
    def note(id: str) -> Any:
        return Odd()

    @app.prompt
    def ask() -> str:
        raise LookupError("no")

    @app.prompt
    def choose(kind: str) -> str:
        return kind

    @app.completion("choose", "kind")
    def kinds(value: str) -> list[str]:
        raise LookupError("no")

    return app


@pytest.mark.parametrize(
    ("method", "name", "error", "frame"),
    [
        ("call_tool", "divide", ZeroDivisionError, "divide"),
        ("read_resource", "notes://7", TypeError, None),
        ("get_prompt", "ask", LookupError, "ask"),
        ("complete", "choose", LookupError, "kinds"),
    ],
)
async def test_a_failure_names_the_item_and_carries_the_exception(
    caplog: pytest.LogCaptureFixture, method: str, name: str, error: type[Exception], frame: str | None
) -> None:
    async with connect(make_server()) as client:
        with contextlib.nullcontext() if name == "divide" else pytest.raises(RemoteError, match=name):
            match method:
                case "complete":
                    await client.complete("kind", "x", prompt=name)
                case "call_tool":
                    await client.call_tool(name, {"a": 1})
                case _:
                    await getattr(client, method)(name)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert name in record.getMessage()
    assert record.exc_info is not None
    kind, exc, trace = record.exc_info
    assert (kind, type(exc)) == (error, error)
    assert trace is not None
    if frame is not None:
        assert trace.tb_frame.f_code.co_name == frame
    else:
        assert "note" in str(exc)  # the author's function has returned, so the message names it


@pytest.mark.parametrize("as_json", [True, False])
async def test_requests_with_large_or_hostile_arguments_stay_short(
    caplog: pytest.LogCaptureFixture, as_json: bool
) -> None:
    caplog.set_level(logging.INFO, "dovetail.requests")
    app = Server("a", middleware=[LogRequests(include_arguments=True, json=as_json)])

    @app.tool
    def echo(text: str) -> str:
        return ""

    async with connect(app) as client:
        for text in (HOSTILE[:60], "x" * 1_000_000):
            await client.call_tool("echo", {"text": text})
    messages = [record.getMessage() for record in caplog.records if "tools/call" in record.getMessage()]
    assert len(messages) == 2
    for message in messages:
        check_safe(message)
        if as_json:
            assert json.loads(message)["method"] == "tools/call"


async def test_a_mounted_server_cannot_forge_records(lines: list[str]) -> None:
    async def fail(exchange: Any, call_next: Any) -> object:
        if exchange.method == "tools/list":
            raise ServerBusy(HOSTILE)
        return await call_next(exchange)

    inner = Server("inner", middleware=[fail])

    @inner.tool
    def a() -> str:
        return ""

    app = Server("outer")
    app.mount(Client(inner, name="inner"), prefix="in")
    async with connect(app) as client:
        await client.list_tools()
    assert [line for line in lines if "boom" in line]
    for line in lines:
        check_safe(line)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_that_cannot_be_printed_is_logged(lines: list[str]) -> None:
    log.warning("failed: %s", Unprintable())
    log.error("failed", exc_info=Unprintable())
    assert "Unprintable" in lines[0]
    assert "Unprintable" in lines[1]


def test_a_long_traceback_keeps_the_first_frame_and_the_error(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comment = "  # " + "x" * 400
    functions = [f"def step{number}():\n    step{number + 1}(){comment}\n" for number in range(25)]
    (tmp_path / "long_program.py").write_text("".join(functions) + "def step25():\n    1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    program = importlib.import_module("long_program")
    with pytest.raises(ZeroDivisionError) as caught:
        program.step0()
    assert caught.tb.tb_next is not None
    log.error("failed", exc_info=(caught.type, caught.value, caught.tb.tb_next))
    assert "in step0" in lines[0]
    assert "in step25" in lines[0]
    assert lines[0].rstrip().endswith("ZeroDivisionError: division by zero")
    check_safe(lines[0])


def test_the_secrets_of_a_host_are_masked(lines: list[str]) -> None:
    secrets = SecretResolver({"WEBHOOK": "https://hooks.example/s3cret"})
    value = secrets.resolve("${WEBHOOK}")
    log.warning("%s sent an invalid message: %s", "a", f"debug: {value}")
    log.warning("%s sent an invalid message: %s", "a", clip(f"{'x' * 180}{value}", 200))
    try:
        raise ValueError(value)
    except ValueError as exc:
        log.error("failed", exc_info=exc)
    assert len(lines) == 3
    for line in lines:
        assert "hooks.example" not in line
        assert "***" in line


async def test_errors_that_stop_nothing_are_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="dovetail")
    with log_and_suppress(OSError, KeyError):
        raise KeyError("first")
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(ValueError("second"))
    log_failure(future)
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    log_failure(cancelled)
    with pytest.raises(ValueError, match="third"), log_and_suppress(OSError):
        raise ValueError("third")
    assert [(record.levelno, record.args and record.args[0]) for record in caplog.records] == [
        (logging.DEBUG, "KeyError"),
        (logging.DEBUG, "ValueError"),
    ]
    assert "first" not in caplog.text  # A message may contain a secret.

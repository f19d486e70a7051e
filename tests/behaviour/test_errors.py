"""Test errors: what exceptions in a tool become, which codes are used, and that only the call fails."""

import asyncio
import contextlib
import contextvars
import logging
import re
import threading
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import call, error_text, expect_error, text
from dovetail import CallToolResult, Context, RemoteError, Server, ServerLimits, TextContent
from dovetail.errors import ProtocolError
from support.driver import STATELESS, connect

REFERENCE = re.compile(r"\b[0-9a-f]{8}\b")
PRIVATE = "password is hunter2"


def broken(**options: Any) -> Server:
    app = Server("broken", **options)

    @app.tool
    async def fail() -> str:
        raise RuntimeError(PRIVATE)

    @app.tool
    def fail_in_a_thread() -> str:
        raise KeyError(PRIVATE)

    @app.prompt
    def prompt(kind: str) -> str:
        raise RuntimeError(PRIVATE)

    @app.resource("x:broken")
    async def resource() -> str:
        raise RuntimeError(PRIVATE)

    @app.completion("prompt", "kind")
    def complete(value: str) -> list[str]:
        raise RuntimeError(PRIVATE)

    return app


COMPLETE = {"ref": {"type": "ref/prompt", "name": "prompt"}, "argument": {"name": "kind", "value": ""}}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("prompts/get", {"name": "prompt", "arguments": {"kind": "x"}}),
    ("resources/read", {"uri": "x:broken"}),
    ("completion/complete", COMPLETE),
]


@requirement("errors.masked")
async def test_an_unforeseen_failure_is_masked_and_logged_once(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(broken(), transport, revision) as peer:
        said: list[str] = []
        with caplog.at_level(logging.DEBUG, "dovetail"):
            for tool in ("fail", "fail_in_a_thread"):
                result = await call(peer, tool)
                assert result["isError"] is True
                said.append(error_text(result))
                assert tool in said[-1]
            for method, params in REQUESTS:
                error = await expect_error(peer.request(method, params))
                assert error.code == -32603
                assert error.data is None
                said.append(error.message)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == len(said) == 5
    for told, record in zip(said, errors, strict=True):
        assert "hunter2" not in told
        assert "Traceback" not in told
        (reference,) = REFERENCE.findall(told)
        logged = f"{record.getMessage()}\n{record.exc_text}"
        assert reference in logged
        assert "Traceback" in logged
        assert "test_errors.py" in logged
        assert PRIVATE in logged
    assert len({REFERENCE.findall(told)[0] for told in said}) == 5


@requirement("errors.debug")
async def test_debug_mode_tells_what_failed(revision: str, transport: str, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(broken(debug=True), transport, revision) as peer:
        with caplog.at_level(logging.CRITICAL, "dovetail"):
            told = error_text(await call(peer, "fail"))
            messages = [(await expect_error(peer.request(method, params))).message for method, params in REQUESTS]
    for message in (told, *messages):
        assert f"RuntimeError: {PRIVATE}" in message
        assert REFERENCE.search(message)


class Hostile(Exception):
    """An exception that fails even when it is looked at."""

    def __str__(self) -> str:
        raise ValueError("not even printable")


FAILURES: list[Any] = [
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(5),
    StopAsyncIteration(),
    asyncio.CancelledError(),
    TimeoutError("of the author's own"),
    RecursionError(),
    MemoryError(),
    ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
    BaseExceptionGroup("worse", [KeyboardInterrupt(), ValueError("a")]),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    Hostile(),
]


@requirement("errors.contained")
async def test_nothing_an_author_raises_gets_out(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Server("hostile")
    release = asyncio.Event()

    @app.tool
    async def raises(which: int) -> str:
        raise FAILURES[which]

    @app.tool
    def raises_in_a_thread(which: int) -> str:
        raise FAILURES[which]

    @app.tool
    async def wait() -> str:
        await release.wait()
        return "undisturbed"

    with caplog.at_level(logging.CRITICAL, "dovetail"):
        async with connect(app, transport, revision) as peer:
            waiting = peer.start("tools/call", {"name": "wait"})
            for which, failure in enumerate(FAILURES):
                for tool in ("raises", "raises_in_a_thread"):
                    result = await call(peer, tool, which=which)
                    assert result["isError"] is True, (tool, failure)
                    assert tool in error_text(result)
            release.set()
            assert text(await waiting) == "undisturbed"


@requirement("errors.codes")
async def test_the_newest_revision_uses_only_the_codes_it_has(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = broken(limits=ServerLimits(max_uri_bytes=100))

    @app.tool
    async def ask(ctx: Context) -> str:
        return await ctx.elicit("?", str)

    seen: dict[str, int] = {}
    with caplog.at_level(logging.CRITICAL, "dovetail"):
        async with connect(app, transport, revision) as peer:
            cases: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
                ("tool", "tools/call", {"name": "none"}, {}),
                ("prompt", "prompts/get", {"name": "none"}, {}),
                ("resource", "resources/read", {"uri": "x:none"}, {}),
                ("uri", "resources/read", {"uri": "x:" + "a" * 200}, {}),
                ("cursor", "tools/list", {"cursor": "none"}, {}),
                ("method", "tools/none", {}, {}),
                ("retired", "resources/subscribe", {"uri": "x:a"}, {}),
                ("initialize", "ping", {}, {}),
                ("capability", "tools/call", {"name": "ask"}, {}),
                ("broken", "resources/read", {"uri": "x:broken"}, {}),
                ("state", "tools/call", {"name": "ask", "requestState": "x"}, {}),
                ("complete", "completion/complete", {}, {}),
                ("level", "tools/list", {}, {"log_level": "loud"}),
                ("listen", "subscriptions/listen", {}, {}),
                ("meta", "tools/list", {}, {"meta": {"io.modelcontextprotocol/clientCapabilities": 5}}),
                ("version", "tools/list", {}, {"revision": "2027-01-01"}),
            ]
            for name, method, params, options in cases:
                seen[name] = (await expect_error(peer.request(method, params, **options))).code
            if transport == "http":
                mismatch = await expect_error(peer.request("tools/list", headers={"mcp-method": "tools/call"}))
                assert mismatch.code == -32020
    expected = dict.fromkeys((name for name, *_ in cases), -32602)
    expected |= {"method": -32601, "retired": -32601, "initialize": -32601}
    expected |= {"capability": -32021, "broken": -32603, "version": -32022}
    assert seen == expected


@requirement("errors.codes")
@pytest.mark.parametrize(
    ("code", "sent"), [(-32002, -32602), (-32042, -32603), (-32050, -32603), (-32020, -32020), (77, 77)]
)
async def test_codes_that_the_newest_revision_reserves_are_replaced(
    revision: str, transport: str, code: int, sent: int
) -> None:
    app = Server("codes")

    @app.tool
    def fail() -> str:
        error = ProtocolError("no", {"reason": "private"})
        error.code = code
        raise error

    async with connect(app, transport, revision) as peer:
        error = await expect_error(call(peer, "fail"))
        assert (error.code, error.message, error.data) == (sent, "no", {"reason": "private"})
    async with connect(app, transport, "2025-11-25") as peer:
        assert (await expect_error(call(peer, "fail"))).code == code


@requirement("errors.codes-before")
async def test_handshake_revisions_use_the_codes_they_have(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    await _codes(revision, transport, caplog, {"resource": -32002})


@requirement("errors.codes-draft")
async def test_the_draft_dialect_uses_codes_of_its_own(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    await _codes(revision, transport, caplog, {"resource": -32002, "tool": -32003, "prompt": -32004})


async def _codes(revision: str, transport: str, caplog: pytest.LogCaptureFixture, own: dict[str, int]) -> None:
    seen: dict[str, int] = {}
    with caplog.at_level(logging.CRITICAL, "dovetail"):
        async with connect(broken(), transport, revision) as peer:
            for name, method, params in (
                ("tool", "tools/call", {"name": "none"}),
                ("prompt", "prompts/get", {"name": "none"}),
                ("resource", "resources/read", {"uri": "x:none"}),
                ("cursor", "tools/list", {"cursor": "none"}),
                ("method", "tools/none", {}),
                ("discover", "server/discover", {}),
                ("listen", "subscriptions/listen", {"notifications": {}}),
                ("again", "initialize", {}),
                ("broken", "resources/read", {"uri": "x:broken"}),
                ("level", "logging/setLevel", {"level": "loud"}),
            ):
                seen[name] = (await expect_error(peer.request(method, params))).code
    standard = {"method": -32601, "discover": -32601, "listen": -32601, "broken": -32603}
    assert seen == dict.fromkeys(seen, -32602) | standard | own


@requirement("errors.unsayable")
async def test_a_result_without_a_json_form_is_an_error(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Server("unsayable")
    loop: list[Any] = []
    loop.append(loop)
    values: list[Any] = [object(), float("nan"), float("inf"), "\ud800", {"a": {1, object()}}, loop]
    values += [CallToolResult(content=[TextContent(text="\udfff")]), {("a", 1): 2}, [TextContent(text="\ud800")]]

    @app.tool
    def give(which: int) -> Any:
        return values[which]

    @app.resource("x:{which}")
    def read(which: int) -> Any:
        return values[which]

    with caplog.at_level(logging.CRITICAL, "dovetail"):
        async with connect(app, transport, revision) as peer:
            for which, value in enumerate(values):
                with contextlib.suppress(RemoteError):  # whole results are encoded later, when only an error is left
                    assert (await call(peer, "give", which=which))["isError"] is True, value
                last = peer.messages[-1]
                assert "result" in last or last["error"]["code"] == -32603, value
            for which in (0, 3):
                error = await expect_error(peer.request("resources/read", {"uri": f"x:{which}"}))
                assert error.code == -32603


@requirement("errors.too-large")
async def test_a_result_beyond_the_limit_is_an_error(revision: str, transport: str) -> None:
    app = Server("large", limits=ServerLimits(max_result_bytes=1000))

    @app.tool
    def give(size: int, meta: bool) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="x" * size)], meta={"com.example/a": 1} if meta else None)

    async with connect(app, transport, revision) as peer:
        for meta in (False, True):
            await call(peer, "give", size=700, meta=meta)
            error = await expect_error(call(peer, "give", size=1001, meta=meta))
            assert error.code == -32603
            assert "1000" in error.message


@requirement("errors.timeout")
async def test_what_takes_too_long_is_stopped(revision: str, transport: str) -> None:
    app = Server("slow", limits=ServerLimits(call_timeout=0.1))
    stopped: list[str] = []
    release = threading.Event()

    @app.tool(timeout=0.05)
    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("hang")
            raise
        return "never"

    @app.tool(timeout=0.05)
    def block() -> str:
        release.wait(10)
        return "never"

    @app.tool
    async def hang_as_long_as_allowed() -> str:
        await asyncio.Event().wait()
        return "never"

    @app.resource("x:slow", timeout=0.05)
    async def slow() -> str:
        await asyncio.Event().wait()
        return "never"

    @app.prompt
    async def prompt() -> str:
        await asyncio.Event().wait()
        return "never"

    @app.tool
    def quick() -> str:
        return "quick"

    try:
        async with connect(app, transport, revision) as peer:
            for tool in ("hang", "block", "hang_as_long_as_allowed"):
                result = await call(peer, tool)
                assert result["isError"] is True
                assert text(await call(peer, "quick")) == "quick"
            assert stopped == ["hang"]
            for method, params in (("resources/read", {"uri": "x:slow"}), ("prompts/get", {"name": "prompt"})):
                error = await expect_error(peer.request(method, params))
                assert error.code == -32603
            assert text(await call(peer, "quick")) == "quick"
    finally:
        release.set()


@requirement("errors.busy")
async def test_beyond_the_limit_of_calls_the_server_is_busy(revision: str, transport: str) -> None:
    app = Server("small", limits=ServerLimits(max_calls=2))
    release, began = asyncio.Event(), asyncio.Semaphore(0)

    @app.tool
    async def wait() -> str:
        began.release()
        await release.wait()
        return "waited"

    async with connect(app, transport, revision) as peer:
        waiting = [peer.start("tools/call", {"name": "wait"}) for _ in range(2)]
        for _ in waiting:
            await asyncio.wait_for(began.acquire(), 5)
        error = await expect_error(peer.request("tools/call", {"name": "wait"}))
        assert error.code == 429
        assert error.data["retryAfterMs"] >= 1
        if transport == "http" and revision == STATELESS:
            assert error.status_code == 503  # type: ignore[attr-defined]
            assert int(error.headers["retry-after"]) >= 1  # type: ignore[attr-defined]
        release.set()
        assert [text(await one) for one in waiting] == ["waited", "waited"]
        assert text(await call(peer, "wait")) == "waited"


request_mark: contextvars.ContextVar[str] = contextvars.ContextVar("request_mark", default="none")


@requirement("sync.threads")
async def test_plain_functions_run_in_threads(revision: str, transport: str) -> None:
    app = Server("threads")
    meeting = threading.Barrier(3, timeout=10)
    released = threading.Event()
    loop_thread = threading.get_ident()

    @app.middleware
    async def mark(exchange: Any, call_next: Any) -> Any:
        request_mark.set(f"request {exchange.id}")
        return await call_next(exchange)

    @app.tool
    def meet() -> str:
        meeting.wait()  # only if three calls are at work at the same time does anyone get past this
        assert threading.get_ident() != loop_thread
        return request_mark.get()

    @app.tool
    def block() -> str:
        assert released.wait(10)
        return "released"

    @app.tool
    async def release() -> str:
        assert threading.get_ident() == loop_thread
        released.set()
        return "done"

    async with connect(app, transport, revision) as peer:
        meetings = [peer.start("tools/call", {"name": "meet"}, id=f"m{n}") for n in range(3)]
        assert [text(await one) for one in meetings] == ["request m0", "request m1", "request m2"]
        blocked = peer.start("tools/call", {"name": "block"})
        assert text(await call(peer, "release")) == "done"
        assert text(await blocked) == "released"


@requirement("sync.inline")
async def test_an_inline_function_runs_on_the_loop(revision: str, transport: str) -> None:
    app = Server("inline")
    loop_thread = threading.get_ident()

    @app.tool(run_in_thread=False)
    def here() -> bool:
        return threading.get_ident() == loop_thread

    async with connect(app, transport, revision) as peer:
        assert text(await call(peer, "here")) == "true"


@requirement("errors.field")
async def test_an_error_about_params_names_the_field(revision: str, transport: str) -> None:
    async with connect(broken(), transport, revision) as peer:
        reference = {"type": "ref/prompt", "name": "prompt"}
        for method, params, field in (
            ("tools/call", {"name": "unknown"}, "name"),
            ("resources/read", {}, "uri"),
            ("resources/read", {"uri": "x:" + "y" * 100_000}, "uri"),
            ("prompts/get", {"name": "unknown"}, "name"),
            ("tools/list", {"cursor": "unknown"}, "cursor"),
            ("tools/list", {"cursor": 1}, "cursor"),
            ("completion/complete", {"ref": reference}, "argument"),
            ("completion/complete", {"ref": {"type": "ref/prompt"}, "argument": COMPLETE["argument"]}, "ref.name"),
            ("completion/complete", {"ref": reference, "argument": {"name": 1, "value": ""}}, "argument.name"),
            ("completion/complete", {"ref": reference, "argument": {"name": "x", "value": ""}}, "argument.name"),
            ("completion/complete", COMPLETE | {"ref": reference | {"name": "unknown"}}, "ref"),
        ):
            error = await expect_error(peer.request(method, params))
            assert error.data == {"field": field}, (method, params)

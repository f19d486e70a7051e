"""Test a server in several event loops: each has its own lifespan, which the last user closes."""

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Context, Server, ServerLimits, SyncClient, testing
from dovetail.errors import ServerBusy
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.server.server import get_dispatcher

PATIENCE = 60.0


class Pool:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_open = True


def pooled(name: str = "pooled", steps: list[str] | None = None, **options: Any) -> Server:
    """A server whose lifespan is a pool that belongs to the event loop it was opened in."""

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Pool]:
        pool = Pool()
        if steps is not None:
            steps.append(f"open {name}")
        try:
            yield pool
        finally:
            pool.is_open = False
            if steps is not None:
                steps.append(f"close {name}")

    app = Server(name, lifespan=lifespan, **options)

    @app.tool
    async def usable(ctx: Context[Pool]) -> bool:
        return ctx.lifespan.is_open and ctx.lifespan.loop is asyncio.get_running_loop()

    return app


async def use(app: Server, tool: str = "usable") -> None:
    async with Client(app) as client:
        assert await client.call(tool) is True


def test_a_client_in_each_event_loop() -> None:
    steps: list[str] = []
    app = pooled(steps=steps)
    for _ in range(3):
        asyncio.run(use(app))
    assert steps == ["open pooled", "close pooled"] * 3


async def test_clients_one_after_the_other_in_one_event_loop() -> None:
    steps: list[str] = []
    app = pooled(steps=steps)
    for _ in range(2):
        await use(app)
    assert steps == ["open pooled", "close pooled"] * 2


async def test_the_last_of_several_clients_closes_the_lifespan() -> None:
    steps: list[str] = []
    app = pooled(steps=steps)
    async with Client(app) as outer:
        async with Client(app) as inner:
            assert await inner.call("usable") is True
        assert await outer.call("usable") is True
        assert steps == ["open pooled"]
    assert steps == ["open pooled", "close pooled"]


async def test_clients_do_not_close_what_was_started() -> None:
    steps: list[str] = []
    app = pooled(steps=steps)
    await app.start()
    await app.start()
    await use(app)
    assert steps == ["open pooled"]
    await app.stop()
    assert steps == ["open pooled", "close pooled"]
    await app.stop()
    await use(app)
    assert steps == ["open pooled", "close pooled"] * 2


async def test_stop_closes_it_under_its_clients_and_the_next_request_opens_it_again() -> None:
    steps: list[str] = []
    app = pooled(steps=steps)
    async with Client(app) as client:
        await app.stop()
        assert steps == ["open pooled", "close pooled"]
        assert await client.call("usable") is True
    await app.stop()
    assert steps == ["open pooled", "close pooled"] * 2


async def test_who_comes_while_it_closes_gets_one_that_is_open() -> None:
    going, go, steps = asyncio.Event(), asyncio.Event(), []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Pool]:
        pool = Pool()
        steps.append("open")
        yield pool
        pool.is_open = False
        going.set()
        await go.wait()
        steps.append("close")

    app = Server("slow", lifespan=lifespan)

    @app.tool
    async def usable(ctx: Context[Pool]) -> bool:
        return ctx.lifespan.is_open

    async with asyncio.timeout(PATIENCE):
        await app.start()
        stopping = asyncio.create_task(app.stop())
        await going.wait()
        using = asyncio.create_task(use(app))
        again = asyncio.create_task(app.stop())
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(stopping, again, using)
    assert steps == ["open", "close", "open", "close"]


async def test_a_call_of_another_caller_goes_on_when_the_last_client_leaves() -> None:
    steps: list[str] = []
    app, began, go = pooled(steps=steps), asyncio.Event(), asyncio.Event()

    @app.tool
    async def wait(ctx: Context[Pool]) -> bool:
        began.set()
        await go.wait()
        return ctx.lifespan.is_open

    written: asyncio.Queue[bytes] = asyncio.Queue()
    link = app.open_connection(written.put_nowait)
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait", "_meta": meta}}
    async with asyncio.timeout(PATIENCE):
        async with Client(app):
            link.receive(json.dumps(message).encode())
            await began.wait()
        assert steps == ["open pooled"]
        go.set()
        assert json.loads(await written.get())["result"]["structuredContent"] == {"result": True}
    await link.close()
    await app.stop()
    assert steps == ["open pooled", "close pooled"]


def test_an_event_loop_that_ended_without_a_stop() -> None:
    steps: list[str] = []
    app = pooled(steps=steps)
    asyncio.run(app.start())
    assert steps == ["open pooled", "close pooled"]
    asyncio.run(app.stop())
    asyncio.run(use(app))
    assert steps == ["open pooled", "close pooled"] * 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
def test_an_event_loop_that_was_closed_in_the_middle_of_everything() -> None:
    app, called, listens = pooled(limits=ServerLimits(max_calls=1, drain_timeout=0.1)), asyncio.Event(), asyncio.Event()

    @app.tool
    async def hang() -> None:
        called.set()
        await asyncio.Event().wait()

    async def busy() -> None:
        client = Client(app)
        await client.connect()
        kept.extend([asyncio.ensure_future(listen(client)), asyncio.ensure_future(client.call("hang"))])
        await listens.wait()
        await called.wait()

    async def listen(client: Client) -> None:
        async with client.listen() as changes:
            listens.set()
            async for _ in changes:
                pass

    kept: list[asyncio.Future[None]] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of the tasks that it leaves behind
    loop.run_until_complete(busy())
    loop.close()
    app.notify_tools_changed()
    asyncio.run(use(app))
    asyncio.run(app.stop())
    asyncio.run(use(app))
    kept.clear()
    gc.collect()


def test_a_lifespan_that_was_cancelled_counts_as_closed() -> None:
    app = pooled()

    async def main() -> None:
        before = asyncio.all_tasks()
        await app.start()
        for task in asyncio.all_tasks() - before:
            task.cancel()
            await asyncio.wait([task])
        await use(app)
        await app.stop()

    asyncio.run(main())


def test_event_loops_of_two_threads_at_the_same_time_have_one_each() -> None:
    steps: list[str] = []
    app, both = pooled(steps=steps), threading.Barrier(2)
    failures: list[BaseException] = []

    async def main() -> None:
        async with Client(app) as client:
            await asyncio.to_thread(both.wait, PATIENCE)
            for _ in range(20):
                assert await client.call("usable") is True
            await asyncio.to_thread(both.wait, PATIENCE)

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures
    assert sorted(steps) == ["close pooled"] * 2 + ["open pooled"] * 2


@pytest.mark.parametrize("turns", range(6))
async def test_a_request_never_runs_with_a_closed_lifespan(turns: int) -> None:
    """`stop` is called while a request waits for the lifespan to open, or soon after."""
    opening, may_open = asyncio.Event(), asyncio.Event()
    is_open = False

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        nonlocal is_open
        opening.set()
        await may_open.wait()
        is_open = True
        yield
        is_open = False

    app, seen = Server("slow", lifespan=lifespan), list[bool]()

    @app.tool
    async def look() -> None:
        await asyncio.sleep(0)
        seen.append(is_open)

    caller = Caller("2026-07-28", is_stateless=True)
    request = asyncio.create_task(
        get_dispatcher(app).handle(IncomingExchange(1, "tools/call", {"name": "look"}, {}, caller))
    )
    async with asyncio.timeout(PATIENCE):
        await opening.wait()
        may_open.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        await app.stop()
        (outcome,) = await asyncio.gather(request, return_exceptions=True)
    assert seen == [] if isinstance(outcome, ServerBusy) else seen == [True]
    assert not is_open


def test_every_kind_of_client_after_every_other() -> None:
    steps: list[str] = []
    app = pooled(steps=steps)

    async def connected() -> None:
        async with testing.connect(app, transport="http") as client:
            assert await client.call("usable") is True

    def blocking() -> None:
        with SyncClient(app) as client:
            assert client.call("usable") is True
        with testing.connect_sync(app) as client:
            assert client.call("usable") is True

    def plain() -> None:
        asyncio.run(use(app))

    def tested() -> None:
        asyncio.run(connected())

    kinds: list[Callable[[], None]] = [plain, tested, blocking]
    for first in kinds:
        for second in kinds:
            first()
            second()
    assert steps.count("open pooled") == steps.count("close pooled") == len(steps) // 2


def test_a_test_that_ended_inside_of_its_context_leaves_nothing_behind() -> None:
    steps: list[str] = []
    app = pooled(steps=steps)

    async def forgotten() -> None:
        await testing.connect(app).__aenter__()

    asyncio.run(forgotten())
    asyncio.run(use(app))
    assert steps == ["open pooled", "close pooled"] * 2


def test_what_is_mounted_opens_and_closes_with_the_outer_server() -> None:
    steps: list[str] = []
    outer, inner = pooled("outer", steps), pooled("inner", steps)
    outer.mount(inner, "in")
    for _ in range(2):
        asyncio.run(use(outer, "in_usable"))
        asyncio.run(use(inner))
    assert steps == ["open inner", "open outer", "close outer", "close inner", "open inner", "close inner"] * 2


async def test_what_two_servers_have_mounted_closes_with_the_last() -> None:
    steps: list[str] = []
    inner = pooled("inner", steps)
    first, second = Server("first"), Server("second")
    for outer in (first, second):
        outer.mount(inner, "in")
    async with Client(second) as client:
        await use(first, "in_usable")
        assert await client.call("in_usable") is True
        assert steps == ["open inner"]
    assert steps == ["open inner", "close inner"]


async def test_an_inner_server_that_cannot_start_does_not_hold_up_the_outer(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise ConnectionError("database is down")
        yield

    outer, inner = pooled("outer"), Server("inner", lifespan=lifespan)
    inner.add_tool(lambda: 1, name="one")
    outer.mount(inner, "in")
    async with Client(outer) as client:
        assert await client.call("usable") is True
    assert "database is down" in caplog.text


STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Response:
    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.loops: set[asyncio.AbstractEventLoop] = set()  # where it was sent
        self.begun = asyncio.Event()

    async def send(self, part: Any) -> None:
        self.loops.add(asyncio.get_running_loop())
        self.status = part.get("status", self.status)
        self.headers |= {name.decode(): value.decode() for name, value in part.get("headers", ())}
        self.body += part.get("body", b"")
        self.begun.set()

    @property
    def result(self) -> Any:
        return json.loads(self.body)["result"]


async def post(
    web: Any, method: str, params: dict[str, Any], response: Response | None = None, **headers: str
) -> Response:
    """Send one request to an ASGI application in this event loop."""
    response = response or Response()
    names = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "host": "localhost",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in names.items()],
        "client": ("192.0.2.1", 1),
        "server": ("localhost", 80),
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    left = [{"type": "http.request", "body": json.dumps(message).encode(), "more_body": False}]

    async def receive() -> Any:
        return left.pop() if left else await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE):
        await web(scope, receive, response.send)
    return response


async def post_call(web: Any, tool: str, response: Response | None = None) -> Response:
    params = {"name": tool, "arguments": {}, "_meta": STATELESS}
    headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": tool}
    return await post(web, "tools/call", params, response, **headers)


def test_each_event_loop_of_an_asgi_application_has_its_own() -> None:
    steps: list[str] = []
    web = pooled(steps=steps).asgi(sessions=False)
    for _ in range(2):
        assert asyncio.run(post_call(web, "usable")).result["structuredContent"] == {"result": True}
    assert steps == ["open pooled", "close pooled"] * 2


def test_each_event_loop_of_an_asgi_application_has_its_own_with_sessions() -> None:
    steps: list[str] = []
    web = pooled(steps=steps).asgi()

    async def main() -> None:
        session = (await post(web, "initialize", HANDSHAKE)).headers["mcp-session-id"]
        called = await post(web, "tools/call", {"name": "usable", "arguments": {}}, mcp_session_id=session)
        assert called.result["structuredContent"] == {"result": True}

    for _ in range(2):
        asyncio.run(main())
    assert steps == ["open pooled", "close pooled"] * 2


def test_sessions_expire_in_every_event_loop() -> None:
    limits = ServerLimits(max_sessions_per_address=2, initialize_timeout=0.02)
    web = Server("brief", limits=limits).asgi()

    async def main() -> None:
        assert (await post(web, "initialize", HANDSHAKE)).status == 200
        async with asyncio.timeout(PATIENCE):
            for _ in range(3):
                while (await post(web, "initialize", HANDSHAKE)).status == 429:  # noqa: ASYNC110 - a timer sets no event
                    await asyncio.sleep(0.005)

    asyncio.run(post(web, "initialize", HANDSHAKE))  # this event loop ends before its session expires
    asyncio.run(main())


def test_a_silent_reply_becomes_a_stream_in_its_own_event_loop() -> None:
    app = Server("two", limits=ServerLimits(keep_alive_interval=0.02))
    is_blocked, may_go_on = threading.Event(), threading.Event()
    outcomes: list[bool] = []

    @app.tool
    async def block() -> None:
        await asyncio.sleep(0)
        is_blocked.set()
        may_go_on.wait(PATIENCE)  # this event loop does nothing meanwhile, although its reply is due

    response = Response()
    app.add_tool(response.begun.wait, name="wait")
    web = app.asgi()

    async def call(tool: str, response: Response) -> None:
        await post_call(web, tool, response)
        outcomes.append(response.loops == {asyncio.get_running_loop()})

    thread = threading.Thread(target=lambda: asyncio.run(call("block", Response())))
    thread.start()
    try:
        assert is_blocked.wait(PATIENCE)
        asyncio.run(call("wait", response))
    finally:
        may_go_on.set()
        thread.join(PATIENCE)
    assert outcomes == [True, True]


async def test_who_gives_up_waiting_for_a_lifespan_to_open_leaves_none_behind() -> None:
    steps: list[str] = []
    opening = asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        steps.append("opening")
        opening.set()
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("gave up")
        yield

    app = Server("slow", lifespan=lifespan)
    starting = asyncio.create_task(app.start())
    async with asyncio.timeout(PATIENCE):
        await opening.wait()
        starting.cancel()
        await asyncio.wait([starting])
    assert steps == ["opening", "gave up"]


def test_a_client_that_is_mounted_follows_the_server_from_one_event_loop_to_the_next() -> None:
    outer = Server("outer")
    outer.mount(Client(pooled("inner")), "in")
    for _ in range(3):
        asyncio.run(use(outer, "in_usable"))


def test_one_client_in_several_event_loops() -> None:
    client = Client(pooled())

    async def main() -> None:
        async with client:
            assert await client.call("usable") is True

    for _ in range(3):
        asyncio.run(main())

"""Test the supervision of one server: its states, start, losses and idle stop."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, MCPError, Server, Timeouts
from dovetail.errors import ProcessStartError, RequestTimeout, Unauthorized
from dovetail.host.events import HostEvent
from dovetail.host.server_settings import ServerSettings
from dovetail.host.supervisor import ServerSupervisor
from support.mentions import mentions
from support.polling import TIMEOUT_S, wait_until
from support.scripted_server import LATEST_HANDSHAKE, ScriptedServer, serve_on_socket, tool_definition

PROGRAM = """
import os, sys
from dovetail import Server
app = Server("child")

@app.tool
def pid() -> int:
    return os.getpid()

@app.tool
def die() -> None:
    os._exit(3)

app.run()
"""


def small(**options: Any) -> Server:
    app = Server("small", **options)
    app.add_tool(lambda: 1, name="one")
    return app


class Environment:
    """A member, and what it told of."""

    def __init__(
        self,
        make: Callable[[], Client | Awaitable[Client]],
        permit: Callable[[], Awaitable[None]] | None = None,
        **settings: Any,
    ) -> None:
        self.events: list[HostEvent] = []
        self.made = 0

        def counted() -> Client | Awaitable[Client]:
            self.made += 1
            return make()

        self.member = ServerSupervisor(
            "m", counted, ServerSettings(**settings), self.events.append, authorize_start=permit
        )

    @property
    def states(self) -> list[str | None]:
        return [event.state for event in self.events if event.kind == "server.state"]

    async def until(self, state: str) -> None:
        await wait_until(lambda: self.member.state == state)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "child_program.py"
    path.write_text(PROGRAM)
    return path


async def test_it_is_started_when_it_is_needed_and_once_for_all_who_wait() -> None:
    environment = Environment(lambda: Client(small()))
    assert environment.member.state == "idle"
    clients = await asyncio.gather(*(environment.member.ready() for _ in range(5)))
    assert len(set(map(id, clients))) == 1
    assert environment.made == 1
    assert environment.states == ["starting", "ready"]
    await environment.member.stop()
    assert environment.member.state == "idle"
    await environment.member.ready()
    assert environment.made == 2
    await environment.member.stop()


async def test_what_it_offered_stays_known_while_it_sleeps() -> None:
    environment = Environment(lambda: Client(small()))
    assert set(await environment.member.listed("tool")) == {"one"}
    await environment.member.stop()
    assert set(await environment.member.listed("tool")) == {"one"}
    assert environment.made == 1
    assert environment.member.state == "idle"


async def test_a_change_is_reported_and_the_list_fetched_again() -> None:
    app = small()
    environment = Environment(lambda: Client(app))
    heard: list[Any] = []
    stop = environment.member.follow(lambda *told: heard.append(told))
    before = await environment.member.listed("tool")
    assert await environment.member.listed("tool") is before
    app.add_tool(lambda: 2, name="two")
    await wait_until(lambda: heard)
    async with asyncio.timeout(TIMEOUT_S):
        assert set(await environment.member.listed("tool")) == {"one", "two"}
    assert "definitions.changed" in {event.kind for event in environment.events}
    stop()
    await environment.member.stop()


async def test_a_callback_that_fails_does_not_end_the_watch() -> None:
    app = small()
    environment = Environment(lambda: Client(app), list_ttl=0)
    heard: list[Any] = []

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    environment.member.follow(fail)
    environment.member.follow(lambda *told: heard.append(told))
    before = await environment.member.listed("tool")
    for count in (1, 2):
        app.add_tool(lambda: 2, name=f"tool{count}")
        await wait_until(lambda count=count: len(heard) == count)
    await environment.member.listed("tool")
    after = await environment.member.listed("tool")
    assert len(after) == len(before) + 2
    assert await environment.member.listed("tool") is after  # the list is kept until the next change
    await environment.member.stop()


async def test_different_definitions_of_one_name_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    tools = [tool_definition("twice"), tool_definition("twice", description="other"), tool_definition("once")]
    script = ScriptedServer("handshake", {"tools/list": {"tools": tools}})
    async with serve_on_socket(script) as target, asyncio.timeout(TIMEOUT_S):
        environment = Environment(lambda: Client(target, name="far", protocol_version="handshake"))
        assert set(await environment.member.listed("tool")) == {"once"}
        await environment.member.stop()
    assert any(mentions(record.getMessage(), "m", "tool", "twice") for record in caplog.records)


async def test_only_lists_with_change_notifications_are_kept_longer_than_the_ttl() -> None:
    capabilities = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
    initialized = {
        "protocolVersion": LATEST_HANDSHAKE,
        "capabilities": capabilities,
        "serverInfo": {"name": "far", "version": "1"},
    }
    script = ScriptedServer("handshake", {"initialize": initialized})
    async with serve_on_socket(script) as target, asyncio.timeout(TIMEOUT_S):
        environment = Environment(lambda: Client(target, protocol_version="handshake"), list_ttl=0)
        for _ in range(3):
            for kind in ("tool", "prompt", "resource", "resource template"):
                await environment.member.listed(kind)
        await environment.member.stop()
    assert script.count("tools/list") == 1
    for method in ("prompts/list", "resources/list", "resources/templates/list"):
        assert script.count(method) == 3


async def test_what_does_not_start_says_why_and_is_not_tried_again_at_once() -> None:
    environment = Environment(
        lambda: Client([sys.executable, "-c", "import sys; sys.exit('no key')"]), restart_delay=100.0
    )
    with pytest.raises(ProcessStartError, match="no key"):
        await environment.member.ready()
    assert environment.member.state == "failed"
    assert "no key" in str(environment.member.last_error)
    with pytest.raises(ProcessStartError, match=r"host\.restart\('m'\)"):
        await environment.member.ready()
    assert environment.made == 1
    with pytest.raises(ProcessStartError, match="no key"):
        await environment.member.restart()
    assert environment.made == 2


async def test_a_start_has_a_time() -> None:
    environment = Environment(lambda: Client([sys.executable, "-c", "import time; time.sleep(100)"]), start_timeout=0.3)
    with pytest.raises(RequestTimeout, match=r"0\.3 s"):
        await environment.member.ready()
    assert environment.member.state == "failed"


async def test_a_mistake_in_its_configuration_is_its_own() -> None:
    def make() -> Client:
        raise KeyError("GITHUB_TOKEN")

    environment = Environment(make)
    with pytest.raises(ProcessStartError, match="GITHUB_TOKEN"):
        await environment.member.ready()
    assert environment.member.state == "failed"


async def test_a_server_that_wants_a_login() -> None:
    async def permit() -> None:
        raise Unauthorized("log in first")

    environment = Environment(lambda: Client(small()), permit)
    with pytest.raises(Unauthorized):
        await environment.member.ready()
    assert environment.member.state == "unauthorized"


async def test_a_server_that_dies_comes_back_by_itself(script: Path) -> None:
    environment = Environment(lambda: Client(script))
    async with environment.member.using() as client:
        first = await client.call("pid")
    with pytest.raises(MCPError):
        async with environment.member.using() as client:
            await client.call("die")
    assert "degraded" in environment.states
    async with environment.member.using() as client:
        assert await client.call("pid") != first
    await environment.until("ready")
    assert environment.made == 1
    await environment.member.stop()


async def test_one_that_dies_again_and_again_is_given_up_for_a_while(script: Path) -> None:
    environment = Environment(lambda: Client(script), max_restarts=3, restart_delay=0.01, max_restart_delay=100.0)
    async with asyncio.timeout(TIMEOUT_S):
        while environment.member.state != "failed":
            try:
                async with environment.member.using() as client:
                    await client.call("die")
            except MCPError:
                pass
    with pytest.raises(ProcessStartError, match=r"(?s)3 .*100 s.*host\.restart"):
        await environment.member.ready()
    assert environment.member.client is None
    await environment.member.restart()
    async with environment.member.using() as client:
        assert await client.call("pid")
    await environment.member.stop()


async def test_an_unused_server_becomes_idle(script: Path) -> None:
    environment = Environment(lambda: Client(script), idle_timeout=0.1)
    async with environment.member.using() as client:
        pid = await client.call("pid")
        await asyncio.sleep(0.3)  # longer than it may be idle, but it is in use
        assert await client.call("pid") == pid
    await environment.until("idle")
    async with environment.member.using() as client:
        assert await client.call("pid") != pid
    await environment.member.stop()


async def test_one_that_is_disabled_is_left_alone() -> None:
    environment = Environment(lambda: Client(small()))
    await environment.member.disable()
    with pytest.raises(ProcessStartError, match="disabled"):
        await environment.member.ready()
    assert await environment.member.listed("tool") == {}
    await environment.member.restart()
    assert environment.member.state == "ready"
    await environment.member.stop()


async def test_stopping_ends_a_start_and_notifies_the_waiters() -> None:
    environment = Environment(
        lambda: Client([sys.executable, "-c", "import time; time.sleep(100)"], timeout=Timeouts(discover=50))
    )
    waiting = asyncio.create_task(environment.member.ready())
    await environment.until("starting")
    async with asyncio.timeout(TIMEOUT_S):
        await environment.member.stop()
        with pytest.raises(ProcessStartError, match="stopped"):
            await waiting
    assert environment.member.state == "idle"


async def test_a_list_that_hangs_costs_its_own_time_only() -> None:
    app = small()

    async def never(exchange: Any, call_next: Any) -> Any:
        if exchange.method == "tools/list":
            await asyncio.Event().wait()
        return await call_next(exchange)

    app.middleware(never)
    environment = Environment(lambda: Client(app), list_timeout=0.2)
    with pytest.raises(RequestTimeout, match=r"0\.2 s"):
        await environment.member.listed("tool")
    assert environment.member.state == "degraded"
    assert await environment.member.listed("prompt") == {}
    await environment.member.stop()


async def test_looking_up_a_secret_counts_as_a_part_of_the_start() -> None:
    async def make() -> Client:
        await asyncio.Event().wait()
        raise AssertionError

    environment = Environment(make, start_timeout=0.1)
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(RequestTimeout, match=r"0\.1 s"):
            await environment.member.ready()


async def test_a_server_that_missed_a_short_limit_is_waited_for_again() -> None:
    app = small()
    is_late = True

    async def delay(exchange: Any, call_next: Any) -> Any:
        if exchange.method == "tools/list":
            await asyncio.sleep(100 * TIMEOUT_S if is_late else 0.05)
        return await call_next(exchange)

    app.middleware(delay)
    environment = Environment(lambda: Client(app), list_timeout=0.1)
    assert await environment.member.list_within("tool", TIMEOUT_S) == {}
    is_late = False
    environment.member.settings = ServerSettings(list_timeout=TIMEOUT_S)
    assert set(await environment.member.list_within("tool", TIMEOUT_S)) == {"one"}
    await environment.member.stop()


async def test_a_list_that_is_not_cached_is_fetched_once_for_each_use() -> None:
    script = ScriptedServer()
    async with serve_on_socket(script) as target, asyncio.timeout(TIMEOUT_S):
        environment = Environment(lambda: Client(target), list_ttl=0.0)
        for count in (1, 2, 3):
            assert set(await environment.member.current("tool")) == {"echo"}
            assert script.count("tools/list") == count
        await environment.member.stop()


async def test_a_name_with_several_definitions_is_logged_once_for_each_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tools = [tool_definition("echo"), tool_definition("echo") | {"description": "other"}, tool_definition("one")]
    script = ScriptedServer("stateless", {"tools/list": lambda _: {"tools": tools}})
    async with serve_on_socket(script) as target, asyncio.timeout(TIMEOUT_S):
        environment = Environment(lambda: Client(target), list_ttl=0.0)
        for _ in range(3):
            assert set(await environment.member.current("tool")) == {"one"}
        assert [record.args[2] for record in caplog.records] == ["echo"]
        tools += [tool_definition("one") | {"description": "other"}]
        for _ in range(3):
            assert set(await environment.member.current("tool")) == set()
        assert [record.args[2] for record in caplog.records] == ["echo", "echo, one"]
        await environment.member.stop()

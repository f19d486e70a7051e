"""One server of a host: its states, its start, its losses, its rest."""

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
from host.polling import TIMEOUT_S, wait_until

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


class Scene:
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
    scene = Scene(lambda: Client(small()))
    assert scene.member.state == "idle"
    clients = await asyncio.gather(*(scene.member.ready() for _ in range(5)))
    assert len(set(map(id, clients))) == 1
    assert scene.made == 1
    assert scene.states == ["starting", "ready"]
    await scene.member.stop()
    assert scene.member.state == "idle"
    await scene.member.ready()
    assert scene.made == 2
    await scene.member.stop()


async def test_what_it_offered_stays_known_while_it_sleeps() -> None:
    scene = Scene(lambda: Client(small()))
    assert set(await scene.member.listed("tool")) == {"one"}
    await scene.member.stop()
    assert set(await scene.member.listed("tool")) == {"one"}
    assert scene.made == 1
    assert scene.member.state == "idle"


async def test_a_change_is_told_and_looked_at() -> None:
    app = small()
    scene = Scene(lambda: Client(app))
    heard: list[Any] = []
    stop = scene.member.follow(lambda *told: heard.append(told))
    before = await scene.member.listed("tool")
    assert await scene.member.listed("tool") is before
    app.add_tool(lambda: 2, name="two")
    await wait_until(lambda: heard)
    async with asyncio.timeout(TIMEOUT_S):
        assert set(await scene.member.listed("tool")) == {"one", "two"}
    assert "definitions.changed" in {event.kind for event in scene.events}
    stop()
    await scene.member.stop()


async def test_what_does_not_start_says_why_and_is_not_tried_again_at_once() -> None:
    scene = Scene(lambda: Client([sys.executable, "-c", "import sys; sys.exit('no key')"]), restart_delay=100.0)
    with pytest.raises(ProcessStartError, match="no key"):
        await scene.member.ready()
    assert scene.member.state == "failed"
    assert "no key" in str(scene.member.last_error)
    with pytest.raises(ProcessStartError, match=r"host\.restart\('m'\)"):
        await scene.member.ready()
    assert scene.made == 1
    with pytest.raises(ProcessStartError, match="no key"):
        await scene.member.restart()
    assert scene.made == 2


async def test_a_start_has_a_time() -> None:
    scene = Scene(lambda: Client([sys.executable, "-c", "import time; time.sleep(100)"]), start_timeout=0.3)
    with pytest.raises(RequestTimeout, match=r"0\.3 s"):
        await scene.member.ready()
    assert scene.member.state == "failed"


async def test_a_mistake_in_its_configuration_is_its_own() -> None:
    def make() -> Client:
        raise KeyError("GITHUB_TOKEN")

    scene = Scene(make)
    with pytest.raises(ProcessStartError, match="GITHUB_TOKEN"):
        await scene.member.ready()
    assert scene.member.state == "failed"


async def test_a_server_that_wants_a_login() -> None:
    async def permit() -> None:
        raise Unauthorized("log in first")

    scene = Scene(lambda: Client(small()), permit)
    with pytest.raises(Unauthorized):
        await scene.member.ready()
    assert scene.member.state == "unauthorized"


async def test_a_server_that_dies_comes_back_by_itself(script: Path) -> None:
    scene = Scene(lambda: Client(script))
    async with scene.member.using() as client:
        first = await client.call("pid")
    with pytest.raises(MCPError):
        async with scene.member.using() as client:
            await client.call("die")
    assert "degraded" in scene.states
    async with scene.member.using() as client:
        assert await client.call("pid") != first
    await scene.until("ready")
    assert scene.made == 1
    await scene.member.stop()


async def test_one_that_dies_again_and_again_is_given_up_for_a_while(script: Path) -> None:
    scene = Scene(lambda: Client(script), max_restarts=3, restart_delay=0.01, max_restart_delay=100.0)
    async with asyncio.timeout(TIMEOUT_S):
        while scene.member.state != "failed":
            try:
                async with scene.member.using() as client:
                    await client.call("die")
            except MCPError:
                pass
    with pytest.raises(ProcessStartError, match=r"(?s)3 .*100 s.*host\.restart"):
        await scene.member.ready()
    assert scene.member.client is None
    await scene.member.restart()
    async with scene.member.using() as client:
        assert await client.call("pid")
    await scene.member.stop()


async def test_it_rests_when_nobody_uses_it(script: Path) -> None:
    scene = Scene(lambda: Client(script), idle_timeout=0.1)
    async with scene.member.using() as client:
        pid = await client.call("pid")
        await asyncio.sleep(0.3)  # longer than it may be idle, but it is in use
        assert await client.call("pid") == pid
    await scene.until("idle")
    async with scene.member.using() as client:
        assert await client.call("pid") != pid
    await scene.member.stop()


async def test_one_that_is_disabled_is_left_alone() -> None:
    scene = Scene(lambda: Client(small()))
    await scene.member.disable()
    with pytest.raises(ProcessStartError, match="disabled"):
        await scene.member.ready()
    assert await scene.member.listed("tool") == {}
    await scene.member.restart()
    assert scene.member.state == "ready"
    await scene.member.stop()


async def test_stopping_ends_a_start_and_tells_whoever_waits() -> None:
    scene = Scene(lambda: Client([sys.executable, "-c", "import time; time.sleep(100)"], timeout=Timeouts(discover=50)))
    waiting = asyncio.create_task(scene.member.ready())
    await scene.until("starting")
    async with asyncio.timeout(TIMEOUT_S):
        await scene.member.stop()
        with pytest.raises(ProcessStartError, match="stopped"):
            await waiting
    assert scene.member.state == "idle"


async def test_a_list_that_hangs_costs_its_own_time_only() -> None:
    app = small()

    async def never(exchange: Any, call_next: Any) -> Any:
        if exchange.method == "tools/list":
            await asyncio.Event().wait()
        return await call_next(exchange)

    app.middleware(never)
    scene = Scene(lambda: Client(app), list_timeout=0.2)
    with pytest.raises(RequestTimeout, match=r"0\.2 s"):
        await scene.member.listed("tool")
    assert scene.member.state == "degraded"
    assert await scene.member.listed("prompt") == {}
    await scene.member.stop()


async def test_looking_up_a_secret_counts_as_a_part_of_the_start() -> None:
    async def make() -> Client:
        await asyncio.Event().wait()
        raise AssertionError

    scene = Scene(make, start_timeout=0.1)
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(RequestTimeout, match=r"0\.1 s"):
            await scene.member.ready()

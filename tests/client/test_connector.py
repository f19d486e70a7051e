"""Test connecting to a server that exits meanwhile or starts late."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, ClientLimits, Icon, Server, Timeouts, testing
from dovetail.errors import ConnectionLost, OutcomeUnknown, ProcessStartError, RequestTimeout
from support.calculator import app
from support.mentions import mentions
from support.scripted_server import CLOSE, SILENCE, STATELESS, ErrorReply, ScriptedServer, serve_on_socket

VICTIM = Path(__file__).parents[1] / "reliability" / "killable_server.py"
LATE = Path(__file__).parent / "slow_start_server.py"
QUICK = ClientLimits(reconnect_delay=0.01)


async def test_a_server_killed_while_asked_is_not_said_to_lack_the_older_question(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(VICTIM), str(tmp_path / "marks.txt"), "stateless"]
    faults = testing.Faults()
    kill = faults.kill(to="server", method="server/discover")
    async with testing.serve(command, faults=faults) as target:
        client = Client(target, name="victim", limits=QUICK)
        with pytest.raises(ProcessStartError) as told:
            await client.connect()
        assert (kill.count, told.value.exit_code) == (1, -9)
        await client.connect()
        assert await client.call("mark", token="x") == "x"
        await client.close()


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("transport", ["http", "tcp"])
async def test_a_call_whose_opening_was_cut_off_was_not_sent(transport: Any, revision: str) -> None:
    faults = testing.Faults()
    method = "server/discover" if revision == "2026-07-28" else "initialize"
    drop = faults.drop(method=method)
    async with testing.serve(app, transport=transport, faults=faults) as target:
        client = Client(target, protocol_version=revision, limits=QUICK)
        assert await client.call("add", a=1, b=2) == 3
        assert drop.count == 1
        await client.close()


async def test_an_open_that_is_always_cut_off_was_not_sent() -> None:
    faults = testing.Faults()
    faults.drop(method="server/discover", times=100)
    async with testing.serve(app, transport="tcp", faults=faults) as target:
        client = Client(target, protocol_version="2026-07-28", limits=QUICK)
        with pytest.raises(ConnectionLost) as told:
            await client.call("add", a=1, b=2)
        assert not isinstance(told.value, OutcomeUnknown)
        assert not told.value.maybe_sent
        await client.close()


@pytest.mark.parametrize("version", ["handshake", "stateless"])
async def test_client_knows_the_page_and_icons_of_the_server(version: str) -> None:
    icon = Icon(src="https://shop.example/icon.png")
    app = Server("shop", title="Shop", description="Sells tea.", website_url="https://shop.example", icons=[icon])
    async with Client(app, protocol_version=version) as client:
        info = client.server_info
        assert info is not None
        assert (info.title, info.description, info.website_url) == ("Shop", "Sells tea.", "https://shop.example")
        assert info.icons == [icon]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"name": "a", "version": 1, "title": "A"}, ("a", "1", "A")),
        ({"name": "a", "version": "1", "title": 2, "icons": "none"}, ("a", "1", None)),
        ({"name": "a"}, None),
        ("a", None),
    ],
)
async def test_invalid_server_info_of_a_stateless_server(sent: Any, expected: Any) -> None:
    meta = {"io.modelcontextprotocol/serverInfo": sent}
    discovered = {"supportedVersions": [STATELESS], "capabilities": {}, "resultType": "complete", "_meta": meta}
    async with (
        serve_on_socket(ScriptedServer("stateless", {"server/discover": discovered})) as at,
        Client(at) as client,
    ):
        info = client.server_info
        assert (info and (info.name, info.version, info.title)) == expected


# Servers that start later than the first question is patient


def late(file: Path, speaks: str, seconds: float = 0.6) -> list[str]:
    return [sys.executable, "-I", "-S", str(LATE), str(file), str(seconds), speaks]


def told(file: Path) -> list[list[str]]:
    """What each process was told, in the order they were started."""
    by_process: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        process, method = line.split()
        by_process.setdefault(process, []).append(method)
    return list(by_process.values())


SHORT = Timeouts(discover=0.2)


@pytest.mark.parametrize("speaks", ["both", "handshake"])
async def test_a_session_that_opened_late_is_the_one(speaks: str, tmp_path: Path) -> None:
    file = tmp_path / "told"
    async with Client(late(file, speaks), timeout=SHORT, limits=QUICK) as client:
        assert client.protocol_version == "2025-11-25"
        assert await client.call("go") == "ok"
    (methods,) = told(file)
    assert [one for one in methods if one != "notifications/cancelled"] == [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/call",
    ]


@pytest.mark.parametrize("speaks", ["stateless", "mute"])
async def test_no_stateless_request_follows_a_handshake_on_its_connection(speaks: str, tmp_path: Path) -> None:
    file = tmp_path / "told"
    command = late(file, speaks)
    for opened in (2, 3):  # the second time its era is known
        async with Client(command, timeout=SHORT, limits=QUICK) as client:
            assert client.protocol_version == "2026-07-28"
            assert await client.call("go") == "ok"
        first, *others = told(file)
        assert first[:2] == ["server/discover", "initialize"]
        assert "tools/call" not in first
        assert others == [["server/discover", "tools/call"]] * (opened - 1)


async def test_a_late_server_of_both_eras_is_asked_again_another_time(tmp_path: Path) -> None:
    start = tmp_path / "start.py"
    command = [sys.executable, "-I", "-S", str(start)]

    def takes(seconds: float) -> None:
        words = [str(LATE), str(tmp_path / "told"), str(seconds), "both"]
        start.write_text(
            f"import runpy, sys\nsys.argv[:] = {words!r}\nrunpy.run_path({words[0]!r}, None, '__main__')\n"
        )

    takes(0.6)
    async with Client(command, timeout=SHORT, limits=QUICK) as client:
        assert client.protocol_version == "2025-11-25"
    takes(0)
    async with Client(command, timeout=Timeouts(discover=20), limits=QUICK) as client:
        assert client.protocol_version == "2026-07-28"


# How long it may take


async def test_one_limit_is_over_the_whole_opening() -> None:
    """Neither of the two questions, nor a second connection, begins it anew."""
    script = ScriptedServer("handshake", {"server/discover": SILENCE, "initialize": SILENCE})
    async with serve_on_socket(script) as at:
        client = Client(at, name="it", timeout=Timeouts(discover=0.1, initialize=0.5), limits=QUICK)
        with pytest.raises(RequestTimeout, match=r"0\.5 s") as caught:
            await client.connect()
        assert caught.value.server == "it"
        # On a busy machine, the whole limit can pass before `initialize` is sent.
        assert caught.value.step in {"server/discover", "initialize"}
        await client.close()


async def test_a_server_that_never_starts_says_why_in_its_own_words(tmp_path: Path) -> None:
    program = "import sys, time; print('waiting for a key', file=sys.stderr, flush=True); sys.stdin.read()"
    client = Client([sys.executable, "-c", program], timeout=Timeouts(discover=0.1, initialize=2.0), limits=QUICK)
    with pytest.raises(RequestTimeout, match="waiting for a key"):
        await client.connect()


async def test_the_limit_of_a_call_is_also_over_the_opening() -> None:
    script = ScriptedServer("handshake", {"server/discover": SILENCE, "initialize": SILENCE})
    async with serve_on_socket(script) as at:
        client = Client(at, name="it", timeout=Timeouts(discover=0.1, initialize=300), limits=QUICK)
        async with asyncio.timeout(30):
            with pytest.raises(RequestTimeout, match=r"0\.3 s") as caught:
                await client.call_tool("go", timeout=0.3)
        assert (caught.value.server, caught.value.step) == ("it", "tools/call go")
        await client.close()


async def test_an_opening_that_outlasts_a_call_serves_the_next() -> None:
    release = asyncio.Event()

    async def discover(_: Any) -> Any:
        await release.wait()
        return ErrorReply(-32601)

    script = ScriptedServer("handshake", {"server/discover": discover})
    async with serve_on_socket(script) as at:
        client = Client(at, timeout=Timeouts(discover=300, initialize=300), limits=QUICK)
        with pytest.raises(RequestTimeout):
            await client.call_tool("go", timeout=0.1)
        release.set()
        assert await client.call("go") == "ok"
        assert script.connections == 1
        await client.close()


async def test_one_limit_is_over_all_attempts() -> None:
    """A server that is lost again and again may not take its limit each time."""
    script = ScriptedServer("stateless", {"tools/list": CLOSE})
    async with serve_on_socket(script) as at:
        limits = ClientLimits(max_retries=10**6, reconnect_delay=0.01)
        async with Client(at, timeout=Timeouts(request=0.5), limits=limits) as client, asyncio.timeout(30):
            with pytest.raises((ConnectionLost, RequestTimeout)):  # between two attempts, or in one
                await client.list_tools()


async def test_a_discovery_that_failed_inside_the_server_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    inside = Server("broken")

    @inside.middleware
    async def forgetful(exchange: Any, call_next: Any) -> Any:
        result = await call_next(exchange)
        return None if exchange.method == "server/discover" else result

    async with Client(inside, name="broken") as client:
        assert client.protocol_version == "2025-11-25"
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert mentions(record.getMessage(), "broken")

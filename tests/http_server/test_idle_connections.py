"""Test that no call is lost or runs twice if connections are used again after pauses, also behind a proxy.

The side that sends requests closes idle connections first: the client before the proxy, the proxy before the server.
The pauses are around the idle time of each side. In a round, all clients send a call at about the same time.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail import Client, MCPError
from dovetail.transports.http_client import http_client
from dovetail.transports.http_client.http_client import HTTPClient
from http_server.raw_connection import run_server
from support.outside_programs import needs
from support.proxies import EACH_PROXY, KINDS, IdleTimes, run_proxy

pytestmark = pytest.mark.interop

SERVER_IDLE_S = 3
PROXY_IDLE_TIMES = IdleTimes(front=5, back=1)
CLIENT_IDLE_S = 4
JITTER_S = 0.05
IDLE_TIMES = (PROXY_IDLE_TIMES.back, SERVER_IDLE_S, CLIENT_IDLE_S, PROXY_IDLE_TIMES.front)
SHORT_PAUSES = (0.0, 1.0, 3.0)
# 25 rounds of 100 calls for each kind of proxy, and without a proxy: 10,000 calls.
LONG_PAUSES = (*(idle + delta for idle in IDLE_TIMES for delta in (-0.5, -0.05, 0.0, 0.0, 0.05, 0.2)), 0.0)


@contextlib.contextmanager
def serve(kind: str, folder: Path, log: Path, idle_timeout: float = SERVER_IDLE_S) -> Iterator[str]:
    with run_server(folder, limits={"idle_timeout": idle_timeout}, log=str(log)) as server:
        if kind == "direct":
            yield f"http://127.0.0.1:{server.port}/mcp"
        else:
            with run_proxy(kind, folder, server.port, PROXY_IDLE_TIMES) as proxy:
                yield f"http://127.0.0.1:{proxy.port}/mcp"


async def call_after_pauses(
    url: str, client_number: int, pauses: tuple[float, ...], start: asyncio.Barrier
) -> list[MCPError]:
    """Call a tool in each round, with another name each time. Return the errors."""
    errors: list[MCPError] = []
    async with Client(url) as client:
        for call_number, pause in enumerate(pauses):
            await start.wait()
            await asyncio.sleep(max(0.0, pause + random.uniform(-JITTER_S, JITTER_S)))
            name = f"{client_number}-{call_number}"
            try:
                assert await client.call("work", name=name, seconds=0) == name
            except MCPError as exc:
                errors.append(exc)
    return errors


@pytest.mark.parametrize(
    ("kind", "connection_count"), [("direct", 1), *(pytest.param(kind, 2, marks=needs(kind)) for kind in KINDS)]
)
async def test_a_client_behind_a_proxy_does_not_trust_the_time_of_the_server(
    kind: str, connection_count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAProxy forwards Keep-Alive, but not the Connection header that names it. So the client must check both."""
    now, dialed_addresses = 1000.0, list[str]()
    monkeypatch.setattr(http_client, "_get_time", lambda: now)

    def allow_address(address: str) -> bool:
        dialed_addresses.append(address)
        return True

    with serve(kind, tmp_path, tmp_path / "calls", idle_timeout=75) as url:
        client = HTTPClient(address_filter=allow_address, trust_env=False)
        for _ in range(2):
            await (await client.fetch("GET", url.replace("/mcp", "/"), [])).read()
            now += 10
        await client.close()
    assert len(dialed_addresses) == connection_count


@pytest.mark.parametrize(
    ("client_count", "pauses"),
    [
        pytest.param(10, SHORT_PAUSES, id="short"),
        pytest.param(100, LONG_PAUSES, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.parametrize("kind", ["direct", *EACH_PROXY])
async def test_no_call_is_lost(kind: str, client_count: int, pauses: tuple[float, ...], tmp_path: Path) -> None:
    log, start = tmp_path / "calls", asyncio.Barrier(client_count)
    with serve(kind, tmp_path, log) as url:
        errors = await asyncio.gather(
            *(call_after_pauses(url, number, pauses, start) for number in range(client_count))
        )
        assert [error for client_errors in errors for error in client_errors] == []
        expected = [f"{client}-{call}" for client in range(client_count) for call in range(len(pauses))]
        assert sorted(log.read_text().split()) == sorted(expected)

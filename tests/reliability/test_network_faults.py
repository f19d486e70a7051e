"""After each network fault the same client object is usable at once.

`test_at_most_once.py` tests that no fault makes a tool run twice.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fault_proxy import FAULTS, FaultProxy
from harness import record_measurement

from dovetail import Client, ClientLimits, MCPError, Server, Timeouts
from support.driver import serve

QUICK = Timeouts(connect=2, discover=1, initialize=5, call=0.7, request=2)
BOUND = 1.0  # seconds from the fault, or from the limit that shows it, to the error


@asynccontextmanager
async def behind_a_proxy(era: str, ran: list[str]) -> AsyncIterator[tuple[Client, FaultProxy]]:
    app = Server("counting", version="1")

    @app.tool
    async def run(name: str) -> str:
        ran.append(name)
        return name

    async with serve(app) as web, FaultProxy(web.port).running() as proxy:
        url = f"http://127.0.0.1:{proxy.port}/mcp"
        limits = ClientLimits(reconnect_delay=0.01)
        async with Client(url, protocol_version=era, timeout=QUICK, limits=limits) as client:  # pyright: ignore[reportArgumentType]
            yield client, proxy


@pytest.mark.parametrize("era", ["stateless", "handshake"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_usable_after(fault: str, era: str) -> None:
    ran: list[str] = []
    async with behind_a_proxy(era, ran) as (client, proxy):
        assert await client.call("run", name="before") == "before"
        proxy.armed.append(fault)
        began = time.monotonic()
        with pytest.raises(MCPError):
            await client.call("run", name="during")
        took = time.monotonic() - began
        assert not proxy.armed
        assert await client.call("run", name="after") == "after"
        assert await asyncio.gather(*(client.call("run", name=str(n)) for n in range(5))) == list("01234")
    assert took < BOUND + (QUICK.call if fault == "stall" else 0.0)
    record_measurement(f"error after {fault}, {era}", took * 1000, "ms")
    assert ran.count("during") == (0 if fault in ("fin", "rst", "garbage") else 1)

"""Test using one server in successive event loops."""

import asyncio
import json
from typing import Any

from dovetail import Server
from dovetail.types import ServerStats

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def _call(app: Server, name: str) -> dict[str, Any]:
    answered: asyncio.Queue[bytes] = asyncio.Queue()
    link = app.open_connection(answered.put_nowait)
    params = {"name": name, "_meta": META}
    link.receive(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode())
    try:
        return json.loads(await asyncio.wait_for(answered.get(), 10))
    finally:
        await link.close()


def test_a_time_limit_holds_in_every_loop() -> None:
    app = Server("patient")

    @app.tool(timeout=0.05)
    async def forever() -> str:
        await asyncio.Event().wait()
        return "never"

    @app.tool
    async def quick() -> str:
        return "done"

    # The first loop ends with its watch over running calls still set.
    assert not asyncio.run(_call(app, "quick"))["result"].get("isError")
    result = asyncio.run(_call(app, "forever"))["result"]
    assert result["isError"]
    assert app.stats() == ServerStats()

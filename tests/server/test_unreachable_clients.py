"""Test that no request is sent to a handshake client without a session or an event stream."""

import pytest

from dovetail import CallToolResult, Context, Elicit, InputRequired, Server
from dovetail.errors import MissingClientCapability
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.server.server import get_dispatcher
from dovetail.wire.lifecycle import ClientCapabilities, ElicitationCapability

app = Server("asks")


@app.tool
async def asks(ctx: Context) -> str:
    return await ctx.elicit("Who?", str)


@app.tool
async def drives(ctx: Context) -> str | InputRequired:
    return InputRequired({"who": Elicit("Who?", str)})


@app.tool
async def copes(ctx: Context) -> str:
    try:
        return await ctx.elicit("Who?", str)
    except MissingClientCapability:
        return "nobody to ask"


def _exchange(tool: str) -> IncomingExchange:
    able = ClientCapabilities(elicitation=ElicitationCapability(form={}))
    return IncomingExchange(1, "tools/call", {"name": tool}, {}, Caller("2025-11-25", False, able))


@pytest.mark.parametrize("tool", ["asks", "drives"])
async def test_the_call_fails(tool: str) -> None:
    result = await get_dispatcher(app).handle(_exchange(tool))
    assert isinstance(result, CallToolResult)
    assert result.is_error


async def test_an_author_can_cope() -> None:
    result = await get_dispatcher(app).handle(_exchange("copes"))
    assert not isinstance(result, bytes)
    assert "nobody to ask" in str(result)

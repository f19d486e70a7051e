"""Test a server in front of another application: both start and stop together."""

import asyncio
from typing import Any

import pytest

from dovetail import Server
from transports.fake_service import TIMEOUT_S


@pytest.mark.parametrize("fails", [False, True])
async def test_shutdown_complete_is_sent_last(fails: bool) -> None:
    """Whoever runs it stops waiting then, so what the other had left to do would be lost."""
    happened: list[str] = []

    async def other(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.sleep(0)
        happened.append("the other has ended")
        if fails:
            raise RuntimeError("badly")
        await send({"type": "lifespan.shutdown.complete"})

    async def send(message: Any) -> None:
        happened.append(message["type"])

    coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return coming.pop(0)

    async with asyncio.timeout(TIMEOUT_S):
        await Server("x").asgi(fallback=other)({"type": "lifespan"}, receive, send)
    assert happened == ["lifespan.startup.complete", "the other has ended", "lifespan.shutdown.complete"]


async def test_one_that_knows_no_lifespan_is_not_waited_for() -> None:
    told: list[str] = []

    async def other(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("only http here")

    async def send(message: Any) -> None:
        told.append(message["type"])

    coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return coming.pop(0)

    async with asyncio.timeout(TIMEOUT_S):
        await Server("x").asgi(fallback=other)({"type": "lifespan"}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

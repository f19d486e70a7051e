"""Test clients of each protocol version against two servers of a cluster, with a router that alternates."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Context, Server
from dovetail.cluster.local.local_backend import LocalBackend
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.protocol.limits import ServerLimits
from dovetail.types import CallToolResult, TextContent
from support.driver import serve_asgi

KEYS = ["a secret key of the cluster"]
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")


class AlternatingRouter:
    """Sends each HTTP request to the next worker."""

    def __init__(self, servers: list[Server]) -> None:
        self._servers = servers
        self._apps = itertools.cycle([server.asgi() for server in servers])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await next(self._apps)(scope, receive, send)
            return
        assert (await receive())["type"] == "lifespan.startup"
        for server in self._servers:
            await server.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for server in self._servers:
            await server.stop()
        await send({"type": "lifespan.shutdown.complete"})


@dataclass
class Name:
    """The answer to the question of `greet`."""

    name: str


def create_server(backend: Any, number: int) -> Server:
    app = Server("cluster", cluster=backend, secret_keys=KEYS)

    @app.tool
    async def identify(ctx: Context) -> str:
        """Return the worker."""
        return f"worker {number}"

    @app.tool
    async def greet(ctx: Context) -> str:
        """Ask for a name."""
        return f"Hello, {(await ctx.elicit('Your name?', Name)).name}"

    return app


def read_text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@pytest.fixture(params=["memory", "local"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    first = MemoryBackend()
    backends: list[Any] = [first, MemoryBackend(first)]
    if request.param == "local":
        backends = [LocalBackend(tmp_path, secret_keys=KEYS) for _ in range(2)]
    servers = [create_server(backend, number) for number, backend in enumerate(backends)]
    async with serve_asgi(AlternatingRouter(servers), ServerLimits()) as web:
        yield f"http://127.0.0.1:{web.port}/mcp"


@pytest.mark.parametrize("revision", REVISIONS)
async def test_calls_are_answered_by_all_workers(url: str, revision: str) -> None:
    async with Client(url, protocol_version=revision) as client:
        answers = [read_text(await client.call_tool("identify")) for _ in range(8)]
    assert {*answers} == {"worker 0", "worker 1"}


@pytest.mark.parametrize("revision", REVISIONS[2:])
async def test_answers_to_questions_arrive(url: str, revision: str) -> None:
    async with Client(url, protocol_version=revision, elicitation_handler=lambda _: {"name": "Ada"}) as client:
        answers = await asyncio.gather(*(client.call_tool("greet") for _ in range(10)))
    assert {read_text(answer) for answer in answers} == {"Hello, Ada"}

"""Test two workers of a gateway with the back ends that connect processes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Policy
from dovetail.cluster.local.local_backend import LocalBackend
from dovetail.cluster.redis.redis_backend import RedisBackend
from dovetail.host.host import Host
from support.redis_servers import EACH_KIND, RedisServer
from support.upstream_server import UpstreamServer

KEYS, TIMEOUT_S = ["a key with enough bytes"], 30.0
KINDS = ["local", *EACH_KIND]
ASK = {"name": "far__ask", "arguments": {}}
ADD = {"name": "far__add", "arguments": {"a": 1}}


@asynccontextmanager
async def run_clients(kind: str, folder: Path, far: UpstreamServer, policy: Policy) -> AsyncGenerator[list[Client]]:
    """Yield one client for each of two workers."""
    async with AsyncExitStack() as stack, asyncio.timeout(TIMEOUT_S):
        create_backend: Callable[[], Any]
        if kind == "local":
            create_backend = lambda: LocalBackend(folder, secret_keys=KEYS)  # noqa: E731
        else:
            server = stack.enter_context(RedisServer(folder, kind))
            create_backend = lambda: RedisBackend(server.url, prefix="test", secret_keys=KEYS)  # noqa: E731
        clients: list[Client] = []
        for _ in range(2):
            host = await stack.enter_async_context(Host(policy=policy))
            host.add("far", far, protocol_version="2025-11-25")
            app = host.as_server(cluster=create_backend(), secret_keys=KEYS)
            stack.push_async_callback(app.stop)
            clients.append(await stack.enter_async_context(Client(app, elicitation_handler=lambda _: None)))
        yield clients


def answer(asked: Any, **content: Any) -> dict[str, Any]:
    answers = {key: {"action": "accept", "content": content} for key in asked["inputRequests"]}
    return {"inputResponses": answers, "requestState": asked["requestState"]}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_parked_call_continues_at_another_worker(kind: str, private_folder: Path) -> None:
    far = UpstreamServer()
    async with run_clients(kind, private_folder, far, Policy("allow")) as (first, second):
        asked = await first.request("tools/call", ASK)
        asked_again = await second.request("tools/call", ASK | answer(asked, value="Ada"))
        result = await second.request("tools/call", ASK | answer(asked_again, value=36))
        assert "Ada 36" in str(result["content"])
        assert far.calls == ["ask"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consent_answer_is_accepted_by_one_worker(kind: str, private_folder: Path) -> None:
    far = UpstreamServer()
    async with run_clients(kind, private_folder, far, Policy("ask")) as (first, second):
        answers = answer(await first.request("tools/call", ADD), allow="once")
        assert (await second.request("tools/call", ADD | answers))["resultType"] == "complete"
        for client in (first, second):
            assert (await client.request("tools/call", ADD | answers))["resultType"] == "input_required"
        assert far.calls == ["add"]

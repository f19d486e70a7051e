"""Test the workers of a gateway: what one of them knows applies at the others."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Context, Policy, RemoteError, Server
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.errors import InvalidParams, RateLimited
from dovetail.host.host import Host
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.protocol.shared_state import SharedStateUnavailable
from dovetail.server.server import get_dispatcher
from dovetail.wire.codec import decode
from dovetail.wire.lifecycle import ClientCapabilities, ElicitationCapability
from host.polling import TIMEOUT_S, wait_until
from host.upstream_server import UpstreamServer
from transports.fake_service import post, stateless_request

KEYS = ["a key with enough bytes"]
OLD, NEW = "2025-11-25", "2026-07-28"
ADD = {"name": "far__add", "arguments": {"a": 1}}
ASK = {"name": "far__ask", "arguments": {}}


class FailingBackend(MemoryBackend):
    """A back end that can be away for single use and for messages."""

    is_away = False

    async def use_once(self, *args: Any, **options: Any) -> bool:
        if self.is_away:
            raise SharedStateUnavailable("away")
        return await super().use_once(*args, **options)

    async def send(self, worker: str, kind: str, body: bytes) -> bool:
        if self.is_away:
            raise SharedStateUnavailable("away")
        return await super().send(worker, kind, body)


class Worker:
    """One worker of a gateway, with a client that is connected to it."""

    def __init__(self, backend: FailingBackend, host: Host, app: Server, client: Client) -> None:
        self.backend = backend
        self.host = host
        self.app = app
        self.client = client

    async def request(self, params: dict[str, Any]) -> Any:
        return await self.client.request("tools/call", params)


@asynccontextmanager
async def run_workers(
    far: Server,
    count: int = 2,
    *,
    policy: Callable[[], Policy] = lambda: Policy("allow"),
    version: str = NEW,
    **options: Any,
) -> AsyncGenerator[list[Worker]]:
    first = FailingBackend()
    backends = [first, *(FailingBackend(first) for _ in range(count - 1))]
    async with AsyncExitStack() as stack, asyncio.timeout(TIMEOUT_S):
        workers: list[Worker] = []
        for backend in backends:
            host = await stack.enter_async_context(Host(policy=policy()))
            host.add("far", far, protocol_version=version)
            app = host.as_server(cluster=backend, secret_keys=KEYS, **options)
            stack.push_async_callback(app.stop)
            client = Client(app, protocol_version=NEW, elicitation_handler=lambda _: None, **options)
            workers.append(Worker(backend, host, app, await stack.enter_async_context(client)))
        yield workers


def answer_consent(asked: Any, allow: str = "once") -> dict[str, Any]:
    answers = {key: {"action": "accept", "content": {"allow": allow}} for key in asked["inputRequests"]}
    return {"inputResponses": answers, "requestState": asked["requestState"]}


def answer(asked: Any, value: Any) -> dict[str, Any]:
    answers = {key: {"action": "accept", "content": {"value": value}} for key in asked["inputRequests"]}
    return {"inputResponses": answers, "requestState": asked["requestState"]}


# Consent


def ask() -> Policy:
    return Policy("ask")


async def test_the_answer_to_a_question_of_another_worker_is_accepted_once() -> None:
    far = UpstreamServer()
    async with run_workers(far, policy=ask) as (first, second):
        answers = answer_consent(await first.request(ADD))
        assert (await second.request(ADD | answers))["resultType"] == "complete"
        for worker in (first, second):
            assert (await worker.request(ADD | answers))["resultType"] == "input_required"
        assert far.calls == ["add"]


async def test_an_answer_stays_valid_while_the_back_end_is_away() -> None:
    far = UpstreamServer()
    async with run_workers(far, policy=ask) as (first, _):
        answers = answer_consent(await first.request(ADD))
        first.backend.is_away = True
        with pytest.raises(RateLimited):
            await first.request(ADD | answers)
        first.backend.is_away = False
        assert (await first.request(ADD | answers))["resultType"] == "complete"
        assert far.calls == ["add"]


async def test_after_a_loss_the_user_is_asked_again() -> None:
    far = UpstreamServer()
    async with run_workers(far, policy=ask) as (first, second):
        answers = answer_consent(await first.request(ADD))
        first.backend._hub.epoch = "another epoch"  # pyright: ignore[reportPrivateUsage]
        again = await second.request(ADD | answers)
        assert again["resultType"] == "input_required"
        assert (await second.request(ADD | answer_consent(again)))["resultType"] == "complete"
        assert far.calls == ["add"]


# Parked calls


async def test_a_parked_call_continues_at_any_worker() -> None:
    far = UpstreamServer()
    async with run_workers(far, 3, version=OLD) as (first, second, third):
        asked = await first.request(ASK)
        asked_again = await second.request(ASK | answer(asked, "Ada"))
        assert asked_again["resultType"] == "input_required"
        result = await third.request(ASK | answer(asked_again, 36))
        assert result["resultType"] == "complete"
        assert "Ada 36" in str(result["content"])
        assert far.calls == ["ask"]


async def test_a_ticket_is_good_once_and_for_its_request() -> None:
    far = UpstreamServer()
    async with run_workers(far, version=OLD) as (first, second):
        asked = await first.request(ASK)
        with pytest.raises(RemoteError) as refused:
            await second.request(ADD | answer(asked, "Ada"))
        assert refused.value.code == InvalidParams.code
        await second.request(ASK | answer(asked, "Ada"))
        for worker in (first, second):
            with pytest.raises(RemoteError) as refused:
                await worker.request(ASK | answer(asked, "Ada"))
            assert refused.value.code == InvalidParams.code


async def test_a_forged_ticket_reaches_no_other_worker() -> None:
    far = UpstreamServer()
    async with run_workers(far, version=OLD) as (first, second):
        asked = await first.request(ASK)
        ticket = asked["requestState"]
        received: list[Any] = []
        cluster = get_dispatcher(first.app).cluster
        assert cluster is not None
        cluster.add_handler("parked.continue", received.append)
        for forged in (ticket[:-1] + ("A" if ticket[-1] != "A" else "B"), "x" + ticket, f"{first.backend.worker}.1.x"):
            with pytest.raises(RemoteError) as refused:
                await second.request(ASK | answer(asked, "Ada") | {"requestState": forged})
            assert refused.value.code == InvalidParams.code
        assert received == []


async def test_the_parked_call_of_a_lost_worker_is_gone() -> None:
    far = UpstreamServer()
    async with run_workers(far, version=OLD) as (first, second):
        asked = await first.request(ASK)
        await first.backend.close()
        with pytest.raises(RemoteError) as refused:
            await second.request(ASK | answer(asked, "Ada"))
        assert refused.value.code == InvalidParams.code


async def test_a_ticket_stays_valid_while_the_back_end_is_away() -> None:
    far = UpstreamServer()
    async with run_workers(far, version=OLD) as (first, second):
        asked = await first.request(ASK)
        second.backend.is_away = True
        with pytest.raises(RateLimited):
            await second.request(ASK | answer(asked, "Ada"))
        second.backend.is_away = False
        assert (await second.request(ASK | answer(asked, "Ada")))["resultType"] == "input_required"


def create_asking_server() -> tuple[Server, list[str], asyncio.Event]:
    app, events, gate = Server("far"), list[str](), asyncio.Event()

    @app.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("Name?", str)
        await ctx.progress(1, 2, "half")
        events.append("answered")
        try:
            await gate.wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        return "done"

    return app, events, gate


async def test_progress_of_a_parked_call_reaches_the_caller_at_the_other_worker() -> None:
    far, events, gate = create_asking_server()
    async with run_workers(far, version=OLD) as (first, second):
        asked = await first.request(ASK)
        messages: list[bytes] = []

        async def emit(message: bytes) -> None:
            messages.append(message)
            gate.set()

        caller = Caller(NEW, True, ClientCapabilities(elicitation=ElicitationCapability()))
        params = ASK | answer(asked, "Ada")
        exchange = IncomingExchange(7, "tools/call", params, {"progressToken": "token"}, caller, emit=emit)
        await get_dispatcher(second.app).handle(exchange)
        (message,) = messages
        expected = {"progressToken": "token", "progress": 1, "total": 2, "message": "half"}
        assert expected.items() <= decode(message)["params"].items()
        assert events == ["answered"]


async def test_a_caller_that_gives_up_cancels_the_call_at_the_other_worker() -> None:
    far, events, _ = create_asking_server()
    async with run_workers(far, version=OLD) as (first, second):
        asked = await first.request(ASK)
        task = asyncio.ensure_future(second.request(ASK | answer(asked, "Ada")))
        await wait_until(lambda: events)
        task.cancel()
        await wait_until(lambda: "cancelled" in events)


async def test_a_message_that_arrives_twice_continues_the_call_once() -> None:
    far, events, gate = create_asking_server()
    async with run_workers(far, version=OLD) as (first, second):
        asked = await first.request(ASK)
        cluster = get_dispatcher(first.app).cluster
        assert cluster is not None
        cluster.add_handler("parked.continue", lambda message: repeated.append(message))
        repeated: list[Any] = []
        task = asyncio.ensure_future(second.request(ASK | answer(asked, "Ada")))
        await wait_until(lambda: events)
        cluster.receive(repeated[0])
        gate.set()
        assert "done" in str((await task)["content"])
        assert events == ["answered"]


async def test_all_paths_of_a_gateway_belong_to_one_worker() -> None:
    far, backend = UpstreamServer(), FailingBackend()
    async with Host(policy=Policy("allow")) as host, asyncio.timeout(TIMEOUT_S):
        host.add("far", far)
        app = host.as_server(cluster=backend, secret_keys=KEYS)
        endpoint = app.asgi()
        await app.start()
        worker = backend.worker
        for path, name in (("/mcp", "far__add"), ("/servers/far/mcp", "add"), ("/mcp", "far__add")):
            response = await post(endpoint, stateless_request(name=name, arguments={"a": 1}), path=path)
            assert response.last["result"]["resultType"] == "complete"
        assert (backend.worker, backend.get_status().worker_count) == (worker, 1)
        await app.stop()
        assert not backend.get_status().is_available

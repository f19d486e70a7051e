"""Test that one message, definition or list causes only a limited amount of work in one iteration of the event loop.

The tests count function calls or handled items, so that the speed of the machine does not matter.
"""

import asyncio
import contextlib
import gc
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Host, Policy, Server, rule
from dovetail.auth import Principal
from dovetail.error_context import find_similar
from dovetail.errors import InvalidParams, MCPError, NotFound, RemoteError, ServerBusy
from dovetail.host import AuditLog, Grant, SecretResolver, argument
from dovetail.host.config.secret_lookup import get_secret_lookup, mask_error, mask_start
from dovetail.host.consent.consent import ConsentRequest
from dovetail.host.consent.grants import GrantStore
from dovetail.host.gateway.gateway import GatewayNameMap
from dovetail.host.host import get_parts
from dovetail.host.policy import argument_coercion
from dovetail.host.policy.policy import PolicyRequest
from dovetail.host.qualified_names import make_model_name
from dovetail.oauth.authorization_server import store as authorization_store
from dovetail.oauth.authorization_server.store import InMemoryStore, StoreFull
from dovetail.oauth.replay_memory import ReplayMemory
from dovetail.protocol.exchange import (
    LARGE_RESULT_BYTES,
    Caller,
    IncomingExchange,
    WaitingCalls,
    estimate_size,
)
from dovetail.protocol.handshake import create_implicit_session
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.sse import SSEParser
from dovetail.protocol.subscription_filter import TOOLS_LIST_CHANGED
from dovetail.protocol.uri_readings import uri_readings
from dovetail.search import search_index
from dovetail.search.search_index import SearchIndex
from dovetail.server.dispatch.change_notices import Subscriptions
from dovetail.server.items.item_options import CacheHint
from dovetail.server.items.page_cache import PageCache
from dovetail.server.parameters import argument_errors
from dovetail.server.parameters.argument_errors import repair_arguments
from dovetail.server.server import get_dispatcher
from dovetail.transports.http_client import streamable_http
from dovetail.transports.http_client.remote_server import read_events
from dovetail.transports.http_server.endpoint import Endpoint
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.streams.event_log import EventLog
from dovetail.transports.line_protocol import LineProtocol
from dovetail.transports.paced_queue import MAX_LINES_PER_ITERATION, PacedQueue
from dovetail.transports.socket_client import SocketClient
from dovetail.transports.spool import MemoryBudget
from dovetail.types import CallToolResult, TextContent, Tool
from dovetail.wire.codec import encode
from dovetail.wire.tools import ListToolsResult
from support.fake_service import (
    BATCHING,
    INITIALIZED,
    FakeService,
    initialize,
    open_session,
    post,
    request,
    text_result,
)
from support.scripted_server import SILENCE, ScriptedServer, serve_on_socket, serve_over_http, tool_definition

TIMEOUT_S = 30.0
NEWEST = "2026-07-28"


class WorkCounter:
    """Counts the calls of functions, also of those in C, without garbage collections."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        self.calls += event in ("call", "c_call")

    @contextlib.contextmanager
    def counting(self) -> Any:
        previous = sys.getprofile()
        gc.disable()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(previous)
            gc.enable()


def count_calls(work: Callable[[], Any]) -> int:
    counter = WorkCounter()
    with counter.counting():
        work()
    return counter.calls


async def count_calls_of(work: Awaitable[Any]) -> int:
    counter = WorkCounter()
    with counter.counting():
        await work
    return counter.calls


def exchange(method: str, params: dict[str, Any], who: Principal | None = None) -> IncomingExchange:
    return IncomingExchange(1, method, params, {}, Caller(NEWEST, is_stateless=True, principal=who))


# Messages


class Pipe:
    """A transport that records what it is asked to do."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_paused = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    @property
    def response_count(self) -> int:
        return b"".join(self.written).count(b"\n")


async def test_a_chunk_of_many_short_lines_is_handled_in_several_iterations() -> None:
    lines, pipe = LineProtocol(FakeService()), Pipe()
    lines.connection_made(pipe)
    line_count = 5 * MAX_LINES_PER_ITERATION
    lines.data_received(b"{}\n" * line_count)
    assert pipe.response_count == MAX_LINES_PER_ITERATION
    assert pipe.is_paused
    lines.data_received(b"{}\n")  # a transport may deliver what it has already read
    assert pipe.response_count == MAX_LINES_PER_ITERATION
    async with asyncio.timeout(TIMEOUT_S):
        while pipe.response_count <= line_count:
            before = pipe.response_count
            await asyncio.sleep(0)
            assert pipe.response_count - before <= 2 * MAX_LINES_PER_ITERATION
    assert pipe.response_count == line_count + 1
    assert not pipe.is_paused
    await lines.close(0)


async def test_an_end_of_input_waits_for_all_lines_of_the_last_chunk() -> None:
    lines, pipe = LineProtocol(FakeService()), Pipe()
    lines.connection_made(pipe)
    line_count = 3 * MAX_LINES_PER_ITERATION
    lines.data_received(b"{}\n" * line_count + b"{}")
    lines.eof_received()
    assert not lines.done.done()
    async with asyncio.timeout(TIMEOUT_S):
        await lines.done
    assert pipe.response_count == line_count + 1
    await lines.close(0)


async def test_a_client_handles_a_chunk_of_many_lines_in_several_iterations() -> None:
    handled: list[Any] = []

    class CountingClient(SocketClient):
        def receive_message(self, data: Any) -> None:
            handled.append(data)

    client, pipe = CountingClient(1000, path="/nothing"), Pipe()
    client.connection_made(pipe)
    line_count = 3 * MAX_LINES_PER_ITERATION
    client.data_received(b"{}\n" * line_count)
    assert len(handled) == MAX_LINES_PER_ITERATION
    assert pipe.is_paused
    async with asyncio.timeout(TIMEOUT_S):
        while pipe.is_paused:  # noqa: ASYNC110 - each iteration of the event loop counts
            await asyncio.sleep(0)
    assert len(handled) == line_count
    client.data_received(b"{}\n" * line_count)
    client.connection_lost(None)
    assert len(handled) == 2 * line_count


async def test_a_paced_queue_keeps_the_order() -> None:
    handled: list[int] = []
    queue = PacedQueue(handled.append, asyncio.get_running_loop())
    queue.extend(range(MAX_LINES_PER_ITERATION + 1))
    queue.extend([MAX_LINES_PER_ITERATION + 1])
    assert len(handled) == MAX_LINES_PER_ITERATION
    async with asyncio.timeout(TIMEOUT_S):
        while queue.is_waiting:  # noqa: ASYNC110 - each iteration of the event loop counts
            await asyncio.sleep(0)
    assert handled == list(range(MAX_LINES_PER_ITERATION + 2))


@pytest.mark.parametrize("size", [1, 1000])
async def test_other_tasks_run_while_many_events_of_a_stream_are_handled(size: int) -> None:
    async def read_chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield (b"data: " + b"x" * size + b"\n\n") * 100

    async def watch() -> None:
        while True:
            counts.append(len(handled))
            await asyncio.sleep(0)

    handled: list[str] = []
    counts: list[int] = []
    watching = asyncio.create_task(watch())
    await read_events(read_chunks(), SSEParser(), lambda event: handled.append(event.data))
    watching.cancel()
    assert len(handled) == 1000
    assert max(after - before for before, after in pairwise(counts)) <= 100


async def test_a_client_handles_a_chunk_of_many_events_in_several_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[str] = []
    iterations: list[int] = []
    read = streamable_http.read_messages

    def record(data: str) -> Any:
        handled.append(data)
        return read(data)

    async def watch() -> None:
        while True:
            before = len(handled)
            await asyncio.sleep(0)
            iterations.append(len(handled) - before)

    monkeypatch.setattr(streamable_http, "read_messages", record)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    script = ScriptedServer("stateless", {"tools/list": head + b"data: {}\n\n" * 8000})
    async with asyncio.timeout(TIMEOUT_S), serve_over_http(script) as url, Client(url) as client:
        watching = asyncio.create_task(watch())
        with pytest.raises(MCPError):
            await client.list_tools()
        watching.cancel()
    assert len(handled) >= 8000
    assert max(iterations) < 2000


# Subscriptions and changes


@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.parametrize("uris", [[f"n:{number}" for number in range(1001)], ["n:" + "x" * 8000] * 40])
async def test_a_subscription_to_too_many_resources_is_refused(uris: list[str], *, is_mounted: bool) -> None:
    app = Server("notes")
    app.add_resource(lambda id: id, "n:{id}")
    if is_mounted:
        app.mount(Client(Server("inner")), "in")
    params = {"notifications": {"resourceSubscriptions": uris}}
    with pytest.raises(InvalidParams) as refused:
        await get_dispatcher(app).handle(exchange("subscriptions/listen", params))
    assert refused.value.data == {"field": "notifications.resourceSubscriptions"}
    await app.stop()


async def test_the_rules_for_many_resources_are_applied_in_slices() -> None:
    app = Server("notes")
    app.add_resource(lambda id: id, "n:{id}", scopes=["read"])
    checked, iterations = list[str](), list[int]()
    dispatcher = get_dispatcher(app)
    find_resource = dispatcher.visibility.find_resource

    def record(uri: str, principal: Any) -> Any:
        checked.append(uri)
        return find_resource(uri, principal)

    dispatcher.visibility.find_resource = record  # type: ignore[method-assign]
    reader = Principal("ada", scopes=["read"])
    params = {"notifications": {"resourceSubscriptions": [f"n:{number}" for number in range(500)]}}
    listening = asyncio.create_task(dispatcher.handle(exchange("subscriptions/listen", params, reader)))
    async with asyncio.timeout(TIMEOUT_S):
        while len(checked) < 500:
            before = len(checked)
            await asyncio.sleep(0)
            iterations.append(len(checked) - before)
    assert max(iterations) <= 100
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


class Listener:
    def __init__(self, received: list[tuple[str, str | None]]) -> None:
        self._received = received

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        return True

    def deliver(self, method: str, uri: str | None) -> None:
        self._received.append((method, uri))


async def test_a_change_reaches_many_listeners_in_several_iterations() -> None:
    subscriptions, received = Subscriptions(), list[tuple[str, str | None]]()
    for _ in range(2000):
        subscriptions.subscribe(Listener(received))
    subscriptions.publish(TOOLS_LIST_CHANGED)
    async with asyncio.timeout(TIMEOUT_S):
        while len(received) < 2000:
            before = len(received)
            await asyncio.sleep(0)
            assert len(received) - before <= 500


async def test_equal_changes_that_wait_are_delivered_once_and_in_order() -> None:
    subscriptions, received = Subscriptions(), list[tuple[str, str | None]]()
    for _ in range(1000):
        subscriptions.subscribe(Listener(received))
    subscriptions.publish(TOOLS_LIST_CHANGED)
    await asyncio.sleep(0)
    for _ in range(50):  # while the first one is being delivered
        subscriptions.publish("notifications/resources/updated", "n:a")
        subscriptions.publish("notifications/resources/updated", "n:b")
    async with asyncio.timeout(TIMEOUT_S):
        while len(received) < 3000:  # noqa: ASYNC110 - each iteration of the event loop counts
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert [uri for _, uri in received] == [None] * 1000 + ["n:a"] * 1000 + ["n:b"] * 1000


# Names and cursors


def test_similar_names_are_found() -> None:
    assert find_similar("grete", ["greet", "create", "delete"])[0] == "greet"
    assert find_similar("grete", ["x"]) == []
    assert find_similar("x" * 65, ["x" * 65]) == []


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("srvice_7_operation_3207", "service_7_operation_3207"),  # the end is the same
        ("service_7_opxration_3207", "service_7_operation_3207"),
        ("service_7_operation_3207_", "service_7_operation_3207"),  # the start is the same
        ("zzz", None),
    ],
)
def test_similar_names_are_found_in_a_long_list(name: str, similar: str | None) -> None:
    names = [f"service_{number % 50}_operation_{number}" for number in range(4000)]
    matches = find_similar(name, names)
    assert (matches[0] if matches else None) == similar


def test_a_search_for_similar_names_has_a_limit() -> None:
    names = ["a" * 60 + f"{number:04}" for number in range(10_000)]
    few = count_calls(lambda: find_similar("a" * 64, names[:160]))
    # Beyond the limit, a name costs at most one call.
    assert count_calls(lambda: find_similar("a" * 64, names)) < few + len(names)
    # Without a limit, each comparison of these names takes thousands of steps.
    assert few < 160 * 200 + 10 * 20_000


def test_an_unknown_cursor_costs_the_same_for_every_list() -> None:
    cache = PageCache(10, 4096)

    class Item:
        declaration = Tool(name="x", input_schema={"type": "object"})

    def count(item_count: int) -> int:
        items = {f"tool{number}": Item() for number in range(item_count)}
        request = exchange("tools/list", {"cursor": "WyJ0b29scy9saXN0Iiwibm9wZSJd"})

        def ask() -> None:
            with pytest.raises(InvalidParams):
                cache.get_page(cache.current, request, items, "tools", ListToolsResult, CacheHint())

        return count_calls(ask)

    assert count(5000) < count(50) + 100


def test_an_unknown_shortened_name_is_looked_up_without_reading_all_items() -> None:
    def count(item_count: int) -> int:
        items = {f"tool {number} with a name that is much too long for any model": 0 for number in range(item_count)}
        names = GatewayNameMap("far", lambda kind: [items])
        known = next(iter(items))
        assert names.to_inner("tool", make_model_name("far", known)) == known
        return count_calls(lambda: names.to_inner("tool", "far__nothing__0123456789abc"))

    assert count(5000) < count(50) + 100


async def test_a_very_long_name_is_not_compared_with_the_rules() -> None:
    policy = Policy("allow", [rule("deny", tool=f"*{number}*secret*") for number in range(50)])
    long_request = PolicyRequest(server="far", tool="x" * 1_000_000, kind="prompt.get")
    assert policy.decide(long_request).action == "hide"
    assert count_calls(lambda: policy.decide(long_request)) < 20


def test_the_readings_of_a_long_uri_are_computed_once_for_all_rules() -> None:
    uri = "files://host/" + "%2e%2e%2f" * 300
    uri_readings(uri)
    assert count_calls(lambda: uri_readings(uri)) < 10


# Arguments and schemas


def test_all_conditions_of_a_decision_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_coercion, "_MAX_STEPS", 2000)

    def count(rule_count: int) -> int:
        policy = Policy(
            "allow", [rule("deny", when=argument("/tags").matches(f"prod{number}*")) for number in range(rule_count)]
        )
        request = PolicyRequest(server="far", tool="run", arguments={"tags": ["test"] * 1000})
        policy.decide(request)
        return count_calls(lambda: policy.decide(request))

    assert count(40) < 3 * count(4)


def test_a_decision_that_takes_too_many_steps_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_coercion, "_MAX_STEPS", 2000)
    arguments = {"tags": ["test"] * 2001}
    denying = Policy("allow", [rule("deny", when=argument("/tags").matches("prod*"))])
    allowing = Policy("deny", [rule("allow", when=argument("/tags").matches("test*"))])
    for policy in (denying, allowing):
        assert policy.decide(PolicyRequest(server="far", tool="run", arguments=arguments)).action == "deny"


def test_an_explanation_agrees_with_a_decision_that_takes_too_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_coercion, "_MAX_STEPS", 2000)
    arguments = {"tags": ["test"] * 1200}
    rules = [
        rule("allow", when=argument("/tags").matches("prod*", "test*"), reason="first"),
        rule("deny", when=argument("/tags").matches("prod*"), reason="second"),
    ]
    policy = Policy("ask", rules)
    request = PolicyRequest(server="far", tool="run", arguments=arguments)
    decision = policy.decide(request)
    assert (decision.action, decision.rule) == ("deny", rules[1])  # there are too few steps for the second rule
    applies = re.findall(r"rules\[(\d)\].*\n +applies$", policy.explain(request), re.MULTILINE)
    assert applies == ["1", "0"]


def test_rules_that_do_not_match_do_not_format_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    formatted: list[Any] = []
    monkeypatch.setattr("dovetail.host.policy.conditions.format_value", lambda value: formatted.append(value) or "")
    policy = Policy("ask", [rule("allow", when=argument("/path").equals("/tmp"), tool="run")])
    request = PolicyRequest(server="far", tool="run", arguments={"path": "/etc"})
    assert policy.decide(request).action == "ask"
    assert formatted == []


def test_repairing_arguments_takes_a_limited_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_errors, "_MAX_STEPS", 20_000)

    def count(alternatives: int) -> int:
        choice = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(200)}}
        schema = {
            "type": "object",
            "properties": {"items": {"type": "array", "items": {"anyOf": [choice] * alternatives}}},
        }
        arguments = {"items": [{"p0": 1} for _ in range(200)]}
        assert repair_arguments(schema, arguments) == arguments
        return count_calls(lambda: repair_arguments(schema, arguments))

    assert count(60) < 3 * count(6)


def test_arguments_within_the_limit_are_repaired() -> None:
    schema = {"type": "object", "properties": {"ids": {"type": "array", "items": {"type": "integer"}}}}
    assert repair_arguments(schema, {"ids": ["7"] * 5000}) == {"ids": [7] * 5000}


def test_very_long_arguments_are_shortened_before_they_are_formatted() -> None:
    def count(member_count: int) -> int:
        arguments = {f"name{number}": "x" * 20 for number in range(member_count)}
        request = ConsentRequest(kind="tool.call", server="far", tool="run", arguments=arguments)
        assert request.is_shortened
        assert len(request.text) < 60_000
        return count_calls(lambda: (request.text, request.is_shortened))

    assert count(50_000) < 2 * count(10_000)


# Stored values


def test_a_full_replay_memory_does_not_read_all_owners_for_each_id() -> None:
    def count(max_ids: int) -> float:
        memory = ReplayMemory(60.0, max_ids)
        for number in range(max_ids):
            assert memory.add(f"owner{number}", "id", 1000.0, 1000.0)

        def flood() -> None:
            for number in range(max_ids):
                memory.add(f"new{number}", "id", 1001.0, 1001.0)

        return count_calls(flood) / max_ids

    assert count(4000) < 2 * count(400)


def test_only_the_largest_owner_loses_ids() -> None:
    memory = ReplayMemory(60.0, 100)
    for number in range(10):
        assert memory.add("small", number, 1000.0, 1000.0)
    for number in range(200):
        memory.add("large", number, 1000.0 + number / 1000, 1000.0)
    assert all(memory.has("small", number, 1000.0) for number in range(10))
    assert memory.add("small", "another", 999.0, 1000.0)


def run_at_once(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits."""
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


@pytest.mark.parametrize("kind", ["code", "client document"])
def test_a_full_store_does_not_read_all_entries_for_each_new_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization_store, "MAX_ENTRIES", 2000)
    store = InMemoryStore()
    for number in range(2000):
        run_at_once(store.put(kind, f"key{number}", b"", 5000.0 + number, 1000.0))

    def flood() -> None:
        for number in range(100):
            with contextlib.suppress(StoreFull):
                run_at_once(store.put(kind, f"new{number}", b"", 5000.0, 1000.0))

    assert count_calls(flood) < 20_000


async def test_a_store_accepts_entries_again_when_others_have_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization_store, "MAX_ENTRIES", 10)
    store = InMemoryStore()
    for number in range(10):
        await store.put("code", f"key{number}", b"", 1010.0 + number, 1000.0)
    with pytest.raises(StoreFull):
        await store.put("code", "new", b"", 2000.0, 1000.0)
    await store.put("code", "new", b"value", 2000.0, 1011.0)
    assert await store.get("code", "new", 1011.0) == b"value"


@pytest.mark.parametrize("scope", ["session", "always"])
@pytest.mark.parametrize("is_exact", [False, True])
def test_finding_a_grant_does_not_read_all_grants(scope: Any, *, is_exact: bool) -> None:
    def count(grant_count: int) -> int:
        store = GrantStore()
        for number in range(grant_count):
            tool = "run" if is_exact else f"tool{number}"
            request = PolicyRequest(server="far", tool=tool, server_identity="id", arguments={"command": str(number)})
            store.add(Grant.from_request(request, "f", scope=scope, exact_arguments=is_exact))
        unknown = PolicyRequest(server="far", tool="run", server_identity="id", arguments={"command": "other"})
        known = PolicyRequest(
            server="far", tool="run" if is_exact else "tool1", server_identity="id", arguments={"command": "1"}
        )
        assert store.find(known, "f") is not None
        assert store.find(unknown, "f") is None
        return count_calls(lambda: store.find(unknown, "f"))

    assert count(1000) < count(10) + 50


# Definitions of other servers


def make_tools(count: int, words: int) -> list[Tool]:
    description = " ".join(f"word{number}" for number in range(words))
    return [Tool(name=f"tool{number}", description=description, input_schema={}) for number in range(count)]


def test_the_search_index_of_one_server_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "_MAX_WORDS_PER_SERVER", 4000)

    def count(tool_count: int) -> int:
        tools = make_tools(tool_count, 500)
        return count_calls(lambda: SearchIndex(tools, ["far"] * tool_count))

    assert count(100) < 3 * count(10)


def test_many_tools_of_one_server_do_not_shorten_the_index_of_another() -> None:
    tools = [*make_tools(2000, 100), Tool(name="late", description="filler " * 90 + "needle", input_schema={})]
    index = SearchIndex(tools, ["far"] * 2000 + ["near"])
    assert index.search("needle", 1) == [2000]


def list_many(kind: str, count: int) -> dict[str, Any]:
    if kind == "tools":
        return {"tools": [tool_definition(f"tool{number}") for number in range(count)]}
    return {"resources": [{"uri": f"notes://{number}/x", "name": "x"} for number in range(count)]}


@pytest.mark.parametrize("kind", ["tools", "resources"])
async def test_the_policy_is_evaluated_once_per_list_and_in_slices(kind: str) -> None:
    script = ScriptedServer("stateless", {f"{kind}/list": lambda _: list_many(kind, 1500)})
    rules = [rule("hide", tool=f"*secret{number}*") for number in range(3)]
    evaluated: list[str] = []
    iterations: list[int] = []
    async with serve_on_socket(script) as target, Host(policy=Policy("allow", rules), ready_timeout=60) as host:
        host.add("far", target)
        policy = get_parts(host).authorizer.policy
        decide = policy.decide

        def record(request: PolicyRequest) -> Any:
            evaluated.append(request.tool)
            return decide(request)

        policy.decide = record  # type: ignore[method-assign]
        app = host.as_server()
        async with Client(app, cache=False) as client, asyncio.timeout(TIMEOUT_S):
            listing = asyncio.create_task(client.list_tools() if kind == "tools" else client.list_resources())
            while not listing.done():
                before = len(evaluated)
                await asyncio.sleep(0)
                iterations.append(len(evaluated) - before)
            assert len(await listing) == 1500
            assert max(iterations) <= 200
            first_count = len(evaluated)
            assert len(await (client.list_tools() if kind == "tools" else client.list_resources())) == 1500
            assert len(evaluated) == first_count
        await app.stop()


async def test_an_unknown_tool_of_a_gateway_is_refused_without_evaluating_all_tools() -> None:
    script = ScriptedServer("stateless", {"tools/list": lambda _: list_many("tools", 1000)})
    async with serve_on_socket(script) as target, Host(policy=Policy("allow")) as host:
        host.add("far", target)
        app = host.as_server()
        async with Client(app) as client, asyncio.timeout(TIMEOUT_S):
            await client.list_tools()
            policy = get_parts(host).authorizer.policy
            decide, evaluated = policy.decide, list[str]()

            def record(request: PolicyRequest) -> Any:
                evaluated.append(request.tool)
                return decide(request)

            policy.decide = record  # type: ignore[method-assign]
            with pytest.raises(NotFound):
                await client.call_tool("far__tool", {})
            assert len(evaluated) <= 20
        await app.stop()


async def test_a_hidden_tool_is_not_suggested() -> None:
    app = Server("far")
    for name in ("search", "searcher"):
        app.add_tool(lambda: "", name=name)
    async with Host(policy=Policy("allow", [rule("hide", tool="search")])) as host:
        host.add("far", app)
        with pytest.raises(NotFound) as unknown:
            await host.call("far.searchh")
        assert "searcher" in str(unknown.value)
        assert "'search'" not in str(unknown.value)
        assert not str(unknown.value).endswith("search?")


# A server that hangs


@pytest.mark.parametrize("is_gateway", [False, True])
async def test_a_server_that_hangs_delays_only_the_first_list(*, is_gateway: bool) -> None:
    silent = ScriptedServer("stateless", {"tools/list": SILENCE, "resources/list": SILENCE})
    good = Server("good")
    good.add_tool(lambda: "", name="work")
    async with serve_on_socket(silent) as target, Host(policy=Policy("allow"), ready_timeout=0.05) as host:
        host.add("silent", target)
        host.add("first", good)
        host.add("second", good)
        app = host.as_server()
        async with Client(app, cache=False) as client, asyncio.timeout(TIMEOUT_S):

            async def list_tools() -> list[str]:
                tools = await client.list_tools() if is_gateway else await host.list_tools()
                return sorted(tool.name for tool in tools)

            names = await list_tools()
            assert len(names) == 2
            get_parts(host).catalog.ready_timeout = 10 * TIMEOUT_S
            for _ in range(5):
                assert await list_tools() == names
            if is_gateway:
                with contextlib.suppress(MCPError):
                    await client.list_resources()
        await app.stop()


async def test_a_server_that_was_slow_is_waited_for_again_after_it_has_answered() -> None:
    released = asyncio.Event()

    async def list_late(_: Any) -> dict[str, Any]:
        await released.wait()
        return {"tools": [tool_definition("late")]}

    script = ScriptedServer("stateless", {"tools/list": list_late})
    async with serve_on_socket(script) as target, Host(policy=Policy("allow"), ready_timeout=0.05) as host:
        host.add("slow", target)
        async with asyncio.timeout(TIMEOUT_S):
            assert await host.list_tools() == ()
            released.set()
            while not await host.list_tools():  # noqa: ASYNC110 - the host sets no event
                await asyncio.sleep(0.01)
            get_parts(host).catalog.ready_timeout = 10 * TIMEOUT_S
            released.clear()
            supervisor = get_parts(host).servers.get("slow")
            await supervisor.restart()
            listing = asyncio.create_task(supervisor.list_within("prompt", 10 * TIMEOUT_S))
            assert await listing == {}


# Large results


@pytest.mark.parametrize(
    ("result", "is_large"),
    [
        (b"{}", False),
        (b"x" * 100_000, True),
        (CallToolResult(content=[TextContent(text="x")]), False),
        (CallToolResult(content=[TextContent(text="x" * 100_000)]), True),
        (CallToolResult(content=[], structured_content={"a": [1, 2.5, None, True, {"b": "c"}]}), False),
        (CallToolResult(content=[], structured_content={"a": list(range(5000))}), True),
        (CallToolResult(content=[], structured_content={str(number): "x" * 100 for number in range(900)}), True),
        (CallToolResult(content=[], structured_content={"a": object()}), True),
    ],
)
def test_the_size_of_a_result_is_estimated(result: Any, *, is_large: bool) -> None:
    assert (estimate_size(result) >= LARGE_RESULT_BYTES) is is_large


def test_estimating_the_size_of_a_result_has_a_limit() -> None:
    result = CallToolResult(content=[], structured_content={"a": [["x"] * 50] * 500_000})
    assert count_calls(lambda: estimate_size(result)) < 5000


async def test_large_results_that_are_ready_together_are_encoded_in_several_iterations() -> None:
    """Each result needs a part of the iteration, and other tasks run in between."""
    app, release, encoded = Server("large"), asyncio.Event(), list[int]()

    async def produce() -> str:
        await release.wait()
        return "x" * 5_000_000

    async def answer() -> str:
        await release.wait()
        return "small"

    app.add_tool(produce)
    app.add_tool(answer)
    budget = MemoryBudget(8 * 2**20)
    dispatcher = get_dispatcher(app)

    async def call(name: str) -> None:
        request = exchange("tools/call", {"name": name})
        request.buffer = budget
        result = await dispatcher.handle(request)
        size = len(encode(result))
        encoded.append(size)
        if size > 100_000:
            budget.count_encoded(size)

    calls = [asyncio.create_task(call("produce")) for _ in range(10)]
    await asyncio.sleep(0)
    small = asyncio.create_task(call("answer"))
    for _ in range(3):
        await asyncio.sleep(0)
    release.set()
    async with asyncio.timeout(TIMEOUT_S):
        iterations = 0
        while len(encoded) < 11:
            before = len(encoded)
            await asyncio.sleep(0)
            iterations += 1
            assert len([size for size in encoded[before:] if size > 100_000]) <= 1
            if iterations == 3:
                assert small.done()  # a small result does not wait
    await asyncio.gather(*calls, small)


@pytest.mark.parametrize("transport", ["socket", "http"])
@pytest.mark.parametrize("is_batch", [True, False])
async def test_each_large_response_is_counted_once(
    transport: str, monkeypatch: pytest.MonkeyPatch, *, is_batch: bool
) -> None:
    async def work(_: IncomingExchange) -> CallToolResult:
        return text_result("x" * 100_000)

    counted: list[int] = []
    monkeypatch.setattr(MemoryBudget, "count_encoded", lambda budget, size: counted.append(size))
    service = FakeService(work)
    messages = [[request(id=1), request(id=2)]] if is_batch else [request(id=1), request(id=2)]
    if transport == "http":
        app = Endpoint(service)
        session = await open_session(app, BATCHING)
        for message in messages:
            await post(app, message, session)
    else:
        lines, pipe = LineProtocol(service), Pipe()
        lines.connection_made(pipe)
        for message in (initialize(BATCHING), INITIALIZED, *messages):
            lines.data_received(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(TIMEOUT_S):
            while sum(map(len, pipe.written)) < 200_000:  # noqa: ASYNC110 - the pipe sets no event
                await asyncio.sleep(0)
        await lines.close(0)
    assert [size // 100_000 for size in counted] == [1, 1]


# Running calls and sessions


async def test_a_refused_call_does_not_read_all_running_calls() -> None:
    async def count(other_calls: int) -> int:
        app, release = Server("busy"), asyncio.Event()

        async def wait() -> None:
            await release.wait()

        app.add_tool(wait)
        dispatcher = get_dispatcher(app)

        def start(origin: str, size: int = 0) -> Any:
            request = exchange("tools/call", {"name": "wait"})
            request.origin, request.size = origin, size
            return dispatcher.handle(request)

        running = [asyncio.create_task(start("me")) for _ in range(256)]
        running += [asyncio.create_task(start(f"other{number}")) for number in range(other_calls)]
        await asyncio.sleep(0)
        counter = WorkCounter()
        with counter.counting():
            for size in (0, 100_000_000):
                with pytest.raises(ServerBusy):
                    await start("me", size)
        release.set()
        await asyncio.gather(*running)
        return counter.calls

    assert await count(1500) < await count(10) + 50


async def test_calls_that_wait_for_users_are_counted_until_they_end() -> None:
    calls = WaitingCalls()
    request = exchange("tools/call", {"name": "ask"})
    request.waiting_calls, request.origin = calls, "me"
    request.pause(1.0)
    request.pause(2.0)
    assert (calls.total, calls.by_origin["me"]) == (1, 1)
    request.resume(1.0, 3.0)
    assert calls.total == 1
    request.resume(2.0, 3.0)
    assert (calls.total, dict(calls.by_origin)) == (0, {})


async def test_finished_streams_do_not_make_a_session_slow() -> None:
    session = HandshakeSession("id", create_implicit_session(None), None, asyncio.get_running_loop())
    event_log = EventLog(ServerLimits(), MemoryBudget(0))

    def count(streams: int) -> int:
        for _ in range(streams):
            session.store_response(event_log, b"{}")
        return count_calls(lambda: (session.is_idle, session.reader_count))

    assert count(3000) <= count(1)
    stream = session.open_stream(event_log)
    stream.attach(reader := object())
    assert not session.is_idle
    assert session.reader_count == 1
    stream.detach(reader)
    assert session.is_idle


# Texts of servers


async def test_the_secrets_in_a_very_long_text_of_a_server_are_masked_only_at_its_start(tmp_path: Path) -> None:
    masked: list[int] = []
    secrets = SecretResolver({"TOKEN": "the-secret-token"})
    lookup = get_secret_lookup(secrets)
    lookup.remember(["the-secret-token"])
    mask = lookup.mask

    def record(value: Any) -> Any:
        masked.append(len(str(value)))
        return mask(value)

    lookup.mask = record  # type: ignore[method-assign]
    text = "the-secret-token " * 300_000
    error = RemoteError(-1, text)
    mask_error(error, secrets.mask)
    assert "the-secret" not in str(error)
    AuditLog(tmp_path / "audit.jsonl", secrets=secrets).write("call", "far", error=text)
    assert "the-secret" not in (tmp_path / "audit.jsonl").read_text()
    shown = mask_start(text, secrets.mask)
    assert "the-secret" not in shown
    assert max(masked) < 200_000

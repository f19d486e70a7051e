"""Test what the client sends, with a scripted server that records every message."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from behaviour.manifest import requirement
from dovetail import Client, ClientLimits
from dovetail.errors import ElicitationDeclined, InputRequestError, NotSupported, RemoteError, VersionNegotiationError
from dovetail.types import DiscoverResult, Root, ServerCapabilities
from support.driver import STATELESS
from support.scripted_http_server import run_scripted_server
from support.scripted_server import (
    CAPABILITIES,
    LATEST_HANDSHAKE,
    ErrorReply,
    Messages,
    ScriptedServer,
    create_notification,
    encode_message,
    serve_on_socket,
    serve_over_http,
    text_result,
)
from support.sticky_balancer import StickyBalancer

META = "io.modelcontextprotocol/"


def script(revision: str, reactions: dict[str, Any] | None = None, capabilities: Any = CAPABILITIES) -> ScriptedServer:
    """Return a server of a revision."""
    era = "stateless" if revision == STATELESS else "handshake"
    initialized = {
        "protocolVersion": revision,
        "capabilities": capabilities,
        "serverInfo": {"name": "scripted", "version": "1"},
    }
    discovered = {"supportedVersions": [STATELESS], "capabilities": capabilities, "resultType": "complete"}
    first = {"server/discover": discovered} if era == "stateless" else {"initialize": initialized}
    return ScriptedServer(era, first | (reactions or {}))


@asynccontextmanager
async def connect_client(server: ScriptedServer, **options: Any) -> AsyncIterator[Client]:
    async with serve_on_socket(server) as target, Client(target, **options) as client:
        yield client


class AskingServer:
    """A reaction to tools/call that first sends a request to the client and waits for the response."""

    client: Client

    def __init__(self, method: str, params: dict[str, Any], revision: str = LATEST_HANDSHAKE) -> None:
        self.request = {"method": method, "params": params}
        self.revision = revision
        self.received: list[dict[str, Any]] = []
        self.reply: dict[str, Any] = {}

    async def ask(self, **options: Any) -> tuple[dict[str, Any], Any]:
        """Call a tool that asks. Return the client's response, and the text of the tool or the exception."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            def send(message: dict[str, Any]) -> None:
                writer.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")

            call_id = None
            while line := await reader.readline():
                message = json.loads(line)
                self.received.append(message)
                match message.get("method"):
                    case "initialize":
                        result = {"protocolVersion": self.revision, "capabilities": CAPABILITIES}
                        info = {"name": "asking", "version": "1"}
                        send({"id": message["id"], "result": result | {"serverInfo": info}})
                    case "tools/call":
                        call_id = message["id"]
                        send({"id": "question"} | self.request)
                    case None if message.get("id") == "question":
                        self.reply = message
                        send({"id": call_id, "result": text_result("went on")})
                    case _:
                        pass
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            target = f"tcp://127.0.0.1:{port}"
            async with Client(target, protocol_version=self.revision, **options) as self.client:
                value = await self.client.call("ask")
        return self.reply, value


@requirement("client.empty-cursor")
async def test_an_empty_cursor_leads_to_the_next_page(revision: str, transport: str) -> None:
    def list_page(message: dict[str, Any]) -> dict[str, Any]:
        is_first = "cursor" not in message["params"]
        page = {"resources": [{"uri": "x:1" if is_first else "x:2", "name": "x"}], "resultType": "complete"}
        return page | ({"nextCursor": ""} if is_first else {})

    server = script(revision, {"resources/list": list_page})
    async with connect_client(server) as client:
        assert [resource.uri for resource in await client.list_resources()] == ["x:1", "x:2"]
    cursors = [one["params"].get("cursor") for one in server.received if one.get("method") == "resources/list"]
    assert cursors == [None, ""]


@requirement("client.version-header")
async def test_every_request_after_initialize_has_the_version_header(revision: str, transport: str) -> None:
    server = script(revision)
    server.session = "s1"
    async with serve_over_http(server) as url, Client(url, protocol_version=revision) as client:
        await client.list_tools()
    posts = [headers for method, headers in server.heads if method == "POST"]
    methods = [message["method"] for message in server.received]
    assert methods == ["initialize", "notifications/initialized", "tools/list"]
    assert [headers.get("mcp-protocol-version") for headers in posts] == [None, revision, revision]


@requirement("client.undeclared-mode")
@pytest.mark.parametrize(
    ("declared", "params"),
    [
        (
            "elicitation_handler",
            {"mode": "url", "message": "m", "url": "https://example.com", "elicitationId": "1"},
        ),
        (
            "url_elicitation_handler",
            {"mode": "form", "message": "m", "requestedSchema": {"type": "object", "properties": {}}},
        ),
    ],
)
async def test_an_undeclared_elicitation_mode_is_invalid_params(declared: str, params: dict[str, Any]) -> None:
    options: dict[str, Any] = {declared: lambda request: {}}  # pyright: ignore[reportUnknownLambdaType]
    reply, value = await AskingServer("elicitation/create", params).ask(**options)
    assert reply["error"]["code"] == -32602
    assert value == "went on"


@requirement("client.undeclared-mode")
async def test_elicitation_without_any_handler_is_an_unknown_method() -> None:
    params = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
    reply, _ = await AskingServer("elicitation/create", params).ask()
    assert reply["error"]["code"] == -32601


@requirement("client.file-roots")
@pytest.mark.parametrize("root", ["https://example.com/x", "git://example.com/x", Root(uri="https://example.com")])
def test_a_root_without_a_file_uri_is_refused(root: Any) -> None:
    with pytest.raises(ValueError, match="file://"):
        Client("http://127.0.0.1:1/mcp", roots=[root])


@requirement("client.file-roots")
async def test_a_function_cannot_send_a_root_without_a_file_uri() -> None:
    with pytest.raises(InputRequestError):
        await AskingServer("roots/list", {}).ask(roots=lambda: ["https://example.com"])
    reply, value = await AskingServer("roots/list", {}).ask(roots=lambda: ["file:///x"])
    assert reply["result"]["roots"] == [{"uri": "file:///x"}]
    assert value == "went on"


TOOL_USE = {"type": "tool_use", "id": "1", "name": "t", "input": {}}
TOOL_RESULT = {"type": "tool_result", "toolUseId": "1", "content": []}
TEXT = {"type": "text", "text": "x"}
UNBALANCED = [
    [{"role": "assistant", "content": [TOOL_USE]}],
    [{"role": "assistant", "content": [TOOL_USE]}, {"role": "user", "content": [TEXT]}],
    [{"role": "assistant", "content": [TOOL_USE]}, {"role": "user", "content": [TOOL_RESULT, TEXT]}],
    [{"role": "user", "content": [TOOL_RESULT]}],
]


@requirement("client.unbalanced-sampling")
@pytest.mark.parametrize("messages", UNBALANCED)
async def test_an_unbalanced_sampling_request_never_reaches_the_handler(messages: list[dict[str, Any]]) -> None:
    requests: list[Any] = []

    def sample(request: Any) -> str:
        requests.append(request)
        return "answer"

    params = {"messages": messages, "maxTokens": 5}
    reply, value = await AskingServer("sampling/createMessage", params).ask(sampling_handler=sample)
    assert reply["error"]["code"] == -32602
    assert requests == []
    assert value == "went on"


@requirement("client.unbalanced-sampling")
async def test_a_balanced_sampling_request_is_answered() -> None:
    messages = [{"role": "assistant", "content": [TOOL_USE]}, {"role": "user", "content": [TOOL_RESULT]}]
    params = {"messages": messages, "maxTokens": 5}
    reply, _ = await AskingServer("sampling/createMessage", params).ask(sampling_handler=lambda _: "answer")
    assert reply["result"]["content"] == {"type": "text", "text": "answer"}


@requirement("client.rejected-sampling")
async def test_a_rejected_sampling_request_does_not_end_the_call() -> None:
    def sample(request: Any) -> str:
        raise ElicitationDeclined

    params = {"messages": [{"role": "user", "content": TEXT}], "maxTokens": 5}
    reply, value = await AskingServer("sampling/createMessage", params).ask(sampling_handler=sample)
    assert reply["error"]["code"] == -1
    assert value == "went on"


@requirement("client.meta-envelope")
async def test_the_callers_meta_cannot_replace_the_envelope(revision: str, transport: str) -> None:
    server = script(revision)
    meta: dict[str, Any] = {
        META + "protocolVersion": "x",
        META + "clientInfo": {"name": "x", "version": "x"},
        META + "clientCapabilities": {"roots": {}},
        "example.com/kept": 1,
    }
    async with serve_over_http(server) as url, Client(url, tasks=False) as client:
        await client.call_tool("echo", meta=meta)
        await client.call_tool("echo", meta=meta, allow_input_required=True)
        await client.request("tools/call", {"name": "echo", "_meta": {META + "protocolVersion": "x"}})
    calls = [
        (message, headers)
        for message, (_, headers) in zip(server.received, server.heads, strict=True)
        if message["method"] == "tools/call"
    ]
    assert len(calls) == 3
    for message, headers in calls:
        sent = message["params"]["_meta"]
        assert sent[META + "protocolVersion"] == headers["mcp-protocol-version"] == revision
        assert sent[META + "clientInfo"]["name"] == "dovetail"
    for message, _ in calls[:2]:
        assert message["params"]["_meta"]["example.com/kept"] == 1
    assert calls[0][0]["params"]["_meta"][META + "clientCapabilities"] == {}
    assert "sampling" in calls[1][0]["params"]["_meta"][META + "clientCapabilities"]


USES: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "resources/list": lambda client: client.list_resources_page(),
    "resources/templates/list": lambda client: client.list_resource_templates_page(),
    "resources/read": lambda client: client.read_resource("x:1"),
    "resources/subscribe": lambda client: client.subscribe_resource("x:1"),
    "prompts/list": lambda client: client.list_prompts_page(),
    "prompts/get": lambda client: client.get_prompt("p"),
    "completion/complete": lambda client: client.complete("a", "v", prompt="p"),
    "logging/setLevel": lambda client: client.set_logging_level("info"),
}
OPENING = {"server/discover", "initialize", "notifications/initialized"}


def list_sent(server: ScriptedServer) -> list[str]:
    """Return the methods of all messages after the connection was opened."""
    return [message["method"] for message in server.received if message["method"] not in OPENING]


@requirement("client.server-capabilities")
async def test_requests_without_the_servers_capability_are_not_sent(revision: str, transport: str) -> None:
    server = script(revision, capabilities={"tools": {}})
    async with connect_client(server, protocol_version=revision) as client:
        for method, use in USES.items():
            if (revision, method) in ((STATELESS, "logging/setLevel"), ("2024-11-05", "completion/complete")):
                continue  # a part of each request, and without a capability in that version
            with pytest.raises(NotSupported):
                await use(client)
        assert await client.list_resources() == []
        assert await client.list_resource_templates() == []
        assert await client.list_prompts() == []
        assert list_sent(server) == []


@requirement("client.server-capabilities")
async def test_requests_with_the_servers_capability_are_sent(revision: str, transport: str) -> None:
    uses = {name: use for name, use in USES.items() if revision != STATELESS or "/s" not in name}
    server = script(revision, {name: ErrorReply(-32000) for name in uses})
    async with connect_client(server, protocol_version=revision) as client:
        for use in uses.values():
            with pytest.raises(RemoteError):
                await use(client)
    assert list_sent(server) == [*uses]


@requirement("client.server-capabilities")
async def test_a_subscription_needs_its_own_capability() -> None:
    server = script(LATEST_HANDSHAKE, capabilities={"resources": {}})
    async with connect_client(server, protocol_version=LATEST_HANDSHAKE) as client:
        with pytest.raises(NotSupported):
            await client.subscribe_resource("x:1")
        assert list_sent(server) == []


@requirement("client.server-capabilities")
async def test_a_raw_request_is_sent_without_a_capability() -> None:
    server = script(LATEST_HANDSHAKE, {"prompts/list": {"prompts": []}}, capabilities={})
    async with connect_client(server, protocol_version=LATEST_HANDSHAKE) as client:
        assert await client.request("prompts/list") == {"prompts": []}


@requirement("client.own-capabilities")
async def test_changes_of_roots_are_not_sent_without_roots() -> None:
    server = script(LATEST_HANDSHAKE)
    async with connect_client(server, protocol_version=LATEST_HANDSHAKE) as client:
        with pytest.raises(NotSupported):
            await client.send_roots_list_changed()
    async with connect_client(server, protocol_version=LATEST_HANDSHAKE, roots=["/"]) as client:
        await client.send_roots_list_changed()
        await client.ping()
    assert list_sent(server) == ["notifications/roots/list_changed", "ping"]


@requirement("client.late-progress")
async def test_progress_after_the_result_is_dropped(revision: str, transport: str) -> None:
    def notice(message: dict[str, Any], progress: int) -> bytes:
        params = {"progressToken": message["params"]["_meta"]["progressToken"], "progress": progress}
        return encode_line(create_notification("notifications/progress", **params))

    def call(message: dict[str, Any]) -> bytes:
        result = encode_line({"id": message["id"], "result": text_result()})
        return notice(message, 1) + result + notice(message, 2)  # one write

    reported: list[float] = []
    async with connect_client(script(revision, {"tools/call": call})) as client:
        await client.call_tool("echo", progress_handler=lambda progress, *_: reported.append(progress))
        await client.call_tool("echo")
    assert reported == [1]


def encode_line(message: dict[str, Any]) -> bytes:
    return encode_message(message) + b"\n"


@requirement("client.listen-backoff")
async def test_the_client_waits_longer_each_time_a_server_ends_a_subscription() -> None:
    times: list[float] = []
    enough = asyncio.Event()

    def listen(message: dict[str, Any]) -> Messages:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 6:
            enough.set()
        meta = {"_meta": {META + "subscriptionId": message["id"]}}
        return Messages(
            [
                create_notification("notifications/subscriptions/acknowledged", notifications={}, **meta),
                create_notification("notifications/tools/list_changed", **meta),
                {"resultType": "complete", **meta},
            ]
        )

    server = script(STATELESS, {"subscriptions/listen": listen})
    limits = ClientLimits(reconnect_delay=0.01)
    async with connect_client(server, limits=limits) as client, client.listen(tools=True):
        await asyncio.wait_for(enough.wait(), 10)
    for attempt, (before, after) in enumerate(pairwise(times)):
        assert after - before >= 0.01 * 2**attempt


@requirement("client.other-notifications")
async def test_other_notifications_reach_their_handler(revision: str, transport: str) -> None:
    def call(_: dict[str, Any]) -> Messages:
        return Messages(
            [
                create_notification("notifications/elicitation/complete", elicitationId="1"),
                create_notification("notifications/example/vendor", value=1),
                {"method": "notifications/example/bare"},
                create_notification("notifications/tools/list_changed"),
                text_result(),
            ]
        )

    received: list[tuple[str, Any]] = []
    done = asyncio.Event()

    def handle(method: str, params: dict[str, Any]) -> None:
        received.append((method, params))
        if len(received) == 3:
            done.set()

    async with connect_client(script(revision, {"tools/call": call}), notification_handler=handle) as client:
        await client.call_tool("echo")
        await asyncio.wait_for(done.wait(), 10)
    assert received == [
        ("notifications/elicitation/complete", {"elicitationId": "1"}),
        ("notifications/example/vendor", {"value": 1}),
        ("notifications/example/bare", {}),
    ]


@pytest.mark.parametrize("protocol_version", [None, "draft"])
@requirement("client.progress")
async def test_a_handler_can_report_progress(protocol_version: str | None) -> None:
    params = {
        "messages": [{"role": "user", "content": TEXT}],
        "maxTokens": 5,
        "_meta": {"progressToken": "t", "example.com/x": 1},
    }
    server = AskingServer("sampling/createMessage", params, *([protocol_version] if protocol_version else []))

    async def sample(request: Any) -> str:
        assert request.meta["example.com/x"] == 1
        await server.client.send_progress(request.meta["progressToken"], 0.5, 1, "half")
        return "answer"

    reply, _ = await server.ask(sampling_handler=sample)
    assert "result" in reply
    (progress,) = [one["params"] for one in server.received if one.get("method") == "notifications/progress"]
    if protocol_version == "draft":
        details = {"current": 0.5, "total": 1, "message": "half"}
        assert progress == {"requestId": reply["id"], "progress": details}
    else:
        assert progress == {"progressToken": "t", "progress": 0.5, "total": 1, "message": "half"}


@requirement("client.progress")
async def test_a_stateless_server_gets_no_progress() -> None:
    server = script(STATELESS)
    async with connect_client(server) as client:
        with pytest.raises(NotSupported):
            await client.send_progress(1, 1)
        assert list_sent(server) == []


@requirement("client.cookies")
async def test_a_balancer_with_cookies() -> None:
    async with (
        run_scripted_server(StickyBalancer().answer) as server,
        Client(server.url, protocol_version="handshake") as client,
    ):
        results = [await client.call_tool("where", retry=False) for _ in range(10)]
    assert all(result == results[0] for result in results)


@requirement("client.dialogs")
async def test_the_client_reports_when_a_dialog_opens_and_closes() -> None:
    params = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
    server = AskingServer("elicitation/createDialog", params, "draft")

    def answer(_: Any) -> dict[str, Any]:
        return {}

    reply, _ = await server.ask(elicitation_handler=answer)
    assert reply["result"]["action"] == "accept"
    methods = [one.get("method") for one in server.received]
    assert methods[-3:] == [
        "notifications/elicitation/dialog_opened",
        "notifications/elicitation/dialog_closed",
        None,
    ]


@requirement("client.dialogs")
async def test_a_dialog_without_a_handler_never_opens() -> None:
    params = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
    server = AskingServer("elicitation/createDialog", params, "draft")
    reply, _ = await server.ask()
    assert reply["error"]["code"] == -32601
    assert not any("dialog" in one.get("method", "") for one in server.received)


@requirement("client.prior-discover")
async def test_an_earlier_discover_result_saves_the_request(revision: str, transport: str) -> None:
    server = script(revision, capabilities={"tools": {}})
    async with connect_client(server) as client:
        stored = await client.discover()
    server.received.clear()
    async with connect_client(server, discover_result=stored) as client:
        assert client.protocol_version == revision
        assert client.server_capabilities == stored.capabilities
        await client.call_tool("echo")
    assert [message["method"] for message in server.received] == ["tools/call"]


@requirement("client.prior-discover")
async def test_an_earlier_result_without_a_common_version_is_an_error() -> None:
    stored = DiscoverResult(supported_versions=["1999-01-01"], capabilities=ServerCapabilities())
    async with serve_on_socket(script(STATELESS)) as target:
        for _ in range(2):  # the second time, the client knows that the server is stateless
            with pytest.raises(VersionNegotiationError):
                async with Client(target, discover_result=stored):
                    pass
            async with Client(target):
                pass


@requirement("client.prior-discover")
async def test_a_client_with_a_required_version_need_not_discover(revision: str, transport: str) -> None:
    server = script(revision, capabilities={"tools": {}})
    async with connect_client(server, protocol_version=revision, discover_result=False) as client:
        assert (client.protocol_version, client.instructions) == (revision, None)
        await client.call_tool("echo")
        await client.list_resources()  # the client does not know that the server has none
    assert [message["method"] for message in server.received] == ["tools/call", "resources/list"]


@requirement("client.prior-discover")
@pytest.mark.parametrize("protocol_version", [None, "2025-11-25", "handshake", "draft"])
def test_a_client_without_a_stateless_version_must_negotiate(protocol_version: str | None) -> None:
    with pytest.raises(ValueError, match=STATELESS):
        Client("http://127.0.0.1:1/mcp", protocol_version=protocol_version, discover_result=False)

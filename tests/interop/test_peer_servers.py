"""Test our client with servers of the official SDK and FastMCP: every feature, in both eras.

All tests of a server and a transport share one client, as in a long-running program.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from dovetail import Client, ElicitationDeclined, ImageContent, RemoteError, RequestAwaitingInput, ToolError
from dovetail.errors import InputRequestError, NotFound, NotSupported, RequestTimeout
from dovetail.types import CreateMessageRequestParams, ElicitRequestParams

pytest.importorskip("mcp", reason="mcp, the official SDK, is not installed")
pytest.importorskip("fastmcp", reason="fastmcp is not installed")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="module")]

REVISIONS = {"stateless": "2026-07-28", "handshake": "2025-11-25"}
PATHS = {"http": "/mcp", "sse": "/sse"}
LIBRARIES = ["official", "fast"]
WAYS = ["stdio stateless", "stdio handshake", "http stateless", "http handshake", "sse handshake"]
OSLO = "city://Oslo/profile"
ROOT = Path(__file__).parent


class Desk:
    """Who answers what a server asks, and hears what it logs."""

    def __init__(self) -> None:
        self.seat: dict[str, Any] | None = None
        self.logged: asyncio.Queue[Any] = asyncio.Queue()

    def elicit(self, question: ElicitRequestParams) -> dict[str, Any]:
        assert question.message == "Which seat?"
        if self.seat is None:
            raise ElicitationDeclined
        return self.seat

    async def sample(self, question: CreateMessageRequestParams) -> str:
        assert question.system_prompt == "Be brief."
        assert question.max_tokens == 50
        return "forty-two"


class Peer(NamedTuple):
    """A server, how it is reached, and a client that has reached it."""

    library: str
    transport: str
    era: str
    client: Client
    desk: Desk


Reach = Callable[[str, str], Any]
PROGRAMS = {"official": "official_sdk_server.py", "fast": "fastmcp_server.py"}


@pytest.fixture(scope="module")
def reach(start: Callable[..., Any], free_port: Callable[[], int]) -> Reach:
    """What to give a client to reach a server; those over HTTP are started once."""
    urls: dict[tuple[str, str], str] = {}

    def reach(library: str, transport: str) -> Any:
        command = [sys.executable, str(ROOT / PROGRAMS[library]), transport]
        if transport == "stdio":
            return command
        if (library, transport) not in urls:
            port = free_port()
            url = urls[library, transport] = f"http://127.0.0.1:{port}{PATHS[transport]}"
            # Uvicorn cleans up, then lets the signal have its way.
            start([*command, str(port)], dict(os.environ), url=url, leaves=-signal.SIGTERM)
        return urls[library, transport]

    return reach


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[(library, way) for library in LIBRARIES for way in WAYS], ids=" ".join
)
async def peer(request: pytest.FixtureRequest, reach: Reach) -> AsyncIterator[Peer]:
    library, way = request.param
    transport, era = way.split()
    desk = Desk()
    target = reach(library, transport)
    handlers: dict[str, Any] = {"elicitation_handler": desk.elicit, "sampling_handler": desk.sample, "roots": [ROOT]}
    async with Client(target, protocol_version=era, log_handler=desk.logged.put_nowait, **handlers) as client:
        yield Peer(library, transport, era, client, desk)


@pytest.fixture
def client(peer: Peer) -> Client:
    return peer.client


# Opening


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
async def test_the_era_is_found_out(reach: Reach, library: str, transport: str) -> None:
    async with Client(reach(library, transport)) as client:
        assert client.protocol_version == REVISIONS["handshake" if transport == "sse" else "stateless"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_every_revision_they_speak(reach: Reach, library: str, transport: str, revision: str) -> None:
    async with Client(reach(library, transport), protocol_version=revision) as client:
        assert client.protocol_version == revision
        assert "Hello, Ada!" in (await client.call_tool("greet", {"name": "Ada"})).content[0].text


async def test_opening(peer: Peer) -> None:
    client = peer.client
    assert client.protocol_version == REVISIONS[peer.era]
    assert client.server_info is not None
    assert (client.server_info.name, client.server_info.version) == (peer.library, "1.2.3")
    assert client.instructions == "Try anything."
    assert REVISIONS[peer.era] in (await client.discover()).supported_versions
    await client.ping()


# Tools


async def test_calls(client: Client) -> None:
    assert await client.call("greet", name="é" * 100_000) == f"Hello, {'é' * 100_000}!"
    assert await client.call("primes", below=10) == [2, 3, 5, 7]
    assert await client.call("judge") == {"result": "fine"}
    tools = {tool.name: tool for tool in await client.list_tools()}
    assert tools["forecast"].output_schema is not None
    assert await client.call("forecast", city="Oslo", days=1) == {"city": "Oslo", "celsius": [20.5]}
    assert await client.call("primes", below=10) == [2, 3, 5, 7]
    assert await client.call("judge") == {"result": "fine"}
    (image,) = await client.call("picture")
    assert isinstance(image, ImageContent)
    results = await asyncio.gather(*(client.call("primes", below=n) for n in range(20)))
    assert results[12] == [2, 3, 5, 7, 11]


async def test_calls_that_fail(client: Client) -> None:
    with pytest.raises(ToolError, match="The kettle is empty"):
        await client.call("fail")
    assert (await client.call_tool("fail")).is_error
    with pytest.raises((ToolError, RemoteError)):
        await client.call("primes", below="many")
    with pytest.raises((ToolError, RemoteError)):
        await client.call("no_such_tool")
    with pytest.raises(RemoteError) as unknown:
        await client.request("no/such/method")
    assert unknown.value.code == -32601


async def test_headers_of_a_call(peer: Peer) -> None:
    await peer.client.list_tools()
    mirrored = (peer.transport, peer.era) == ("http", "stateless")
    assert await peer.client.call("locate", region="eu") == ("eu eu" if mirrored else "eu None")
    # Not ASCII, so it travels encoded; the official server decodes it and holds it against the argument.
    assert (await peer.client.call("locate", region="Zürich")).startswith("Zürich ")


async def test_a_header_is_learnt_from_a_refusal(reach: Reach) -> None:
    async with Client(reach("official", "http")) as client:
        assert await client.call("locate", region="eu") == "eu eu"


async def test_progress(client: Client, inbox: Any) -> None:
    await client.call_tool("climb", {"steps": 3}, progress_handler=lambda *told: inbox.put(told))
    assert inbox.rest() == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_a_call_that_is_cancelled(client: Client, inbox: Any, request: pytest.FixtureRequest) -> None:
    label = request.node.name
    call = asyncio.create_task(
        client.call_tool("hang", {"label": label}, progress_handler=lambda *told: inbox.put(told))
    )
    assert (await inbox.take())[2] == "hanging"
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await client.call("await_stopped", label=label) == f"{label} was stopped"


async def test_a_call_that_takes_too_long(client: Client, request: pytest.FixtureRequest) -> None:
    label = request.node.name
    with pytest.raises(RequestTimeout):
        await client.call_tool("hang", {"label": label}, timeout=0.5)
    assert await client.call("await_stopped", label=label) == f"{label} was stopped"


async def test_logs(peer: Peer) -> None:
    assert await peer.client.call("speak") == "spoken"
    async with asyncio.timeout(20):
        message = await peer.desk.logged.get()
    assert message.level == "info"
    assert "speaking" in str(message.data)


# Resources, prompts, completion


async def test_resources(client: Client) -> None:
    assert {one.uri for one in await client.list_resources()} == {"note://welcome", "note://logo"}
    assert [one.uri_template for one in await client.list_resource_templates()] == ["city://{name}/profile"]
    assert await client.read("note://welcome") == "Welcome!"
    assert await client.read("note://logo") == b"\x89PNG\r\n\x1a\n"
    assert await client.read(OSLO) == "Oslo is a city."
    with pytest.raises(NotFound):
        await client.read("note://nowhere")


async def test_prompts_and_completion(client: Client) -> None:
    (prompt,) = await client.list_prompts()
    assert prompt.name == "packing"
    filled = await client.get_prompt("packing", {"city": "Oslo"})
    assert filled.messages[0].content.text == "What should I pack for Oslo?"
    assert (await client.complete("city", "Os", prompt="packing")).values == ["Oslo", "Osaka", "Ostrava"]
    assert (await client.complete("name", "Z", template="city://{name}/profile")).values == ["Zürich"]
    with pytest.raises(RemoteError):
        await client.get_prompt("no_such_prompt")


# Questions


async def test_a_form(peer: Peer) -> None:
    peer.desk.seat = {"row": 12}
    assert await peer.client.call("book", flight="SK 461") == "SK 461 in row 12, by the window"
    peer.desk.seat = None
    with pytest.raises(ToolError, match="decline"):
        await peer.client.call("book", flight="SK 461")


async def test_a_model_is_asked(client: Client) -> None:
    assert await client.call("wonder") == "It says forty-two"


async def test_roots(client: Client) -> None:
    assert await client.call("look_around") == ROOT.as_uri()


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_form_answered_elsewhere(reach: Reach, library: str) -> None:
    url, desk = reach(library, "http"), Desk()
    async with Client(url, elicitation_handler=desk.elicit) as client:
        pending = await client.call_tool("book", {"flight": "SK 461"}, allow_input_required=True)
        assert isinstance(pending, RequestAwaitingInput)
    async with Client(url, elicitation_handler=desk.elicit) as client:
        again = RequestAwaitingInput.load(pending.dump())
        (key,) = again.input_requests
        result = await client.resume(again, {key: {"action": "accept", "content": {"row": 1, "window": False}}})
        assert result.content[0].text == "SK 461 in row 1, by the aisle"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("era", REVISIONS)
async def test_no_handler(reach: Reach, library: str, era: Any) -> None:
    async with Client(reach(library, "http"), protocol_version=era) as client:
        with pytest.raises((ToolError, RemoteError, InputRequestError)):
            await client.call("book", flight="SK 461")
        assert await client.call("greet", name="Ada") == "Hello, Ada!"


# Changes


async def test_a_list_changes(peer: Peer) -> None:
    listening = peer.client.listen(prompts=False, resources=False)
    if (peer.library, peer.era) == ("fast", "stateless"):
        with pytest.raises(NotSupported):
            await anext(aiter(listening))
        return
    async with listening as changes, asyncio.timeout(20):
        await peer.client.call("touch", name="Oslo")
        assert (await anext(aiter(changes))).kind == "tools"


async def test_a_resource_changes(peer: Peer) -> None:
    listening = peer.client.listen(tools=False, prompts=False, resources=False, uris=[OSLO])
    if (peer.library, peer.era) != ("official", "stateless"):
        with pytest.raises(NotSupported):
            await anext(aiter(listening))
        return
    async with listening as changes, asyncio.timeout(20):
        await peer.client.call("touch", name="Oslo")
        change = await anext(aiter(changes))
        assert (change.kind, change.uri) == ("resource", OSLO)

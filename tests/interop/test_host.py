"""Test a host with three servers of different implementations, as a program and as a gateway.

`examples/host.py` runs as a program: our server over HTTP, one of the official SDK over stdio, and server-filesystem
from npm over stdio. A model uses them under the policy, the user consents at the terminal, and the host answers the
requests of the servers. Then the same host is a gateway, and the official client and fastmcp use it in both eras.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("mcp", reason="mcp, the official SDK, is not installed")
pytest.importorskip("fastmcp", reason="fastmcp is not installed")

import fastmcp
import mcp
import mcp_types as types

from dovetail import Client
from support.provider_server import ProviderServer, ScriptedReply

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(120),
    # The peer warns of whatever the newest revision has deprecated.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
NEWEST = {"auto": "2026-07-28", "legacy": "2025-11-25"}


class Picture(NamedTuple):
    """The host at work: what it said while the model used it, what the model was told, and where the gateway is."""

    said: list[str]
    maker: ProviderServer
    url: str
    notes: Path


@pytest.fixture(scope="module")
def picture(
    start: Callable[..., Any],
    npm_server: Callable[..., list[str]],
    free_port: Callable[[], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Picture]:
    folder = tmp_path_factory.mktemp("host")
    notes = folder / "notes.txt"
    notes.write_text("buy tea\n")
    booking = start(
        [sys.executable, "-m", "dovetail", "run", str(ROOT / "examples/booking.py"), "--http", "--port", "0"]
    )
    official = [sys.executable, str(ROOT / "tests/interop/official_sdk_server.py"), "stdio"]
    config = folder / "host.json"
    entries = {"booking": {"url": booking.url}, "official": _entry(official)}
    entries["files"] = _entry(npm_server("filesystem", str(folder)))
    config.write_text(json.dumps({"mcpServers": entries}))
    port = free_port()
    lines = [
        ScriptedReply("First the notes.", (("c1", "files__read_text_file", {"path": str(notes)}),)),
        ScriptedReply(None, (("c2", "files__write_file", {"path": str(notes), "content": "gone"}),)),
        ScriptedReply(None, (("c3", "booking__book", {"flight": "DY 814"}), ("c4", "official__wonder", {}))),
        ScriptedReply("forty-two"),  # what the official server is told when it asks for a model
        ScriptedReply(None, (("c5", "official__book", {"flight": "SK 1"}),)),
        ScriptedReply("All done."),
    ]
    # For each call that is asked about a yes; then the form, or leave to ask the model.
    typed = ["y", "y", "3", "aisle", "y", "y", "y", "y", "7", "true"]
    with ProviderServer(*lines) as maker:
        command = [sys.executable, str(ROOT / "examples/host.py"), str(config), "--port", str(port)]
        keyboard, terminal = os.openpty()  # what comes through a pipe is nobody's word
        process = subprocess.Popen(
            [*command, "--model", f"{maker.url}/v1#local", "--prompt", "Look at my notes and book what I need."],
            stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        os.close(terminal)
        url = f"http://127.0.0.1:{port}/mcp"
        with process:  # which closes its pipe, whatever happens
            try:
                assert process.stdout is not None
                said = _until(process, url, keyboard, typed)
                rest = threading.Thread(target=process.stdout.read)  # so that it never waits for us
                rest.start()
                yield Picture(said, maker, url, notes)
                process.terminate()
                rest.join(PATIENCE)
            finally:
                process.terminate()
                process.wait(PATIENCE)
                os.close(keyboard)


def _entry(command: list[str]) -> dict[str, Any]:
    # On a busy machine, the first list of a server can take longer than the default limit.
    return {"command": command[0], "args": command[1:], "x-dovetail": {"list_timeout": 60}}


def _until(process: "subprocess.Popen[str]", text: str, keyboard: int, typed: list[str]) -> list[str]:
    """Answer the prompts of a program, and return what it says until it says a text."""
    assert process.stdout is not None
    said, answers = "", iter(typed)
    while text not in said or not said.endswith("\n"):
        chunk = os.read(process.stdout.fileno(), 65536).decode()
        assert chunk, said
        said += chunk
        if said.endswith(": "):  # what was typed before a question would not count
            os.write(keyboard, f"{next(answers)}\n".encode())
    return said.splitlines()


def test_one_catalog_of_three_servers(picture: Picture) -> None:
    listed = [line.split()[0] for line in picture.said if line.endswith("tokens)")]
    assert {"booking.book", "official.book", "official.wonder", "files.read_text_file"} <= {*listed}
    assert listed == sorted(listed)
    assert "files.directory_tree" not in listed  # hidden by the policy
    for name in ("booking", "files", "official"):
        assert any(line.startswith(f"{name} ") and "ready" in line for line in picture.said)


def test_policy_and_consent(picture: Picture) -> None:
    told = "\n".join(picture.said)
    assert "buy tea" in told
    assert "files are only read here" in told
    assert picture.notes.read_text() == "buy tea\n"
    asked = [re.search(r"\b(booking|official|files)\b.*\b(book|wonder)\b.*\?$", line) for line in picture.said]
    assert [found.groups() for found in asked if found] == [
        ("booking", "book"),
        ("official", "wonder"),
        ("official", "book"),
    ]


def test_elicitation_and_sampling_answered_by_the_host(picture: Picture) -> None:
    told = "\n".join(picture.said)
    assert re.search(r"\bbooking .*\bform\b", told)
    assert "row 3, aisle" in told
    assert re.search(r"\bofficial .*\bmodel\b", told)
    assert "It says forty-two" in told
    assert re.search(r"\bofficial .*\bform\b", told)
    assert "SK 1 in row 7, by the window" in told
    assert "5 turns" in told
    sampled = picture.maker.requests[3]
    assert [one["content"] for one in sampled["messages"]] == ["Be brief.", "What is the answer?"]
    assert "tea" not in json.dumps(sampled)  # nothing of another server, nor of the conversation


# As a gateway


SEATS = {"booking__book": {"row": 3, "place": "aisle"}, "official__book": {"row": 7, "window": False}}


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


def _official(url: str, mode: str, tool: str, asked: list[str]) -> Any:
    async def fill_in(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        consent = "allow" in params.requested_schema["properties"]
        return types.ElicitResult(action="accept", content={"allow": "once"} if consent else SEATS[tool])

    async def complete(context: Any, params: Any) -> types.CreateMessageResult:
        asked.append(params.messages[0].content.text)
        content = types.TextContent(type="text", text="fifty-four")
        return types.CreateMessageResult(role="assistant", content=content, model="callers")

    return mcp.Client(url, mode=mode, elicitation_callback=fill_in, sampling_callback=complete)


def _fast(url: str, mode: str, tool: str, asked: list[str]) -> Any:
    async def fill_in(message: str, kind: Any, params: Any, context: Any) -> Any:
        asked.append(message)
        consent = "allow" in params.requested_schema["properties"]
        return kind(**({"allow": "once"} if consent else SEATS[tool]))

    def complete(messages: Any, params: Any, context: Any) -> str:
        asked.append(messages[0].content.text)
        return "fifty-four"

    return fastmcp.Client(url, mode=mode, elicitation_handler=fill_in, sampling_handler=complete)


@pytest.fixture(params=[_official, _fast], ids=["mcp", "fastmcp"])
def connect(request: pytest.FixtureRequest, picture: Picture, mode: str) -> Callable[..., Any]:
    return lambda tool="", asked=None: request.param(picture.url, mode, tool, [] if asked is None else asked)


async def test_a_caller_sees_one_server(connect: Callable[..., Any], mode: str, picture: Picture) -> None:
    async with connect() as client:
        assert client.protocol_version == NEWEST[mode]
        listed = await client.list_tools()
        names = {one.name for one in (getattr(listed, "tools", listed))}
        assert {"booking__book", "official__wonder", "files__read_text_file"} <= names
        assert "files__directory_tree" not in names
        assert "buy tea" in str((await client.call_tool("files__read_text_file", {"path": str(picture.notes)})).content)


async def test_the_policy_holds_for_callers(connect: Callable[..., Any], picture: Picture) -> None:
    arguments = {"path": str(picture.notes), "content": "gone"}
    async with connect() as client:
        try:
            refused = str((await client.call_tool("files__write_file", arguments)).content)
        except fastmcp.exceptions.ToolError as exc:
            refused = str(exc)
    assert "files are only read here" in refused
    assert picture.notes.read_text() == "buy tea\n"


@pytest.mark.parametrize(
    ("tool", "said"), [("booking__book", "row 3, aisle"), ("official__book", "row 7, by the aisle")]
)
async def test_consent_and_forms_go_to_the_caller(connect: Callable[..., Any], tool: str, said: str) -> None:
    asked: list[str] = []
    async with connect(tool, asked) as client:
        result = await client.call_tool(tool, {"flight": "DY 814"})
    assert said in str(result.content)
    consent, form = asked
    assert re.search(r"\bbook\b", consent)
    assert form.startswith("Which seat")


async def test_sampling_goes_to_the_caller(connect: Callable[..., Any], picture: Picture) -> None:
    asked: list[str] = []
    before = len(picture.maker.requests)
    async with connect("official__wonder", asked) as client:
        result = await client.call_tool("official__wonder", {})
    assert "It says fifty-four" in str(result.content)
    assert asked[-1] == "What is the answer?"
    assert len(picture.maker.requests) == before  # the host's own model is not the caller's


@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_each_server_has_a_path_of_its_own(picture: Picture, era: Any) -> None:
    base = picture.url.removesuffix("/mcp")
    async with Client(f"{base}/servers/files/mcp", protocol_version=era) as client:
        assert "buy tea" in str(await client.call("read_text_file", path=str(picture.notes)))
    async with Client(f"{base}/search/mcp", protocol_version=era) as client:
        found = await client.call_tool("search_tools", {"query": "book a flight"})
        assert "booking__book" in str(found.content)

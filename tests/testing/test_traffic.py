import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, RemoteError, SyncClient, testing
from dovetail.errors import RequestTimeout
from dovetail.recording.recording_format import FORMAT_VERSION, Frame, RecordingHeader, read_frames
from dovetail.types import ElicitRequestParams
from support.calculator import app
from support.mentions import mentions, values


def unheard(done: float, total: float | None, text: str | None) -> None:
    """Ask for progress, and leave it at that."""


def four(_: ElicitRequestParams) -> dict[str, int]:
    return {"value": 4}


async def test_what_was_said_can_be_asserted() -> None:
    async with testing.connect(app) as client:
        with testing.record_traffic(client) as traffic:
            await client.call("add", a=1, b=2)
            await client.list_tools()
        await client.call("add", a=3, b=4)
    assert [one["method"] for one in traffic.sent()] == ["tools/call", "tools/list"]
    traffic.assert_sent("tools/call", name="add")
    traffic.assert_sent("tools/call", times=1, arguments={"a": 1})
    traffic.assert_not_sent("resources/read")
    traffic.assert_not_sent("tools/call", arguments={"a": 3})
    (answer,) = traffic.responses("tools/call")
    assert answer["result"]["structuredContent"] == {"result": 3}


async def test_an_assertion_that_fails_shows_what_was_said() -> None:
    async with testing.connect(app) as client:
        with testing.record_traffic(client) as traffic:
            await client.call("add", a=1, b=2)
    with pytest.raises(AssertionError) as failed:
        traffic.assert_sent("tools/call", name="subtract")
    asked, was_sent = str(failed.value).split("\n")
    assert mentions(asked, 'tools/call {"name": "subtract"}', 0)
    assert was_sent == '  tools/call {"name": "add", "arguments": {"a": 1, "b": 2}}'
    with pytest.raises(AssertionError, match=values("tools/call", 1, 2)):
        traffic.assert_sent("tools/call", times=2)
    with pytest.raises(AssertionError, match=values("notifications/message", 0)):
        traffic.assert_received("notifications/message")


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_the_opening_and_the_words_of_the_server_are_recorded(revision: str) -> None:
    client = Client(app, protocol_version=revision, elicitation_handler=four)
    with testing.record_traffic(client) as traffic:
        async with client:
            assert await client.call("divide", a=8) == 2
            await client.call_tool("climb", progress_handler=unheard)
    opening = "server/discover" if revision == "2026-07-28" else "initialize"
    assert traffic.sent()[0]["method"] == opening
    traffic.assert_received("notifications/progress", times=3)
    if revision == "2025-11-25":
        traffic.assert_sent("notifications/initialized")
        traffic.assert_received("elicitation/create", message="By what?")
    else:
        traffic.assert_sent("tools/call", inputResponses={"divisor": {"action": "accept"}}, requestState="***")
    await app.stop()


@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_a_call_that_is_given_up_is_recorded(transport: Any) -> None:
    async with testing.connect(app, transport=transport, protocol_version="2025-11-25") as client:
        with testing.record_traffic(client) as traffic, pytest.raises(RequestTimeout):
            await client.call_tool("hold", timeout=0.05)
        (call,) = traffic.sent("tools/call")
        traffic.assert_sent("notifications/cancelled", requestId=call["id"])


async def test_a_stateless_call_over_http_is_given_up_without_a_word() -> None:
    async with testing.connect(app, transport="http", protocol_version="2026-07-28") as client:
        with testing.record_traffic(client) as traffic, pytest.raises(RequestTimeout):
            await client.call_tool("hold", timeout=0.05)
    traffic.assert_not_sent("notifications/cancelled")


@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_an_error_response_is_recorded_however_it_comes(transport: Any) -> None:
    async with testing.connect(app, transport=transport) as client:
        with testing.record_traffic(client) as traffic, pytest.raises(RemoteError):
            await client.request("no/such")
    (answer,) = traffic.responses("no/such")
    assert answer["error"]["code"] == -32601


def test_a_client_that_does_not_await() -> None:
    with SyncClient(app) as client, testing.record_traffic(client) as traffic:
        client.call("add", a=1, b=2)
    traffic.assert_sent("tools/call", name="add")


async def conversation(first: int = 1) -> testing.Traffic:
    """The same words with other ids and, for another `first`, another argument."""
    client = Client(app, elicitation_handler=four)
    async with client:
        for _ in range(first):
            await client.ping()
        with testing.record_traffic(client) as traffic:
            await client.call_tool("add", {"a": 1, "b": 2})
            await client.call_tool("climb", progress_handler=unheard)
            await client.call("divide", a=8)
    await app.stop()
    return traffic


async def test_a_cassette_is_written_once_and_compared_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cassette = tmp_path / "cassettes" / "sums.jsonl"
    with pytest.raises(AssertionError, match=r"sums\.jsonl.*--mcp-record"):
        (await conversation()).assert_matches(cassette)
    monkeypatch.setenv("DOVETAIL_RECORD_CASSETTES", "1")
    (await conversation()).assert_matches(cassette)
    written = cassette.read_bytes()
    (await conversation(3)).assert_matches(cassette)
    assert cassette.read_bytes() == written
    monkeypatch.delenv("DOVETAIL_RECORD_CASSETTES")
    (await conversation(5)).assert_matches(cassette)


@pytest.mark.skipif(os.name == "nt", reason="platform: modes and owners of files")
async def test_a_cassette_is_an_ordinary_file_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_RECORD_CASSETTES", "1")
    new, theirs = tmp_path / "new.jsonl", tmp_path / "theirs.jsonl"
    theirs.write_bytes(b"old")
    # Another user owns the file, for example because root runs the tests in a container.
    monkeypatch.setattr("os.geteuid", lambda: 12345 if os.getuid() != 12345 else 12346)
    monkeypatch.setattr("dovetail.storage._ROOT_USER_ID", -1)
    previous_mask = os.umask(0o022)
    try:
        for cassette in (new, theirs):
            (await conversation()).assert_matches(cassette)
            assert stat.S_IMODE(cassette.stat().st_mode) == 0o644
    finally:
        os.umask(previous_mask)
    assert theirs.read_bytes() == new.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["new.jsonl", "theirs.jsonl"]


async def test_a_difference_is_shown_as_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cassette = tmp_path / "sums.jsonl"
    async with testing.connect(app) as client:
        with testing.record_traffic(client) as one:
            await client.call("add", a=1, b=2)
        with testing.record_traffic(client) as other:
            await client.call("add", a=1, b=5)
    with monkeypatch.context() as patch:
        patch.setenv("DOVETAIL_RECORD_CASSETTES", "1")
        one.assert_matches(cassette)
    with pytest.raises(AssertionError) as failed:
        other.assert_matches(cassette)
    shown = str(failed.value)
    assert re.search(r'^- +"b": 2$', shown, re.MULTILINE)
    assert re.search(r'^\+ +"b": 5$', shown, re.MULTILINE)
    assert "--- cassette" in shown
    assert "+++ traffic" in shown
    with pytest.raises(AssertionError):
        other.assert_matches(cassette, ignore=["b"])
    with monkeypatch.context() as patch:
        patch.setenv("DOVETAIL_RECORD_CASSETTES", "1")
        one.assert_matches(cassette, ignore=["b", "text", "structuredContent"])
    other.assert_matches(cassette, ignore=["b", "text", "structuredContent"])


async def test_a_saved_recording_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "all.jsonl"
    async with testing.connect(app, transport="http") as client:
        with testing.record_traffic(client) as traffic:
            await client.call("add", a=1, b=2)
    traffic.save(place)
    heading, sent, received = read_frames(place.read_bytes().splitlines())
    assert json.loads(place.read_text().splitlines()[0])["server"] == "calculator"
    assert isinstance(heading, RecordingHeader)
    assert (heading.recording, heading.server) == (FORMAT_VERSION, "calculator")
    assert isinstance(sent, Frame)
    assert isinstance(received, Frame)
    assert (sent.headers or {})["mcp-method"] == "tools/call"
    assert 0 <= sent.at <= received.at

"""Test what functions get from their context: the call, state, progress, log messages and questions to the client."""

from typing import Any

from core.library_server import hello
from dovetail import Client, ElicitationDeclined, RequestAwaitingInput, Server
from dovetail.types import CreateMessageRequestParams, ElicitRequestParams


def answer(question: ElicitRequestParams) -> dict[str, Any]:
    assert question.message == "Which seat?"
    return {"row": 7, "window": False}


def decline(question: ElicitRequestParams) -> dict[str, Any]:
    raise ElicitationDeclined


def think(question: CreateMessageRequestParams) -> str:
    return "love and money"


async def test_the_description_of_a_call(client: Client, era: str) -> None:
    versions = {"handshake": "2025-11-25", "stateless": "2026-07-28"}
    assert await client.call("describe_call") == {
        "version": versions[era],
        "client": "dovetail",
        "lifespan": "library is open",
        "principal": None,
        "marked by": ["server", "extension"],
    }


async def test_progress_and_log_messages(target: Server | str, era: str) -> None:
    progress: list[tuple[float, float | None, str | None]] = []
    messages: list[tuple[str, Any]] = []

    async def collect_message(message: Any) -> None:
        messages.append((message.level, message.data))

    async with Client(target, protocol_version=era, log_handler=collect_message, log_level="info") as client:
        result = await client.call_tool(
            "print_pages", {"pages": 2}, progress_handler=lambda *values: progress.append(values)
        )
        await client.ping()
    assert result.text == "printed"
    assert progress == [(1, 2, "page 1"), (2, 2, "page 2")]
    assert messages == [("warning", {"ink": "low"})]


async def test_questions_to_the_client(target: Server | str, era: str, tmp_path: Any) -> None:
    handlers: Any = {"elicitation_handler": answer, "sampling_handler": think, "roots": [tmp_path]}
    async with Client(target, protocol_version=era, **handlers) as client:
        assert await client.call("reserve") == "ticket 1, row 7, aisle"
        assert await client.call("reserve_in_thread") == 7
        assert await client.call("summarize") == "love and money"
        assert await client.call("list_roots") == [tmp_path.as_uri()]


async def test_a_declined_question_ends_the_call(target: Server | str, era: str) -> None:
    async with Client(target, protocol_version=era, elicitation_handler=decline) as client:
        assert (await client.call_tool("reserve")).is_error


async def test_an_answer_later(target: Server | str) -> None:
    async with Client(target, protocol_version="stateless") as client:
        pending = await client.call_tool("reserve", allow_input_required=True)
        assert isinstance(pending, RequestAwaitingInput)
        stored = pending.dump()
    async with Client(target, protocol_version="stateless") as client:
        pending = RequestAwaitingInput.load(stored)
        (key,) = pending.input_requests
        result = await client.resume(pending, {key: {"action": "accept", "content": {"row": 3}}})
        assert result.text == "ticket 1, row 3, window"


async def test_state_of_a_session(http_url: str) -> None:
    async with Client(http_url, protocol_version="handshake", extensions=[hello]) as client:
        assert [await client.call("count_visits") for _ in range(2)] == [1, 2]
    async with Client(http_url, protocol_version="stateless") as client:
        assert (await client.call_tool("count_visits")).is_error


async def test_a_change_of_a_resource(client: Client) -> None:
    async with client.listen(uris=["library://books/1"]) as changes:
        await client.call("change_book", number=2)
        await client.call("change_book", number=1)
        change = await anext(aiter(changes))
        assert (change.kind, change.uri) == ("resource", "library://books/1")


async def test_a_change_of_a_list(client: Client) -> None:
    async with client.listen(tools=True) as changes:
        await client.call("change_tools")
        assert (await anext(aiter(changes))).kind == "tools"

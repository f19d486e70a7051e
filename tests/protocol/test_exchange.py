"""Test an exchange: its messages, its end and its filters."""

import json
from collections.abc import Coroutine
from typing import Any

import pytest

from dovetail.errors import InternalError, InvalidParams
from dovetail.protocol.exchange import (
    LARGE_RESULT_BYTES,
    NO_CAPABILITIES,
    Caller,
    IncomingExchange,
    check_meta_size,
    check_result_size,
    convert_params,
    estimate_size,
)
from dovetail.wire.content import TextContent
from dovetail.wire.progress import ProgressParams
from dovetail.wire.tools import CallToolParams, CallToolResult

NEWEST, FIRST, DRAFT = "2026-07-28", "2024-11-05", "draft"


def exchange(revision: str = NEWEST, **particulars: Any) -> IncomingExchange:
    caller = Caller(revision, revision == NEWEST)
    return IncomingExchange(
        7, "tools/call", particulars.pop("params", {}), particulars.pop("meta", {}), caller, **particulars
    )


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """The value of a coroutine that never waits."""
    with pytest.raises(StopIteration) as done:
        work.send(None)
    return done.value.value


class Said(list[dict[str, Any]]):
    """An `emit` that keeps what it is given."""

    async def __call__(self, data: bytes) -> None:
        self.append(json.loads(data))


class Work:
    """Something that can be cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def test_a_notification_uses_the_version_of_the_caller() -> None:
    progress = ProgressParams(progress_token="t", progress=1, total=2, message="half")
    said = {}
    for revision in (NEWEST, FIRST, DRAFT):
        said[revision] = Said()
        finish(exchange(revision, emit=said[revision]).notify("notifications/progress", progress))
    base = {"jsonrpc": "2.0", "method": "notifications/progress"}
    full = {"progressToken": "t", "progress": 1, "total": 2, "message": "half"}
    assert said[NEWEST] == [base | {"params": full}]
    assert said[FIRST] == [base | {"params": {"progressToken": "t", "progress": 1, "total": 2}}]
    assert said[DRAFT] == [
        base | {"params": {"requestId": 7, "progress": {"current": 1, "total": 2, "message": "half"}}}
    ]


def test_without_a_stream_nothing_is_sent() -> None:
    finish(exchange().notify("notifications/message", {}))


def test_the_first_reason_to_end_counts_and_the_work_is_cancelled_once() -> None:
    work = Work()
    running = exchange(task=work)
    running.end("timeout")
    running.end("cancelled")
    assert (running.verdict, work.cancelled) == ("timeout", 1)


def test_what_does_not_run_yet_cannot_be_ended() -> None:
    waiting = exchange()
    waiting.end("gone")
    assert waiting.verdict is None


@pytest.mark.parametrize("token", ["t", "", 0, 5, 2**60])
def test_a_progress_token_is_a_text_or_a_whole_number(token: Any) -> None:
    assert exchange(meta={"progressToken": token}).progress_token == token


@pytest.mark.parametrize("token", [True, 1.5, [], {}])
def test_no_other_progress_token_is_taken(token: Any) -> None:
    with pytest.raises(InvalidParams, match="progressToken"):
        _ = exchange(meta={"progressToken": token}).progress_token


def test_progress_is_not_wanted_without_a_token() -> None:
    assert exchange().progress_token is None
    assert exchange(meta={"progressToken": None}).progress_token is None


def test_exchanges_compare_by_identity() -> None:
    one, other = exchange(), exchange()
    assert one != other
    assert len({one, other, one}) == 2


def test_callers_share_no_capabilities_they_could_change() -> None:
    assert Caller(NEWEST, True).client_capabilities is NO_CAPABILITIES
    with pytest.raises(AttributeError):
        NO_CAPABILITIES.roots = None  # pyright: ignore[reportAttributeAccessIssue]


def test_typed_parameters() -> None:
    assert convert_params(exchange(params={"name": "add", "arguments": {"a": 1}}), CallToolParams) == CallToolParams(
        name="add", arguments={"a": 1}
    )
    with pytest.raises(InvalidParams, match="name"):
        convert_params(exchange(params={}), CallToolParams)


def test_meta_at_and_over_its_limit() -> None:
    meta = {"note": "x" * 89}
    size = len(b'{"note":""}') + 89
    check_meta_size(exchange(meta=meta), size)
    with pytest.raises(InvalidParams, match=f"_meta.*{size - 1}"):
        check_meta_size(exchange(meta=meta), size - 1)


@pytest.mark.parametrize(
    ("result", "is_large"),
    [
        (b"x" * 10, False),
        (CallToolResult(content=[TextContent(text="x" * 100)]), False),
        (CallToolResult(content=[], structured_content={"a": [1, 2.5, None, True], "b": "text"}), False),
        (CallToolResult(content=[], structured_content={"a": [0] * 900}), False),
        (CallToolResult(content=[], structured_content={"a": [0] * 1100}), True),
        (CallToolResult(content=[], structured_content={"a": object()}), True),
        (CallToolResult(content=[TextContent(text="x" * LARGE_RESULT_BYTES)]), True),
    ],
)
def test_the_size_of_a_result_is_estimated(result: Any, is_large: bool) -> None:
    assert (estimate_size(result) >= LARGE_RESULT_BYTES) is is_large


def test_the_estimated_size_is_that_of_the_texts() -> None:
    result = CallToolResult(content=[TextContent(text="x" * 100)], structured_content={"key": "value"})
    assert 108 <= estimate_size(result) < 200


@pytest.mark.parametrize(
    ("method", "size", "is_refused"), [("tools/call", 99, True), ("tools/call", 100, False), ("ping", 9, False)]
)
def test_only_the_result_of_a_tool_has_a_maximum_size(method: str, size: int, is_refused: bool) -> None:
    running = IncomingExchange(1, method, {}, {}, Caller(NEWEST, True))
    if is_refused:
        with pytest.raises(InternalError, match="larger than 99 bytes"):
            check_result_size(running, b"x" * 100, size)
    else:
        check_result_size(running, b"x" * 100, size)

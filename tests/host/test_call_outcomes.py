"""Test that each call is reported before and after, however it ends, and that the audit log records it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import PolicyError
from dovetail.host.audit_log import AuditLog, attach_audit_log, read_audit_log
from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.events import EventEmitter, HostEvent
from dovetail.host.execution import CallOutcome, build_call_event, build_outcome_event
from dovetail.host.policy.policy import PolicyRequest
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult

QUESTION = PolicyRequest(server="s", tool="t", arguments={"a": 1})


def outcome(result: Any, error: BaseException | None = None) -> CallOutcome:
    call, result = build_call_event(QUESTION), build_outcome_event(QUESTION, time.perf_counter(), result, error)
    assert (call.kind, call.server, call.message, call.details) == ("tool.call", "s", "t", QUESTION)
    assert result.kind == "tool.result"
    return result.details


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (CallToolResult(content=[TextContent(text="x")]), "ok"),
        (CallToolResult(content=[], is_error=True), "error"),
        (b'{"content":[]}', "ok"),
        (b'{"content":[],"isError":true}', "error"),
        (b'{"isError" : true, "content":[]}', "error"),
        (b'{"content":[],"isError":false}', "ok"),
        (b'{"content":[],"structuredContent":{"isError":true}}', "ok"),
        (b'{"content":[{"type":"text","text":"\\"isError\\":true"}]}', "ok"),
        (b'{"content":[],"isError":"yes"}', "error"),
        (b'{"content":[],"isError":false,"isError": true}', "error"),
        (b'{"content":[],"is\\u0045rror":true}', "error"),
        (b'{"content":[{"type":"text","text":"\\u00e9\\u0041"}]}', "ok"),
    ],
)
def test_how_a_call_ended(result: Any, said: str) -> None:
    told = outcome(result)
    assert told.outcome == said
    assert told.result_bytes is not None
    assert told.duration_ms >= 0


@pytest.mark.parametrize("failure", [PolicyError("no"), ValueError("no"), asyncio.CancelledError("no")])
def test_the_failure_of_a_call_is_its_outcome(failure: BaseException) -> None:
    told = outcome(None, failure)
    assert (told.outcome, told.error, told.result_bytes) == (type(failure).__name__, "no", None)


def test_the_audit_log_contains_the_reported_events(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "journal.jsonl") as journal:
        events = EventEmitter()
        attach_audit_log(journal, events, SecretResolver({}))
        events.emit(build_call_event(QUESTION))
        events.emit(build_outcome_event(QUESTION, time.perf_counter(), CallToolResult(content=[]), None))
        events.emit(HostEvent(kind="server.state", server="s", previous_state="idle", state="ready"))
        events.emit(HostEvent(kind="server.log", server="s", message="hello"))  # there may be very many of these
    _, *kept = read_audit_log(tmp_path / "journal.jsonl")
    told: list[Any] = [*kept]
    assert [(one.event, one.server) for one in told] == [("call", "s"), ("server.state", "s")]
    assert (told[0].data["outcome"], told[1].data["state"]) == ("ok", "ready")

"""Noting: each call is told of before and after, however it ends, and a journal keeps it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import PolicyError
from dovetail.host.audit_log import AuditLog, CallOutcome, create_audit_listener, read_audit_log, report_call
from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.events import HostEvent
from dovetail.host.policy.policy import PolicyRequest
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult

QUESTION = PolicyRequest(server="s", tool="t", arguments={"a": 1})


def outcome(events: list[HostEvent]) -> CallOutcome:
    call, result = events
    assert (call.kind, call.server, call.message, call.details) == ("tool.call", "s", "t", QUESTION)
    assert result.kind == "tool.result"
    return result.details


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (CallToolResult(content=[TextContent(text="x")]), "ok"),
        (CallToolResult(content=[], is_error=True), "error"),
        (b"bytes", "ok"),
    ],
)
def test_how_a_call_ended(result: Any, said: str) -> None:
    events: list[HostEvent] = []
    with report_call(QUESTION, events.append) as note:
        note(result)
    told = outcome(events)
    assert told.outcome == said
    assert told.result_bytes is not None
    assert told.duration_ms >= 0


@pytest.mark.parametrize("failure", [PolicyError("no"), ValueError("no"), asyncio.CancelledError("no")])
def test_what_failed_is_told_of_and_goes_on(failure: BaseException) -> None:
    events: list[HostEvent] = []
    with pytest.raises(type(failure)), report_call(QUESTION, events.append):
        raise failure
    told = outcome(events)
    assert (told.outcome, told.error, told.result_bytes) == (type(failure).__name__, "no", None)


def test_a_journal_has_what_was_told(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "journal.jsonl") as journal:
        write = create_audit_listener(journal, SecretResolver({}))
        with report_call(QUESTION, write) as note:
            note(CallToolResult(content=[]))
        write(HostEvent(kind="server.state", server="s", previous_state="idle", state="ready"))
        write(HostEvent(kind="server.log", server="s", message="hello"))  # of which there may be very many
    _, *kept = read_audit_log(tmp_path / "journal.jsonl")
    told: list[Any] = [*kept]
    assert [(one.event, one.server) for one in told] == [("call", "s"), ("server.state", "s")]
    assert (told[0].data["outcome"], told[1].data["state"]) == ("ok", "ready")

"""Test the rules for the records of tasks: status, leases, questions and answers, expiry and encoding."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InternalError, InvalidParams, ProtocolError
from dovetail.protocol.exchange import Caller
from dovetail.protocol.principal import Principal
from dovetail.tasks.task_record import (
    FINAL_STATUSES,
    TaskCaller,
    TaskRecord,
    TaskStoreUnavailable,
    create_task_id,
    decode_record,
    encode_record,
    is_final,
    restore_caller,
    save_caller,
)
from dovetail.tasks.task_rules import (
    WORKER_LOST,
    answer_requests,
    ask_client,
    cancel_task,
    claim_task,
    complete_task,
    compute_due_at,
    continue_task,
    fail_task,
    get_open_requests,
    has_valid_lease,
    park_task,
    release_task,
    report_progress,
    request_cancel,
    save_once_value,
    withdraw_requests,
)
from dovetail.tasks.task_store import TaskConflict, change_task
from dovetail.wire.base import replace
from dovetail.wire.codec import decode, encode
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import ClientCapabilities, ElicitationCapability, Implementation

NOW = 1_760_000_000.0
ACCEPT = {"action": "accept", "content": {"name": "Ada"}}


def make_record(**fields: Any) -> TaskRecord:
    defaults: dict[str, Any] = {
        "id": "task",
        "server": "test",
        "caller": TaskCaller(protocol_version="x"),
        "tool": "report",
        "tool_digest": "d",
        "created_at": NOW,
        "updated_at": NOW,
        "expires_at": NOW + 100,
        "retention": 100.0,
    }
    return TaskRecord(**(defaults | fields))


def make_question(text: str) -> InputRequest:
    return InputRequest(method="elicitation/create", params={"message": text})


def claim(record: TaskRecord, now: float = NOW) -> TaskRecord:
    claimed = claim_task(record, "w", now, 30.0)
    assert claimed is not None
    return claimed


def ask(record: TaskRecord, *keys: str, now: float = NOW) -> TaskRecord:
    return ask_client(record, {key: make_question(key) for key in keys}, now)[0]


EDITS: dict[str, Callable[[TaskRecord], TaskRecord]] = {
    "complete": lambda record: complete_task(record, {"content": []}, NOW + 1),
    "fail": lambda record: fail_task(record, InternalError("no"), NOW + 1),
    "cancel": lambda record: cancel_task(record, NOW + 1),
    "request cancel": lambda record: request_cancel(record, NOW + 1),
    "claim": lambda record: claim_task(record, "w", NOW + 1000, 30.0) or record,
    "release": lambda record: release_task(record, "stopped", NOW + 1),
    "park": lambda record: park_task(record, NOW + 1),
    "continue": lambda record: continue_task(record, NOW + 1),
    "ask": lambda record: ask(record, "a"),
    "answer": lambda record: answer_requests(record, {"open": ACCEPT}, NOW + 1),
    "withdraw": lambda record: withdraw_requests(record, ["open"], NOW + 1),
    "progress": lambda record: report_progress(record, NOW + 1, message="half", progress=1, total=2),
    "once": lambda record: save_once_value(record, "step", 1, NOW + 1),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
@pytest.mark.parametrize("status", sorted(FINAL_STATUSES))
def test_a_final_task_never_changes(status: Any, edit: Callable[[TaskRecord], TaskRecord]) -> None:
    record = replace(ask(make_record(), "open"), status=status)
    assert edit(record) is record


@given(st.lists(st.sampled_from(sorted(EDITS)), max_size=12))
def test_any_order_of_changes_keeps_the_record_consistent(names: list[str]) -> None:
    record = ask(claim(make_record(max_retries=1)), "open")
    for name in names:
        record = EDITS[name](record)
        open_requests = get_open_requests(record)
        assert (record.status == "input_required") == bool(open_requests)
        assert (record.result is not None) == (record.status == "completed")
        assert (record.error is not None) == (record.status == "failed")
        if is_final(record.status):
            assert (record.lease, compute_due_at(record), open_requests) == (None, None, {})
        assert record.attempt <= record.max_retries + 1
        assert record.expires_at is not None
        assert record.expires_at >= NOW + 100


def test_ids_are_unguessable_and_fit_into_a_header() -> None:
    ids = {create_task_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(bytes.fromhex(id)) == 24 for id in ids)


# Claims and leases


def test_a_claim_starts_the_first_attempt_and_is_valid_for_its_lease() -> None:
    record = claim(make_record())
    assert (record.phase, record.attempt, record.status) == ("running", 1, "working")
    assert record.lease is not None
    assert (record.lease.holder, record.lease.expires_at) == ("w", NOW + 30)
    assert has_valid_lease(record, NOW + 29)
    assert not has_valid_lease(record, NOW + 30)
    assert claim_task(record, "other", NOW + 29, 30.0) is None


def test_a_task_without_retries_fails_when_its_worker_is_lost() -> None:
    record = claim_task(claim(make_record()), "other", NOW + 31, 30.0)
    assert record is not None
    assert (record.status, record.lease, record.attempt) == ("failed", None, 1)
    assert record.error is not None
    assert (record.error.code, record.error.message, record.status_message) == (-32603, WORKER_LOST, WORKER_LOST)


def test_retries_are_used_up() -> None:
    record, now, attempts = claim(make_record(max_retries=2)), NOW, [1]
    while not is_final(record.status):
        now += 31
        record = claim(record, now)
        attempts.append(record.attempt)
    assert (record.status, attempts) == ("failed", [1, 2, 3, 3])


def test_a_lost_worker_that_only_waited_does_not_count() -> None:
    record = ask(claim(make_record()), "q")
    assert (record.status, record.phase) == ("input_required", "waiting")
    assert compute_due_at(record) is None
    record = answer_requests(record, {"q": ACCEPT}, NOW + 100)
    assert compute_due_at(record) == NOW + 30
    record = claim(record, NOW + 101)
    assert (record.status, record.phase, record.attempt) == ("working", "running", 1)


def test_a_worker_that_is_lost_after_it_took_an_answer_counts() -> None:
    record = continue_task(answer_requests(ask(claim(make_record()), "q"), {"q": ACCEPT}, NOW), NOW)
    assert (record.phase, record.status) == ("running", "working")
    lost = claim_task(record, "other", NOW + 31, 30.0)
    assert lost is not None
    assert lost.status == "failed"


def test_a_parked_task_is_due_only_after_the_answer() -> None:
    record = park_task(ask(claim(make_record()), "q"), NOW + 1)
    assert (record.lease, compute_due_at(record)) == (None, None)
    record = answer_requests(record, {"q": ACCEPT}, NOW + 50)
    assert compute_due_at(record) == NOW + 50
    assert claim(record, NOW + 50).attempt == 1


@pytest.mark.parametrize(("max_retries", "status", "phase"), [(0, "failed", "running"), (1, "working", "queued")])
def test_a_worker_that_stops_hands_over_only_tasks_with_retries(max_retries: int, status: str, phase: str) -> None:
    record = release_task(claim(make_record(max_retries=max_retries)), "stopped", NOW + 1)
    assert (record.status, record.phase, record.lease) == (status, phase, None)
    assert record.error is None or record.error.message == "stopped"


def test_a_worker_that_stops_hands_over_a_task_that_waits() -> None:
    record = release_task(ask(claim(make_record()), "q"), "stopped", NOW + 1)
    assert (record.status, record.phase, record.lease) == ("input_required", "waiting", None)


# Cancel


def test_a_task_without_a_worker_is_cancelled_at_once() -> None:
    for record in (make_record(), park_task(ask(claim(make_record()), "q"), NOW)):
        assert request_cancel(record, NOW).status == "cancelled"
    assert request_cancel(claim(make_record()), NOW + 31).status == "cancelled"


def test_the_worker_decides_about_a_cancelled_task() -> None:
    record = request_cancel(claim(make_record()), NOW + 1)
    assert (record.status, record.is_cancel_requested) == ("working", True)
    assert request_cancel(record, NOW + 2) is record
    assert complete_task(record, {}, NOW + 2).status == "completed"
    assert release_task(record, "stopped", NOW + 2).status == "cancelled"


def test_a_cancelled_task_of_a_lost_worker_is_not_run_again() -> None:
    record = request_cancel(ask(claim(make_record(max_retries=5)), "q"), NOW + 1)
    assert compute_due_at(record) == NOW + 30
    claimed = claim(record, NOW + 31)
    assert (claimed.status, claimed.lease) == ("cancelled", None)


# Questions and answers


def test_a_subset_of_the_questions_can_be_answered() -> None:
    record = ask(claim(make_record()), "a", "b")
    record = answer_requests(record, {"a": ACCEPT}, NOW)
    assert (record.status, [*get_open_requests(record)]) == ("input_required", ["b"])
    record = answer_requests(record, {"b": ACCEPT}, NOW)
    assert (record.status, get_open_requests(record)) == ("working", {})


def test_answers_without_an_open_question_are_ignored_whatever_they_are() -> None:
    record = ask(claim(make_record()), "a", "b", "c")
    record = answer_requests(record, {"a": ACCEPT}, NOW)
    record = withdraw_requests(record, ["c"], NOW)
    strange = {"unknown-key": {"ignored": True}, "a": 7, "c": None}
    assert answer_requests(record, strange, NOW + 1) is record
    changed = answer_requests(record, strange | {"b": ACCEPT}, NOW + 1)
    assert changed.inputs["a"].response == ACCEPT
    assert changed.status == "working"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("elicitation/create", {"action": "maybe"}),
        ("elicitation/create", None),
        ("sampling/createMessage", {"role": "assistant"}),
        ("roots/list", {"roots": [{}]}),
    ],
)
def test_an_invalid_answer_is_refused_and_nothing_is_stored(method: str, answer: Any) -> None:
    requests = {"a": make_question("a"), "b": InputRequest(method=method)}
    record, _ = ask_client(claim(make_record()), requests, NOW)
    with pytest.raises(InvalidParams) as caught:
        answer_requests(record, {"a": ACCEPT, "b": answer}, NOW)
    assert caught.value.data["field"].startswith("inputResponses.b")
    assert [*get_open_requests(record)] == ["a", "b"]


def test_a_question_that_is_asked_again_keeps_its_key_and_its_answer() -> None:
    record = answer_requests(ask(claim(make_record()), "a"), {"a": ACCEPT}, NOW)
    again, keys = ask_client(record, {"a": make_question("a")}, NOW + 1)
    assert (again is record, keys) == (True, ["a"])


def test_another_question_never_gets_a_used_key() -> None:
    record = answer_requests(ask(claim(make_record()), "a"), {"a": ACCEPT}, NOW)
    record, keys = ask_client(record, {"a": make_question("other")}, NOW)
    assert keys == ["a-2"]
    assert [*get_open_requests(record)] == ["a-2"]
    record, keys = ask_client(record, {"a": make_question("third"), "a-2": make_question("fourth")}, NOW)
    assert keys == ["a-3", "a-2-2"]
    assert ask_client(record, {"a": make_question("other")}, NOW)[1] == ["a-2"]


def test_a_withdrawn_key_is_not_used_again() -> None:
    record = withdraw_requests(ask(claim(make_record()), "a"), ["a"], NOW)
    assert (record.status, get_open_requests(record)) == ("working", {})
    assert ask_client(record, {"a": make_question("a")}, NOW)[1] == ["a-2"]


# Progress, steps, expiry


def test_the_first_value_of_a_step_is_kept() -> None:
    record = save_once_value(make_record(), "step", {"n": 1}, NOW)
    assert save_once_value(record, "step", {"n": 2}, NOW) is record
    assert record.once_values == {"step": {"n": 1}}


def test_an_ended_task_is_kept_for_its_whole_retention_time() -> None:
    assert complete_task(make_record(), {}, NOW + 10).expires_at == NOW + 110
    assert complete_task(make_record(expires_at=None, retention=None), {}, NOW + 10).expires_at is None


def test_a_task_in_use_is_extended_when_half_of_its_time_is_left() -> None:
    assert report_progress(make_record(), NOW + 49, message="x").expires_at == NOW + 100
    assert report_progress(make_record(), NOW + 51, message="x").expires_at == NOW + 151


# Changes against other requests


class OneRecordStore:
    """A store with one record that another request changes first."""

    def __init__(self, record: TaskRecord, conflicts: int) -> None:
        self.record: TaskRecord | None = record
        self.conflicts = conflicts

    async def get(self, id: str) -> TaskRecord | None:
        return self.record

    async def change(self, record: TaskRecord) -> TaskRecord:
        if self.conflicts:
            self.conflicts -= 1
            if self.record is not None:
                self.record = replace(self.record, version=self.record.version + 1, status_message="other")
            raise TaskConflict(record.id, self.record)
        self.record = replace(record, version=record.version + 1)
        return self.record


async def test_a_change_is_repeated_with_the_newest_version() -> None:
    store: Any = OneRecordStore(make_record(), conflicts=3)
    record = await change_task(store, "task", lambda record: save_once_value(record, "a", 1, NOW))
    assert record is not None
    assert (record.version, record.status_message, record.once_values) == (5, "other", {"a": 1})


async def test_a_change_without_an_effect_is_not_stored() -> None:
    store: Any = OneRecordStore(make_record(status="completed"), conflicts=0)
    record = await change_task(store, "task", lambda record: request_cancel(record, NOW))
    assert record is not None
    assert record.version == 1
    store.record = None
    assert await change_task(store, "task", lambda record: request_cancel(record, NOW)) is None


# Encoding


def test_a_record_survives_encoding() -> None:
    caller = Caller(
        protocol_version="x",
        is_stateless=True,
        client_capabilities=ClientCapabilities(elicitation=ElicitationCapability(form={})),
        client_info=Implementation(name="host", version="1"),
        principal=Principal("ada", issuer="https://login.example", scopes="a b", claims={"tenant": 7}),
    )
    record = make_record(caller=save_caller(caller), owner=str(caller.principal), arguments={"big": 2**70, "é": [None]})
    record = answer_requests(ask(claim(record), "a", "b"), {"a": ACCEPT}, NOW)
    record = save_once_value(record, "none", None, NOW)
    for changed in (record, fail_task(record, ProtocolError("no", {"x": 1}), NOW), complete_task(record, {}, NOW)):
        assert decode_record(encode_record(changed)) == changed


@pytest.mark.parametrize(
    "principal",
    [
        Principal("ada"),
        Principal("ada", issuer="https://login.example", client_id="editor", scopes="a b", expires_at=NOW),
        Principal("", client_id="robot", issuer="https://login.example"),
        Principal("with # in it"),
        None,
    ],
)
def test_the_caller_is_the_same_in_another_process(principal: Principal | None) -> None:
    caller = Caller(protocol_version="x", is_stateless=True, principal=principal)
    record = make_record(caller=save_caller(caller), owner=principal and str(principal))
    restored = restore_caller(decode_record(encode_record(record)))
    assert restored == caller
    if principal is not None:
        assert restored.principal is not None
        assert restored.principal.scopes == principal.scopes
        assert (restored.principal.subject, restored.principal.expires_at) == (principal.subject, principal.expires_at)


def test_claims_that_are_not_json_are_left_out() -> None:
    caller = Caller(protocol_version="x", is_stateless=True, principal=Principal("ada", claims={"a": 1, "b": object()}))
    saved = save_caller(caller).principal
    assert saved is not None
    assert saved.claims == {"a": 1}


def test_a_change_keeps_the_members_that_a_newer_release_has_added() -> None:
    encoded = decode(encode_record(make_record()))
    encoded["record"]["added"] = {"later": 1}
    encoded["record"]["caller"]["tenant"] = "acme"
    record = decode_record(encode(encoded))
    changed = decode(encode_record(replace(record, status_message="half", phase="running")))
    assert changed["record"] == encoded["record"] | {"status_message": "half", "phase": "running"}


def test_a_record_of_this_release_is_decoded_without_its_bytes() -> None:
    record = make_record(arguments={"a": 1})
    assert type(decode_record(encode_record(record))) is TaskRecord


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format":1}', b'{"format":1,"record":{}}', b'{"format":1,"record":'])
def test_a_damaged_record_is_refused(data: bytes) -> None:
    with pytest.raises(TaskStoreUnavailable, match="is damaged"):
        decode_record(data)


@pytest.mark.parametrize("members", [{}, decode(encode_record(make_record()))["record"]])
def test_a_record_in_a_newer_format_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(TaskStoreUnavailable, match="format version 2"):
        decode_record(encode({"format": 2, "record": members}))

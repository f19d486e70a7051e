"""Test the messages of the tasks extension against the shapes in the specification."""

from typing import Any

import pytest

from dovetail.errors import InvalidParams, ProtocolError
from dovetail.tasks.task_messages import (
    CancelTaskResult,
    CreateTaskResult,
    DetailedTask,
    GetTaskParams,
    TaskNotificationParams,
    UpdateTaskParams,
    UpdateTaskResult,
    build_create_result,
    build_detailed_task,
    build_notification,
)
from dovetail.tasks.task_record import TaskCaller, TaskRecord
from dovetail.tasks.task_rules import answer_requests, ask_client, cancel_task, complete_task, fail_task
from dovetail.wire.base import replace
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.input_required import InputRequest

NOW = 1_760_000_000.25
RECORD = TaskRecord(
    id="task",
    server="test",
    caller=TaskCaller(protocol_version="x"),
    tool="report",
    tool_digest="d",
    arguments={"secret": "argument"},
    created_at=NOW,
    updated_at=NOW + 1,
    expires_at=NOW + 60,
    retention=60.0,
    poll_interval=0.5,
)
TASK = {
    "taskId": "task",
    "status": "working",
    "createdAt": "2025-10-09T08:53:20.250Z",
    "lastUpdatedAt": "2025-10-09T08:53:21.250Z",
    "ttlMs": 60_000,
    "pollIntervalMs": 500,
}
QUESTIONS = {key: InputRequest(method="elicitation/create", params={"message": key}) for key in ("a", "b")}


def show(record: TaskRecord) -> dict[str, Any]:
    return to_plain(build_detailed_task(record))


def test_a_created_task_is_flat() -> None:
    assert to_plain(build_create_result(RECORD)) == TASK | {"resultType": "task"}


def test_a_task_without_an_expiry_time_has_a_ttl_of_null() -> None:
    record = replace(RECORD, expires_at=None, poll_interval=None)
    created = to_plain(build_create_result(record))
    assert created["ttlMs"] is None
    assert "pollIntervalMs" not in created


def test_times_are_at_least_one_millisecond() -> None:
    created = build_create_result(replace(RECORD, expires_at=NOW, poll_interval=0.0))
    assert (created.ttl_ms, created.poll_interval_ms) == (1, 1)


def test_each_status_shows_only_its_own_details() -> None:
    asked, _ = ask_client(RECORD, QUESTIONS, NOW + 1)
    message = {"method": "elicitation/create", "params": {"message": "b"}}
    assert show(RECORD) == TASK
    answered = answer_requests(asked, {"a": {"action": "decline"}}, NOW + 1)
    assert show(answered) == TASK | {"status": "input_required", "inputRequests": {"b": message}}
    result = {"content": [], "isError": True}
    completed = show(complete_task(answered, result, NOW + 1))
    assert completed == TASK | {
        "status": "completed",
        "result": {"resultType": "complete"} | result,
        "ttlMs": 61_000,
    }
    failed = show(fail_task(answered, ProtocolError("no", {"why": 1}), NOW + 1))
    error = {"code": -32603, "message": "no", "data": {"why": 1}}
    assert failed == TASK | {"status": "failed", "error": error, "statusMessage": "no", "ttlMs": 61_000}
    assert show(cancel_task(answered, NOW + 1)) == TASK | {"status": "cancelled", "ttlMs": 61_000}


def test_a_notification_shows_the_same_as_get() -> None:
    asked, _ = ask_client(RECORD, QUESTIONS, NOW + 1)
    for record in (
        RECORD,
        asked,
        complete_task(RECORD, {"content": []}, NOW),
        fail_task(RECORD, ProtocolError("no"), NOW),
    ):
        assert to_plain(build_notification(record)) == show(record)
    fields = set(DetailedTask.__struct_fields__) - {"result_type"}
    assert set(TaskNotificationParams.__struct_fields__) == fields


def test_acknowledgements_are_empty() -> None:
    assert to_plain(UpdateTaskResult()) == to_plain(CancelTaskResult()) == {}


def test_a_client_reads_each_shape() -> None:
    assert convert(TASK | {"resultType": "task"}, CreateTaskResult) == build_create_result(RECORD)
    # The specification leaves open whether the result of the call has its own resultType.
    task = convert(TASK | {"status": "completed", "result": {"content": []}}, DetailedTask)
    assert task.result == {"content": []}
    assert convert(TASK | {"ttlMs": None}, DetailedTask).ttl_ms is None


@pytest.mark.parametrize(
    "change",
    [{"status": "done"}, {"ttlMs": 0}, {"ttlMs": 1.5}, {"pollIntervalMs": -1}, {"taskId": None}, {"createdAt": 7}],
)
def test_a_client_refuses_other_shapes(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams):
        convert(TASK | change, DetailedTask)
    missing = {key: value for key, value in TASK.items() if key not in change or key == "pollIntervalMs"}
    if missing != TASK:
        with pytest.raises(InvalidParams):
            convert(missing, DetailedTask)


def test_the_answers_of_an_update_are_not_decoded_up_front() -> None:
    responses = {"unknown-key": {"ignored": True}, "other": None}
    assert convert({"taskId": "t", "inputResponses": responses}, UpdateTaskParams).input_responses == responses
    with pytest.raises(InvalidParams):
        convert({"taskId": "t"}, UpdateTaskParams)
    with pytest.raises(InvalidParams):
        convert({}, GetTaskParams)

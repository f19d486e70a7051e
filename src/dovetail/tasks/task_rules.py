"""The rules for the changes of a task record. Task stores and workers use them.

The functions in this module do no I/O. Each one returns a changed copy of a record, or the same object if nothing
changes. The store counts the versions.

A worker holds a lease while it runs a task. If the lease expires, the worker is lost.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from dovetail.error_context import clip
from dovetail.errors import InternalError, InvalidParams, ProtocolError
from dovetail.tasks.task_record import TaskError, TaskInput, TaskLease, TaskRecord, TaskStatus, is_final
from dovetail.wire.base import UNSET, replace
from dovetail.wire.codec import convert, encode_canonical
from dovetail.wire.input_required import InputRequest
from dovetail.wire.methods import METHODS

# Raises ValueError if an answer does not fit its question.
CheckAnswer: TypeAlias = Callable[[InputRequest, Any], None]

UNFINISHED_RETENTION_S: Final = 7 * 86_400.0  # An unfinished task is kept for this long after its expiry time.
WORKER_LOST: Final = "The worker that ran this task was lost"
SERVER_STOPPED: Final = "The server was stopped before this task ended"


def get_open_requests(record: TaskRecord) -> dict[str, InputRequest]:
    """Return the questions that the client has not answered yet."""
    if is_final(record.status):
        return {}
    return {key: task_input.request for key, task_input in record.inputs.items() if task_input.is_open}


def compute_due_at(record: TaskRecord) -> float | None:
    """Return the time at which a task is due for a worker, or None if the task needs no worker.

    No worker is needed if the task has ended, or if the task only waits for answers.

    Args:
        record: The stored record.
    """
    if is_final(record.status):
        return None
    if record.status == "input_required" and record.phase != "running" and not record.is_cancel_requested:
        return None
    return record.updated_at if record.lease is None else record.lease.expires_at


def has_valid_lease(record: TaskRecord, now: float) -> bool:
    """Return whether a worker has the task now."""
    return record.lease is not None and record.lease.expires_at > now


def is_expired(record: TaskRecord, now: float) -> bool:
    """Return whether a record may be deleted. A task that has not ended is kept for some days after its last change."""
    if record.expires_at is None or has_valid_lease(record, now):
        return False
    return record.expires_at <= (now if is_final(record.status) else now - UNFINISHED_RETENTION_S)


def extend_shown_expiry(record: TaskRecord, now: float) -> TaskRecord:
    """Extend the expiry time of an unfinished task before a client sees it, so that the client does not give up."""
    return record if is_final(record.status) else _change_expiry(record, now)


def claim_task(record: TaskRecord, holder: str, now: float, lease_seconds: float) -> TaskRecord | None:
    """Give the lease of a task to a worker. Return None if the task is not due.

    If the task should not run again, return its final record, without a lease.

    Args:
        record: The stored record.
        holder: A new name for the worker and this claim.
        now: The present time in seconds since 1970.
        lease_seconds: The duration of the lease.
    """
    # A task without a lease is due at once, whatever its time says, because the clocks of workers may differ.
    if compute_due_at(record) is None or has_valid_lease(record, now):
        return None
    if record.is_cancel_requested:
        return cancel_task(record, now)
    if record.phase == "running":
        record = release_task(record, WORKER_LOST, now)
        if is_final(record.status):
            return record
    attempt = record.attempt + 1 if record.phase == "queued" else record.attempt
    lease = TaskLease(holder=holder, expires_at=now + lease_seconds)
    return _change(record, now, phase="running", attempt=attempt, lease=lease)


def release_task(record: TaskRecord, reason: str, now: float) -> TaskRecord:
    """Return a task without its lease, because its worker has stopped or is lost.

    A task that waits for answers continues later. A task that has retries left starts again. Other tasks fail with the
    given reason.
    """
    if is_final(record.status):
        return record
    if record.is_cancel_requested:
        return cancel_task(record, now)
    if record.phase != "running":
        return _change(record, now, lease=None)
    if record.attempt <= record.max_retries:
        return _change(record, now, phase="queued", lease=None)
    return fail_task(record, InternalError(reason), now)


def ask_client(record: TaskRecord, requests: Mapping[str, InputRequest], now: float) -> tuple[TaskRecord, list[str]]:
    """Add questions to a task. Return the record, and a key for each question in the order of `requests`.

    Two different questions never have the same key. If an earlier run of the function has asked the same question, the
    question keeps its key and its answer.
    """
    inputs, keys = dict(record.inputs), list[str]()
    for wanted_key, request in requests.items():
        key = _find_key(inputs, wanted_key, request)
        inputs.setdefault(key, TaskInput(request=request))
        keys.append(key)
    if is_final(record.status) or not any(inputs[key].is_open for key in keys):
        return record, keys
    return _change(record, now, inputs=inputs, status="input_required", phase="waiting"), keys


def withdraw_requests(record: TaskRecord, keys: Collection[str], now: float) -> TaskRecord:
    """Withdraw questions that the function no longer needs. Answers to withdrawn questions are ignored."""
    withdrawn = {
        key: replace(task_input, is_withdrawn=True)
        for key, task_input in record.inputs.items()
        if key in keys and task_input.is_open
    }
    return _update_inputs(record, withdrawn, now)


def answer_requests(
    record: TaskRecord, responses: Mapping[str, Any], now: float, check: CheckAnswer | None = None
) -> TaskRecord:
    """Add a client's answers to a task. Ignore answers to questions that are not open.

    Raises:
        InvalidParams: an answer to an open question has the wrong type, or `check` raised ValueError. `data.field`
            names the answer. No answer is added.
    """
    answered: dict[str, TaskInput] = {}
    for key, response in responses.items():
        task_input = record.inputs.get(key)
        if task_input is not None and task_input.is_open:
            _check_response(task_input.request, response, f"inputResponses.{key}", check)
            answered[key] = replace(task_input, response=response)
    return _update_inputs(record, answered, now)


def continue_task(record: TaskRecord, now: float) -> TaskRecord:
    """Mark a waiting task as running, because it has an answer."""
    return record if record.phase != "waiting" or is_final(record.status) else _change(record, now, phase="running")


def park_task(record: TaskRecord, now: float) -> TaskRecord:
    """Release the lease of a task that waits for answers. The task runs again when the answers arrive."""
    if is_final(record.status) or record.is_cancel_requested:
        return release_task(record, WORKER_LOST, now)
    return _change(record, now, phase="waiting", lease=None)


def request_cancel(record: TaskRecord, now: float) -> TaskRecord:
    """Cancel a task. If a worker runs the task, set a flag instead. The worker then cancels the function."""
    if is_final(record.status):
        return record
    if not has_valid_lease(record, now):
        return cancel_task(record, now)
    return record if record.is_cancel_requested else _change(record, now, is_cancel_requested=True)


def complete_task(record: TaskRecord, result: dict[str, Any], now: float) -> TaskRecord:
    """End a task with the result of its call. The result may be a tool error."""
    return _end(record, "completed", now, result=result)


def fail_task(record: TaskRecord, error: ProtocolError, now: float) -> TaskRecord:
    """End a task with a JSON-RPC error."""
    task_error = TaskError(code=error.code, message=error.message, data=UNSET if error.data is None else error.data)
    return _end(record, "failed", now, error=task_error, status_message=error.message)


def cancel_task(record: TaskRecord, now: float) -> TaskRecord:
    """End a task as cancelled."""
    return _end(record, "cancelled", now)


def report_progress(
    record: TaskRecord, now: float, *, message: str | None, progress: float | None = None, total: float | None = None
) -> TaskRecord:
    """Set the status message and the progress of a task."""
    if is_final(record.status) or (record.status_message, record.progress, record.progress_total) == (
        message,
        progress,
        total,
    ):
        return record
    return _change(record, now, status_message=message, progress=progress, progress_total=total)


def save_once_value(record: TaskRecord, key: str, value: Any, now: float) -> TaskRecord:
    """Store the result of a step that must not run twice. The first value for a key is kept."""
    if is_final(record.status) or key in record.once_values:
        return record
    return _change(record, now, once_values=record.once_values | {key: value})


def save_round(
    record: TaskRecord, responses: Mapping[str, Any], author_state: str | None, keys: Collection[str], now: float
) -> TaskRecord:
    """Store the answers to an `InputRequired` result. The next run of the function starts with these answers.

    `keys` are the keys of the answered questions. If the function asks them again, they count as new questions.
    """
    if is_final(record.status):
        return record
    used = {key: replace(record.inputs[key], is_withdrawn=True) for key in keys}
    return _change(
        record,
        now,
        inputs=record.inputs | used,
        input_responses=record.input_responses | dict(responses),
        author_state=author_state,
    )


def extend_expiry(expires_at: float | None, retention: float | None, now: float) -> float | None:
    """Return the expiry time of a task that is in use. If less than half of `retention` is left, extend the time."""
    if expires_at is None or retention is None:
        return expires_at
    return now + retention if expires_at < now + retention / 2 else expires_at


def _change_expiry(record: TaskRecord, now: float) -> TaskRecord:
    expires_at = extend_expiry(record.expires_at, record.retention, now)
    return record if expires_at == record.expires_at else replace(record, expires_at=expires_at)


def _change(record: TaskRecord, now: float, **fields: Any) -> TaskRecord:
    expires_at = extend_expiry(record.expires_at, record.retention, now)
    return replace(record, updated_at=now, **({"expires_at": expires_at} | fields))


def _end(record: TaskRecord, status: TaskStatus, now: float, **fields: Any) -> TaskRecord:
    """Set a final status. The record is then kept for at least its retention time."""
    if is_final(record.status):
        return record
    expires_at = record.expires_at
    if expires_at is not None and record.retention is not None:
        expires_at = max(expires_at, now + record.retention)
    return _change(record, now, status=status, lease=None, expires_at=expires_at, **fields)


def _update_inputs(record: TaskRecord, changed: Mapping[str, TaskInput], now: float) -> TaskRecord:
    """Replace questions in a task record. If no question is open, set the status to working."""
    if not changed or is_final(record.status):
        return record
    inputs = {**record.inputs, **changed}
    has_open = any(task_input.is_open for task_input in inputs.values())
    return _change(record, now, inputs=inputs, status="input_required" if has_open else "working")


def _find_key(inputs: Mapping[str, TaskInput], wanted_key: str, request: InputRequest) -> str:
    """Return a unique key for a question. If `wanted_key` belongs to another question, add a number."""
    encoded_request, key, number = encode_canonical(request), wanted_key, 1
    while key in inputs and not _is_same_question(inputs[key], encoded_request):
        number += 1
        key = f"{wanted_key}-{number}"
    return key


def _is_same_question(task_input: TaskInput, encoded_request: bytes) -> bool:
    # The specification does not allow reusing the key of a withdrawn question.
    return not task_input.is_withdrawn and encode_canonical(task_input.request) == encoded_request


def _check_response(request: InputRequest, response: Any, path: str, check: CheckAnswer | None) -> None:
    row = METHODS.get(request.method)
    if row is not None and row.result is not None:
        convert(response, row.result, label="answer", field=path)
    if check is not None:
        try:
            check(request, response)
        except ValueError as exc:
            raise InvalidParams(f"Invalid params: {path}: {clip(str(exc), 512)}", {"field": path}) from None

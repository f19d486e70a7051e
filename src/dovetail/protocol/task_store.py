"""Durable tasks: the record of a task, the rules for its changes, and the interfaces of task stores and engines.

A task store keeps the records. A task engine only carries task IDs to workers. The functions in this module do no I/O.
Each one returns a changed copy of a record, or the same object if nothing changes. The store counts the versions.

A worker holds a lease while it runs a task. If the lease expires, the worker is lost.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from dovetail.error_context import clip
from dovetail.errors import InternalError, InvalidParams, ProtocolError
from dovetail.protocol.exchange import Caller
from dovetail.protocol.principal import Principal
from dovetail.wire.base import UNSET, Struct, field, replace
from dovetail.wire.codec import convert, encode, encode_canonical
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import ClientCapabilities, Implementation
from dovetail.wire.methods import METHODS

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]
# The state of a task's function: not started, running, or waiting for the client's answers.
# If a worker is lost in phase "running", the task fails unless a retry is allowed.
TaskPhase: TypeAlias = Literal["queued", "running", "waiting"]

# Raises ValueError if an answer does not fit its question.
CheckAnswer: TypeAlias = Callable[[InputRequest, Any], None]

UNFINISHED_RETENTION_S: Final = 7 * 86_400.0  # An unfinished task is kept for this long after its expiry time.
FINAL_STATUSES: Final[frozenset[TaskStatus]] = frozenset({"completed", "failed", "cancelled"})
RECORD_FORMAT: Final = 1  # the format version of an encoded record
WORKER_LOST: Final = "The worker that ran this task was lost"
SERVER_STOPPED: Final = "The server was stopped before this task ended"

_ID_BYTES: Final = 24


class TaskStoreFull(Exception):
    """Raised if a task store, or one owner in the store, already has the maximum number of tasks."""


class TaskStoreUnavailable(Exception):
    """Raised if a task store cannot be read or written at the moment, or if a record is unreadable."""


class TaskEncrypted(TaskStoreUnavailable):
    """Raised if a record is encrypted with a key that the task store does not have."""


class TaskConflict(Exception):
    """Raised if another request has changed or deleted the record.

    Args:
        id: The ID of the task.
        current: The stored record, or None if it was deleted.
    """

    def __init__(self, id: str, current: "TaskRecord | None") -> None:
        super().__init__(f"task {id} was changed by another request" if current else f"task {id} does not exist")
        self.current = current


class TaskInput(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A question to the client, with the answer. A question that is no longer needed is marked as withdrawn."""

    request: InputRequest
    response: Any = UNSET
    is_withdrawn: bool = False

    @property
    def is_open(self) -> bool:
        """Return whether the client can still answer."""
        return self.response is UNSET and not self.is_withdrawn


class TaskError(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The JSON-RPC error of a failed task."""

    code: int
    message: str
    data: Any = UNSET


class TaskLease(Struct, kw_only=True, frozen=True):
    """The right of a worker to run a task. A worker gets a new holder name each time it claims a task."""

    holder: str  # a name for the worker and its claim
    expires_at: float  # when the worker counts as lost, in seconds since 1970


class TaskPrincipal(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The principal that created a task. Its access token is not stored."""

    subject: str
    issuer: str | None = None
    client_id: str | None = None
    scopes: tuple[str, ...] = ()
    claims: dict[str, Any] = field(default_factory=dict)
    expires_at: float | None = None


class TaskCaller(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The caller that created a task, with all data that a worker in another process needs to run the task."""

    protocol_version: str
    client_capabilities: ClientCapabilities = ClientCapabilities()
    client_info: Implementation | None = None
    principal: TaskPrincipal | None = None


class TaskRecord(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Everything that is stored about one task. Times are in seconds since 1970."""

    id: str  # a secret that only the caller knows
    version: int = 1  # increases with each change
    server: str  # the name of the server that runs the task
    owner: str | None = None  # the principal that created the task, or None for an anonymous caller
    caller: TaskCaller  # the caller that created the task
    tool: str  # the name of the tool
    tool_digest: str  # the digest of the tool's definition. The task fails if the tool has changed
    arguments: dict[str, Any] = field(default_factory=dict)  # the arguments of the call
    request_meta: dict[str, Any] = field(default_factory=dict)  # the `_meta` of the request
    created_at: float  # when the task was created
    updated_at: float  # when the task last changed
    expires_at: float | None = None  # when the record may be deleted, or None for never
    retention: float | None = None  # The record is kept for this many seconds after its last change.
    poll_interval: float | None = None  # the seconds that a client should wait between two requests
    status: TaskStatus = "working"  # the status that clients see
    status_message: str | None = None  # the message that clients see
    progress: float | None = None  # how much is done
    progress_total: float | None = None  # the value of `progress` when the work is done
    inputs: dict[str, TaskInput] = field(default_factory=dict)  # all questions of the task, including answered ones
    once_values: dict[str, Any] = field(default_factory=dict)  # the results of steps that must not run twice
    # The answers from before the task was created, and the answers to `InputRequired` results.
    input_responses: dict[str, Any] = field(default_factory=dict)
    request_digests: dict[str, str] = field(default_factory=dict)  # digests of questions asked before the task began
    author_state: str | None = None  # the state that the server's author stored
    result: dict[str, Any] | None = None  # the result of the call, if the task is completed
    error: TaskError | None = None  # the error of the call, if the task has failed
    is_cancel_requested: bool = False  # whether the worker should cancel the function
    phase: TaskPhase = "queued"  # what the function does now
    lease: TaskLease | None = None  # the lease of the worker that runs the task, or None
    attempt: int = 0  # the number of starts. A continuation after an answer does not count
    max_retries: int = 0  # how often the function may start again if its worker is lost


class TaskLimits(Struct, kw_only=True, frozen=True):
    """How many tasks a store may have. Tasks of anonymous callers count only toward the total."""

    max_tasks: int = 100_000  # the maximum number of tasks in the store
    max_tasks_per_owner: int = 1_000  # the maximum number of unfinished tasks of one owner
    max_bytes: int = 4096 * 1024 * 1024  # the maximum size of all records. Only `create` checks it


DEFAULT_LIMITS: Final = TaskLimits()


class TaskStore(Protocol):
    """Keeps the records of tasks. Every method raises TaskStoreUnavailable if the store cannot be used now."""

    async def create(self, record: TaskRecord, limits: TaskLimits = DEFAULT_LIMITS) -> None:
        """Store a new record. When this method returns, the record is durable and every worker can read it.

        Args:
            limits: How many tasks the store may have.

        Raises:
            TaskStoreFull: the store has the maximum number of tasks.
            TaskConflict: the store has a record with this ID.
        """
        ...

    async def get(self, id: str) -> TaskRecord | None:
        """Return the newest version of a record, or None if it does not exist."""
        ...

    async def change(self, record: TaskRecord) -> TaskRecord:
        """Store a changed record, and return it with its new version.

        If `renew` has extended the lease or the expiry time in the meantime, the later time is kept.

        Raises:
            TaskConflict: the record has another version now, or does not exist.
        """
        ...

    async def claim(self, id: str, holder: str, now: float, lease_seconds: float) -> TaskRecord | None:
        """Give the lease of a task to a worker, as `claim_task` does. Return None if the task should not run.

        Only one of several concurrent calls gets the record.
        """
        ...

    async def renew(self, holders: Mapping[str, str], now: float, lease_seconds: float) -> dict[str, bool]:
        """Extend leases. `holders` maps each task ID to the holder of its lease.

        Leases that a holder has lost are not extended. Return a dict with the IDs of the other tasks. The value is
        True if the task should be cancelled. The versions of the records do not change.
        """
        ...

    async def list_due(self, server: str, now: float, limit: int) -> list[str]:
        """Return the IDs of tasks that are due. `compute_due_at` computes when a task is due."""
        ...

    async def expire(self, now: float) -> int:
        """Delete the records that have expired and have no valid lease. Return their number."""
        ...

    def watch(self, ids: Collection[str]) -> AbstractContextManager[AsyncIterator[str]]:
        """Watch task records. The iterator yields each ID immediately, and again after each change or deletion.

        The iterator may yield an ID without a change, or one ID for several changes. Read the record to see its state.
        """
        ...

    async def close(self) -> None:
        """Release all files and connections."""
        ...


class StopSignal(Protocol):
    """An event that is set when a server stops, such as `asyncio.Event`."""

    def is_set(self) -> bool:
        """Return whether the server is stopping."""
        ...

    async def wait(self) -> object:
        """Wait until the server stops."""
        ...


# Runs a task if it is due, and returns when the task has ended or waits for an answer.
RunTask: TypeAlias = Callable[[str], Awaitable[None]]


class TaskEngine(Protocol):
    """Sends task IDs to workers. The task store contains all other data of a task.

    An ID may be lost or delivered several times: lost tasks are submitted again, and `TaskStore.claim` decides which
    worker runs a task. A worker learns from the store that it should cancel a task.
    """

    async def submit(self, id: str) -> None:
        """Send the ID of a task to a worker. The record is already stored."""
        ...

    async def serve(self, run: RunTask | None, stop: StopSignal) -> None:
        """Call `run` for submitted tasks until `stop` is set. Then wait for running tasks, and cancel the rest.

        `run` is None in a process that only submits tasks.
        """
        ...


def create_task_id() -> str:
    """Return a new task ID that nobody can guess. It contains only hexadecimal digits, so it is safe in a shell."""
    return os.urandom(_ID_BYTES).hex()


def is_final(status: TaskStatus) -> bool:
    """Return whether a task with this status never changes again."""
    return status in FINAL_STATUSES


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
    # A task without a lease is due. Its time is not checked, because the clocks of workers may differ.
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


async def change_task(store: TaskStore, id: str, edit: Callable[[TaskRecord], TaskRecord]) -> TaskRecord | None:
    """Apply a function to the newest version of a record, and store the result. Return None if the record is missing.

    The function runs again if another request changes the record at the same time.
    """
    record = await store.get(id)
    while record is not None:
        changed = edit(record)
        if changed is record:
            return record
        try:
            return await store.change(changed)
        except TaskConflict as conflict:
            record = conflict.current
    return None


def encode_record(record: TaskRecord) -> bytes:
    """Encode a record for a store. The encoded data also contains the version of the record format.

    Args:
        record: The record to store.
    """
    return encode(_EncodedRecord(RECORD_FORMAT, record))


def decode_record(data: bytes) -> TaskRecord:
    """Decode a record from `encode_record`. Raise TaskStoreUnavailable if it is damaged or has a newer format.

    Args:
        data: The stored bytes.
    """
    try:
        format_version = _format_decoder.decode(data).format
        if format_version != RECORD_FORMAT:
            raise TaskStoreUnavailable(
                f"a task has the format version {format_version}, but this version of dovetail supports only "
                f"{RECORD_FORMAT}. Update dovetail"
            )
        return _record_decoder.decode(data).record
    except msgspec.DecodeError as exc:
        raise TaskStoreUnavailable(f"the record of a task is damaged: {exc}") from None


def save_caller(caller: Caller) -> TaskCaller:
    """Convert a caller for a task record. Claims that are not JSON are left out."""
    principal = caller.principal
    return TaskCaller(
        protocol_version=caller.protocol_version,
        client_capabilities=caller.client_capabilities,
        client_info=caller.client_info,
        principal=None if principal is None else save_principal(principal),
    )


def restore_caller(record: TaskRecord) -> Caller:
    """Return the caller that created a task. Only stateless callers can create tasks."""
    principal = record.caller.principal
    return Caller(
        protocol_version=record.caller.protocol_version,
        is_stateless=True,
        client_capabilities=record.caller.client_capabilities,
        client_info=record.caller.client_info,
        principal=None if principal is None else restore_principal(principal, record.owner),
    )


class _EncodedRecord(Struct):
    format: int
    record: TaskRecord


class _Format(Struct):
    format: int


_format_decoder: Final = msgspec.json.Decoder(_Format)
_record_decoder: Final = msgspec.json.Decoder(_EncodedRecord)


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


def save_principal(principal: Principal) -> TaskPrincipal:
    return TaskPrincipal(
        subject=principal.subject,
        issuer=principal.issuer,
        client_id=principal.client_id,
        scopes=tuple(sorted(principal.scopes)),
        claims={name: value for name, value in principal.claims.items() if _is_json(value)},
        expires_at=principal.expires_at,
    )


def restore_principal(saved: TaskPrincipal, owner: str | None) -> Principal:
    def create(subject: str) -> Principal:
        return Principal(
            subject,
            issuer=saved.issuer,
            client_id=saved.client_id,
            scopes=saved.scopes,
            claims=saved.claims,
            expires_at=saved.expires_at,
        )

    principal = create(saved.subject)
    # If a program logs in without a user, the saved subject is its client ID.
    return principal if str(principal) == owner or not saved.client_id else create("")


def _is_json(value: Any) -> bool:
    try:
        encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True

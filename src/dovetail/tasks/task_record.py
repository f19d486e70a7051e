"""The record of a task: everything that is stored about it, and its format. This module does no I/O."""

import os
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

import msgspec

from dovetail.protocol.exchange import Caller
from dovetail.protocol.principal import SavedPrincipal, restore_principal, save_principal
from dovetail.protocol.versioned_codec import keep_unknown_members
from dovetail.wire.base import UNSET, Struct, field
from dovetail.wire.codec import encode
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import ClientCapabilities, Implementation

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]
# The state of a task's function: not started, running, or waiting for the client's answers.
# If a worker is lost in phase "running", the task fails unless a retry is allowed.
TaskPhase: TypeAlias = Literal["queued", "running", "waiting"]

FINAL_STATUSES: Final[frozenset[TaskStatus]] = frozenset({"completed", "failed", "cancelled"})
RECORD_FORMAT: Final = 1  # the format version of an encoded record

_ID_BYTES: Final = 24


class TaskStoreUnavailable(Exception):
    """Raised if a task store cannot be read or written at the moment, or if a record is unreadable."""


class TaskUnreadable(TaskStoreUnavailable):
    """Raised if a task store or a record is damaged or has a newer format. Waiting does not help."""


class TaskEncrypted(TaskUnreadable):
    """Raised if a record is encrypted with a key that the task store does not have."""


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
    """The right of a worker to run a task until a given time. Each claim has a new holder name."""

    holder: str  # a name that identifies the worker and its claim
    expires_at: float  # when the worker counts as lost, in seconds since 1970


class TaskCaller(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The caller that created a task, with all data that a worker in another process needs to run the task."""

    protocol_version: str
    client_capabilities: ClientCapabilities = ClientCapabilities()
    client_info: Implementation | None = None
    principal: SavedPrincipal | None = None


class TaskRecord(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Everything that is stored about one task. Times are in seconds since 1970."""

    id: str  # a secret that only the caller knows
    version: int = 1  # This number increases with each change of the record.
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
    is_cancel_requested: bool = False  # True if the worker should cancel the function
    phase: TaskPhase = "queued"  # whether the function has started, runs or waits for answers
    lease: TaskLease | None = None  # the lease of the worker that runs the task, or None
    attempt: int = 0  # The number of times the function has started. A continuation after an answer does not count.
    max_retries: int = 0  # the number of times the function may start again after its worker is lost


def create_task_id() -> str:
    """Return a new task ID that nobody can guess. It contains only hexadecimal digits, so it is safe in a shell."""
    return os.urandom(_ID_BYTES).hex()


def is_final(status: TaskStatus) -> bool:
    """Return whether a task with this status never changes again."""
    return status in FINAL_STATUSES


def encode_record(record: TaskRecord) -> bytes:
    """Encode a record for a store. The encoded data also contains the version of the record format.

    If the record is a changed copy from `decode_record`, the data keeps what a newer release has added to the record.

    Args:
        record: The record to store.
    """
    if not isinstance(record, _NewerRecord):
        return encode(_EncodedRecord(RECORD_FORMAT, record))
    known_record = TaskRecord(**{name: getattr(record, name) for name in TaskRecord.__struct_fields__})
    changed, known = _EncodedRecord(RECORD_FORMAT, known_record), _record_decoder.decode(record.stored_data)
    return keep_unknown_members(encode(changed), encode(known), record.stored_data)


def decode_record(data: bytes) -> TaskRecord:
    """Decode a record from `encode_record`. Raise TaskStoreUnavailable if it is damaged or has a newer format.

    Args:
        data: The stored bytes.
    """
    try:
        encoded = _record_decoder.decode(data)
        _check_format(encoded.format)
    except msgspec.DecodeError as exc:
        with suppress(msgspec.DecodeError):
            _check_format(_format_decoder.decode(data).format)
        raise TaskUnreadable(f"the record of a task is damaged: {exc}") from None
    record = encoded.record
    if encode(encoded) == data:
        return record
    # The record has members that this release does not know, or another program has written it.
    return _NewerRecord(**{name: getattr(record, name) for name in record.__struct_fields__}, stored_data=data)


def _check_format(format_version: int) -> None:
    if format_version != RECORD_FORMAT:
        raise TaskUnreadable(
            f"a task has the format version {format_version}, but this version of dovetail supports only "
            f"{RECORD_FORMAT}. Update dovetail"
        )


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


class _NewerRecord(TaskRecord, kw_only=True, frozen=True, omit_defaults=True):
    """A record with members that this release does not know. A copy that `replace` makes is a newer record, too."""

    stored_data: bytes  # the encoded record that was read


class _EncodedRecord(Struct):
    format: int
    record: TaskRecord


class _Format(Struct):
    format: int


_format_decoder: Final = msgspec.json.Decoder(_Format)
_record_decoder: Final = msgspec.json.Decoder(_EncodedRecord)

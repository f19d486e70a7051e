"""Journal: what a host did and why, one JSON object a line, in the format of recordings.

Append only, by several processes at once; secrets masked, arguments by their shape unless values are wanted; ASCII, so
that nothing a server says acts on the terminal that shows it. A full file is moved aside, the oldest forgotten.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.host.authorization import DecisionDetails
from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.events import HostEvent as HostEvent
from dovetail.host.policy.policy import Decision, PolicyRequest
from dovetail.protocol.client_transport import Headers
from dovetail.protocol.limits import MiB
from dovetail.protocol.recording_format import (
    FORMAT_VERSION,
    Event,
    Frame,
    Receiver,
    Recorder,
    RecordingHeader,
    create_frame,
    read_parts,
)
from dovetail.storage import lock_path
from dovetail.wire.base import Struct, replace
from dovetail.wire.codec import encode, to_plain

log = logging.getLogger("dovetail")

# Counted from there, the times of all processes and runs are in one order.
_EPOCH: Final = "1970-01-01T00:00:00Z"
_MAX_SHAPE_DEPTH: Final = 6
_MAX_SHAPE_MEMBERS: Final = 50
_MAX_ARGUMENTS_BYTES: Final = 16 * 1024  # of the values of one call
_MAX_TEXT_CHARS: Final = 1000

_TYPE_NAMES: Final = {bool: "boolean", int: "integer", float: "number"}


class AuditLog:
    """One file, and `keep` older ones beside it, each of `max_bytes` at most.

    `values` writes what arguments are, not only their shape. `secrets` masks what it has looked up.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        include_values: bool = False,
        secrets: SecretResolver | None = None,
        max_bytes: int = 8 * MiB,
        backup_count: int = 5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self.dropped_count = 0  # lines that could not be written
        self._include_values = include_values
        self._mask_functions = [(secrets or SecretResolver({})).mask]
        self._max_bytes = max_bytes
        self._backup_count = backup_count
        self._clock = clock
        self._lock = threading.Lock()
        self._file_descriptor = -1

    def call(
        self, request: PolicyRequest, outcome: str, ms: float, *, error: str = "", result_bytes: int | None = None
    ) -> None:
        """A call that is over."""
        self.write(
            "call",
            request.server,
            **_request_fields(request),
            arguments=self._format_arguments(request.arguments),
            outcome=outcome,
            ms=round(ms, 1),
            error=error or None,
            result_bytes=result_bytes,
        )

    def decision(self, request: PolicyRequest, decision: Decision) -> None:
        """What the policy said, and why."""
        self.write(
            "decision",
            request.server,
            **_request_fields(request),
            arguments=self._format_arguments(request.arguments),
            action=decision.action,
            level=decision.level,
            reason=decision.reason,
        )

    def consent(self, request: PolicyRequest, answer: str, *, reason: str | None = None) -> None:
        """What the user, or whoever speaks for the user, answered."""
        self.write("consent", request.server, **_request_fields(request), answer=answer, reason=reason)

    def state(self, server: str, old: str, new: str, reason: str | None = None) -> None:
        """A server that is in another state now."""
        self.write("state", server, old=old, new=new, reason=reason)

    def write(self, event: str, server: str = "", **fields: Any) -> None:
        """Anything else that happened; facts that are None are left out."""
        masked_fields = self._mask_value({name: value for name, value in fields.items() if value is not None})
        bounded_fields = {
            name: _truncate(value) for name, value in masked_fields.items()
        }  # a secret that was cut could not be found
        self._write(Event(event=event, at=self._now(), server=server, data=bounded_fields))

    def mask(self, secrets: SecretResolver) -> None:
        """Mask what somebody else has looked up, too."""
        self._mask_functions.append(secrets.mask)

    def _mask_value(self, value: Any) -> Any:
        for mask in self._mask_functions:
            value = mask(value)
        return value

    def tap(self, server: str) -> Recorder:
        """Where a client's messages can be sent to be kept here too, values and all, secrets masked."""

        def record(to: Receiver, data: bytes, headers: Headers) -> None:
            raw_frame = create_frame(self._now(), to, data, headers)
            text = None if raw_frame.text is None else self._mask_value(raw_frame.text)
            message = self._mask_value(raw_frame.message) if raw_frame.text is None else raw_frame.message
            self._write(replace(raw_frame, server=server, message=message, text=text))

        return record

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._close_file()

    def __enter__(self) -> "AuditLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _now(self) -> float:
        return round(self._clock(), 6)

    def _format_arguments(self, arguments: Mapping[str, Any] | None) -> Any:
        if arguments is None:
            return None
        if not self._include_values:
            return describe_shape(arguments)
        return dict(arguments) if len(encode(arguments)) <= _MAX_ARGUMENTS_BYTES else {"…": describe_shape(arguments)}

    def _write(self, part: Event | Frame) -> None:
        encoded_line = _encode_ascii_line(part)
        with self._lock:
            try:
                self._ensure_open(len(encoded_line))
                _append_line(self._file_descriptor, encoded_line)
            except OSError as exc:
                if not self.dropped_count:
                    log.error("the journal cannot be written: %s", exc)
                self.dropped_count += 1
                self._close_file()

    def _ensure_open(self, next_bytes: int) -> None:
        """Have the file that is there now, with room for one line more."""
        if self._file_descriptor >= 0 and not self._is_current_file():
            self._close_file()
        if self._file_descriptor < 0:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file_descriptor = _open_log(self.path)
        if os.fstat(self._file_descriptor).st_size + next_bytes > self._max_bytes:
            with lock_path(self.path):
                if self._is_current_file():  # otherwise another process was faster
                    _rotate_files(self.path, self._backup_count)
                self._close_file()
                self._file_descriptor = _open_log(self.path)

    def _is_current_file(self) -> bool:
        try:
            path_stat = os.stat(self.path)
        except FileNotFoundError:
            return False
        open_stat = os.fstat(self._file_descriptor)
        return (path_stat.st_ino, path_stat.st_dev) == (open_stat.st_ino, open_stat.st_dev)

    def _close_file(self) -> None:
        if self._file_descriptor >= 0:
            os.close(self._file_descriptor)
            self._file_descriptor = -1


def read_audit_log(path: str | Path) -> Iterator[RecordingHeader | Frame | Event]:
    """Everything that a journal and its older files hold, oldest first."""
    log_path = Path(path)
    backups = sorted(log_path.parent.glob(f"{log_path.name}.[0-9]*"), key=lambda backup: -int(backup.suffix[1:]))
    for log_file in [*backups, log_path]:
        with contextlib.suppress(FileNotFoundError):
            yield from read_parts(log_file.read_bytes().splitlines())


def describe_shape(value: Any, depth: int = 0) -> Any:
    """What a value looks like, without what it says: names, types, lengths."""
    if isinstance(value, str):
        return f"string({len(value)})"
    if isinstance(value, Mapping):
        if depth == _MAX_SHAPE_DEPTH:
            return f"object({len(value)})"
        members = {
            clip(str(name), 64): describe_shape(member, depth + 1)
            for name, member in [*value.items()][:_MAX_SHAPE_MEMBERS]
        }
        return members | ({"…": len(value)} if len(value) > _MAX_SHAPE_MEMBERS else {})
    if isinstance(value, list | tuple):
        return [
            f"array({len(value)})",
            *(describe_shape(item, depth + 1) for item in value[:1] if depth < _MAX_SHAPE_DEPTH),
        ]
    return _TYPE_NAMES.get(type(value), "null")


def _request_fields(request: PolicyRequest) -> dict[str, Any]:
    return {"kind": request.kind, "tool": request.tool or None}


def _truncate(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= _MAX_TEXT_CHARS else value[: _MAX_TEXT_CHARS - 1] + "…"


def _encode_ascii_line(part: Event | Frame | RecordingHeader) -> bytes:
    return json.dumps(to_plain(part), separators=(",", ":")).replace("\x7f", "\\u007f").encode("ascii") + b"\n"


def _open_log(path: Path) -> int:
    file_descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.fstat(file_descriptor).st_size == 0:  # two processes may both say so, which costs a line
        _append_line(file_descriptor, _encode_ascii_line(RecordingHeader(recording=FORMAT_VERSION, started_at=_EPOCH)))
    return file_descriptor


def _append_line(file_descriptor: int, encoded_line: bytes) -> None:
    """In one go, so that lines of several processes do not mix."""
    if os.write(file_descriptor, encoded_line) != len(encoded_line):
        raise OSError("the disk is full")


def _rotate_files(path: Path, backup_count: int) -> None:
    for number in range(backup_count, 0, -1):
        source = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(source, path.with_name(f"{path.name}.{number}"))
    if backup_count == 0:
        path.unlink(missing_ok=True)


class CallOutcome(Struct, frozen=True, kw_only=True):
    """How a call ended."""

    request: PolicyRequest
    outcome: str  # "ok", "error", or the kind of exception
    duration_ms: float
    error: str = ""
    result_bytes: int | None = None


@contextmanager
def report_call(request: PolicyRequest, emit: Callable[[HostEvent], None]) -> Generator[Callable[[Any], None]]:
    """Tell of a call before and after; what is yielded takes its result."""
    started_at = time.perf_counter()
    result: Any = None

    def set_result(value: Any) -> None:
        nonlocal result
        result = value

    def emit_result(outcome: str, error: str = "") -> None:
        duration_ms = (time.perf_counter() - started_at) * 1000
        result_bytes = None if result is None else len(result) if isinstance(result, bytes) else len(encode(result))
        call_outcome = CallOutcome(
            request=request, outcome=outcome, duration_ms=duration_ms, error=error, result_bytes=result_bytes
        )
        emit(
            HostEvent(
                kind="tool.result", server=request.server, message=request.tool, reason=outcome, details=call_outcome
            )
        )

    emit(HostEvent(kind="tool.call", server=request.server, message=request.tool, details=request))
    try:
        yield set_result
    except BaseException as exc:
        emit_result(type(exc).__name__, str(exc))
        raise
    emit_result("error" if getattr(result, "is_error", False) else "ok")


def create_audit_listener(audit_log: AuditLog) -> Callable[[HostEvent], None]:
    """A listener that writes into a journal."""

    def write_event(event: HostEvent) -> None:
        match event.kind:
            case "server.state":
                audit_log.state(event.server, event.previous_state or "", event.state or "", event.reason)
            case "decision":
                decision_details: DecisionDetails = event.details
                audit_log.decision(decision_details.request, decision_details.decision)
            case "consent":
                audit_log.consent(event.details, event.message or "", reason=event.reason)
            case "tool.result":
                call_outcome: CallOutcome = event.details
                audit_log.call(
                    call_outcome.request,
                    call_outcome.outcome,
                    call_outcome.duration_ms,
                    error=call_outcome.error,
                    result_bytes=call_outcome.result_bytes,
                )
            case "server.added" | "server.removed" | "config.problem" | "definitions.changed":
                audit_log.write(event.kind, event.server, message=event.message)
            case _:
                pass

    return write_event

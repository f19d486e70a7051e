"""The audit log: what a host did and why, one JSON object per line, in the format of recordings.

Several processes can append to one file. Lines are ASCII, so that no text of a server acts on a terminal that shows
them. A full file is rotated, and the oldest one is deleted.
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
from dovetail.host.events import HostEvent
from dovetail.host.policy.policy import PolicyRequest
from dovetail.protocol.limits import MiB
from dovetail.protocol.recording_format import FORMAT_VERSION, Event, Frame, RecordingHeader, read_parts
from dovetail.storage import lock_path
from dovetail.wire.base import Struct
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
    """An append-only file of JSON lines, with `backup_count` older files beside it, each of at most `max_bytes`.

    Of arguments it keeps names, types and lengths, or their values with `include_values=True`. It masks the values
    that `secrets` has resolved. `dropped_count` is the number of entries that could not be written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        include_values: bool = False,
        secrets: SecretResolver | None = None,
        max_bytes: int = 8 * MiB,
        backup_count: int = 5,
    ) -> None:
        self.path = Path(path)
        self.dropped_count = 0
        self._include_values = include_values
        self._resolvers = [secrets or SecretResolver({})]
        self._max_bytes = max_bytes
        self._backup_count = backup_count
        self._lock = threading.Lock()
        self._file_descriptor = -1

    def write(self, event: str, server: str = "", **fields: Any) -> None:
        """Add an entry. Fields that are None are left out, and `arguments` is kept as the class says."""
        if isinstance(arguments := fields.get("arguments"), Mapping):
            fields["arguments"] = self._format_arguments(arguments)
        masked_fields = {name: value for name, value in fields.items() if value is not None}
        for resolver in self._resolvers:
            masked_fields = resolver.mask(masked_fields)
        # Truncated after masking: a truncated secret would not be found.
        bounded_fields = {name: _truncate(value) for name, value in masked_fields.items()}
        self._write_line(_encode_ascii_line(Event(event=event, at=_now(), server=server, data=bounded_fields)))

    def close(self) -> None:
        """Close the file. The next entry opens it again."""
        with self._lock:
            self._close_file()

    def __enter__(self) -> "AuditLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _format_arguments(self, arguments: Mapping[str, Any]) -> Any:
        if not self._include_values:
            return describe_shape(arguments)
        return dict(arguments) if len(encode(arguments)) <= _MAX_ARGUMENTS_BYTES else {"…": describe_shape(arguments)}

    def _write_line(self, encoded_line: bytes) -> None:
        with self._lock:
            try:
                self._ensure_open(len(encoded_line))
                _append_line(self._file_descriptor, encoded_line)
            except OSError as exc:
                if not self.dropped_count:
                    log.error("cannot write the audit log: %s", exc)
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
    """Yield the entries of an audit log and its older files, oldest first."""
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


def _now() -> float:
    return round(time.time(), 6)


def _request_fields(request: PolicyRequest) -> dict[str, Any]:
    return {"kind": request.kind, "tool": request.tool or None, "arguments": request.arguments}


def _truncate(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= _MAX_TEXT_CHARS else value[: _MAX_TEXT_CHARS - 1] + "…"


def _encode_ascii_line(part: Event | RecordingHeader) -> bytes:
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


def create_audit_listener(audit_log: AuditLog, secrets: SecretResolver) -> Callable[[HostEvent], None]:
    """Return a listener that writes the events of a host to an audit log. The log masks the host's secrets, too."""
    audit_log._resolvers.append(secrets)  # pyright: ignore[reportPrivateUsage]
    write = audit_log.write

    def write_event(event: HostEvent) -> None:
        match event.kind:
            case "server.state":
                write(
                    event.kind,
                    event.server,
                    previous_state=event.previous_state,
                    state=event.state,
                    reason=event.reason,
                )
            case "decision":
                decision_details: DecisionDetails = event.details
                decision = decision_details.decision
                write(
                    event.kind,
                    event.server,
                    **_request_fields(decision_details.request),
                    action=decision.action,
                    level=decision.level,
                    reason=decision.reason,
                )
            case "consent":
                request: PolicyRequest = event.details
                write(
                    event.kind,
                    event.server,
                    kind=request.kind,
                    tool=request.tool or None,
                    answer=event.message,
                    reason=event.reason,
                )
            case "tool.result":
                outcome: CallOutcome = event.details
                write(
                    "call",
                    event.server,
                    **_request_fields(outcome.request),
                    outcome=outcome.outcome,
                    ms=round(outcome.duration_ms, 1),
                    error=outcome.error or None,
                    result_bytes=outcome.result_bytes,
                )
            case "server.added" | "server.removed" | "config.problem" | "definitions.changed":
                write(event.kind, event.server, message=event.message)
            case _:
                pass

    return write_event

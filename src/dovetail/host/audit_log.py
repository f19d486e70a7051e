"""The audit log of a host, which stores its actions and their reasons as JSON lines, in the format of recordings.

Several processes can append to one file. Lines are ASCII, so that text of a server cannot control a terminal. A full
file is rotated, and the oldest file is deleted.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from dovetail.error_context import clip
from dovetail.errors import UnsupportedFileVersion
from dovetail.host.authorization import DecisionDetails
from dovetail.host.config.secret_lookup import SecretLookup, SecretResolver, get_secret_lookup
from dovetail.host.config.server_entry import ConfigProblem
from dovetail.host.events import EventEmitter, EventKind, HostEvent
from dovetail.host.execution import CallOutcome
from dovetail.host.policy.policy import PolicyRequest
from dovetail.log import log
from dovetail.protocol.limits import MiB
from dovetail.protocol.redaction import may_hold_secrets
from dovetail.recording.recording_format import (
    FORMAT_VERSION,
    Event,
    Frame,
    RecordingHeader,
    read_parts,
    read_version,
)
from dovetail.storage import append, lock_path, make_private_dir, open_for_append, read_first_line, replace_file
from dovetail.wire.codec import encode, to_plain

# Every audit log counts time from this date, so the entries of different processes can be sorted.
_EPOCH: Final = "1970-01-01T00:00:00Z"
_MAX_SHAPE_DEPTH: Final = 6
_MAX_SHAPE_MEMBERS: Final = 50
_MAX_ARGUMENTS_BYTES: Final = 16 * 1024  # Arguments above this size are shortened.
_MAX_TEXT_CHARS: Final = 1000
_MAX_MASKED_CHARS: Final = 64 * 1024
_MAX_CACHED_TEXTS: Final = 1024
# How often to check whether another process has rotated the log file. Until the check, lines go to the old file.
# Checking before each line would be too slow.
_FILE_CHECK_INTERVAL_S: Final = 0.01
_LOCK_TIMEOUT_S: Final = 0.25  # Waiting for the lock blocks the host's event loop.
_ROTATE_RETRY_S: Final = 60.0
_MIGRATION_TIMEOUT_S: Final = 5.0  # Another process may be converting a large file.

_TYPE_NAMES: Final[Mapping[type, str]] = {bool: "boolean", int: "integer", float: "number", type(None): "null"}


class AuditLog:
    """An audit log file with one JSON object per line. `dropped_count` counts the entries that could not be written.

    The time `at` of an entry is a Unix timestamp, so you can sort the entries of several processes by time.

    Args:
        path: The path of the log file.
        include_values: True writes the values of arguments. False writes their names, types and lengths.
        secrets: The resolver whose secrets are masked in the log.
        max_bytes: The maximum size of a file. Larger files are rotated.
        backup_count: The number of older files to keep.

    Raises:
        UnsupportedFileVersion: a newer dovetail wrote the file.
        ValueError: `max_bytes` or `backup_count` is out of range.
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
        if max_bytes <= 0:
            raise ValueError(f"max_bytes= must be more than 0, not {max_bytes}")
        if backup_count < 0:
            raise ValueError(f"backup_count= must be 0 or more, not {backup_count}")
        self.path = Path(path)
        self.dropped_count = 0
        self._include_values = include_values
        self._secrets = secrets or SecretResolver({})
        # The secrets of the hosts that write to this log. A weak set does not keep closed hosts in memory.
        self._host_secrets: WeakSet[SecretResolver] = WeakSet()
        self._secrets_version: object = None  # the version of the secrets that are masked in the cached texts
        self._cached_texts: dict[Hashable, bytes] = {}
        self._max_bytes = max_bytes
        self._backup_count = backup_count
        self._lock = threading.Lock()
        self._file_descriptor = -1
        self._file_bytes = 0
        self._check_at = 0.0  # when to check next whether the file was rotated
        self._rotate_at = 0.0  # the earliest time for the next rotation
        # If the file cannot be used, this call raises the error now and not later.
        read_version(read_first_line(self.path), self.path)

    def write(self, event: str, server: str = "", **fields: object) -> None:
        """Add an entry. Fields with the value None are left out.

        Args:
            server: The name of the server.
        """
        if isinstance(arguments := fields.get("arguments"), Mapping):
            fields["arguments"] = self._format_arguments(arguments)
        data = self._mask({name: value for name, value in fields.items() if value is not None})
        with self._lock:
            entry = Event(event=event, at=_get_time(), server=server, data=data)
            self._append_line(_encode_ascii(entry) + b"\n")

    def _write_request(
        self, event: bytes, server: str, request: PolicyRequest, texts: dict[str, str], numbers: bytes = b""
    ) -> None:
        """Add an entry about a request.

        `numbers` has the encoded members of the entry that are not texts.
        """
        key = (event, server, request.kind, request.tool, request.caller, *texts.values())
        cache = self._get_cache()
        encoded_texts = cache.get(key) or self._encode_texts(cache, key, server, request, texts)
        arguments = b"" if request.arguments is None else self._encode_arguments(cache, request.arguments)
        with self._lock:
            self._append_line(
                b'{"event":"%b","at":%.6f,%b%b%b}}\n' % (event, time.time(), encoded_texts, arguments, numbers)
            )

    def _get_cache(self) -> dict[Hashable, bytes]:
        """Return the cached texts. If there is a new secret, clear the cache first. A cached text may contain it.

        Other threads may still add texts to the old dict, which is not used again.
        """
        if self._secrets_version is not SecretLookup.version:
            with self._lock:
                self._secrets_version = SecretLookup.version
                self._cached_texts = {}
        return self._cached_texts

    def _encode_texts(
        self, cache: dict[Hashable, bytes], key: Hashable, server: str, request: PolicyRequest, texts: dict[str, str]
    ) -> bytes:
        """Encode the texts of an entry as the start of a JSON object. The caller appends the rest of the object."""
        data = {"kind": request.kind, "tool": request.tool, "caller": request.caller, **texts}
        data = {name: text for name, text in data.items() if text}
        masked = self._mask(data)
        encoded = _encode_ascii({"server": server, "data": masked})[1:-2]
        if masked == data:  # The cache must not keep secrets.
            _add_to_cache(cache, key, encoded)
        return encoded

    def _encode_arguments(self, cache: dict[Hashable, bytes], arguments: Mapping[str, Any]) -> bytes:
        formatted = {"arguments": self._format_arguments(arguments)}
        key = None if self._include_values else encode(formatted)
        if key is not None and (cached := cache.get(key)) is not None:
            return cached
        masked = self._mask(formatted)
        encoded = b",%b" % _encode_ascii(masked)[1:-1]
        if key is not None and masked == formatted:  # The name of an argument may be a secret.
            _add_to_cache(cache, key, encoded)
        return encoded

    def _mask(self, data: dict[str, Any]) -> dict[str, Any]:
        # Very long texts are shortened before they are masked, because masking takes long.
        data = {name: value[:_MAX_MASKED_CHARS] if isinstance(value, str) else value for name, value in data.items()}
        encoded = _encode_ascii(data)
        # Masking is slow, so short data without secrets is returned unchanged.
        if len(encoded) <= _MAX_TEXT_CHARS and not self._may_hold_secrets(encoded):
            return data
        for resolver in (self._secrets, *self._host_secrets):
            data = resolver.mask(data)
        # Mask first and shorten later, because a secret that is cut in half would not be recognized.
        return {name: _truncate(value) if isinstance(value, str) else value for name, value in data.items()}

    def _may_hold_secrets(self, encoded: bytes) -> bool:
        return may_hold_secrets(encoded) or any(
            get_secret_lookup(resolver).has_known_secret(encoded) for resolver in (self._secrets, *self._host_secrets)
        )

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
        is_small = len(_encode_ascii(arguments)) <= _MAX_ARGUMENTS_BYTES
        return dict(arguments) if is_small else {"…": describe_shape(arguments)}

    def _append_line(self, encoded_line: bytes) -> None:
        """Write a line. The caller holds the lock."""
        try:
            self._ensure_open(len(encoded_line))
            append(self._file_descriptor, encoded_line)
        except (OSError, ValueError) as exc:
            if not self.dropped_count:
                log.error("cannot write the audit log: %s", exc)
            self.dropped_count += 1
            self._close_file()

    def _ensure_open(self, next_bytes: int) -> None:
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + _FILE_CHECK_INTERVAL_S
            if not self._is_current_file():
                self._close_file()
                make_private_dir(self.path.parent)
                self._open_file()
        if self._file_bytes + next_bytes > self._max_bytes and now >= self._rotate_at:
            self._rotate(now)
        self._file_bytes += next_bytes

    def _rotate(self, now: float) -> None:
        """Start a new log file. If another process holds the lock, keep the current file and try again later."""
        try:
            with lock_path(self.path, _LOCK_TIMEOUT_S):
                if self._is_current_file():  # Another process may have rotated the file already.
                    _rotate_files(self.path, self._backup_count)
        except TimeoutError as exc:
            log.warning("cannot rotate the audit log: %s", exc)
            self._rotate_at = now + _ROTATE_RETRY_S
            return
        self._close_file()
        # Release the lock before the file is opened, because opening the file may need the lock.
        self._open_file()

    def _is_current_file(self) -> bool:
        if self._file_descriptor < 0:
            return False
        file_stat = os.fstat(self._file_descriptor)
        self._file_bytes = file_stat.st_size
        try:
            return os.path.samestat(os.stat(self.path), file_stat)
        except FileNotFoundError:
            return False

    def _open_file(self) -> None:
        self._file_descriptor = _open_log(self.path)
        self._file_bytes = os.fstat(self._file_descriptor).st_size

    def _close_file(self) -> None:
        self._check_at = 0.0
        if self._file_descriptor >= 0:
            os.close(self._file_descriptor)
            self._file_descriptor = -1


def read_audit_log(path: str | Path) -> Iterator[RecordingHeader | Frame | Event]:
    """Yield the entries of an audit log, oldest first. Older log files are included. Damaged lines are skipped.

    Args:
        path: The newest file of the audit log.
    """
    for log_file in _list_files(Path(path)):
        try:
            lines = log_file.read_bytes().splitlines()
        except FileNotFoundError:
            continue
        for number, line in enumerate(lines, 1):
            if (parts := _parse_line(line, log_file)) is None:
                log.warning("%s: skipped line %d of the audit log, because it is damaged", log_file, number)
            else:
                yield from parts


def _list_files(path: Path) -> list[Path]:
    """Return the files of an audit log, oldest first. Other files, such as `audit.jsonl.1.gz`, are left out."""
    pattern = re.compile(re.escape(path.name) + r"\.([0-9]+)")
    try:
        matches = [match for name in os.listdir(path.parent) if (match := pattern.fullmatch(name))]
    except FileNotFoundError:
        return []
    matches.sort(key=lambda match: int(match[1]), reverse=True)
    return [*(path.with_name(match[0]) for match in matches), path]


def _parse_line(line: bytes, path: Path) -> list[RecordingHeader | Frame | Event] | None:
    """Return the entry in a line, or None if the line is damaged. A crash or a full disk can leave half a line."""
    try:
        return [*read_parts([line], path)]
    except UnsupportedFileVersion:
        raise
    except ValueError:
        return None


def describe_shape(value: Any) -> Any:
    """Return the names, types and lengths in a value, without its content."""
    return _describe_shape(value, 0)


def _describe_shape(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return f"string({len(value)})"
    if (type_name := _TYPE_NAMES.get(type(value))) is not None:
        return type_name
    if isinstance(value, (dict, Mapping)):  # The check for dict comes first, because the check for Mapping is slow.
        if depth == _MAX_SHAPE_DEPTH:
            return f"object({len(value)})"
        shape: dict[str, Any] = {
            clip(str(name), 64): _describe_shape(member, depth + 1)
            for name, member in islice(value.items(), _MAX_SHAPE_MEMBERS)
        }
        if len(value) > _MAX_SHAPE_MEMBERS:
            shape["…"] = len(value)
        return shape
    if isinstance(value, list | tuple):
        return [
            f"array({len(value)})",
            *(_describe_shape(item, depth + 1) for item in value[:1] if depth < _MAX_SHAPE_DEPTH),
        ]
    return type(value).__name__


def _add_to_cache(cache: dict[Hashable, bytes], key: Hashable, encoded: bytes) -> None:
    if len(encoded) <= _MAX_TEXT_CHARS:
        if len(cache) >= _MAX_CACHED_TEXTS:
            cache.clear()
        cache[key] = encoded


def _get_time() -> float:
    return time.time_ns() // 1000 / 1e6  # Integer division keeps microseconds and is ten times faster than `round`.


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_CHARS else text[: _MAX_TEXT_CHARS - 1] + "…"


def _encode_ascii(value: Any) -> bytes:
    try:
        encoded_value = encode(value)
    except (TypeError, ValueError):  # `encode` rejects half a surrogate pair. Replace it with "?".
        text = json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":"))
        encoded_value = text.encode("utf-8", "replace")
    if encoded_value.isascii() and b"\x7f" not in encoded_value:
        return encoded_value
    return json.dumps(json.loads(encoded_value), separators=(",", ":")).replace("\x7f", "\\u007f").encode("ascii")


_HEADER: Final = RecordingHeader(recording=FORMAT_VERSION, started_at=_EPOCH)


def _open_log(path: Path) -> int:
    if read_version(read_first_line(path), path) < FORMAT_VERSION:
        with lock_path(path, _MIGRATION_TIMEOUT_S):
            # Another process may have converted the file already.
            if read_version(read_first_line(path), path) < FORMAT_VERSION:
                _migrate_log(path)
    file_descriptor = open_for_append(path)
    try:
        # If two processes do this at once, the file gets a second header or an empty line, which is harmless.
        if os.fstat(file_descriptor).st_size == 0:
            append(file_descriptor, _encode_ascii(_HEADER) + b"\n")
        elif not _ends_with_newline(path):
            append(file_descriptor, b"\n")  # A crash can leave half a line. The next entry must start on a new line.
    except BaseException:
        os.close(file_descriptor)
        raise
    return file_descriptor


def _ends_with_newline(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:  # Another process may have rotated the file.
        return True


def _migrate_log(path: Path) -> None:
    replace_file(path, b"".join(_upgrade_line(line, path) for line in path.read_bytes().splitlines()))


def _upgrade_line(line: bytes, path: Path) -> bytes:
    if (parts := _parse_line(line, path)) is None:
        return line + b"\n"
    return b"".join(_encode_ascii(_HEADER if isinstance(part, RecordingHeader) else part) + b"\n" for part in parts)


def _rotate_files(path: Path, backup_count: int) -> None:
    for number in range(backup_count, 0, -1):
        source = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(source, path.with_name(f"{path.name}.{number}"))
    if backup_count == 0:
        path.unlink(missing_ok=True)


def attach_audit_log(audit_log: AuditLog, events: EventEmitter, secrets: SecretResolver) -> None:
    """Connect a host to an audit log. From now on, the audit log records the host's events and masks its secrets."""
    with audit_log._lock:  # pyright: ignore[reportPrivateUsage]
        # Another thread may be reading the old set, so a new set is created.
        audit_log._host_secrets = audit_log._host_secrets | {secrets}  # pyright: ignore[reportPrivateUsage]
        audit_log._secrets_version = None  # pyright: ignore[reportPrivateUsage]
    write, write_request = audit_log.write, audit_log._write_request  # pyright: ignore[reportPrivateUsage]

    def write_decision(event: HostEvent) -> None:
        details: DecisionDetails = event.details
        decision = details.decision
        texts = {"action": decision.action, "level": decision.level, "reason": decision.reason}
        write_request(b"decision", event.server, details.request, texts)

    def write_answer(event: HostEvent) -> None:
        texts = {"answer": event.message or "", "reason": event.reason or ""}
        write_request(b"consent", event.server, event.details, texts)

    def write_outcome(event: HostEvent) -> None:
        outcome: CallOutcome = event.details
        numbers = b',"ms":%.1f' % outcome.duration_ms
        if outcome.result_bytes is not None:
            numbers += b',"result_bytes":%d' % outcome.result_bytes
        if outcome.task:
            numbers += b',"task":"%b"' % outcome.task.encode()
        texts = {"outcome": outcome.outcome, "error": outcome.error}
        write_request(b"call", event.server, outcome.request, texts, numbers)

    def write_state(event: HostEvent) -> None:
        write(event.kind, event.server, previous_state=event.previous_state, state=event.state, reason=event.reason)

    def write_problem(event: HostEvent) -> None:
        problem: ConfigProblem = event.details
        write(event.kind, event.server, file=str(problem.path), message=event.message)

    def write_message(event: HostEvent) -> None:
        write(event.kind, event.server, message=event.message)

    listeners: dict[EventKind, Callable[[HostEvent], None]] = {
        "server.added": write_message,
        "server.removed": write_message,
        "server.state": write_state,
        "config.problem": write_problem,
        "definitions.changed": write_message,
        "decision": write_decision,
        "consent": write_answer,
        "tool.result": write_outcome,
    }
    for kind, listener in listeners.items():
        events.on(kind, listener)

"""The SQL statements of the local back end. Each function runs in a transaction and gets the connection and the time.

All names are already hashed, and all data is already encoded.
"""

import sqlite3
import time
from typing import Any, Final

from dovetail.cluster.gcra import take_cell
from dovetail.protocol.interfaces.shared_state import (
    CLOCK_MARGIN_S,
    MAX_CHANGES,
    MAX_INBOX_BYTES,
    MAX_INBOX_MESSAGES,
    AppendOutcome,
    StreamLimits,
)

MESSAGE_TTL_S: Final = 60.0
MESSAGE_BATCH: Final = 100
_EVENT_BATCH: Final = 100

Connection = sqlite3.Connection


def read_value(key: str, connection: Connection, now: float) -> Any:
    statement = "SELECT version, data FROM shared_values WHERE name = ? AND expires_at > ?"
    return connection.execute(statement, (key, now)).fetchone()


def write_value(
    key: str, data: bytes, ttl: float, expected: int | None, connection: Connection, now: float
) -> int | None:
    row = read_value(key, connection, now)
    present = 0 if row is None else row[0]
    if expected is not None and expected != present:
        return None
    # Versions never repeat, even if a value is deleted and stored again.
    version = max(present + 1, time.time_ns() // 1000)
    connection.execute("INSERT OR REPLACE INTO shared_values VALUES (?, ?, ?, ?)", (key, version, data, now + ttl))
    return version


def restore_value(key: str, data: bytes, version: int, ttl: float, connection: Connection, now: float) -> bool:
    row = read_value(key, connection, now)
    if row is not None and row[0] >= version:
        return False
    connection.execute("INSERT OR REPLACE INTO shared_values VALUES (?, ?, ?, ?)", (key, version, data, now + ttl))
    return True


def delete_value(key: str, expected: int | None, connection: Connection, now: float) -> bool:
    statement = "DELETE FROM shared_values WHERE name = ? AND expires_at > ? AND (? IS NULL OR version = ?)"
    return connection.execute(statement, (key, now, expected, expected)).rowcount > 0


def use_id(
    key: str, valid_from: float, ttl: float, attempt: str, epoch: str, connection: Connection, now: float
) -> bool | None:
    """Record the use of an ID. Return None if the ID may have been used before this file existed."""
    row = connection.execute("SELECT attempt FROM used_ids WHERE name = ? AND expires_at > ?", (key, now)).fetchone()
    if row is not None:
        return attempt != "" and row[0] == attempt
    present_epoch, created_at = connection.execute("SELECT id, created_at FROM epoch").fetchone()
    if epoch != present_epoch and valid_from - CLOCK_MARGIN_S < time.time() - (now - created_at):
        return None
    connection.execute("INSERT OR REPLACE INTO used_ids VALUES (?, ?, ?)", (key, attempt, now + ttl + CLOCK_MARGIN_S))
    return True


def is_used(key: str, connection: Connection, now: float) -> bool:
    statement = "SELECT 1 FROM used_ids WHERE name = ? AND expires_at > ?"
    return connection.execute(statement, (key, now)).fetchone() is not None


def take(key: str, rate: float, burst: float, cost: float, connection: Connection, now: float) -> float:
    row = connection.execute("SELECT full_at FROM rates WHERE name = ?", (key,)).fetchone()
    full_at, wait = take_cell(None if row is None else row[0], now, rate, burst, cost)
    if cost and not wait:
        connection.execute("INSERT OR REPLACE INTO rates VALUES (?, ?, ?)", (key, full_at, full_at))
    return wait


def acquire(
    key: str, holder: str, limit: int, worker: str | None, expires_in: float | None, connection: Connection, now: float
) -> bool:
    """Give a place to a holder until it expires, or until `worker` ends."""
    connection.execute("DELETE FROM places WHERE name = ? AND expires_at <= ?", (key, now))
    statement = "SELECT count(*) FROM places WHERE name = ? AND holder != ?"
    if connection.execute(statement, (key, holder)).fetchone()[0] >= limit:
        is_holder = connection.execute("SELECT 1 FROM places WHERE name = ? AND holder = ?", (key, holder)).fetchone()
        if is_holder is None:
            return False
    expires_at = None if expires_in is None else now + expires_in
    connection.execute("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)", (key, holder, worker, expires_at))
    return True


def list_place_workers(key: str, connection: Connection, now: float) -> list[str]:
    statement = "SELECT DISTINCT worker FROM places WHERE name = ? AND worker IS NOT NULL"
    return [worker for (worker,) in connection.execute(statement, (key,))]


def delete_places(worker: str, connection: Connection, now: float) -> None:
    """Free all places of a lost worker."""
    connection.execute("DELETE FROM places WHERE worker = ?", (worker,))


def release(key: str, holder: str, connection: Connection, now: float) -> None:
    connection.execute("DELETE FROM places WHERE name = ? AND holder = ?", (key, holder))


def add_to_inbox(worker: str, data: bytes, connection: Connection, now: float) -> int | None:
    select = "SELECT count(*), coalesce(sum(length(data)), 0) FROM inbox WHERE worker = ?"
    count, size = connection.execute(select, (worker,)).fetchone()
    if count >= MAX_INBOX_MESSAGES or size + len(data) > MAX_INBOX_BYTES:
        return None
    statement = "INSERT INTO inbox (worker, data, expires_at) VALUES (?, ?, ?)"
    return connection.execute(statement, (worker, data, now + MESSAGE_TTL_S)).lastrowid


def read_inbox(worker: str, after: int, connection: Connection, now: float) -> list[tuple[int, bytes]]:
    statement = f"SELECT id, data FROM inbox WHERE worker = ? AND id > ? ORDER BY id LIMIT {MESSAGE_BATCH}"
    return connection.execute(statement, (worker, after)).fetchall()


def delete_from_inbox(worker: str, last_id: int, connection: Connection, now: float) -> None:
    connection.execute("DELETE FROM inbox WHERE worker = ? AND id <= ?", (worker, last_id))


def add_change(data: bytes, connection: Connection, now: float) -> int:
    id = connection.execute("INSERT INTO changes (data) VALUES (?)", (data,)).lastrowid
    assert id is not None
    connection.execute("DELETE FROM changes WHERE id <= ?", (id - MAX_CHANGES,))
    return id


def read_epoch(connection: Connection, now: float) -> str:
    """Return the ID of the file. Every cursor contains the ID of the file that it belongs to."""
    return connection.execute("SELECT id FROM epoch").fetchone()[0]


def find_last_change(connection: Connection, now: float) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
    return 0 if row is None else row[0]


def read_changes(after: int, limit: int, connection: Connection, now: float) -> list[tuple[int, bytes]] | None:
    """Return the changes after an ID. Return None if some of them were deleted, or if the ID is unknown."""
    statement = "SELECT id, data FROM changes WHERE id > ? ORDER BY id LIMIT ?"
    rows = connection.execute(statement, (after, limit)).fetchall()
    is_known = rows[0][0] == after + 1 if rows else after == find_last_change(connection, now)
    return rows if is_known else None


def append(
    key: str,
    worker: str,
    limits: StreamLimits,
    number: int,
    data: bytes,
    header: bytes | None,
    is_last: bool,
    connection: Connection,
    now: float,
) -> tuple[AppendOutcome, list[str]]:
    """Add an event. Return the outcome and the workers that follow the stream."""
    statement = (
        "SELECT first_number, last_number, stored_bytes, ended_by, expires_at, writer FROM streams WHERE name = ?"
    )
    row = connection.execute(statement, (key,)).fetchone()
    if row is None or row[4] <= now:
        if header is None or number != 1:
            return "missing", []
        delete_stream(key, connection, now)
        connection.execute("INSERT INTO streams VALUES (?, ?, ?, 1, 0, 0, NULL, 0)", (key, worker, header))
        row = (1, 0, 0, None, 0.0, worker)
    first, last, stored_bytes, ended_by, _, writer = row
    if writer != worker or ended_by not in (None, worker):
        return "ended", []
    if number <= last:
        return "added", []
    if ended_by is not None:
        return "ended", []
    if number != last + 1:
        return "missing", []
    _add_event(key, worker, limits, (first, number, stored_bytes), data, is_last, connection, now)
    return "added", _list_followers(key, connection)


def _add_event(
    key: str,
    worker: str,
    limits: StreamLimits,
    state: tuple[int, int, int],
    data: bytes,
    is_last: bool,
    connection: Connection,
    now: float,
) -> None:
    first, number, stored_bytes = state
    connection.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (key, number, data, is_last))
    stored_bytes += len(data)
    while first < number and (number - first >= limits.max_events or stored_bytes > limits.max_bytes):
        deleted = "DELETE FROM events WHERE stream = ? AND number = ? RETURNING length(data)"
        stored_bytes -= connection.execute(deleted, (key, first)).fetchone()[0]
        first += 1
    connection.execute(
        "UPDATE streams SET first_number = ?, last_number = ?, stored_bytes = ?, ended_by = ?, expires_at = ? "
        "WHERE name = ?",
        (first, number, stored_bytes, worker if is_last else None, now + limits.get_ttl(is_last=is_last), key),
    )


def read_stream(key: str, after: int, connection: Connection, now: float) -> Any:
    statement = (
        "SELECT writer, header, first_number, last_number, ended_by FROM streams WHERE name = ? AND expires_at > ?"
    )
    row = connection.execute(statement, (key, now)).fetchone()
    if row is None or not row[2] - 1 <= after <= row[3]:
        return None
    statement = "SELECT number, data, is_last FROM events WHERE stream = ? AND number > ? ORDER BY number LIMIT ?"
    events = connection.execute(statement, (key, after, _EVENT_BATCH)).fetchall()
    last_read = events[-1][0] if events else after
    return row[0], row[1], events, row[4] is not None and last_read == row[3]


def end_lost_stream(
    key: str, worker: str, limits: StreamLimits, number: int, data: bytes, connection: Connection, now: float
) -> list[str] | None:
    """Add a last event to the open stream of a lost worker. Return None if the stream has changed."""
    statement = (
        "SELECT first_number, stored_bytes FROM streams "
        "WHERE name = ? AND expires_at > ? AND ended_by IS NULL AND last_number = ?"
    )
    row = connection.execute(statement, (key, now, number - 1)).fetchone()
    if row is None:
        return None
    _add_event(key, worker, limits, (row[0], number, row[1]), data, True, connection, now)
    return _list_followers(key, connection)


def has_stream(key: str, connection: Connection, now: float) -> bool:
    statement = "SELECT 1 FROM streams WHERE name = ? AND expires_at > ?"
    return connection.execute(statement, (key, now)).fetchone() is not None


def read_open_stream(key: str, connection: Connection, now: float) -> tuple[str, int] | None:
    statement = "SELECT writer, last_number FROM streams WHERE name = ? AND expires_at > ? AND ended_by IS NULL"
    return connection.execute(statement, (key, now)).fetchone()


def delete_stream(key: str, connection: Connection, now: float) -> list[str]:
    connection.execute("DELETE FROM events WHERE stream = ?", (key,))
    connection.execute("DELETE FROM streams WHERE name = ?", (key,))
    return _list_followers(key, connection)


def _list_followers(key: str, connection: Connection) -> list[str]:
    return [worker for (worker,) in connection.execute("SELECT worker FROM followers WHERE stream = ?", (key,))]


def add_follower(key: str, worker: str, connection: Connection, now: float) -> None:
    connection.execute("INSERT OR IGNORE INTO followers VALUES (?, ?)", (key, worker))


def remove_follower(key: str, worker: str, connection: Connection, now: float) -> None:
    connection.execute("DELETE FROM followers WHERE stream = ? AND worker = ?", (key, worker))

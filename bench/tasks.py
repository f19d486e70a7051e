"""Measure the SQLite task store: the median time of each operation, in an empty store and beside many tasks.

The target for `create` is one millisecond. `create` is durable, so it waits for the disk. `disk` is a plain insert with
the same durability in the same moment. It shows how busy the disk is.

python bench/tasks.py [--tasks 10000] [--rounds 300] [--sealed]
"""

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles

from dovetail.extensions.tasks.sqlite_task_store import SQLiteTaskStore
from dovetail.protocol.task_store import (
    TaskCaller,
    TaskRecord,
    answer_requests,
    ask_client,
    change_task,
    complete_task,
    create_task_id,
    request_cancel,
)
from dovetail.wire.input_required import InputRequest

CREATE_LIMIT_MS = 1.0
QUESTION = {"q1": InputRequest(method="elicitation/create", params={"mode": "form", "message": "Continue?"})}
ANSWER = {"q1": {"action": "accept", "content": {"confirm": True}}}


def create_record() -> TaskRecord:
    """Return the record of a new task with small arguments."""
    now = time.time()
    return TaskRecord(
        id=create_task_id(),
        server="bench",
        owner=None,
        caller=TaskCaller(protocol_version="bench"),
        tool="report",
        tool_digest="0" * 16,
        arguments={"month": "2026-11", "sections": ["sales", "stock", "staff"], "title": "x" * 200},
        created_at=now,
        updated_at=now,
        expires_at=now + 3600,
        retention=3600,
    )


def open_plain_database(folder: str) -> sqlite3.Connection:
    """Return a database with one table and the durability of a task store."""
    database = sqlite3.connect(Path(folder) / "plain.sqlite", isolation_level=None)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE plain (value BLOB)"):
        database.execute(statement)
    return database


async def measure(store: SQLiteTaskStore, database: sqlite3.Connection, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each operation in each round. One round is the life of one task."""
    times: dict[str, list[float]] = {}

    async def insert() -> None:
        database.execute("INSERT INTO plain VALUES (?)", (b"x" * 600,))

    async def measure_one(name: str, run: Callable[[], Awaitable[object]]) -> None:
        started = time.perf_counter()
        await run()
        times.setdefault(name, []).append((time.perf_counter() - started) * 1000)

    for _ in range(rounds):
        record, now = create_record(), time.time()
        await measure_one("disk", insert)
        await measure_one("create", lambda record=record: store.create(record))
        await measure_one("get", lambda record=record: store.get(record.id))
        await measure_one("due", lambda now=now: store.list_due("bench", now + 60, 100))
        await measure_one("claim", lambda record=record, now=now: store.claim(record.id, "holder", now + 60, 30))
        await measure_one("renew", lambda record=record, now=now: store.renew({record.id: "holder"}, now, 30))
        await change_task(store, record.id, lambda record, now=now: ask_client(record, QUESTION, now)[0])
        edits = {
            "update": lambda record, now=now: answer_requests(record, ANSWER, now),
            "cancel": lambda record, now=now: request_cancel(record, now),
            "finish": lambda record, now=now: complete_task(record, {"content": []}, now),
        }
        for name, edit in edits.items():
            await measure_one(name, lambda record=record, edit=edit: change_task(store, record.id, edit))
    return times


async def run(tasks: int, rounds: int, secret_keys: list[str]) -> None:
    """Measure a store, add tasks to it and measure it again. Print both medians."""
    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteTaskStore(Path(folder) / "tasks.sqlite", secret_keys=secret_keys)
        database = open_plain_database(folder)
        await measure(store, database, 20)
        few = await measure(store, database, rounds)
        started = time.perf_counter()
        await asyncio.gather(*(store.create(create_record()) for _ in range(tasks)))
        per_task_ms = (time.perf_counter() - started) * 1000 / max(tasks, 1)
        many = await measure(store, database, rounds)
        started = time.perf_counter()
        expired = await store.expire(time.time() + 1e6)
        expiry_ms = (time.perf_counter() - started) * 1000
        database.close()
        await store.close()
    rows = [f"{'operation':10} {'empty ms':>9} {f'{tasks} tasks':>12} {'p95':>7}"]
    for name, values in many.items():
        rows.append(f"{name:10} {median(few[name]):9.3f} {median(values):12.3f} {quantiles(values, n=20)[-1]:7.3f}")
    rows.append(f"create, {tasks} at once: {per_task_ms:.3f} ms each. expire {expired} tasks: {expiry_ms:.0f} ms")
    create_ms, disk_ms = median(few["create"]), median(few["disk"])
    verdict = "ok" if create_ms <= CREATE_LIMIT_MS else "too slow"
    rows.append(f"create: {create_ms:.3f} ms (a plain insert: {disk_ms:.3f} ms), limit {CREATE_LIMIT_MS} ms: {verdict}")
    sys.stdout.write("\n".join(rows) + "\n")


def main() -> None:
    """Read the options and run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000, help="number of tasks in the store")
    parser.add_argument("--rounds", type=int, default=300, help="number of tasks to measure")
    parser.add_argument("--sealed", action="store_true", help="encrypt the records")
    options = parser.parse_args()
    asyncio.run(run(options.tasks, options.rounds, ["a secret key of a benchmark"] if options.sealed else []))


if __name__ == "__main__":
    main()

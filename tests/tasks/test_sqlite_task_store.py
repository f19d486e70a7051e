"""Test the SQLite task store: durability, comparison of versions, leases, expiry, encryption, processes and forks."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from dovetail.errors import DamagedFile, UnsupportedFileVersion
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore, get_default_path
from dovetail.tasks.task_record import TaskRecord, TaskStoreUnavailable
from dovetail.tasks.task_rules import answer_requests, ask_client, complete_task, report_progress, request_cancel
from dovetail.tasks.task_store import TaskLimits, TaskStore, change_task
from dovetail.wire.base import replace
from dovetail.wire.input_required import InputRequest
from support.task_records import SERVER, make_record

NOW = 1_760_000_000.0
DAY_S = 86_400.0
KEY = "a secret key of this test"
QUESTION = {"q": InputRequest(method="elicitation/create", params={"message": "Name?"})}
ACCEPT = {"q": {"action": "accept", "content": {"name": "Ada"}}}

Open = Callable[..., SQLiteTaskStore]


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[Open]:
    """Return a function that opens a store, which is a new one of the same file unless a path is given."""
    async with contextlib.AsyncExitStack() as stores:

        def open_store(path: Path | str = tmp_path / "tasks.sqlite", **options: Any) -> SQLiteTaskStore:
            store = SQLiteTaskStore(path, **options)
            stores.push_async_callback(store.close)
            return store

        yield open_store


@pytest.fixture(params=["file", "memory", "sealed"])
def store(request: pytest.FixtureRequest, open_store: Open) -> TaskStore:
    match request.param:
        case "memory":
            return open_store(":memory:")
        case "sealed":
            return open_store(secret_keys=[KEY])
        case _:
            return open_store()


def read_files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def read_modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


# Create, get, change


async def test_an_error_undoes_only_its_own_change(store: SQLiteTaskStore) -> None:
    good, bad = make_record(), make_record()

    def create_and_fail(database: sqlite3.Connection) -> None:
        store._create(database, bad, TaskLimits())
        raise ValueError

    outcomes = await asyncio.gather(store._write(create_and_fail), store.create(good), return_exceptions=True)
    assert isinstance(outcomes[0], ValueError)
    assert [await store.get(record.id) for record in (good, bad)] == [good, None]


async def test_the_event_loop_does_not_wait_for_the_file(open_store: Open, tmp_path: Path) -> None:
    store, record = open_store(), make_record()
    await store.create(record)
    with contextlib.closing(sqlite3.connect(tmp_path / "tasks.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with asyncio.TaskGroup() as tasks:
            change = tasks.create_task(store.change(replace(record, status_message="x")))
            # The change waits for the other process, and the event loop continues to run.
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert not change.done()
            other.execute("ROLLBACK")
        assert change.result().version == 2


async def test_a_file_that_stays_locked_makes_the_store_unavailable(
    tmp_path: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.storage._DATABASE_TIMEOUT_S", 0.01)
    store = open_store()
    with contextlib.closing(sqlite3.connect(tmp_path / "tasks.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TaskStoreUnavailable):
            await store.create(make_record())
        other.execute("ROLLBACK")
    await store.create(make_record())


# Leases


# Expiry


# Watch


async def take(changed_ids: AsyncIterator[str], expected: str) -> None:
    async with asyncio.timeout(10):
        assert await anext(changed_ids) == expected


async def test_a_watcher_sees_changes_of_another_store(open_store: Open) -> None:
    store, other, records = open_store(poll_interval=0.005), open_store(), [make_record(), make_record()]
    for record in records:
        await store.create(record)
    with store.watch([record.id for record in records]) as changed_ids:
        for _ in range(4):  # Each ID is returned at once, and again after the first poll.
            await anext(changed_ids)
        for record in reversed(records):
            await change_task(other, record.id, lambda record: report_progress(record, NOW, message="x"))
            await take(changed_ids, record.id)
        await other.expire(time.time() + 1e6)
        async with asyncio.timeout(10):
            assert {await anext(changed_ids), await anext(changed_ids)} == {record.id for record in records}


def test_a_store_in_memory_reports_changes_to_another_event_loop() -> None:
    store, record, is_watching = SQLiteTaskStore(":memory:"), make_record(), threading.Event()
    seen: list[str] = []

    async def watch() -> None:
        with store.watch([record.id]) as changed_ids:
            await take(changed_ids, record.id)
            is_watching.set()
            await take(changed_ids, record.id)
            seen.append(record.id)

    async def change() -> None:
        await asyncio.to_thread(is_watching.wait)
        await change_task(store, record.id, lambda record: report_progress(record, NOW, message="x"))

    asyncio.run(store.create(record))
    thread = threading.Thread(target=asyncio.run, args=(watch(),))
    thread.start()
    asyncio.run(change())
    thread.join(20)
    asyncio.run(store.close())
    assert seen == [record.id]


# Files and encryption


@pytest.mark.skipif(os.name == "nt", reason="platform: Windows has no file modes")
async def test_only_the_user_can_read_the_files(open_store: Open, tmp_path: Path) -> None:
    await open_store().create(make_record())
    modes = read_modes(tmp_path)
    assert {"tasks.sqlite", "tasks.sqlite-wal"} <= modes.keys()
    assert {*modes.values()} == {0o600}


async def test_the_journal_and_the_durability_are_as_promised(open_store: Open) -> None:
    store = open_store()
    await store.create(make_record())
    with store._database.use_writer() as writer:
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_a_store_in_memory_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SQLiteTaskStore(":memory:")
    await store.create(make_record())
    assert read_modes(tmp_path) == {}
    await store.close()


async def live_a_life(store: TaskStore, record: TaskRecord) -> None:
    await store.create(record)
    await store.claim(record.id, "w", time.time(), 30.0)
    await change_task(store, record.id, lambda record: ask_client(record, QUESTION, NOW)[0])
    await change_task(store, record.id, lambda record: answer_requests(record, ACCEPT, NOW))
    await change_task(store, record.id, lambda record: complete_task(record, {"text": "plain-result"}, NOW))


async def test_an_encrypted_file_contains_no_plain_text(open_store: Open, tmp_path: Path) -> None:
    record = make_record(owner="ada@example.com", tool="plain-tool", arguments={"password": "plain-argument"})
    words = [b"plain-argument", b"password", b"plain-tool", b"ada@example.com", b"Name?", b"Ada", b"plain-result"]
    await live_a_life(open_store(secret_keys=[KEY]), record)
    content = read_files(tmp_path)
    assert [word for word in words if word in content] == []
    assert record.id.encode() in content
    # The same words are found if the records are not encrypted.
    plain_folder = tmp_path / "plain"
    plain_folder.mkdir()
    await live_a_life(open_store(plain_folder / "tasks.sqlite"), record)
    content = read_files(plain_folder)
    assert [word for word in words if word not in content] == []


async def test_an_encrypted_record_is_valid_only_for_its_own_task(open_store: Open, tmp_path: Path) -> None:
    store, first, second = open_store(secret_keys=[KEY]), make_record(owner="ada"), make_record(owner="eve")
    await store.create(first)
    await store.create(second)
    with contextlib.closing(sqlite3.connect(tmp_path / "tasks.sqlite")) as database, database:
        database.execute("UPDATE tasks SET record = (SELECT record FROM tasks WHERE id = ?)", (first.id,))
    assert await store.get(first.id) == first
    with pytest.raises(TaskStoreUnavailable):
        await store.get(second.id)


async def test_a_damaged_file_makes_the_store_unavailable(open_store: Open, tmp_path: Path) -> None:
    store, record = open_store(), make_record()
    await store.create(record)
    with contextlib.closing(sqlite3.connect(tmp_path / "tasks.sqlite")) as database, database:
        database.execute("UPDATE tasks SET record = ?", (b'{"format":1,"record":7}',))
    with pytest.raises(TaskStoreUnavailable):
        await store.get(record.id)


async def test_a_file_of_a_newer_version_is_refused_and_not_changed(open_store: Open, tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    store = open_store()
    await store.create(make_record())
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(UnsupportedFileVersion) as caught:
        open_store()
    assert (caught.value.path, caught.value.version, caught.value.supported_version) == (str(path), 99, 1)
    assert path.read_bytes() == before


# Operators


def test_each_server_name_has_a_file_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path))
    assert get_default_path("reports") == tmp_path / "tasks" / "reports.sqlite"
    names = ["a/b", "a:b", "..", ".", "ä", "x" * 500, "x" * 501, "Sales reports"]
    paths = {get_default_path(name) for name in names}
    assert len(paths) == len(names)
    for path in paths:
        assert path.parent == tmp_path / "tasks"
        assert len(path.name.encode()) < 255


# Many tasks


async def test_operations_take_the_same_time_beside_ten_thousand_tasks(open_store: Open) -> None:
    few, many = open_store(":memory:"), open_store(":memory:")
    await asyncio.gather(*(many.create(make_record()) for _ in range(10_000)))
    times: dict[str, dict[str, list[float]]] = {}

    async def measure(name: str, store: TaskStore) -> None:
        record, now = make_record(), time.time() + 1
        await store.create(record)
        await store.claim(record.id, "w", now, 30.0)
        await change_task(store, record.id, lambda record: ask_client(record, QUESTION, now)[0])
        operations: dict[str, Callable[[], Awaitable[Any]]] = {
            "get": lambda: store.get(record.id),
            "update": lambda: change_task(store, record.id, lambda record: answer_requests(record, ACCEPT, now)),
            "cancel": lambda: change_task(store, record.id, lambda record: request_cancel(record, now)),
        }
        for kind, run in operations.items():
            started = time.process_time()
            await run()
            times.setdefault(kind, {}).setdefault(name, []).append(time.process_time() - started)

    for _ in range(150):  # Both stores alternate, so that they see the same load.
        await measure("few", few)
        await measure("many", many)
    ratios = {kind: median(values["many"]) / median(values["few"]) for kind, values in times.items()}
    assert {kind: ratio for kind, ratio in ratios.items() if ratio > 3} == {}


# Processes

CLAIM = """
import asyncio, sys, time
sys.path.insert(0, sys.argv[2])
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from support.task_records import SERVER

async def main():
    store, won = SQLiteTaskStore(sys.argv[1]), []
    print("ready", flush=True)
    sys.stdin.readline()
    while ids := await store.list_due(SERVER, time.time(), 10):
        for id in ids:
            if await store.claim(id, "w", time.time(), 600.0) is not None:
                won.append(id)
    print(*won, flush=True)

asyncio.run(main())
"""

WRITE = """
import asyncio, sys, time
sys.path.insert(0, sys.argv[2])
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from dovetail.tasks.task_store import change_task
from dovetail.tasks.task_rules import complete_task
from support.task_records import make_record

async def work(store):
    while True:
        record = make_record(arguments={"text": "x" * 3000})
        await store.create(record)
        print(record.id, flush=True)
        await store.claim(record.id, "w", time.time(), 600.0)
        await change_task(store, record.id, lambda record: complete_task(record, {"text": "y" * 3000}, time.time()))
        print(record.id, "completed", flush=True)

async def main():
    store = SQLiteTaskStore(sys.argv[1])
    await asyncio.gather(*(work(store) for _ in range(4)))

asyncio.run(main())
"""

FORK = """
import asyncio, multiprocessing, sys, time
sys.path.insert(0, sys.argv[2])
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from support.task_records import SERVER, make_record

store, memory = SQLiteTaskStore(sys.argv[1]), SQLiteTaskStore(":memory:")
fork = multiprocessing.get_context("fork")
results = fork.SimpleQueue()

async def create():
    for _ in range(40):
        record = make_record()
        await store.create(record)
        await memory.create(record)

async def claim():
    won = []
    while ids := await store.list_due(SERVER, time.time(), 5):
        won += [id for id in ids if await store.claim(id, "w", time.time(), 600.0) is not None]
    results.put((len(won), await memory.list_due(SERVER, time.time(), 5)))

asyncio.run(create())
children = [fork.Process(target=lambda: asyncio.run(claim())) for _ in range(2)]
for child in children:
    child.start()
for child in children:
    child.join(30)
    assert child.exitcode == 0, child
(first, first_memory), (second, second_memory) = results.get(), results.get()
assert first + second == 40, (first, second)
assert first_memory == second_memory == []
assert asyncio.run(store.list_due(SERVER, time.time(), 5)) == []
assert len(asyncio.run(memory.list_due(SERVER, time.time(), 100))) == 40
"""


def start(program: str, path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "ignore", "-c", program, str(path), str(Path(__file__).parents[1])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_two_processes_claim_each_task_once(open_store: Open, tmp_path: Path) -> None:
    store, records = open_store(), [make_record(now=time.time() - 1) for _ in range(60)]
    for record in records:
        await store.create(record)
    processes = [start(CLAIM, tmp_path / "tasks.sqlite") for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = await asyncio.gather(*(asyncio.to_thread(process.communicate, "go\n", 60) for process in processes))
    won = [id for output, _ in outputs for id in output.split()]
    assert sorted(won) == sorted(record.id for record in records)
    for record in records:
        stored = await store.get(record.id)
        assert stored is not None
        assert stored.attempt == 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="platform: Windows has no SIGKILL")
@pytest.mark.parametrize("after", [1, 20, 60])
async def test_a_killed_process_loses_no_task_whose_creation_it_reported(
    open_store: Open, tmp_path: Path, after: int
) -> None:
    path = tmp_path / "tasks.sqlite"
    with start(WRITE, path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after)]
        process.kill()
        lines += process.stdout.readlines()
    reports = [line.split() for line in lines if line.endswith("\n")]
    assert len(reports) >= after
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store = open_store()
    for id, *status in reports:
        record = await store.get(id)
        assert record is not None
        assert record.status in (status or ["working", "completed"])
        assert (record.result is not None) == (record.status == "completed")
    # The tasks of the killed process are due when their leases end.
    now = time.time() + 601
    for id in await store.list_due(SERVER, now, 1000):
        await store.claim(id, "other", now, 30.0)
    statuses = {record.status for id, *_ in reports if (record := await store.get(id)) is not None}
    assert statuses <= {"working", "completed", "failed"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="platform: there are no forks")
def test_a_forked_process_can_use_the_store(tmp_path: Path) -> None:
    process = start(FORK, tmp_path / "tasks.sqlite")
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_damaged_file_is_reported_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    path.write_bytes(b"this is not a database, but a text" * 100)
    path.chmod(0o600)
    with pytest.raises(DamagedFile, match=r"tasks\.sqlite"):
        SQLiteTaskStore(path)

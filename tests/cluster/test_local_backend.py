"""Failures of the local back end: killed and paused workers, stale sockets, and folders of other users."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest

from cluster.recorder import Recorder, wait_for, wait_until
from cluster.worker_process import WorkerProcess
from dovetail.cluster.envelope import Envelope
from dovetail.cluster.local.local_backend import LocalBackend
from dovetail.protocol.interfaces.shared_state import (
    MAX_INBOX_MESSAGES,
    SharedStateUnavailable,
    StreamEvent,
    StreamLimits,
    StreamPart,
    WorkerLost,
)

FILE_NAME = "shared-state.sqlite"


@pytest.fixture
def processes(private_folder: Path) -> Generator[list[WorkerProcess]]:
    """Yield two worker processes."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(WorkerProcess("local", str(private_folder)))) for _ in range(2)]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def backend(private_folder: Path, recorder: Recorder) -> AsyncGenerator[LocalBackend]:
    backend = LocalBackend(private_folder)
    await backend.start(recorder)
    yield backend
    await backend.close()


async def test_an_id_is_used_once_by_several_processes(processes: list[WorkerProcess]) -> None:
    names = [str(number) for number in range(300)]
    for process in processes:
        process.send("use_many", names, time.time() + 3600)
    used = [name for process in processes for name in process.receive()]
    assert sorted(used) == sorted(names)


async def test_a_killed_worker_is_noticed_at_once(backend: LocalBackend, processes: list[WorkerProcess]) -> None:
    lost = processes[0]
    assert await backend.send(lost.worker, "answer", b"")
    lost.kill()
    assert lost.worker not in await backend.list_workers()
    assert not await backend.send(lost.worker, "answer", b"")


async def test_a_killed_worker_is_lost_although_its_child_process_lives(
    backend: LocalBackend, processes: list[WorkerProcess]
) -> None:
    """The child process has the same open files, such as a process of `multiprocessing` with the method "fork"."""
    lost = processes[0]
    assert lost.call("append", "stream", 1, "one", header="request 7") == "added"
    child = lost.call("fork")
    try:
        lost.kill()
        assert lost.worker not in await backend.list_workers()
        assert not await backend.send(lost.worker, "answer", b"")
        with pytest.raises(WorkerLost):
            [event async for event in backend.follow("stream", 1)]
        assert await backend.end_lost_stream("stream", b"lost")
    finally:
        os.kill(child, signal.SIGKILL)


async def test_messages_reach_other_processes(backend: LocalBackend, processes: list[WorkerProcess]) -> None:
    assert {process.worker for process in processes} <= await backend.list_workers()
    assert await backend.send(processes[0].worker, "answer", b"for one")
    await backend.publish("change", b"for all")
    for process, expected in zip(processes, [{"for one", "for all"}, {"for all"}], strict=True):

        async def has_arrived(process: WorkerProcess = process, expected: set[str] = expected) -> bool:
            return set(process.call("listener")["bodies"]) == expected

        await wait_for(has_arrived)


async def test_the_stream_of_a_killed_worker_gets_one_last_event(
    backend: LocalBackend, processes: list[WorkerProcess]
) -> None:
    writer = processes[0]
    assert writer.call("append", "stream", 1, "one", header="request 7") == "added"
    writer.kill()
    events = backend.follow("stream", 0)
    assert await anext(events) == StreamEvent(1, b"one")
    with pytest.raises(WorkerLost) as caught:
        await anext(events)
    assert (caught.value.worker, caught.value.header) == (writer.worker, b"request 7")
    assert await backend.end_lost_stream("stream", b"lost")
    assert not await backend.end_lost_stream("stream", b"lost")
    assert [event async for event in backend.follow("stream", 1)] == [StreamEvent(2, b"lost", True)]


async def test_a_finished_stream_outlives_its_worker(backend: LocalBackend, processes: list[WorkerProcess]) -> None:
    assert processes[0].call("append", "stream", 1, "one", header="", is_last=True) == "added"
    processes[0].kill()
    assert [event.data async for event in backend.follow("stream", 0)] == [b"one"]


async def test_a_paused_worker_gets_its_messages_later(backend: LocalBackend, processes: list[WorkerProcess]) -> None:
    paused = processes[0]
    assert paused.worker
    paused.pause()
    for _ in range(MAX_INBOX_MESSAGES):
        assert await backend.send(paused.worker, "answer", b"x")
    with pytest.raises(SharedStateUnavailable):
        await backend.send(paused.worker, "answer", b"x")
    paused.resume()

    async def has_all() -> bool:
        return len(paused.call("listener")["bodies"]) == MAX_INBOX_MESSAGES

    await wait_for(has_all)


async def test_a_worker_that_is_lost_during_a_change_blocks_others_for_a_limited_time(
    backend: LocalBackend, processes: list[WorkerProcess]
) -> None:
    holder = processes[0]
    assert holder.call("hold_lock")
    holder.pause()
    with pytest.raises(SharedStateUnavailable):
        await backend.write("a", b"x", 60)
    assert await backend.read("a") is None  # Readers do not wait.
    holder.kill()
    assert await backend.write("a", b"x", 60) is not None


async def test_a_stale_socket_is_removed(
    backend: LocalBackend, processes: list[WorkerProcess], private_folder: Path
) -> None:
    lost = processes[0]
    socket_path = private_folder / f"{lost.worker}.sock"
    assert socket_path.exists()
    lost.kill()  # From now on, any worker may remove the socket.
    await backend.publish("change", b"")
    assert not socket_path.exists()


async def test_a_name_from_a_client_cannot_remove_a_socket_elsewhere(backend: LocalBackend, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stale:
        stale.bind(str(tmp_path / "service.sock"))
    assert not await backend.send(str(tmp_path / "service"), "answer", b"")
    assert "service.sock" in os.listdir(tmp_path)


async def test_a_missed_wakeup_only_delays_a_message(private_folder: Path, backend: LocalBackend) -> None:
    receiver, recorder = LocalBackend(private_folder), Recorder()
    await receiver.start(recorder)
    with contextlib.closing(sqlite3.connect(private_folder / FILE_NAME, isolation_level=None)) as database:
        await backend.publish("change", b"one")
        await wait_until(lambda: recorder.messages)
        database.execute("INSERT INTO changes (data) SELECT data FROM changes")  # No socket is woken.
    await wait_until(lambda: len(recorder.messages) == 2)
    await receiver.close()


async def test_deleted_changes_are_a_gap(private_folder: Path, backend: LocalBackend, recorder: Recorder) -> None:
    cursor = await backend.publish("change", b"one")
    with contextlib.closing(sqlite3.connect(private_folder / FILE_NAME, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE sqlite_sequence SET seq = seq + 10 WHERE name = 'changes'")
        database.execute("COMMIT")
    assert await backend.read_changes(cursor) is None
    await wait_until(lambda: recorder.gaps == 1)


async def test_a_deleted_file_makes_the_back_end_unavailable(
    private_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.cluster.local.local_backend._PURGE_INTERVAL_S", 0.0)
    backend = LocalBackend(private_folder)
    await backend.start(Recorder())
    os.unlink(private_folder / FILE_NAME)
    await wait_until(lambda: not backend.get_status().is_available)
    with pytest.raises(SharedStateUnavailable):
        await backend.write("a", b"x", 60)
    await backend.close()


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o777])
async def test_a_folder_that_others_can_use_is_refused(private_folder: Path, mode: int) -> None:
    os.chmod(private_folder, mode)
    with pytest.raises(PermissionError):
        await LocalBackend(private_folder).start(Recorder())


async def test_a_folder_must_be_a_real_folder(private_folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(private_folder)
    with pytest.raises(NotADirectoryError):
        await LocalBackend(link).start(Recorder())


async def test_a_path_that_is_too_long_for_a_socket_is_refused(private_folder: Path) -> None:
    folder = private_folder / ("x" * 100)
    folder.mkdir(mode=0o700)
    with pytest.raises(ValueError, match="too long"):
        await LocalBackend(folder).start(Recorder())


async def test_only_the_user_can_read_the_file(backend: LocalBackend, private_folder: Path) -> None:
    await backend.write("a", b"x", 60)
    names = [name for name in os.listdir(private_folder) if name.startswith(FILE_NAME)]
    assert len(names) == 3
    assert {os.stat(private_folder / name).st_mode & 0o077 for name in names} == {0}
    assert os.stat(private_folder).st_mode & 0o077 == 0


@contextlib.contextmanager
def connect(folder: Path) -> Generator[sqlite3.Connection]:
    """Open the shared file as another process could."""
    with contextlib.closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as connection:
        yield connection


@contextlib.contextmanager
def limit_open_files() -> Generator[None]:
    """Let every attempt to open a file fail."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_worker_with_too_many_open_files_continues_later(
    private_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.cluster.local.local_backend._CHECK_INTERVAL_S", 0.01)
    backend, other = LocalBackend(private_folder), LocalBackend(private_folder)
    await backend.start(Recorder())
    with limit_open_files():
        with pytest.raises(SharedStateUnavailable):
            await backend.list_workers()
        await asyncio.sleep(0.05)  # The maintenance task fails, too.
    await other.start(Recorder())
    await wait_until(lambda: backend.get_status().worker_count == 2)
    await backend.close()
    await other.close()


async def test_foreign_files_in_the_folder_do_no_harm(
    private_folder: Path, backend: LocalBackend, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "0" * 12
    with socket.socket(socket.AF_UNIX) as foreign:  # A stream socket refuses datagrams with another error.
        foreign.bind(str(private_folder / f"{name}.sock"))
        (private_folder / "notes.lock").touch()
        (private_folder / ("1" * 12 + ".lock")).touch()
        assert await backend.list_workers() == {backend.worker}
        assert not await backend.send(name, "answer", b"")
        await backend.publish("change", b"one")
        await wait_until(lambda: recorder.messages)
    assert (private_folder / "notes.lock").exists()


async def test_many_unreadable_changes_are_one_gap(
    private_folder: Path, backend: LocalBackend, recorder: Recorder
) -> None:
    with connect(private_folder) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO changes (data) VALUES (?)", [(b"?",)] * 150)
        connection.execute("COMMIT")
    await backend.publish("change", b"readable")
    await wait_until(lambda: recorder.bodies == [b"readable"])
    await wait_until(lambda: recorder.gaps)
    assert recorder.gaps == 1


async def test_a_malformed_change_is_a_gap(private_folder: Path, backend: LocalBackend, recorder: Recorder) -> None:
    cursor = await backend.get_cursor()
    malformed = Envelope().encode(b"without a kind", "changes", 60)
    with connect(private_folder) as connection:
        connection.execute("INSERT INTO changes (data) VALUES (?)", (malformed,))
    await backend.publish("change", b"readable")
    await wait_until(lambda: recorder.bodies == [b"readable"] and recorder.gaps == 1)
    assert await backend.read_changes(cursor) is None


async def test_all_expired_rows_are_deleted(private_folder: Path, backend: LocalBackend) -> None:
    def count_rows(table: str) -> int:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    with connect(private_folder) as connection:
        connection.execute("BEGIN IMMEDIATE")
        rows = [(str(number),) for number in range(5000)]
        connection.executemany("INSERT INTO used_ids VALUES (?, '', 1.0)", rows)
        connection.executemany("INSERT INTO places VALUES ('place', ?, NULL, 1.0)", rows)
        connection.executemany("INSERT INTO followers VALUES (?, 'lost worker')", rows)
        connection.execute("INSERT INTO used_ids VALUES ('valid', '', 1e12)")
        connection.execute("COMMIT")
        purging = LocalBackend(private_folder)
        await purging.start(Recorder())  # Each worker purges the file when it starts.
        await wait_until(lambda: count_rows("used_ids") == 1, 8)
        await wait_until(lambda: count_rows("places") + count_rows("followers") == 0, 8)
        await purging.close()


async def test_the_streams_of_lost_workers_have_a_maximum_size(private_folder: Path) -> None:
    """A worker that crashes again and again must not fill the file."""
    limits = StreamLimits(max_total_bytes=1000)
    for number in range(5):
        lost = LocalBackend(private_folder, stream_limits=limits)
        await lost.start(Recorder())
        await lost.append(f"stream {number}", 1, bytes(350), header=b"")
        await lost.close()
    backend = LocalBackend(private_folder, stream_limits=limits)
    await backend.start(Recorder())

    async def list_stored() -> list[int]:
        return [number for number in range(5) if await backend.read_stream(f"stream {number}", 0) is not None]

    async def is_purged() -> bool:
        return await list_stored() == [3, 4]

    await wait_for(is_purged)
    await backend.close()


async def test_the_places_of_a_killed_worker_are_free(backend: LocalBackend, processes: list[WorkerProcess]) -> None:
    assert processes[0].call("acquire", "place", "a", 1, None)
    assert not await backend.acquire("place", "b", 1, None)
    processes[0].kill()
    assert await backend.acquire("place", "b", 1, None)


async def test_changes_wait_for_the_lock_at_the_same_time(
    private_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.cluster.local.local_database._LOCK_TIMEOUT_S", 0.2)
    backend = LocalBackend(private_folder)
    await backend.start(Recorder())
    with connect(private_folder) as connection:
        connection.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        outcomes = await asyncio.gather(*(backend.write("a", b"", 60) for _ in range(50)), return_exceptions=True)
        assert all(isinstance(outcome, SharedStateUnavailable) for outcome in outcomes)
        assert time.monotonic() - started < 5  # One after the other, they would need ten seconds.
        assert backend.get_status().problem is not None
        assert backend.get_status().is_available  # Values can still be read.
        waiting = asyncio.get_running_loop().create_task(backend.write("a", b"first", 60))
        await asyncio.sleep(0)
        with pytest.raises(SharedStateUnavailable):  # While one change waits, others fail at once.
            await backend.write("a", b"second", 60)
        assert not waiting.done()
        connection.execute("ROLLBACK")
    await asyncio.wait([waiting])
    assert await backend.write("a", b"third", 60) is not None
    assert backend.get_status().problem is None
    await backend.close()


async def test_closing_does_not_block_the_event_loop(private_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.cluster.local.local_database._LOCK_TIMEOUT_S", 60.0)
    backend = LocalBackend(private_folder)
    await backend.start(Recorder())
    with connect(private_folder) as connection:
        connection.execute("BEGIN IMMEDIATE")
        loop = asyncio.get_running_loop()
        waiting = loop.create_task(backend.write("a", b"", 60))
        await asyncio.sleep(0)
        closing = loop.create_task(backend.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        connection.execute("ROLLBACK")
    await asyncio.wait([waiting, closing])


async def test_a_full_file_is_reported(backend: LocalBackend) -> None:
    connection = backend._database._connection  # pyright: ignore[reportPrivateUsage]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(SharedStateUnavailable):
        await backend.write("a", bytes(1_000_000), 60)
    status = backend.get_status()
    assert (status.is_available, status.problem is None) == (True, False)
    assert await backend.write("a", b"small", 60) is not None


async def test_a_message_that_cannot_be_deleted_is_delivered_once(
    backend: LocalBackend, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("dovetail.cluster.local.local_statements.delete_from_inbox", fail)
    for number in range(150):  # This is more than one batch.
        assert await backend.send(backend.worker, "answer", str(number).encode())
    await wait_until(lambda: len(recorder.messages) >= 150)
    assert await backend.send(backend.worker, "answer", b"150")
    await wait_until(lambda: len(recorder.messages) >= 151)
    assert [int(body) for body in recorder.bodies] == list(range(151))


async def test_an_error_of_the_database_makes_the_back_end_unavailable(backend: LocalBackend) -> None:
    def fail(*args: object) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    database = backend._database  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(SharedStateUnavailable):
        database.read(fail)
    with pytest.raises(SharedStateUnavailable):
        await database.change(fail)


async def test_an_event_wakes_only_the_readers_of_its_stream(private_folder: Path, backend: LocalBackend) -> None:
    reader = LocalBackend(private_folder)
    await reader.start(Recorder())
    reads: list[str] = []
    read_stream = reader.read_stream

    async def count_reads(stream: str, after: int) -> StreamPart | None:
        reads.append(stream)
        return await read_stream(stream, after)

    reader.read_stream = count_reads
    for stream in ("busy", "idle"):
        await backend.append(stream, 1, b"", header=b"")
    busy, idle = reader.follow("busy", 0), reader.follow("idle", 0)
    assert [(await anext(events)).number for events in (busy, idle)] == [1, 1]
    waiting = asyncio.get_running_loop().create_task(anext(idle))
    started = time.monotonic()
    for number in range(2, 30):
        reading = asyncio.get_running_loop().create_task(anext(busy))
        await asyncio.sleep(0)
        await backend.append("busy", number, b"")
        assert (await reading).number == number
    # A reader also checks for new events each second.
    assert reads.count("idle") <= 5 + time.monotonic() - started
    waiting.cancel()
    await asyncio.wait([waiting])
    await busy.aclose()
    await idle.aclose()
    await reader.close()


def test_forked_processes_are_different_workers(private_folder: Path) -> None:
    """The back end is created before the fork, and started after it."""
    program = """
import asyncio, os, sys
from pathlib import Path
from typing import Any
from cluster.recorder import Recorder
from dovetail.cluster.local.local_backend import LocalBackend

async def serve():
    await backend.start(Recorder())
    await backend.write(backend.worker, b"x", 60)
    os.write(1, f"{backend.worker}\\n".encode())
    await backend.close()

backend = LocalBackend(Path(sys.argv[1]))
is_parent = os.fork() and os.fork()
asyncio.run(serve())
if is_parent:
    statuses = [os.wait()[1] for _ in range(2)]
    sys.exit(max(statuses))
"""
    command = [sys.executable, "-c", program, str(private_folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert len(set(done.stdout.split())) == 3


async def test_a_message_is_delivered_before_a_later_change(
    private_folder: Path, backend: LocalBackend, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = LocalBackend(private_folder)
    await sender.start(Recorder())
    database = backend._database
    read, is_sent = database.read, False

    def read_and_interrupt(work: Any) -> Any:
        """Read. Just after the first read, another worker sends a message, and then publishes a change."""
        nonlocal is_sent
        result = read(work)
        if not is_sent:
            is_sent = True
            for operation in (sender.send(backend.worker, "message", b"1"), sender.publish("change", b"2")):
                with pytest.raises(StopIteration):  # Without other writers, the operations do not wait.
                    operation.send(None)
        return result

    monkeypatch.setattr(database, "read", read_and_interrupt)
    backend._wake(set(), True)
    await wait_until(lambda: len(recorder.messages) == 2)
    assert recorder.bodies == [b"1", b"2"]
    await sender.close()

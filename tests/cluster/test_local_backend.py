"""Failures of the local back end: killed and paused workers, stale sockets, and folders of other users."""

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from cluster.recorder import Recorder, wait_for, wait_until
from cluster.worker_process import WorkerProcess
from dovetail.cluster.local_backend import LocalBackend
from dovetail.protocol.shared_state import MAX_INBOX_MESSAGES, SharedStateUnavailable, StreamEvent, WorkerLost

FILE_NAME = "shared-state.sqlite"


@pytest.fixture
def processes(private_folder: Path) -> Generator[list[WorkerProcess]]:
    """Yield two worker processes."""
    processes = [WorkerProcess("local", str(private_folder)) for _ in range(2)]
    yield processes
    for process in processes:
        process.close()


@pytest.fixture
async def backend(private_folder: Path) -> AsyncGenerator[LocalBackend]:
    backend = LocalBackend(private_folder)
    await backend.start(Recorder())
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
    lost.kill()
    assert socket_path.exists()
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


async def test_deleted_changes_are_a_gap(private_folder: Path, backend: LocalBackend) -> None:
    cursor = await backend.publish("change", b"one")
    with contextlib.closing(sqlite3.connect(private_folder / FILE_NAME, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE sqlite_sequence SET seq = seq + 10 WHERE name = 'changes'")
        database.execute("COMMIT")
    assert await backend.read_changes(cursor) is None
    recorder = backend._listener  # pyright: ignore[reportPrivateUsage]
    assert isinstance(recorder, Recorder)
    await wait_until(lambda: recorder.gaps == 1)


async def test_a_deleted_file_makes_the_back_end_unavailable(
    private_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.cluster.local_backend._PURGE_INTERVAL_S", 0.0)
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


def test_forked_processes_are_different_workers(private_folder: Path) -> None:
    """The back end is created before the fork, and started after it."""
    program = """
import asyncio, os, sys
from pathlib import Path
from cluster.recorder import Recorder
from dovetail.cluster.local_backend import LocalBackend

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

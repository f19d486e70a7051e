"""Test shared documents: always complete, changed by one process at a time, readable only by their user."""

import asyncio
import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dovetail.auth.sqlite_store import SQLiteStore
from dovetail.cluster.local.local_database import LocalDatabase
from dovetail.errors import DamagedFile, UnsupportedFileVersion, UnusableFile
from dovetail.host import FileConsent
from dovetail.server.state_stores import SQLiteStateStore
from dovetail.storage import (
    SharedDatabase,
    SharedDocument,
    get_cache_dir,
    get_data_dir,
    lock_path,
    make_trusted_dir,
    open_database,
    open_for_append,
    read_private_file,
    write_private_file,
)
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from dovetail.tasks.task_record import TaskUnreadable
from support.polling import hurry
from support.task_records import make_record

ADDER = """
import sys
from dovetail.storage import SharedDocument
ledger = SharedDocument(sys.argv[1])
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    ledger.change(lambda document: document.update(n=document.get("n", 0) + 1))
"""

posix = pytest.mark.skipif(sys.platform == "win32", reason="platform: modes as POSIX has them")


def test_processes_and_threads_lose_no_change(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.json"
    command = [sys.executable, "-c", ADDER, str(path), "40"]
    adders = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
    mine = SharedDocument(path)

    def add() -> None:
        for _ in range(20):
            mine.change(lambda document: document.update(n=document.get("n", 0) + 1))

    threads = [threading.Thread(target=add) for _ in range(2)]
    for one in threads:
        one.start()
    for adder in adders:
        adder.communicate(b"\n", timeout=60)
    for one in threads:
        one.join(60)
    assert [adder.returncode for adder in adders] == [0] * 4
    assert mine.read() == {"n": 200}
    assert sorted(one.name for one in path.parent.iterdir()) == ["ledger.json", "ledger.json.lock"]


@posix
def test_only_its_user_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.json"
    SharedDocument(path).change(lambda document: document.update(a=1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@posix
def test_one_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_text("{}", encoding="utf-8")
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(PermissionError, match=r"ledger\.json.*chmod go-w"):
            SharedDocument(path).read()
        with pytest.raises(PermissionError, match=r"ledger\.json.*chmod go-w"):
            SharedDocument(path).change(lambda document: None)


def test_a_change_by_another_is_seen_at_once(tmp_path: Path) -> None:
    one, other = SharedDocument(tmp_path / "l"), SharedDocument(tmp_path / "l")
    assert one.read() == {}
    for n in range(5):
        other.change(lambda document, n=n: document.update(n=n))
        assert one.read() == {"n": n}


def test_a_failed_change_changes_nothing(tmp_path: Path) -> None:
    ledger = SharedDocument(tmp_path / "l")
    ledger.change(lambda document: document.update(a=[1]))

    def fail(document: dict[str, list[int]]) -> None:
        document["a"].append(2)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        ledger.change(fail)
    assert ledger.read() == {"a": [1]}
    assert SharedDocument(tmp_path / "l").read() == {"a": [1]}


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_one_is_refused_by_name_and_left_as_it_is(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "ledger.json"
    path.write_bytes(damage)
    path.chmod(0o600)
    ledger = SharedDocument(path)
    with pytest.raises(DamagedFile) as caught:
        ledger.read()
    assert caught.value.path == str(path)
    with pytest.raises(DamagedFile):
        ledger.change(lambda document: document.update(a=1))
    assert path.read_bytes() == damage


@posix
def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document, secret, lines, database = (tmp_path / name for name in ("document", "secret", "lines", "database"))
    SharedDocument(document).change(lambda content: content.update(a=1))
    write_private_file(secret, b"x")
    os.close(open_for_append(lines))
    open_database(database, "test", "CREATE TABLE t (a)", ()).close()
    monkeypatch.setattr("os.geteuid", lambda: 12345 if os.getuid() != 12345 else 12346)
    monkeypatch.setattr("dovetail.storage._ROOT_USER_ID", -1)
    for path, read in (
        (document, lambda: SharedDocument(document).read()),
        (secret, lambda: read_private_file(secret)),
        (lines, lambda: open_for_append(lines)),
        (database, lambda: open_database(database, "test", "CREATE TABLE t (a)", ())),
    ):
        with pytest.raises((PermissionError, UnusableFile), match=str(path)):
            read()


def test_an_unchanged_one_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = SharedDocument(tmp_path / "l")
    ledger.change(lambda document: document.update(a=1))
    assert ledger.read() == {"a": 1}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", None)
        assert ledger.read() == {"a": 1}
    SharedDocument(tmp_path / "l").change(lambda document: document.update(a=2))
    assert ledger.read() == {"a": 2}


@posix
def test_one_that_others_may_write_later_is_refused(tmp_path: Path) -> None:
    ledger = SharedDocument(tmp_path / "l")
    ledger.change(lambda document: document.update(a=1))
    assert ledger.read() == {"a": 1}
    (tmp_path / "l").chmod(0o666)
    with pytest.raises(PermissionError, match="chmod go-w"):
        ledger.read()


@posix
def test_a_directory_of_programs_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a" / "environments"
    make_trusted_dir(path)
    make_trusted_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for mode in (0o770, 0o702):
        path.chmod(mode)
        with pytest.raises(PermissionError, match="chmod go-w"):
            make_trusted_dir(path)


@posix
def test_a_database_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "database"
    open_database(path, "test", "CREATE TABLE t (a)", ()).close()
    path.chmod(0o666)
    with pytest.raises(UnusableFile, match="chmod go-w"):
        open_database(path, "test", "CREATE TABLE t (a)", ())


@posix
def test_a_database_that_others_may_read_becomes_private(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "database"
    open_database(path, "test", "CREATE TABLE t (a)", ()).close()
    path.chmod(0o644)
    open_database(path, "test", "CREATE TABLE t (a)", ()).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert str(path) in caplog.text


def write_damaged_database(path: Path, damage: str) -> None:
    """Create a database of many pages, and damage it."""
    with closing(open_database(path, "test", "CREATE TABLE t (a)", ())) as database:
        database.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 1000)
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    middle = len(data) // 2 // 4096 * 4096
    if damage == "junk":
        data = b"this is not a database" * 1000
    elif damage == "truncated":
        data = data[:middle]
    else:
        data = data[:middle] + b"\xff" * 4096 + data[middle + 4096 :]
    path.write_bytes(data)


OPENERS: dict[str, Callable[[Path], object]] = {
    "any": lambda path: open_database(path, "test", "CREATE TABLE t (a)", ()).close(),
    "tasks": SQLiteTaskStore,
    "state": SQLiteStateStore,
    "authorization server": SQLiteStore,
    "inbox": FileConsent,
    "cluster": lambda path: asyncio.run(LocalDatabase(path).close()),
}


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("damage", ["junk", "truncated", "page"])
def test_a_damaged_database_is_refused_by_name_and_left_as_it_is(tmp_path: Path, damage: str, kind: str) -> None:
    path = tmp_path / "database"
    write_damaged_database(path, damage)
    before = path.read_bytes()
    with pytest.raises(DamagedFile) as caught:
        OPENERS[kind](path)
    assert caught.value.path == str(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", OPENERS)
def test_a_database_that_cannot_be_used_is_named(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    for path in (folder, folder / "missing" / "database"):
        with pytest.raises(UnusableFile, match=re.escape(str(path))) as caught:
            OPENERS[kind](path)
        assert caught.value.path == str(path)


@posix
@pytest.mark.parametrize("kind", OPENERS)
def test_a_directory_and_other_files_keep_their_mode(tmp_path: Path, kind: str) -> None:
    directory, text, pipe = tmp_path / "data", tmp_path / "notes.txt", tmp_path / "pipe"
    directory.mkdir()
    text.write_text("my notes", encoding="utf-8")
    os.mkfifo(pipe)
    for path, mode, error in (
        (directory, 0o755, UnusableFile),
        (text, 0o644, DamagedFile),
        (pipe, 0o644, UnusableFile),
    ):
        path.chmod(mode)
        with pytest.raises(error):
            OPENERS[kind](path)
        assert stat.S_IMODE(path.stat().st_mode) == mode


def execute(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE customers (name)",
        # Other programs also have tables with these names.
        "; ".join(f"CREATE TABLE {name} (title)" for name in ("t", "tasks", "state", "kept", "asked", "inbox")),
        "CREATE TABLE customers (name); PRAGMA user_version = 1",
        "CREATE TABLE customers (name); PRAGMA user_version = 99",
        "CREATE VIEW numbers AS SELECT 1",
    ],
)
@pytest.mark.parametrize("kind", OPENERS)
def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path, kind: str, script: str) -> None:
    path = tmp_path / "customers.sqlite"
    execute(path, script)
    path.chmod(0o644)
    before = path.read_bytes(), path.stat().st_mode
    with pytest.raises(UnusableFile) as caught:
        OPENERS[kind](path)
    assert caught.value.path == str(path)
    assert (path.read_bytes(), path.stat().st_mode) == before
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("other_kind", OPENERS)
def test_each_store_needs_its_own_file(tmp_path: Path, kind: str, other_kind: str) -> None:
    path = tmp_path / "both.sqlite"
    OPENERS[other_kind](path)
    if kind == other_kind:
        OPENERS[kind](path)
    else:
        with pytest.raises(UnusableFile):
            OPENERS[kind](path)


@pytest.mark.parametrize("kind", OPENERS)
def test_an_empty_file_becomes_a_store(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "empty.sqlite"
    path.touch(0o644)
    OPENERS[kind](path)
    assert path.stat().st_size > 0
    if os.name != "nt":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_newer_format_may_have_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "newer.sqlite"
    execute(path, "CREATE TABLE t (a_renamed); CREATE TABLE added (b); PRAGMA user_version = 2")
    with pytest.raises(UnsupportedFileVersion):
        open_database(path, "test", "CREATE TABLE t (a)", ())


@pytest.mark.parametrize(
    ("code", "is_about_access"),
    [
        (sqlite3.SQLITE_PERM, True),
        (sqlite3.SQLITE_READONLY_DIRECTORY, True),
        (sqlite3.SQLITE_CANTOPEN, True),
        (sqlite3.SQLITE_IOERR_WRITE, False),
        (sqlite3.SQLITE_FULL, False),
    ],
)
def test_only_a_database_that_cannot_be_written_gets_advice_about_access(
    tmp_path: Path, code: int, is_about_access: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        error = sqlite3.OperationalError("SQLite's reason")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr("dovetail.storage._enable_wal", fail)
    with pytest.raises(OSError, match="SQLite's reason") as caught:
        open_database(tmp_path / "database", "test", "CREATE TABLE t (a)", ())
    assert ("writable" in str(caught.value)) is is_about_access


@pytest.mark.parametrize("use", [SharedDatabase.use_reader, SharedDatabase.use_writer, SharedDatabase.change])
def test_a_database_that_is_damaged_later_is_named(tmp_path: Path, use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "database"
    write_damaged_database(path, "page")
    monkeypatch.setattr("dovetail.storage._MAX_CHECKED_BYTES", 0)
    database = SharedDatabase(path, "test", "CREATE TABLE t (a)")
    with pytest.raises(DamagedFile) as caught, use(database) as connection:
        connection.execute("SELECT sum(length(a)) FROM t").fetchone()
    assert caught.value.path == str(path)
    database.close()


async def test_a_task_file_that_is_damaged_later_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    store = SQLiteTaskStore(path)
    for number in range(100):
        await store.create(make_record(id=f"task-{number}", arguments={"text": "x" * 1000}))
    await store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    for call in (lambda: store.get("task-7"), lambda: store.create(make_record())):
        with pytest.raises(TaskUnreadable, match=re.escape(str(path))):
            await call()
    await store.close()


@posix
def test_a_file_to_append_to_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    os.close(open_for_append(path))
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="chmod go-w"):
        open_for_append(path)
    os.close(open_for_append("/dev/null"))


@posix
def test_a_private_file_is_private_even_if_it_was_there(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_bytes(b"older and longer")
    path.chmod(0o644)
    write_private_file(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)


def test_without_a_path_it_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = SharedDocument()
    ledger.change(lambda document: document.update(a=1))
    assert ledger.read() == {"a": 1}
    assert not [*tmp_path.iterdir()]


def test_a_long_wait_for_another_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, 100)
    with lock_path(tmp_path / "l"), pytest.raises(TimeoutError, match=str(tmp_path / "l")):
        SharedDocument(tmp_path / "l").change(lambda document: None)
    SharedDocument(tmp_path / "l").change(lambda document: None)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = SharedDocument(tmp_path / "l")
    ledger.change(lambda document: document.update(a=1))

    def fail(*_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", fail)
        with pytest.raises(OSError, match="no"):
            ledger.change(lambda document: document.update(a=2))
    assert ledger.read() == {"a": 1}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["l", "l.lock"]


@posix
def test_directories_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOVETAIL_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert get_data_dir() == Path.home() / ".local" / "share" / "dovetail"
    assert get_cache_dir() == Path.home() / ".cache" / "dovetail"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert get_data_dir() == Path("/data/dovetail")
    assert get_cache_dir() == Path("/cache/dovetail")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert get_data_dir() == Path.home() / ".local" / "share" / "dovetail"
    monkeypatch.setenv("DOVETAIL_HOME", "~/mine")
    assert get_data_dir() == get_cache_dir() == Path.home() / "mine"


def test_reading_waits_for_no_other_process_that_changes_it(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    ledger = SharedDocument(path)
    ledger.change(lambda document: document.update(a=1))
    done = threading.Event()

    def change() -> None:
        ledger.change(lambda document: document.update(a=2))
        done.set()

    with lock_path(path):
        changing = threading.Thread(target=change)
        changing.start()
        assert not done.wait(0.05)
        assert ledger.read() == {"a": 1}
    changing.join()
    assert ledger.read() == {"a": 2}


@posix
def test_a_pipe_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.close(open_for_append(pipe))
        write_private_file(pipe, b"x")
        monkeypatch.setattr("os.geteuid", lambda: 12345 if os.getuid() != 12345 else 12346)
        monkeypatch.setattr("dovetail.storage._ROOT_USER_ID", -1)
        for write in (lambda: open_for_append(pipe), lambda: write_private_file(pipe, b"y")):
            with pytest.raises(PermissionError, match=str(pipe)):
                write()
        assert os.read(reader, 10) == b"x"
    finally:
        os.close(reader)


@posix
def test_the_file_of_another_user_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "recording"
    path.write_bytes(b"theirs")
    monkeypatch.setattr("os.geteuid", lambda: 12345 if os.getuid() != 12345 else 12346)
    monkeypatch.setattr("dovetail.storage._ROOT_USER_ID", -1)
    with pytest.raises(PermissionError, match=str(path)):
        write_private_file(path, b"ours")
    assert path.read_bytes() == b"theirs"


@posix
def test_no_directory_of_a_stored_file_is_open_to_others(tmp_path: Path) -> None:
    previous_mask = os.umask(0)
    try:
        SharedDocument(tmp_path / "home" / "deep" / "ledger.json").change(lambda document: document.update(a=1))
    finally:
        os.umask(previous_mask)
    for directory in (tmp_path / "home", tmp_path / "home" / "deep"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_database_can_be_opened_while_another_process_prepares_it(tmp_path: Path) -> None:
    path = tmp_path / "database"
    write_private_file(path, b"")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.2, other.execute, ["COMMIT"])
        timer.start()
        with closing(open_database(path, "test", "CREATE TABLE t (a)", ())) as database:
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        timer.join()

"""Store files in the user's directories, and share them between processes.

A file is replaced in one step, so a reader never sees an incomplete file. A lock file ensures that only one process at
a time changes a file. Only the user who owns a file can read and write it. Each file has a format version, and a file
with a newer version is rejected.
"""

import asyncio
import contextlib
import copy
import json
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dovetail.errors import DamagedFile, UnsupportedFileVersion, UnusableFile
from dovetail.log import log
from dovetail.wire.codec import encode

if TYPE_CHECKING:
    from sqlite3 import Connection

# With eight processes on a busy machine, waiting for a lock took up to 4 seconds.
_LOCK_TIMEOUT_S: Final = 30.0
_LOCK_POLL_INTERVAL_S: Final = 0.005
_ROOT_USER_ID: Final = 0
_OTHERS_READ_MODE: Final = 0o044
_OTHERS_WRITE_MODE: Final = 0o022
_DATABASE_TIMEOUT_S: Final = 5.0
# Checking a file of this size took 0.4 seconds. Ten thousand tasks need about 20 MB.
_MAX_CHECKED_BYTES: Final = 100_000_000
# The primary error codes of SQLite. The sqlite3 module is imported only if it is needed.
_DAMAGE_CODES: Final = (11, 26)  # SQLITE_CORRUPT, SQLITE_NOTADB
_NOT_WRITABLE_CODES: Final = (3, 8, 14)  # SQLITE_PERM, _READONLY, _CANTOPEN
_UNUSABLE_CODES: Final = (10, 13, *_NOT_WRITABLE_CODES)  # SQLITE_IOERR, SQLITE_FULL
_MAX_FIRST_LINE_BYTES: Final = 64 * 1024
_VERSION_KEY: Final = "version"
_OPEN_LOCK: Final = threading.Lock()
# Without this flag, Windows changes the line ends of a file that was opened with `os.open`.
_BINARY_FLAG: Final = os.O_BINARY if sys.platform == "win32" else 0
_WRITABLE_HINT: Final = "The file and its folder must be writable"
MEMORY: Final = ":memory:"  # the path of a database that is only in memory

T = TypeVar("T")
Document = dict[str, Any]


def get_data_dir() -> Path:
    """Return the directory for stored data, such as tokens, grants and pins."""
    return _get_user_dir("XDG_DATA_HOME", ".local/share")


def get_cache_dir() -> Path:
    """Return the directory for cached files, which can be deleted at any time."""
    return _get_user_dir("XDG_CACHE_HOME", ".cache")


def _get_user_dir(xdg_variable: str, default: str) -> Path:
    if home := os.environ.get("DOVETAIL_HOME"):
        return Path(home).expanduser()
    directory = Path(os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else xdg_variable, ""))
    # A relative path is ignored, because it would depend on the working directory.
    return (directory if directory.is_absolute() else Path.home() / default) / "dovetail"


def make_private_dir(path: Path) -> None:
    """Create a directory that only the user can enter, with its missing parents.

    Do not change an existing directory.
    """
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)


def make_trusted_dir(path: Path) -> None:
    """Create a private directory for files that dovetail runs.

    Raises:
        PermissionError: the directory exists, and another user owns it or can write to it.
    """
    make_private_dir(path)
    _check_writers(path.stat(), path)


def replace_file(path: Path, data: bytes, mode: int | None = 0o600) -> None:
    """Replace a file in one step. After a crash, the file has either the old or the new content.

    If `mode` is None, the file gets the mode of any new file, which depends on the umask.
    """
    temporary_path = path.with_name(f".new-{os.urandom(8).hex()}")
    initial_mode = 0o666 if mode is None else 0o600
    try:
        with open(temporary_path, "xb", opener=lambda name, flags: os.open(name, flags, initial_mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary_path, mode)
        os.replace(temporary_path, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary_path)
        raise


def write_private_file(path: Path, data: bytes) -> None:
    """Write a file that only the user can read. The path can also be a device or a pipe.

    Raises:
        PermissionError: another user owns the file or the pipe.
    """
    descriptor = _open_private(path, os.O_WRONLY | os.O_CREAT)
    with os.fdopen(descriptor, "wb") as file:
        file_stat = os.fstat(descriptor)
        if stat.S_ISREG(file_stat.st_mode):
            check_owner(file_stat, path)
            if sys.platform != "win32":
                os.fchmod(descriptor, 0o600)
            os.truncate(descriptor, 0)
        else:
            _check_pipe(path)
        file.write(data)


def open_for_append(path: str | Path) -> int:
    """Open a file to which several processes append. Only the user can read a new file.

    Raises:
        PermissionError: another user owns the file or the pipe, or other users can write the file.
    """
    descriptor = _open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        file_stat = os.fstat(descriptor)
        if stat.S_ISREG(file_stat.st_mode):
            _check_writers(file_stat, path)
        else:
            _check_pipe(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_private(path: str | Path, flags: int) -> int:
    return os.open(path, flags | _BINARY_FLAG, 0o600)


def append(descriptor: int, data: bytes) -> None:
    """Append data in a single write, so that lines of several processes do not mix."""
    if os.write(descriptor, data) != len(data):
        raise OSError("the disk is full")


def read_first_line(path: str | Path) -> bytes:
    """Return the first line of a file, or empty bytes if the file is empty. Devices and pipes are not read."""
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "rb") as file:
                return file.readline(_MAX_FIRST_LINE_BYTES)
    except OSError:
        pass
    return b""


def read_private_file(path: Path) -> bytes | None:
    """Read a secret file, and make it readable only for the user. Return None if the file does not exist.

    Raises:
        PermissionError: other users can write the file, so they may have forged it.
    """
    try:
        with path.open("rb") as file:
            file_stat = os.fstat(file.fileno())
            _check_writers(file_stat, path)
            _remove_readers(file_stat, path)
            return file.read()
    except FileNotFoundError:
        return None


def _check_writers(file_stat: os.stat_result, path: str | Path) -> None:
    """Raise PermissionError if another user owns the path or can write it, because its content may be forged."""
    check_owner(file_stat, path)
    if sys.platform != "win32" and file_stat.st_mode & _OTHERS_WRITE_MODE:
        raise PermissionError(f"other users can write {path}. If it is yours, run chmod go-w on it")


def check_owner(file_stat: os.stat_result, path: str | Path) -> None:
    """Raise PermissionError if another user owns the path. Windows does not report owners."""
    if sys.platform != "win32" and file_stat.st_uid not in (os.geteuid(), _ROOT_USER_ID):
        raise PermissionError(f"another user owns {path}. Move it away, or run chown if it is yours")


def _check_pipe(path: str | Path) -> None:
    """Raise PermissionError if another user owns a pipe and could read from it. Devices such as /dev/stderr are
    allowed.
    """
    path_stat = os.lstat(path)
    if stat.S_ISFIFO(path_stat.st_mode):
        check_owner(path_stat, path)


def _remove_readers(file_stat: os.stat_result, path: str | Path) -> None:
    """Change the mode of a file with secrets so that only the user can read it."""
    if sys.platform != "win32" and file_stat.st_mode & _OTHERS_READ_MODE:
        os.chmod(path, 0o600)
        mode = file_stat.st_mode & 0o777
        log.warning("other users could read %s (mode %o). The mode of the file is now 600", path, mode)


@contextlib.contextmanager
def lock_path(path: Path, timeout: float = _LOCK_TIMEOUT_S) -> Generator[None]:
    """Hold the lock for a file. Only one process can hold the lock, and the lock ends with the process.

    Raises:
        TimeoutError: another process did not release the lock in time.
    """
    with _open_lock_file(path) as descriptor:
        for _ in _attempt_lock(descriptor, path, timeout):
            time.sleep(_LOCK_POLL_INTERVAL_S)
        yield


@contextlib.asynccontextmanager
async def lock_path_async(path: Path, timeout: float) -> AsyncGenerator[None]:
    """Hold the lock for a file, without blocking the event loop.

    The wait for the lock can be cancelled.
    """
    with _open_lock_file(path) as descriptor:
        for _ in _attempt_lock(descriptor, path, timeout):
            await asyncio.sleep(_LOCK_POLL_INTERVAL_S)
        yield


@contextlib.contextmanager
def _open_lock_file(path: Path) -> Generator[int]:
    descriptor = _open_private(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT)
    try:
        yield descriptor
    finally:
        # Closing the descriptor also releases the lock.
        os.close(descriptor)


def _attempt_lock(descriptor: int, path: Path, timeout: float) -> Iterator[None]:
    """Try to lock a file. Yield after each failed attempt, and return when this process has the lock."""
    deadline = time.monotonic() + timeout
    while not _try_lock(descriptor):
        if time.monotonic() > deadline:
            raise TimeoutError(f"timeout while waiting for the lock of {path}: another process holds it")
        yield


if sys.platform == "win32":  # pragma: no cover

    def _try_lock(descriptor: int) -> bool:
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:

    def _try_lock(descriptor: int) -> bool:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


# Each migration converts the content from one version to the next, starting with version 1.
# The current version of a file is the number of migrations plus one. Files of version 1 have no version number.
Migrations = Sequence[Callable[[T], None]]


def _get_version(migrations: Migrations[Any]) -> int:
    return len(migrations) + 1


def _migrate(path: object, content: T, version: Any, migrations: Migrations[T]) -> None:
    if not isinstance(version, int) or not 1 <= version <= _get_version(migrations):
        raise UnsupportedFileVersion(path, version, _get_version(migrations))
    for migration in migrations[version - 1 :]:
        migration(content)


def rename_fields(records: Any, names: Mapping[str, str]) -> None:
    """Rename fields in the records of a document, as a part of a migration."""
    for record in records if isinstance(records, list) else ():
        for old_name in names.keys() & record.keys() if isinstance(record, dict) else ():
            record[names[old_name]] = record.pop(old_name)


class SharedDocument:
    """A JSON object in a file that several processes read and change. Without a path, the object is only in memory.

    A file of an older version is migrated when it is read. The next change writes the file in the current version.
    """

    def __init__(self, path: str | Path | None = None, migrations: Migrations[Document] = ()) -> None:
        self.path = Path(path) if path is not None else None
        self._migrations = migrations
        self._lock = threading.Lock()  # This lock protects the cached document and is held only briefly.
        # This lock is held while a change waits for other processes. Other threads can still read the document.
        self._change_lock = threading.Lock()
        self._cached_stat: tuple[int, ...] | None = None
        self._cached_document: Document = {}

    def read(self) -> Document:
        """Return the current document. Callers must not change it.

        Raises:
            PermissionError: other users can write the file, so they may have forged it.
            DamagedFile: the file does not contain a JSON object.
            UnsupportedFileVersion: a newer version of dovetail wrote the file.
        """
        if self.path is None:
            return self._cached_document
        with self._lock:
            return self._load(self.path)

    def change(self, edit: Callable[[Document], T]) -> T:
        """Change the document with a function, and return the result of the function.

        Raise TimeoutError if another process keeps the file locked.
        """
        with self._change_lock:
            if self.path is None:
                return edit(self._cached_document)
            make_private_dir(self.path.parent)
            with lock_path(self.path):
                # The function changes a copy, because the function may fail after some of its changes.
                document: Document = copy.deepcopy(self.read())
                result = edit(document)
                replace_file(self.path, encode({_VERSION_KEY: _get_version(self._migrations), **document}))
                with self._lock:
                    self._cached_stat = None
                return result

    def _load(self, path: Path) -> Document:
        try:
            # A host needs its documents for every call, so an unchanged file is not read again.
            if self._cached_stat is not None and _get_stat_key(os.stat(path)) == self._cached_stat:
                return self._cached_document
            with path.open("rb") as file:
                file_stat = os.fstat(file.fileno())
                _check_writers(file_stat, path)
                document = _parse_document(file.read(), path)
                _migrate(path, document, document.pop(_VERSION_KEY, 1), self._migrations)
                self._cached_document, self._cached_stat = document, _get_stat_key(file_stat)
        except FileNotFoundError:
            self._cached_document, self._cached_stat = {}, None
        return self._cached_document


def _get_stat_key(file_stat: os.stat_result) -> tuple[int, ...]:
    """Return a key that changes when the content, the owner or the mode of a file changes."""
    return file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_ctime_ns, file_stat.st_size


def _parse_document(data: bytes, path: Path) -> Document:
    try:
        # dovetail's JSON decoder has limits for messages, so the `json` module reads the file.
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedFile(path) from None
    if not isinstance(document, dict):
        raise DamagedFile(path)
    return document


def open_database(path: str | Path, kind: str, schema: str, migrations: "Migrations[Connection]") -> "Connection":
    """Open a SQLite database that several processes share. Create or migrate its tables if needed.

    The file is not changed before it is known to be empty or a database of this kind. The statements in `schema` are
    separated by semicolons.

    Raises:
        UnusableFile: the file cannot be created, read or written, is not a database of this kind, or other users can
            write it.
        DamagedFile: the file is not a database, or a part of it is damaged.
        UnsupportedFileVersion: a newer version of dovetail wrote the file.
    """
    file_stat = _create_file(path)
    with report_damage(path), _report_unusable(path):
        database = connect_database(path)
        try:
            # The check of a larger file takes too long.
            # If the file is damaged, reading the damaged part raises an error.
            if file_stat.st_size <= _MAX_CHECKED_BYTES:
                _check_pages(database, path)
            version = _check_kind(database, path, kind, schema, _get_version(migrations))
            _remove_readers(file_stat, path)
            _enable_wal(database)
            if version != _get_version(migrations):
                _prepare_database(database, path, schema, migrations)
        except BaseException:
            database.close()
            raise
    return database


def _create_file(path: str | Path) -> os.stat_result:
    """Create a file that only the user can read, unless it exists.

    Raises:
        UnusableFile: the path is not a regular file, or other users can write it.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.close(_open_private(path, os.O_CREAT | os.O_EXCL | os.O_RDWR))
        file_stat = os.stat(path)
    except FileNotFoundError:
        raise UnusableFile(path, f"cannot create {path}: its folder does not exist. Create the folder first") from None
    except OSError as exc:
        raise UnusableFile(path, f"cannot use {path}: {exc.strerror}. {_WRITABLE_HINT}") from None
    if stat.S_ISDIR(file_stat.st_mode):
        raise UnusableFile(path, f"{path} is a directory. Pass the path of a file")
    if not stat.S_ISREG(file_stat.st_mode):
        raise UnusableFile(path, f"{path} is not a regular file")
    try:
        _check_writers(file_stat, path)
    except PermissionError as exc:
        raise UnusableFile(path, str(exc)) from None
    return file_stat


@contextlib.contextmanager
def report_damage(path: str | Path) -> Generator[None]:
    """Raise DamagedFile, which names the file, if SQLite reports that a database is damaged."""
    try:
        yield
    except Exception as exc:
        if _get_sqlite_code(exc) in _DAMAGE_CODES:
            raise DamagedFile(path) from None
        raise


@contextlib.contextmanager
def _report_unusable(path: str | Path) -> Generator[None]:
    """Raise UnusableFile if SQLite cannot open, read or write a database."""
    try:
        yield
    except Exception as exc:
        code = _get_sqlite_code(exc)
        if code not in _UNUSABLE_CODES:
            raise
        hint = f". {_WRITABLE_HINT}" if code in _NOT_WRITABLE_CODES else ""
        raise UnusableFile(path, f"cannot use {path}: {exc}{hint}") from None


def _get_sqlite_code(exc: Exception) -> int | None:
    """Return the primary error code of SQLite, or None for other errors."""
    code = getattr(exc, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _check_pages(database: "Connection", path: str | Path) -> None:
    if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise DamagedFile(path)


def _check_kind(database: "Connection", path: str | Path, kind: str, schema: str, supported_version: int) -> int:
    """Return the version of a database. Another program or another store may have written the file.

    Raises:
        UnusableFile: the database has other tables than the ones in `schema`.
        UnsupportedFileVersion: a newer version of dovetail wrote the database.
    """
    version = _read_database_version(database)
    if _has_tables(database):
        with contextlib.closing(connect_database(MEMORY)) as example:
            example.executescript(schema)
            names = [name for (name,) in example.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            expected = {name: _read_columns(example, name) for name in names}
        columns = {name: _read_columns(database, name) for name in expected}
        # A newer version of dovetail may have changed some of the tables.
        is_newer = version > supported_version and any(columns.values())
        if not is_newer and any(expected[name] - columns[name] for name in expected):
            raise UnusableFile(path, f"{path} is not a {kind} of dovetail. Each store needs its own file")
    if version > supported_version:
        raise UnsupportedFileVersion(path, version, supported_version)
    return version


def _has_tables(database: "Connection") -> bool:
    return database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0


def _read_columns(database: "Connection", table: str) -> set[str]:
    """Return the names of the columns of a table, or an empty set if the table does not exist."""
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def _enable_wal(database: "Connection") -> None:
    """Turn on WAL mode, in which readers do not block a writer. Try again while another process turns it on."""
    import sqlite3

    deadline = time.monotonic() + _DATABASE_TIMEOUT_S
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_LOCK_POLL_INTERVAL_S)


def _prepare_database(
    database: "Connection", path: str | Path, schema: str, migrations: "Migrations[Connection]"
) -> None:
    database.execute("BEGIN IMMEDIATE")
    if _has_tables(database):
        _migrate(path, database, _read_database_version(database) or 1, migrations)
    else:
        # `executescript` would commit the transaction first.
        for statement in schema.split(";"):
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {_get_version(migrations)}")
    database.execute("COMMIT")


def connect_database(path: str | Path) -> "Connection":
    """Open another connection to a database that `open_database` has prepared. Any thread may use the connection."""
    import sqlite3

    return sqlite3.connect(path, timeout=_DATABASE_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def _read_database_version(database: "Connection") -> int:
    return database.execute("PRAGMA user_version").fetchone()[0]


class SharedDatabase:
    """A SQLite database for the threads of several processes. A forked process can continue to use it.

    Each process has one connection that writes, and one that reads and does not wait for writes. A change is on the
    disk when its transaction ends. The path `":memory:"` is a database in memory, which only one process can see.
    """

    def __init__(self, path: str | Path, kind: str, schema: str, migrations: "Migrations[Connection]" = ()) -> None:
        self.is_in_memory = str(path) == MEMORY
        self._path = path
        self._schema = schema
        self._migrations = migrations
        self._process_id: int | None = None
        self._inherited_connections: list[Connection] = []
        if not self.is_in_memory:
            # If the file cannot be used, this call raises the error now and not later.
            open_database(path, kind, schema, migrations).close()

    @contextlib.contextmanager
    def use_writer(self) -> "Generator[Connection]":
        """Return the connection for changes. Only one thread at a time can use it."""
        self._open_in_process()
        with self._writer_lock, report_damage(self._path):
            yield self._writer

    @contextlib.contextmanager
    def use_reader(self) -> "Generator[Connection]":
        """Return the connection for reading. Only one thread at a time can use it."""
        self._open_in_process()
        with self._reader_lock, report_damage(self._path):
            yield self._reader

    @contextlib.contextmanager
    def change(self) -> "Generator[Connection]":
        """Start a transaction on the connection for changes. An exception undoes all changes."""
        with self.use_writer() as writer:
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                # SQLite ends the transaction itself after some errors, for example if the disk is full.
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connections of this process. The next use opens them again."""
        with _OPEN_LOCK:
            if self._process_id == os.getpid():
                with contextlib.ExitStack() as locks:
                    for lock in {self._writer_lock, self._reader_lock}:
                        locks.enter_context(lock)
                    self._finalizer()
                self._process_id = None

    def _open_in_process(self) -> None:
        """Open the database once per process. A forked process cannot use the connections of its parent."""
        if self._process_id == os.getpid():
            return
        with _OPEN_LOCK:
            if self._process_id == os.getpid():
                return
            if self._process_id is not None:
                # Closing the connections of the parent process would release its locks, so they stay open.
                self._inherited_connections += [self._writer, self._reader]
            self._writer_lock, self._reader_lock = threading.Lock(), threading.Lock()
            self._writer = connect_database(self._path)
            if self.is_in_memory:
                _prepare_database(self._writer, self._path, self._schema, self._migrations)
                self._reader, self._reader_lock = self._writer, self._writer_lock
            else:
                self._writer.execute("PRAGMA synchronous = FULL")
                self._reader = connect_database(self._path)
                self._reader.execute("PRAGMA query_only = ON")
            # The connections are closed even if `close` is never called.
            self._finalizer = weakref.finalize(self, _close_connections, self._writer, self._reader, os.getpid())
            self._process_id = os.getpid()


def _close_connections(writer: "Connection", reader: "Connection", process_id: int) -> None:
    """Close the connections of a garbage-collected database, unless they belong to a parent process."""
    if process_id == os.getpid():
        reader.close()
        writer.close()

"""The reloader runs a program as a child process, and restarts it when one of its files changes.

It polls files twice a second: the imported sources and the sources next to the program, or the given folders.
With HTTP, the listening socket stays open between children, so no connection is refused. With stdio, the client is
connected to the reloader, which restores the session and the subscriptions in each new child. The client only gets
notifications of changed lists.
"""

import asyncio
import contextlib
import functools
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from dovetail.errors import TransportError
from dovetail.protocol.interfaces.client_transport import Headers
from dovetail.protocol.interfaces.message_tap import Receiver, Recorder
from dovetail.protocol.uri_key import uri_key
from dovetail.server.workers import LISTENER_VARIABLE
from dovetail.transports.pipes import read_into
from dovetail.transports.process.child_process import ChildProcess
from dovetail.wire.meta import SUBSCRIPTION_ID

CHILD_ENV_VAR: Final = "_DOVETAIL_RELOADED"
_POLL_INTERVAL_S: Final = 0.5
_STOP_TIMEOUT_S: Final = 5.0
_MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_IGNORED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_SOURCE_SUFFIXES: Final = (".py", ".js", ".mjs", ".ts", ".json", ".toml", ".yaml", ".yml")
_LISTEN_METHOD: Final = "subscriptions/listen"
_ACKNOWLEDGED_METHOD: Final = "notifications/subscriptions/acknowledged"
_LIST_KINDS: Final = ("tools", "resources", "prompts")
# While no child is running, the reloader waits this many seconds for the rest of a request.
_REQUEST_TIMEOUT_S: Final = 0.5
_STOPPED_MESSAGE: Final = "The server stopped. See stderr for the error. The server starts again when a file changes."


def is_child() -> bool:
    """Return whether this process is the child that the reloader started."""
    return CHILD_ENV_VAR in os.environ


def _get_own_command() -> list[str]:
    argv = sys.orig_argv
    if not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError("reload=True requires a program in a file. An interactive session cannot be restarted")
    return [sys.executable, *argv[1:]]


class SourceFiles:
    """The source files that the reloader watches, with their modification times."""

    def __init__(self, paths: Sequence[Path] | None = None) -> None:
        self._paths = paths
        self._mtimes = dict(self._scan())

    def __len__(self) -> int:
        return len(self._mtimes)

    def _scan(self) -> Iterator[tuple[str, float]]:
        if self._paths is not None:
            for path in self._paths:
                yield from _scan_path(str(path))
            return
        library = tuple({*sysconfig.get_paths().values(), sys.prefix})
        loaded = {getattr(module, "__file__", None) for module in tuple(sys.modules.values())}
        sources = {str(Path(file).absolute()) for file in loaded if file}
        program = getattr(sys.modules["__main__"], "__file__", None)
        program_folder = Path(program).absolute().parent if program else None
        if program_folder is not None:
            sources |= {str(file) for file in program_folder.glob("*.py")}
        for file in sources:
            if not file.startswith(library):
                with contextlib.suppress(OSError):
                    yield file, os.stat(file).st_mtime

    def find_changed(self) -> list[str]:
        """Return the files that changed since the last call, and delete their bytecode."""
        mtimes = dict(self._scan())
        old_mtimes, self._mtimes = self._mtimes, mtimes
        changed_files = sorted(
            name for name in mtimes.keys() | old_mtimes.keys() if mtimes.get(name) != old_mtimes.get(name)
        )
        for name in changed_files:
            _remove_bytecode(name)
        return changed_files


def _remove_bytecode(file: str) -> None:
    """Delete the bytecode of a changed file. After a quick change, Python could still use the old bytecode."""
    if file.endswith(".py"):
        with contextlib.suppress(OSError, NotImplementedError):
            os.unlink(importlib.util.cache_from_source(file))


def _build_child_env() -> dict[str, str]:
    """Return the environment of the child. It prevents bytecode files, which could be outdated after a quick change."""
    return os.environ | {CHILD_ENV_VAR: "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _scan_path(root: str) -> Iterator[tuple[str, float]]:
    if not os.path.isdir(root):
        with contextlib.suppress(OSError):
            yield root, os.stat(root).st_mtime
        return
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _IGNORED_FOLDERS and not name.startswith(".")]
        if "pyvenv.cfg" in files:
            subfolders.clear()
            continue
        for name in files:
            if name.endswith(_SOURCE_SUFFIXES):
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    yield path, os.stat(path).st_mtime


def _print_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _format_names(files: list[str]) -> str:
    return ", ".join(os.path.basename(file) for file in files)


def supervise(
    listener: Any = None, command: Sequence[str] | None = None, files: SourceFiles | None = None, **options: Any
) -> None:
    """Run a command, or this program, as a child process until a signal arrives. Every child inherits the socket.

    Args:
        options: `env`, additional environment variables for the child, and `cwd`, its working directory.
    """
    argv = [*command] if command is not None else _get_own_command()
    child_env = _build_child_env() | (options.get("env") or {})
    inherited_fds: tuple[int, ...] = ()
    if listener is not None and sys.platform == "win32":
        listener.close()  # On Windows, a child cannot inherit a socket, so it opens the address itself.
        listener = None
    elif listener is not None:
        os.set_inheritable(listener.fileno(), True)
        child_env[LISTENER_VARIABLE] = str(listener.fileno())
        inherited_fds = (listener.fileno(),)
    received_signals: list[int] = []
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda number, _: received_signals.append(number))
    files = files or SourceFiles()
    child = subprocess.Popen(argv, env=child_env, cwd=options.get("cwd"), pass_fds=inherited_fds)
    while not received_signals:
        if listener is None or child.poll() is None:
            time.sleep(_POLL_INTERVAL_S)
        else:
            _reject_connections(listener)
        if changed_files := files.find_changed():
            _print_stderr(f"{_format_names(changed_files)} changed, restarting")
            _stop_child(child)
            child = subprocess.Popen(argv, env=child_env, cwd=options.get("cwd"), pass_fds=inherited_fds)
    _stop_child(child)


def _reject_connections(listener: socket.socket) -> None:
    """Reject connections while no child is running, so that clients do not wait forever."""
    deadline = time.monotonic() + _POLL_INTERVAL_S
    while (remaining := deadline - time.monotonic()) > 0 and select.select([listener], [], [], remaining)[0]:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_REQUEST_TIMEOUT_S)
                connection.recv(65536)
                connection.sendall(_build_unavailable_response())
                connection.shutdown(socket.SHUT_WR)
                # If the socket is closed too early, the client may not get the response.
                while connection.recv(65536):
                    pass


def _build_unavailable_response() -> bytes:
    body = _STOPPED_MESSAGE.encode()
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def _stop_child(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


class _ChildOutput(asyncio.StreamReaderProtocol):
    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
        super().__init__(self.reader)
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


def _isolate_recorder(recorder: Recorder) -> Recorder:
    """Wrap a recorder so that messages still arrive if the recorder fails. Print only its first error."""
    failures: list[str] = []

    def record(to: Receiver, data: bytes, headers: Headers = ()) -> None:
        try:
            recorder(to, data, headers)
        except Exception as exc:
            if not failures:
                failures.append(str(exc))
                _print_stderr(f"could not record a message, and later messages may be missing, too: {exc}")

    return record


class ReloadRelay:
    """Passes messages between a client on stdio and the current child process."""

    def __init__(
        self,
        write_line: Any,
        command: Sequence[str] | None = None,
        recorder: Recorder | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: Any = "inherit",
    ) -> None:
        self._stderr = stderr
        self._argv = [*command] if command is not None else _get_own_command()
        self._options: dict[str, Any] = {"env": _build_child_env() | dict(env or {}), "inherit": "all", "cwd": cwd}
        self._recorder = _isolate_recorder(recorder) if recorder is not None else None
        self._write_line = write_line
        # The relay repeats these `subscriptions/listen` requests for each new child.
        self._listen_requests: dict[str | int, dict[str, Any]] = {}
        # The IDs of the listen requests for which the client has received an acknowledgment.
        self._acknowledged_ids: set[str | int] = set()
        self._child: ChildProcess | None = None
        self._output = _ChildOutput()
        self._is_ready = asyncio.Event()
        self._pending: dict[str | int, None] = {}
        self._initialize_request: dict[str, Any] | None = None
        self._is_initialized = False
        # The client has received these capabilities from the first child.
        self._declared_capabilities: Mapping[str, Any] | None = None
        # These requests set the log level and the subscriptions of the session.
        self._settings: dict[str, dict[str, Any]] = {}
        # The IDs of requests that the relay has repeated. The client must not receive the responses to them.
        self._replay_ids: set[str] = set()
        self._replay_count = 0
        self._read_task: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Start a child process, and restore the session of the previous child."""
        self._output = _ChildOutput()
        self._child = await ChildProcess.start(self._argv, self._output, stderr=self._stderr, **self._options)
        is_restart = self._initialize_request is not None
        self._read_task = asyncio.get_running_loop().create_task(self._read_child(self._output.reader))
        if self._initialize_request is not None:
            self._replay(self._initialize_request)
            if self._is_initialized:
                self._send_to_child({"jsonrpc": "2.0", "method": "notifications/initialized"})
            for message in self._settings.values():
                self._replay(message)
        for message in self._listen_requests.values():
            self._acknowledged_ids.add(message["id"])
            self._send_to_child(message)
        self._is_ready.set()
        if is_restart and self._is_initialized:
            for kind in _LIST_KINDS:
                if self._declared_capabilities is None or kind in self._declared_capabilities:
                    self._send_message({"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"})
        for id, message in self._listen_requests.items():
            for kind in _get_wanted_lists(message):
                notice = {"method": f"notifications/{kind}/list_changed", "params": {"_meta": {SUBSCRIPTION_ID: id}}}
                self._send_message({"jsonrpc": "2.0"} | notice)

    def _replay(self, message: dict[str, Any]) -> None:
        self._replay_count += 1
        id = f"dovetail-reload-{self._replay_count}"
        self._replay_ids.add(id)
        self._send_to_child(message | {"id": id})

    async def restart(self) -> None:
        """Replace the child. If the new child does not start, requests get an error."""
        await self.stop()
        try:
            await self.start()
        except (TransportError, OSError) as exc:
            _print_stderr(str(exc))
            self._is_ready.set()

    def _send_to_child(self, message: dict[str, Any]) -> None:
        if self._child is not None:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")

    def _send_to_client(self, line: bytes) -> None:
        if self._recorder is not None:
            self._recorder("client", line, ())
        self._write_line(line)

    def _send_message(self, message: dict[str, Any]) -> None:
        self._send_to_client(json.dumps(message).encode() + b"\n")

    async def _read_child(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = _parse_message(line)
            id = message.get("id")
            if "method" not in message and isinstance(id, str) and id in self._replay_ids:
                self._replay_ids.discard(id)
                continue
            if "method" not in message and id in self._listen_requests and self._is_stopping:
                continue
            if message.get("method") == _ACKNOWLEDGED_METHOD and self._is_repeated(message):
                continue
            if "method" not in message and id in self._listen_requests:
                del self._listen_requests[id]
            if "method" not in message and isinstance(id, str | int):
                self._pending.pop(id, None)
                self._record_capabilities(id, message)
            self._send_to_client(line)
        for id in tuple(self._pending):
            self._refuse(id)

    def _record_capabilities(self, id: str | int, message: dict[str, Any]) -> None:
        result = message.get("result")
        if (
            self._initialize_request is not None
            and id == self._initialize_request.get("id")
            and isinstance(result, dict)
        ):
            capabilities: Any = cast("dict[str, Any]", result).get("capabilities")
            self._declared_capabilities = cast("dict[str, Any]", capabilities) if isinstance(capabilities, dict) else {}

    def _is_repeated(self, message: dict[str, Any]) -> bool:
        """Return whether the client has already received the acknowledgment of this subscription."""
        id = ((message.get("params") or {}).get("_meta") or {}).get(SUBSCRIPTION_ID)
        if id in self._acknowledged_ids:
            self._acknowledged_ids.discard(id)
            return True
        return False

    def _refuse(self, id: str | int) -> None:
        self._pending.pop(id, None)
        self._send_message({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": _STOPPED_MESSAGE}})

    async def handle_line(self, line: bytes) -> None:
        """Send a line of the client to the child. Wait first if no child is running."""
        await self._is_ready.wait()
        message = _parse_message(line)
        id = message.get("id")
        if message.get("method") == "initialize":
            self._initialize_request = message
        self._record_settings(message)
        self._is_initialized = self._is_initialized or message.get("method") == "notifications/initialized"
        request_id = id if "method" in message and isinstance(id, str | int) else None
        if message.get("method") == _LISTEN_METHOD and request_id is not None:
            self._listen_requests[request_id] = message
        elif request_id is not None:
            self._pending[request_id] = None
        if message.get("method") == "notifications/cancelled":
            cancelled_id: Any = (message.get("params") or {}).get("requestId")
            self._listen_requests.pop(cancelled_id, None)
        if self._recorder is not None:
            self._recorder("server", line, ())
        child, output, read_task = self._child, self._output, self._read_task
        # Drop this message, because no child can answer it.
        if child is None or read_task is None or read_task.done():
            if request_id in self._pending:
                self._refuse(request_id)
            return
        child.stdin.write(line)
        await output.writable.wait()

    def _record_settings(self, message: dict[str, Any]) -> None:
        uri: Any = (message.get("params") or {}).get("uri")
        match message.get("method"):
            case "logging/setLevel":
                self._settings["level"] = message
            case "resources/subscribe" if isinstance(uri, str):
                self._settings[f"uri {uri_key(uri)}"] = message
            case "resources/unsubscribe" if isinstance(uri, str):
                self._settings.pop(f"uri {uri_key(uri)}", None)
            case _:
                pass

    async def stop(self) -> None:
        """Wait until the child has finished its requests. Then stop the child and its subprocesses."""
        self._is_ready.clear()
        child, read_task = self._child, self._read_task
        if child is None or read_task is None:
            return
        self._is_stopping = True
        child.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await child.wait_exited()
        # Another process may keep the pipe open, so that reading never ends. So `stop` closes this end of the pipe.
        await child.stop()
        await asyncio.wait([read_task])
        self._child = self._read_task = None
        self._is_stopping = False


def _get_wanted_lists(message: dict[str, Any]) -> list[str]:
    wanted = (message.get("params") or {}).get("notifications") or {}
    return [kind for kind in _LIST_KINDS if wanted.get(f"{kind}ListChanged")]


def _parse_message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


async def relay_stdio(
    source: int,
    sink: int,
    command: Sequence[str] | None = None,
    files: SourceFiles | None = None,
    recorder: Recorder | None = None,
    **options: Any,
) -> None:
    """Serve stdio with one child process at a time, until the client disconnects."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    pipe = await read_into(reader, source)
    with contextlib.suppress(NotImplementedError, RuntimeError):
        # SIGTERM has the same effect as a client that disconnects.
        loop.add_signal_handler(signal.SIGTERM, pipe.close)
    reload_relay = ReloadRelay(functools.partial(_write_all, sink), command, recorder, **options)
    try:
        await reload_relay.start()
        # If one of the two tasks fails, the task group cancels the other task.
        async with asyncio.TaskGroup() as tasks:
            watch_task = tasks.create_task(_watch_files(reload_relay, files or SourceFiles()))
            while line := await reader.readline():
                await reload_relay.handle_line(line)
            watch_task.cancel()
    finally:
        pipe.close()
        await reload_relay.stop()


async def _watch_files(reload_relay: ReloadRelay, files: SourceFiles) -> None:
    while True:
        await asyncio.sleep(_POLL_INTERVAL_S)
        if changed_files := files.find_changed():
            _print_stderr(f"{_format_names(changed_files)} changed, restarting")
            await reload_relay.restart()


def _write_all(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]

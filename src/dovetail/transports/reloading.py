"""Reloading: a program runs as a child, this one or another, and anew whenever one of its files changes.

Files are looked at twice a second: the sources of what is imported and those beside the program, or those of given
folders. Over HTTP the listening socket outlives the child, so no connection is refused. Over stdio the client talks to
this process, which opens the session again for each child, and what was listened to; the client notices only that the
lists have changed.
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
from dovetail.protocol.channel import Headers
from dovetail.protocol.recording import Tap, To
from dovetail.transports.pipes import read_into
from dovetail.transports.process import Child
from dovetail.wire.meta import SUBSCRIPTION_ID

CHILD: Final = "DOVETAIL_RELOADED"
LISTENER: Final = "DOVETAIL_LISTENER"
_LOOK: Final = 0.5
_GRACE: Final = 5.0
_LINE: Final = 64 * 1024 * 1024
_NOT_WRITTEN: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_WRITTEN: Final = (".py", ".js", ".mjs", ".ts", ".json", ".toml", ".yaml", ".yml")
_LISTEN: Final = "subscriptions/listen"
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_KINDS: Final = ("tools", "resources", "prompts")
_ASKING: Final = 0.5  # for the request of somebody who is turned away
_FAILED: Final = "The server stopped; its error is on stderr. It is started again when a file changes."


def is_child() -> bool:
    """Whether this process is the one that serves."""
    return CHILD in os.environ


def _command() -> list[str]:
    words = sys.orig_argv
    if not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError("reload=True needs a program in a file: here there is nothing to start again")
    return [sys.executable, *words[1:]]


class Files:
    """The sources of a program, and whether they are as they were: this one's, or those within some folders."""

    def __init__(self, places: Sequence[Path] | None = None) -> None:
        self._places = places
        self._seen = dict(self._look())

    def __len__(self) -> int:
        return len(self._seen)

    def _look(self) -> Iterator[tuple[str, float]]:
        if self._places is not None:
            for place in self._places:
                yield from _within(str(place))
            return
        library = tuple({*sysconfig.get_paths().values(), sys.prefix})
        loaded = {getattr(module, "__file__", None) for module in tuple(sys.modules.values())}
        own = {str(Path(file).absolute()) for file in loaded if file}
        program = getattr(sys.modules["__main__"], "__file__", None)
        beside = Path(program).absolute().parent if program else None
        if beside is not None:
            own |= {str(file) for file in beside.glob("*.py")}
        for file in own:
            if not file.startswith(library):
                with contextlib.suppress(OSError):
                    yield file, os.stat(file).st_mtime

    def changed(self) -> list[str]:
        """What is not as it was when last asked; what was compiled of it is removed."""
        now = dict(self._look())
        before, self._seen = self._seen, now
        found = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
        for name in found:
            _forget(name)
        return found


def _forget(file: str) -> None:
    """Python knows compiled code for old by size and full second: a change within the second may look like none."""
    if file.endswith(".py"):
        with contextlib.suppress(OSError, NotImplementedError):
            os.unlink(importlib.util.cache_from_source(file))


def _variables() -> dict[str, str]:
    """The environment of a child; it leaves nothing compiled behind that the next one could take for new."""
    return os.environ | {CHILD: "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _within(place: str) -> Iterator[tuple[str, float]]:
    """The files of a folder that somebody wrote, or the one file."""
    if not os.path.isdir(place):
        with contextlib.suppress(OSError):
            yield place, os.stat(place).st_mtime
        return
    for folder, inner, files in os.walk(place):
        inner[:] = [name for name in inner if name not in _NOT_WRITTEN and not name.startswith(".")]
        if "pyvenv.cfg" in files:
            inner.clear()
            continue
        for name in files:
            if name.endswith(_WRITTEN):
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    yield path, os.stat(path).st_mtime


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _names(files: list[str]) -> str:
    return ", ".join(os.path.basename(file) for file in files)


# Servers with a socket of their own


def supervise(
    listener: Any = None, command: Sequence[str] | None = None, files: Files | None = None, **where: Any
) -> None:
    """Run a program as a child until a signal comes, this one if none is named; a listener is handed to every child.

    where: `env`, more variables for the child, and `cwd`.
    """
    words = [*command] if command is not None else _command()
    environment = _variables() | (where.get("env") or {})
    passed: tuple[int, ...] = ()
    if listener is not None and sys.platform != "win32":
        os.set_inheritable(listener.fileno(), True)
        environment[LISTENER] = str(listener.fileno())
        passed = (listener.fileno(),)
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: ended.append(number))
    files = files or Files()
    child = subprocess.Popen(words, env=environment, cwd=where.get("cwd"), pass_fds=passed)
    while not ended:
        if listener is None or child.poll() is None:
            time.sleep(_LOOK)
        else:
            _turn_away(listener)
        if found := files.changed():
            _say(f"{_names(found)} changed: starting again")
            _end(child)
            child = subprocess.Popen(words, env=environment, cwd=where.get("cwd"), pass_fds=passed)
    _end(child)


def _turn_away(listener: socket.socket) -> None:
    """Answer in place of a child that is gone: whoever waits in its queue would wait for ever."""
    until = time.monotonic() + _LOOK
    while (left := until - time.monotonic()) > 0 and select.select([listener], [], [], left)[0]:
        with contextlib.suppress(OSError):
            caller, _ = listener.accept()
            with caller:
                caller.settimeout(_ASKING)
                caller.recv(65536)
                caller.sendall(_away())
                caller.shutdown(socket.SHUT_WR)
                while caller.recv(65536):  # closed with something unread, the answer might be lost
                    pass


def _away() -> bytes:
    body = _FAILED.encode()
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# Servers on standard streams


class _Output(asyncio.StreamReaderProtocol):
    """What a child writes, and whether it takes more."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=_LINE)
        super().__init__(self.reader)
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


def _steady(tap: Tap) -> Tap:
    """A tap that disturbs nobody: that it fails is said once, and what travels goes on."""
    said: list[str] = []

    def told(to: To, data: bytes, headers: Headers = ()) -> None:
        try:
            tap(to, data, headers)
        except Exception as exc:
            if not said:
                said.append(str(exc))
                _say(f"a message could not be shown, nor perhaps those after it: {exc}")

    return told


class Relay:
    """Stands between a client on standard streams and one child after the other."""

    def __init__(
        self,
        send: Any,
        command: Sequence[str] | None = None,
        tap: Tap | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: Any = "inherit",
    ) -> None:
        self._stderr = stderr
        self._words = [*command] if command is not None else _command()
        self._options: dict[str, Any] = {"env": _variables() | dict(env or {}), "inherit": "all", "cwd": cwd}
        self._tap = _steady(tap) if tap is not None else None
        self._write_out = send  # a line to the client
        self._listens: dict[str | int, dict[str, Any]] = {}  # what each child is asked anew
        self._again: set[str | int] = set()  # of these, whose acknowledgement the client has had already
        self._child: Child | None = None
        self._output = _Output()
        self._ready = asyncio.Event()
        self._pending: dict[str | int, None] = {}
        self._opening: dict[str, Any] | None = None
        self._opened = False
        self._declared: Mapping[str, Any] | None = None  # what the client was told that the server can do
        self._settings: dict[str, dict[str, Any]] = {}  # of a handshake session: its level and subscriptions
        self._replays: set[str] = set()  # ids of what this process asked, whose answers the client must not see
        self._replayed = 0
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Start a child and bring it to where the last one was."""
        self._output = _Output()
        self._child = await Child.start(self._words, self._output, stderr=self._stderr, **self._options)
        again = self._opening is not None
        self._reading = asyncio.get_running_loop().create_task(self._read(self._output.reader))
        if self._opening is not None:
            self._repeat(self._opening)
            if self._opened:
                self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
            for message in self._settings.values():
                self._repeat(message)
        for message in self._listens.values():
            self._again.add(message["id"])
            self._write(message)
        self._ready.set()
        if again and self._opened:
            for kind in _KINDS:
                if self._declared is None or kind in self._declared:
                    self._tell({"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"})
        for id, message in self._listens.items():
            for kind in _wanted(message):
                notice = {"method": f"notifications/{kind}/list_changed", "params": {"_meta": {SUBSCRIPTION_ID: id}}}
                self._tell({"jsonrpc": "2.0"} | notice)

    def _repeat(self, message: dict[str, Any]) -> None:
        """Ask the new child what the client asked the old one."""
        self._replayed += 1
        id = f"dovetail-reload-{self._replayed}"
        self._replays.add(id)
        self._write(message | {"id": id})

    async def restart(self) -> None:
        """Put another child in the place of this one; without one, what is asked is refused."""
        await self.stop()
        try:
            await self.start()
        except (TransportError, OSError) as exc:
            _say(str(exc))
            self._ready.set()

    def _write(self, message: dict[str, Any]) -> None:
        if self._child is not None:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")

    def _send(self, line: bytes) -> None:
        if self._tap is not None:
            self._tap("client", line, ())
        self._write_out(line)

    def _tell(self, message: dict[str, Any]) -> None:
        self._send(json.dumps(message).encode() + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = _read(line)
            id = message.get("id")
            if "method" not in message and isinstance(id, str) and id in self._replays:
                self._replays.discard(id)
                continue
            if "method" not in message and id in self._listens and self._stopping:
                continue
            if message.get("method") == _ACKNOWLEDGED and self._repeated(message):
                continue
            if "method" not in message and id in self._listens:
                del self._listens[id]
            if "method" not in message and isinstance(id, str | int):
                self._pending.pop(id, None)
                self._learn(id, message)
            self._send(line)
        for id in tuple(self._pending):
            self._refuse(id)

    def _learn(self, id: str | int, message: dict[str, Any]) -> None:
        """What the server declares when it answers the client's opening."""
        result = message.get("result")
        if self._opening is not None and id == self._opening.get("id") and isinstance(result, dict):
            able: Any = cast("dict[str, Any]", result).get("capabilities")
            self._declared = cast("dict[str, Any]", able) if isinstance(able, dict) else {}

    def _repeated(self, message: dict[str, Any]) -> bool:
        """Whether the client has had this acknowledgement, from the child before."""
        id = ((message.get("params") or {}).get("_meta") or {}).get(SUBSCRIPTION_ID)
        if id in self._again:
            self._again.discard(id)
            return True
        return False

    def _refuse(self, id: str | int) -> None:
        self._pending.pop(id, None)
        self._tell({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": _FAILED}})

    async def take(self, line: bytes) -> None:
        """A line of the client; it waits while there is no child."""
        await self._ready.wait()
        message = _read(line)
        id = message.get("id")
        if message.get("method") == "initialize":
            self._opening = message
        self._note(message)
        self._opened = self._opened or message.get("method") == "notifications/initialized"
        asked = id if "method" in message and isinstance(id, str | int) else None
        if message.get("method") == _LISTEN and asked is not None:
            self._listens[asked] = message
        elif asked is not None:
            self._pending[asked] = None
        if message.get("method") == "notifications/cancelled":
            gone: Any = (message.get("params") or {}).get("requestId")
            self._listens.pop(gone, None)
        if self._tap is not None:
            self._tap("server", line, ())
        child, output, reading = self._child, self._output, self._reading
        if child is None or reading is None or reading.done():  # nobody would hear an answer
            if asked in self._pending:
                self._refuse(asked)
            return
        child.stdin.write(line)
        await output.writable.wait()

    def _note(self, message: dict[str, Any]) -> None:
        """Remember what a handshake session has set, as long as it holds."""
        uri: Any = (message.get("params") or {}).get("uri")
        match message.get("method"):
            case "logging/setLevel":
                self._settings["level"] = message
            case "resources/subscribe" if isinstance(uri, str):
                self._settings[f"uri {uri}"] = message
            case "resources/unsubscribe" if isinstance(uri, str):
                self._settings.pop(f"uri {uri}", None)
            case _:
                pass

    async def stop(self) -> None:
        """Let the child finish what it is at, and end it and all it started."""
        self._ready.clear()
        child, reading = self._child, self._reading
        if child is None or reading is None:
            return
        self._stopping = True
        child.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await child.exited()
        await child.stop()  # its output is closed then, whoever still holds the other end
        await asyncio.wait([reading])
        self._child = self._reading = None
        self._stopping = False


def _wanted(message: dict[str, Any]) -> list[str]:
    """The lists whose changes somebody listens to."""
    wish = (message.get("params") or {}).get("notifications") or {}
    return [kind for kind in _KINDS if wish.get(f"{kind}ListChanged")]


def _read(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def relay(
    source: int,
    sink: int,
    command: Sequence[str] | None = None,
    files: Files | None = None,
    tap: Tap | None = None,
    **where: Any,
) -> None:
    """Serve standard streams through one child after the other until the client is gone."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE)
    pipe = await read_into(reader, source)
    with contextlib.suppress(NotImplementedError, RuntimeError):
        loop.add_signal_handler(signal.SIGTERM, pipe.close)  # as if the client were gone
    between = Relay(functools.partial(_write_all, sink), command, tap, **where)
    try:
        await between.start()
        async with asyncio.TaskGroup() as tasks:  # neither goes on without the other
            watching = tasks.create_task(_watch(between, files or Files()))
            while line := await reader.readline():
                await between.take(line)
            watching.cancel()
    finally:
        pipe.close()
        await between.stop()


async def _watch(between: Relay, files: Files) -> None:
    while True:
        await asyncio.sleep(_LOOK)
        if found := files.changed():
            _say(f"{_names(found)} changed: starting again")
            await between.restart()


def _write_all(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]

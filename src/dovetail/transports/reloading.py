"""Reloading: the program runs as a child of itself, and anew whenever one of its files changes.

Files are looked at twice a second: the sources of what is imported, and those beside the program. Over HTTP the
listening socket outlives the child, so no connection is refused. Over stdio the client talks to this process, which
opens the session again for each child; the client notices only that the lists have changed.
"""

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

CHILD: Final = "DOVETAIL_RELOADED"
LISTENER: Final = "DOVETAIL_LISTENER"
_LOOK: Final = 0.5
_GRACE: Final = 5.0
_LINE: Final = 64 * 1024 * 1024
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
    """The sources of a program, and whether they are as they were."""

    def __init__(self) -> None:
        self._seen = dict(self._look())

    def _look(self) -> Iterator[tuple[str, float]]:
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
        """What is not as it was when last asked."""
        now = dict(self._look())
        before, self._seen = self._seen, now
        return sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _names(files: list[str]) -> str:
    return ", ".join(os.path.basename(file) for file in files)


# Servers with a socket of their own


def supervise(listener: Any = None) -> None:
    """Run the program as a child until a signal comes; a listener is handed to every child."""
    environment = os.environ | {CHILD: "1"}
    passed: tuple[int, ...] = ()
    if listener is not None and sys.platform != "win32":
        os.set_inheritable(listener.fileno(), True)
        environment[LISTENER] = str(listener.fileno())
        passed = (listener.fileno(),)
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: ended.append(number))
    files = Files()
    child = subprocess.Popen(_command(), env=environment, pass_fds=passed)
    while not ended:
        time.sleep(_LOOK)
        if found := files.changed():
            _say(f"{_names(found)} changed: starting again")
            _end(child)
            child = subprocess.Popen(_command(), env=environment, pass_fds=passed)
    _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# Servers on standard streams


class Relay:
    """Stands between a client on standard streams and one child after the other."""

    def __init__(self, send: Any) -> None:
        self._send = send  # a line to the client
        self._child: asyncio.subprocess.Process | None = None
        self._ready = asyncio.Event()
        self._pending: dict[str | int, None] = {}
        self._opening: dict[str, Any] | None = None
        self._opened = False
        self._replayed = 0
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start a child and bring it to where the last one was."""
        self._child = await asyncio.create_subprocess_exec(
            *_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {CHILD: "1"},
            limit=_LINE,
        )
        again = self._opening is not None
        self._reading = asyncio.get_running_loop().create_task(self._read(self._child))
        if self._opening is not None:
            self._replayed += 1
            self._write(self._opening | {"id": self._replay})
            if self._opened:
                self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._ready.set()
        if again and self._opened:
            for kind in ("tools", "resources", "prompts"):
                self._tell({"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"})

    @property
    def _replay(self) -> str:
        return f"dovetail-reload-{self._replayed}"

    def _write(self, message: dict[str, Any]) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")

    def _tell(self, message: dict[str, Any]) -> None:
        self._send(json.dumps(message).encode() + b"\n")

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        while line := await child.stdout.readline():
            message = _read(line)
            id = message.get("id")
            if "method" not in message and id == self._replay:
                continue
            if "method" not in message and isinstance(id, str | int):
                self._pending.pop(id, None)
            self._send(line)
        for id in tuple(self._pending):
            self._refuse(id)

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
        self._opened = self._opened or message.get("method") == "notifications/initialized"
        asked = id if "method" in message and isinstance(id, str | int) else None
        if asked is not None:
            self._pending[asked] = None
        child = self._child
        if child is None or child.returncode is not None or child.stdin is None or child.stdin.is_closing():
            if asked is not None:
                self._refuse(asked)
            return
        child.stdin.write(line)
        with contextlib.suppress(ConnectionError):
            await child.stdin.drain()

    async def stop(self) -> None:
        """Let the child finish what it is at, and end it."""
        self._ready.clear()
        child, reading = self._child, self._reading
        if child is None or reading is None:
            return
        if child.stdin is not None:
            child.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await asyncio.shield(reading)
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.wait()
        await asyncio.wait([reading])


def _read(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def relay(source: int, sink: int) -> None:
    """Serve standard streams through one child after the other until the client is gone."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0))
    between = Relay(functools.partial(_write_all, sink))
    await between.start()
    watching = loop.create_task(_watch(between))
    try:
        while line := await reader.readline():
            await between.take(line)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await between.stop()


async def _watch(between: Relay) -> None:
    files = Files()
    while True:
        await asyncio.sleep(_LOOK)
        if found := files.changed():
            _say(f"{_names(found)} changed: starting again")
            await between.stop()
            await between.start()


def _write_all(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]

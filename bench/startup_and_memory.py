"""Measure servers without load: import time, start time and memory."""

import compileall
import os
import random
import subprocess
import sys
import time
from statistics import median
from typing import Any

import request_kinds
from load import Bounds
from request_kinds import HANDSHAKE
from server_process import IMPLEMENTATIONS, OURS, SERVERS, ServerProcess, ServerSettings

IMPORTS = {
    "floor": "import asyncio, msgspec",
    OURS: "from dovetail import Server",
    "mcp": "from mcp.server.mcpserver import MCPServer",
    "fastmcp": "from fastmcp import FastMCP",
    "python": "pass",
}
SESSIONS = 1000
PEER_CALLS_S = 15.0  # the time for calls of peers, which are too slow to make all of them
_STDIO_SETTINGS = ServerSettings("stdio", megabytes=0.001)
_HTTP_SETTINGS = ServerSettings("http", megabytes=0.001)

Figures = dict[str, dict[str, Any]]


def compile_bytecode() -> None:
    """Compile the sources as pip does. A checkout may have no bytecode."""
    import dovetail

    for home in (*dovetail.__path__, str(SERVERS)):
        compileall.compile_dir(home, quiet=1)


def measure_imports(implementations: tuple[str, ...], rounds: int) -> Figures:
    """Measure CPU and wall milliseconds of a Python process that only imports."""
    names = [name for name in IMPORTS if name in ("floor", "python") or name in implementations]
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for round_number in range(rounds + 1):
        for name in random.sample(names, len(names)):
            sample = _import_once(IMPORTS[name])
            if round_number:  # the first one fills the disk cache
                samples[name].append(sample)
    return {name: _median(taken) for name, taken in samples.items()}


def _import_once(statement: str) -> tuple[float, float]:
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", statement])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{statement} failed")
    return (usage.ru_utime + usage.ru_stime) * 1e3, (time.perf_counter() - started) * 1e3


def measure_spawn(implementations: tuple[str, ...], rounds: int, transport: str = "stdio") -> Figures:
    """Measure CPU and wall milliseconds from the start of a server to its first tool result."""
    names = [name for name in implementations if transport in IMPLEMENTATIONS[name].transports]
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for round_number in range(rounds + 1):
        for name in random.sample(names, len(names)):
            sample = _spawn_once(name, transport)
            if round_number:
                samples[name].append(sample)
    return {name: _median(taken) for name, taken in samples.items()}


def _spawn_once(name: str, transport: str) -> tuple[float, float]:
    started = time.perf_counter()
    server = ServerProcess(name, _STDIO_SETTINGS if transport == "stdio" else _HTTP_SETTINGS)
    try:
        if transport == "stdio":
            pipes = server.pipes(HANDSHAKE)
            pipes.open()
            pipes.run(request_kinds.echo(), 1, Bounds(1, 30))
        else:
            web = server.web(HANDSHAKE, 1)
            web.open()
            web.run(request_kinds.echo(), Bounds(1, 30))
            web.close()
        return server.cpu() * 1e3, (time.perf_counter() - started) * 1e3
    finally:
        server.stop()


def _median(samples: list[tuple[float, float]]) -> dict[str, Any]:
    cpu, wall = zip(*samples, strict=True)
    return {"cpu_ms": median(cpu), "wall_ms": median(wall)}


def measure_memory(implementations: tuple[str, ...], calls: int) -> Figures:
    """Measure resident memory: idle on stdio and HTTP, per idle handshake session, and after many calls.

    Dovetail makes all calls. Peers make as many as they can in a fixed time, and the result contains the number.
    """
    return {name: _memory_of(name, calls, 600.0 if name == OURS else PEER_CALLS_S) for name in implementations}


def _memory_of(name: str, calls: int, seconds: float) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    transports = IMPLEMENTATIONS[name].transports
    if "stdio" in transports:
        figures |= _memory_of_stdio(name, calls, seconds)
    if "http" in transports:
        figures |= _memory_of_http(name, sessions=not name.startswith("floor"))
    return figures


def _memory_of_stdio(name: str, max_calls: int, seconds: float) -> dict[str, Any]:
    server = ServerProcess(name, _STDIO_SETTINGS)
    try:
        pipes = server.pipes(HANDSHAKE)
        pipes.open()
        pipes.run(request_kinds.echo(), 1, Bounds(1, 30))
        idle = server.rss()
        pipes.run(request_kinds.echo(), 64, Bounds(max_calls // 10, seconds / 4))
        before = server.rss()
        calls = pipes.run(request_kinds.echo(), 64, Bounds(max_calls, seconds)).calls
        if name == OURS and calls < max_calls:
            raise RuntimeError(f"only {calls} of {max_calls} calls in {seconds:g} s")
        return {"idle_stdio": idle, "before_calls": before, "after_calls": server.rss(), "calls": calls}
    finally:
        server.stop()


def _memory_of_http(name: str, *, sessions: bool) -> dict[str, Any]:
    server = ServerProcess(name, _HTTP_SETTINGS)
    try:
        web = server.web(HANDSHAKE, 1)
        web.open()
        web.run(request_kinds.echo(), Bounds(1, 30))
        figures: dict[str, Any] = {"idle_http": server.rss()}
        if sessions:
            # The first hundred sessions also allocate what all sessions share.
            for _ in range(SESSIONS // 10):
                web.open_session(web.connections[0])
            before = server.rss()
            for _ in range(SESSIONS):
                web.open_session(web.connections[0])
            figures["per_session"] = (server.rss() - before) / SESSIONS
        web.close()
        return figures
    finally:
        server.stop()

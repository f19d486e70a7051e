"""What is measured without load: how long a server takes to be there, and how much memory it holds."""

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
PEERS_SECONDS = 15.0  # for the calls of those who are too slow for as many
_SMALL = ServerSettings("stdio", megabytes=0.001)
_WEB = ServerSettings("http", megabytes=0.001)

Figures = dict[str, dict[str, Any]]


def compile_bytecode() -> None:
    """Leave bytecode as installing with pip does: a checkout, or a setting of the environment, may have none."""
    import dovetail

    for home in (*dovetail.__path__, str(SERVERS)):
        compileall.compile_dir(home, quiet=1)


def measure_imports(who: tuple[str, ...], rounds: int) -> Figures:
    """CPU and wall milliseconds of a Python process that imports and ends."""
    names = [name for name in IMPORTS if name in ("floor", "python") or name in who]
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in random.sample(names, len(names)):
            taken = _import_once(IMPORTS[name])
            if turn:  # the first fills the disk cache
                samples[name].append(taken)
    return {name: _median(found) for name, found in samples.items()}


def _import_once(statement: str) -> tuple[float, float]:
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", statement])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{statement} failed")
    return (usage.ru_utime + usage.ru_stime) * 1e3, (time.perf_counter() - started) * 1e3


def measure_spawn(who: tuple[str, ...], rounds: int) -> Figures:
    """CPU and wall milliseconds from starting a stdio server to its first tool result."""
    names = [name for name in who if "stdio" in IMPLEMENTATIONS[name].transports]
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in random.sample(names, len(names)):
            taken = _spawn_once(name)
            if turn:
                samples[name].append(taken)
    return {name: _median(found) for name, found in samples.items()}


def _spawn_once(name: str) -> tuple[float, float]:
    started = time.perf_counter()
    server = ServerProcess(name, _SMALL)
    try:
        pipes = server.pipes(HANDSHAKE)
        pipes.open()
        pipes.run(request_kinds.echo(), 1, Bounds(1, 30))
        return server.cpu() * 1e3, (time.perf_counter() - started) * 1e3
    finally:
        server.stop()


def _median(samples: list[tuple[float, float]]) -> dict[str, Any]:
    cpu, wall = zip(*samples, strict=True)
    return {"cpu_ms": median(cpu), "wall_ms": median(wall)}


def measure_memory(who: tuple[str, ...], calls: int) -> Figures:
    """Resident memory: idle on stdio and HTTP, for each idle handshake session, and after so many calls.

    Ours makes them all, however long it takes; others as many as fit into a while, and say how many that were.
    """
    return {name: _memory_of(name, calls, 600.0 if name == OURS else PEERS_SECONDS) for name in who}


def _memory_of(name: str, calls: int, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    transports = IMPLEMENTATIONS[name].transports
    if "stdio" in transports:
        found |= _memory_of_stdio(name, calls, seconds)
    if "http" in transports:
        found |= _memory_of_http(name, sessions=not name.startswith("floor"))
    return found


def _memory_of_stdio(name: str, most: int, seconds: float) -> dict[str, Any]:
    server = ServerProcess(name, _SMALL)
    try:
        pipes = server.pipes(HANDSHAKE)
        pipes.open()
        pipes.run(request_kinds.echo(), 1, Bounds(1, 30))
        idle = server.rss()
        pipes.run(request_kinds.echo(), 64, Bounds(most // 10, seconds / 4))
        before = server.rss()
        calls = pipes.run(request_kinds.echo(), 64, Bounds(most, seconds)).calls
        if name == OURS and calls < most:
            raise RuntimeError(f"{calls} calls in {seconds:g} s, and not {most}")
        return {"idle_stdio": idle, "before_calls": before, "after_calls": server.rss(), "calls": calls}
    finally:
        server.stop()


def _memory_of_http(name: str, *, sessions: bool) -> dict[str, Any]:
    server = ServerProcess(name, _WEB)
    try:
        web = server.web(HANDSHAKE, 1)
        web.open()
        web.run(request_kinds.echo(), Bounds(1, 30))
        found: dict[str, Any] = {"idle_http": server.rss()}
        if sessions:
            # The first hundred pay for what all share.
            for _ in range(SESSIONS // 10):
                web.open_session(web.connections[0])
            before = server.rss()
            for _ in range(SESSIONS):
                web.open_session(web.connections[0])
            found["per_session"] = (server.rss() - before) / SESSIONS
        web.close()
        return found
    finally:
        server.stop()

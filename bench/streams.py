"""Measure open streams and calls in memory, for dovetail only: CPU microseconds and bytes.

The streams are sockets to a server in another process.
"""

import select
import subprocess
import sys
import time
from statistics import median
from typing import Any

import request_kinds
from load import TIMEOUT_S, Bounds, Connection, Web
from request_kinds import HANDSHAKE, STATELESS
from server_process import HERE, OURS, ServerProcess, ServerSettings

ERAS = {"stateless": STATELESS, "handshake": HANDSHAKE}
_FIRST_STREAMS = 100  # they also allocate what all streams share
_NOTICE = b"notifications/tools/list_changed"
_CHUNK = 1 << 16


def measure(streams: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return for each era `notice_us` and `stream_bytes` of one stream, and `memory_call_us` of one call."""
    return {
        era: _measure_streams(revision, streams, rounds) | {"memory_call_us": _measure_memory_call(revision)}
        for era, revision in ERAS.items()
    }


def _measure_memory_call(revision: str) -> float:
    command = [sys.executable, str(HERE / "callers" / "in_memory.py"), revision]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _measure_streams(revision: str, count: int, rounds: int) -> dict[str, float]:
    server = ServerProcess(OURS, ServerSettings("http", megabytes=0.001))
    opened: list[Connection] = []
    try:
        opened += [_open_stream(server.port, revision) for _ in range(_FIRST_STREAMS)]
        before = server.rss()
        opened += [_open_stream(server.port, revision) for _ in range(count)]
        stream_bytes = (server.rss() - before) / count
        web = server.web(STATELESS, 1)
        costs = [_notify(server, web, opened) for _ in range(rounds)]
        web.close()
        return {"notice_us": median(costs) * 1e6, "stream_bytes": stream_bytes}
    finally:
        for stream in opened:
            stream.close()
        server.stop()


def _open_stream(port: int, revision: str) -> Connection:
    """Open a stream of change notifications: `subscriptions/listen`, or the GET of a handshake session."""
    web = Web(port, revision, 1)
    web.open()
    connection = web.connections[0]
    if revision == STATELESS:
        web.send_request(connection, request_kinds.listen())
        _read_until(connection, b"subscriptions/acknowledged")
    else:
        connection.send(
            b"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: text/event-stream\r\n"
            b"mcp-protocol-version: %b\r\nmcp-session-id: %b\r\n\r\n"
            % (port, revision.encode(), connection.session or b"")
        )
        _read_until(connection, b"\nid: ")
    return connection


def _read_until(connection: Connection, marker: bytes) -> None:
    received = b""
    while marker not in received:
        data = connection.recv(_CHUNK)
        if not data:
            raise request_kinds.WrongAnswer(f"the stream ended: {received[-300:]!r}")
        received += data


def _notify(server: ServerProcess, web: Web, streams: list[Connection]) -> float:
    """Return the CPU seconds of the server to send one notification to one stream."""
    waiting = {stream.fileno(): stream for stream in streams}
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    before = server.cpu()
    web.run(request_kinds.echo("announce"), Bounds(1, TIMEOUT_S))
    deadline = time.monotonic() + TIMEOUT_S
    while waiting:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(waiting)} streams received no notification")
        for descriptor, _ in poll.poll(1000):
            if _NOTICE in waiting[descriptor].recv(_CHUNK):
                del waiting[descriptor]
                poll.unregister(descriptor)
    return (server.cpu() - before) / len(streams)


def format_table(figures: dict[str, Any]) -> list[str]:
    """Return the lines of the table."""
    lines = [f"\nstreams{'notice us':>25}{'KB/stream':>14}{'call in memory us':>22}"]
    for era, stream_figures in figures.items():
        notice_us, call_us = stream_figures["notice_us"], stream_figures["memory_call_us"]
        lines.append(f"  {era:16}{notice_us:14.1f}{stream_figures['stream_bytes'] / 1024:14.1f}{call_us:22.1f}")
    return lines

"""A minimal server for tests that kill it, which starts quickly: `killable_server.py <file> <era> [port]`.

Without a port it uses standard streams, with one HTTP. `mark` appends its token to the file before it answers, so the
file shows which calls ran and how often. `grow` starts a child process.
"""

import contextlib
import heapq
import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any

MARKS, ERA = sys.argv[1], sys.argv[2]
NEWEST, HANDSHAKE = "2026-07-28", "2025-11-25"
INFO = {"name": "victim", "version": "1"}

Message = dict[str, Any]


def append_line(text: str) -> None:
    """Append one line to the file in a single write."""
    descriptor = os.open(MARKS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def answer(message: Message) -> tuple[float, Message] | None:
    """Return the delay and the response, or None for a notification."""
    method, params = message.get("method"), message.get("params") or {}
    wait = 0.0
    result: Message | None = None
    if method == "initialize" and ERA == "handshake":
        result = {"protocolVersion": HANDSHAKE, "capabilities": {"tools": {}}, "serverInfo": INFO}
    elif method == "server/discover" and ERA == "stateless":
        result = {"supportedVersions": [NEWEST], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private"}
    elif method == "tools/call":
        wait, text = call(params["name"], params.get("arguments") or {})
        result = {"content": [{"type": "text", "text": text}]}
    if "id" not in message:
        return None
    if result is None:
        return 0.0, {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}}
    if ERA == "stateless":
        result["resultType"] = "complete"
    return wait, {"jsonrpc": "2.0", "id": message["id"], "result": result}


def call(name: str, arguments: Message) -> tuple[float, str]:
    """Return the duration and the result of a tool."""
    if name == "grow":
        return 0.0, str(subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL).pid)
    append_line(arguments["token"])
    return arguments.get("wait", 0.0), arguments["token"]


def over_streams() -> None:
    """Serve standard streams, each response after its delay."""
    held, waiting = b"", list[tuple[float, int, bytes]]()
    while True:
        patience = None if not waiting else max(0.0, waiting[0][0] - time.monotonic())
        if select.select([0], [], [], patience)[0]:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                due = answer(json.loads(line))
                if due is not None:
                    heapq.heappush(waiting, (time.monotonic() + due[0], id(due), json.dumps(due[1]).encode() + b"\n"))
        while waiting and waiting[0][0] <= time.monotonic():
            os.write(1, heapq.heappop(waiting)[2])


def over_http(port: int) -> None:
    """Serve HTTP with a thread per connection. Handshake clients get a session that ends with the process."""
    import threading

    session = os.urandom(8).hex()

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as incoming:
            while line := incoming.readline():
                headers = dict[str, str]()
                while (one := incoming.readline().strip()) != b"":
                    name, _, value = one.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = incoming.read(int(headers.get("content-length", "0")))
                status, extra, data = reply(line.split()[0], headers, body)
                head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{extra}"
                connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)

    def reply(verb: bytes, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        if verb != b"POST":
            return (200 if verb == b"DELETE" else 405), "", b""
        message = json.loads(body)
        opening = message.get("method") in ("initialize", "server/discover")
        if ERA == "handshake" and not opening and headers.get("mcp-session-id") != session:
            return 404, "", b""
        due = answer(message)
        if due is None:
            return 202, "", b""
        time.sleep(due[0])
        known = f"mcp-session-id: {session}\r\n" if message["method"] == "initialize" and ERA == "handshake" else ""
        status = 400 if "error" in due[1] else 200
        return status, known, json.dumps(due[1]).encode()

    def safely(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has left
            serve(connection)

    with socket.create_server(("127.0.0.1", port), reuse_port=False) as door:
        while True:
            connection, _ = door.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=safely, args=(connection,), daemon=True).start()


append_line(f"pid {os.getpid()}")
if len(sys.argv) > 3:
    over_http(int(sys.argv[3]))
else:
    over_streams()

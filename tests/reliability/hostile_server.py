"""A stdio server that misbehaves only when `go` is called: `python hostile_server.py line|junk|deep|members`."""

import json
import sys
from typing import Any

MiB = 1024 * 1024


def flood(what: str, id: int) -> None:
    out = sys.stdout.buffer
    head = b'{"jsonrpc":"2.0","id":%d,"result":' % id
    if what == "line":  # an endless line
        out.write(head + b'"')
        for _ in range(150):
            out.write(b"x" * MiB)
        out.write(b'"}\n')
    elif what == "junk":
        for _ in range(150):
            out.write(b"\xff" * (MiB - 1) + b"\n")
    elif what == "deep":
        out.write(head + b"[" * (8 * MiB) + b"]" * (8 * MiB) + b"}\n")
    else:
        out.write(head + b"[" + b"[]," * (8 * MiB) + b"1]}\n")
    out.flush()


def result(message: dict[str, Any]) -> dict[str, Any]:
    if message["method"] == "initialize":
        info = {"name": "hostile", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if message["method"] == "server/discover":
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
    return {"content": [{"type": "text", "text": "ok"}], "resultType": "complete"}


for line in sys.stdin.buffer:
    asked = json.loads(line)
    if asked.get("method") == "tools/call" and asked["params"]["name"] == "go":
        flood(sys.argv[1], asked["id"])
    elif "id" in asked:
        sys.stdout.buffer.write(
            json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result(asked)}).encode() + b"\n"
        )
        sys.stdout.buffer.flush()

"""A minimal server that uses no code of the project: `python crashing_server.py <file> [junk|bytes]`.

It writes the calls it ran to the file, exits on request, and can write junk or invalid UTF-8 between its responses.
"""

import json
import os
import sys
import time
from typing import Any


def result(message: dict[str, Any]) -> dict[str, Any] | None:
    match message["method"]:
        case "server/discover":
            tools = {"tools": {}}
            return {"supportedVersions": ["2026-07-28"], "capabilities": tools, "resultType": "complete"}
        case "initialize":
            info = {"name": "mortal", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/call":
            return call_tool(message["params"]["name"], message["params"].get("arguments", {}))
        case "tools/list":
            peek = {"name": "pid", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
            return {"tools": [peek], "resultType": "complete"}
        case _:
            return None


def call_tool(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "die":
        with open(sys.argv[1], "a") as file:
            file.write(arguments["name"] + "\n")
        sys.stderr.write("about to die\n")
        os._exit(3)
    if name == "run":
        with open(sys.argv[1], "a") as file:
            file.write(arguments["name"] + "\n")
        if arguments.get("hold"):
            time.sleep(60)  # the test kills it
    value = os.getpid() if name == "pid" else arguments.get("text", "")
    return {"content": [{"type": "text", "text": str(value)}], "resultType": "complete"}


def main() -> None:
    mode = sys.argv[2] if len(sys.argv) > 2 else ""
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result(message)}
        if answer["result"] is None:
            answer = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}}
        data = json.dumps(answer).encode()
        if mode == "junk":
            out.write(b"Starting \x1b[1mup...\n")
        if mode == "bytes" and message["method"] == "tools/call":
            text = message["params"]["arguments"].get("text", "").encode()
            data = data.replace(b'"' + text + b'"', b'"' + text + b'\xff"')
        out.write(data + b"\n")
        out.flush()


if __name__ == "__main__":
    main()

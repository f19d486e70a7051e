"""A slow server: `python slow_start_server.py <file> <seconds> <what>`. It supports "both" eras, or one of them.

It writes each received message to a line of the file, and reads nothing before it has started.
"""

import json
import os
import sys
import time
from typing import Any

INFO = {"name": "late", "version": "1"}
STATELESS_REVISION, HANDSHAKE_REVISION = "2026-07-28", "2025-11-25"
DISCOVER_RESULT = {"supportedVersions": [STATELESS_REVISION], "capabilities": {}, "resultType": "complete"}
INITIALIZE_RESULT = {"protocolVersion": HANDSHAKE_REVISION, "capabilities": {}, "serverInfo": INFO}


def answer(message: dict[str, Any], speaks: str) -> dict[str, Any] | None:
    method = message["method"]
    if method == "server/discover":
        return {"result": DISCOVER_RESULT} if speaks != "handshake" else None
    if method == "initialize" and speaks == "stateless":
        return {"error": {"code": -32022, "message": "older", "data": {"supported": [STATELESS_REVISION]}}}
    if method == "initialize" and speaks == "mute":
        return None
    if method == "initialize":
        return {"result": INITIALIZE_RESULT}
    return {"result": {"content": [{"type": "text", "text": "ok"}], "resultType": "complete"}}


def main() -> None:
    file, seconds, speaks = sys.argv[1:]
    time.sleep(float(seconds))
    for line in sys.stdin:
        message = json.loads(line)
        with open(file, "a") as notes:
            notes.write(f"{os.getpid()} {message['method']}\n")
        told = answer(message, speaks) if "id" in message else None
        if told is not None:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

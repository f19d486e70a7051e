"""Tool calls of the newest protocol version as bytes, and their results."""

import json
from typing import Any

from http_server.raw_connection import Response

VERSION = "2026-07-28"
_META = "io.modelcontextprotocol"


def encode_call(
    tool: str,
    arguments: dict[str, Any],
    *,
    id: int | str = 1,
    stream: bool = False,
    headers: bytes = b"",
    chunk: int = 0,
) -> bytes:
    """Return the request for a tool call. `chunk` is the size of its chunks, or 0 for a body with a length."""
    meta: dict[str, Any] = {f"{_META}/protocolVersion": VERSION, f"{_META}/clientCapabilities": {}}
    if stream:
        meta["progressToken"] = f"progress-{id}"
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"accept: application/json, text/event-stream\r\nmcp-protocol-version: {VERSION}\r\n"
        f"mcp-method: tools/call\r\nmcp-name: {tool}\r\n"
    ).encode()
    if chunk:
        pieces = [body[at : at + chunk] for at in range(0, len(body), chunk)]
        encoded = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        return head + headers + b"transfer-encoding: chunked\r\n\r\n" + encoded + b"0\r\n\r\n"
    return head + headers + b"content-length: %d\r\n\r\n" % len(body) + body


def read_text(response: Response) -> str:
    """Return the text of the result of a call."""
    assert response.status == 200, response
    body = response.body
    if response.headers["content-type"].startswith("text/event-stream"):
        body = body.rpartition(b"data:")[2]
    return json.loads(body)["result"]["content"][0]["text"]

"""Test the HTTP server with requests that a client of dovetail would not send, and the ASGI application."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from dovetail import Server

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
CALL = {"name": "echo", "arguments": {"text": "hi"}}
STATELESS_HEADERS = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def send(
    url: str, method: str = "POST", path: str = "/mcp", body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], Any]:
    """Send a request; return the status, the headers and the JSON value of the response."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    content = None if body is None else json.dumps(body)
    accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection.request(method, path, content, accepted | (headers or {}))
    response = connection.getresponse()
    received = response.read()
    connection.close()
    return (
        response.status,
        {name.lower(): value for name, value in response.headers.items()},
        json.loads(received or "null"),
    )


def create_request(method: str, params: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **members}


def test_a_stateless_request(http_url: str) -> None:
    body = create_request("tools/call", CALL | {"_meta": META})
    status, _, response = send(http_url, body=body, headers=STATELESS_HEADERS)
    assert status == 200
    assert response["result"]["content"] == [{"type": "text", "text": "hi"}]


def test_headers_that_differ_from_the_body(http_url: str) -> None:
    body = create_request("tools/call", CALL | {"_meta": META})
    status, _, response = send(http_url, body=body, headers=STATELESS_HEADERS | {"Mcp-Name": "find"})
    assert (status, response["error"]["code"]) == (400, -32020)


def test_a_handshake_session_from_start_to_end(http_url: str) -> None:
    status, headers, response = send(http_url, body=create_request("initialize", INITIALIZE))
    assert (status, response["result"]["protocolVersion"]) == (200, "2025-11-25")
    session = {"Mcp-Session-Id": headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
    assert send(http_url, body={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)[0] == 202
    status, _, response = send(http_url, body=create_request("tools/call", CALL), headers=session)
    assert (status, response["result"]["content"][0]["text"]) == (200, "hi")
    assert send(http_url, "DELETE", headers=session)[0] == 204
    assert send(http_url, body=create_request("tools/call", CALL), headers=session)[0] == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 421), ({"Origin": "https://evil.example"}, 403), ({"Content-Type": "text/plain"}, 415)],
)
def test_refused_requests(http_url: str, headers: dict[str, str], status: int) -> None:
    assert send(http_url, body=create_request("initialize", INITIALIZE), headers=headers)[0] == status


def test_invalid_json(http_url: str) -> None:
    parts = urlsplit(http_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("POST", "/mcp", b"{", {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 400
    assert json.loads(response.read())["error"]["code"] == -32700
    connection.close()


def test_a_route(http_url: str) -> None:
    status, _, response = send(http_url, "GET", "/opening-hours?day=monday")
    assert (status, response["open"]) == (200, "9 to 18")
    assert send(http_url, "GET", "/unknown")[0] == 404


async def test_an_asgi_application() -> None:
    app = Server("s")
    app.add_tool(lambda text: text, name="echo")
    asgi = app.asgi()
    body = json.dumps(create_request("tools/call", CALL | {"_meta": META})).encode()
    headers = {"host": "localhost", "content-type": "application/json", **STATELESS_HEADERS}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 8000),
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def collect(event: dict[str, Any]) -> None:
        sent.append(event)

    await asgi(scope, receive, collect)
    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"])["result"]["content"][0]["text"] == "hi"
    await app.stop()

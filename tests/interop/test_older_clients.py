"""Test the behaviour of older clients (mcp 1.9 and 1.12): they parse every event as a message and do not resume
streams.
"""

import json
import urllib.request
from typing import Any

import pytest

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]


class OldClient:
    """A session over HTTP, one request after the other."""

    def __init__(self, url: str, revision: str) -> None:
        self._url = url
        self._headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        about = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
        response = self._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
        self._headers["mcp-session-id"] = response.headers["mcp-session-id"]
        if revision >= "2025-06-18":
            self._headers["mcp-protocol-version"] = revision
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _post(self, message: Any) -> Any:
        return urllib.request.urlopen(
            urllib.request.Request(self._url, json.dumps(message).encode(), self._headers), timeout=20
        )

    def call(self, tool: str) -> list[Any]:
        """Everything that comes before the stream ends, each event read as a message."""
        params = {"name": tool, "arguments": {}, "_meta": {"progressToken": "p"}}
        with self._post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines = response.read().decode().splitlines()
        return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_a_stream_lasts_until_the_result(http_url: str, revision: str) -> None:
    *progress, answer = OldClient(http_url, revision).call("pause")
    assert [message["params"]["progress"] for message in progress] == [1, 2]
    assert answer["result"]["content"] == [{"type": "text", "text": "Back again."}]

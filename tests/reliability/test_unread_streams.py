"""An unread stream does not block its session or other clients.

The server waits 30 s for a client that does not read, and the clients of these tests wait 20 s for data. A call that
waits for an unread stream therefore fails.
"""

import time

import harness
import pytest
from harness import HANDSHAKE, NEWEST, Client, Connection, Target, encode_http_request, record_measurement


@pytest.mark.parametrize("revision", [NEWEST, HANDSHAKE])
@pytest.mark.parametrize("tool", ["chatter", "blob"])
def test_an_unread_answer_does_not_hold_up_the_next_call(served: Target, revision: str, tool: str) -> None:
    client = Client(served, revision)
    client.is_healthy()
    arguments = {"count": 2000, "size": 5000} if tool == "chatter" else {"size": 9_000_000}
    data = client.prepare("tools/call", {"name": tool, "arguments": arguments}, 1, **{harness.LOG_LEVEL: "error"})
    stuck = client.send_only(data, receive_buffer=4096)
    assert stuck.socket.recv(1)
    began = time.monotonic()
    for number in range(20):
        assert client.call("echo", {"text": str(number)}, id=1).text == str(number)
    took = time.monotonic() - began
    record_measurement(f"call beside an unread {tool}, {revision}", took / 20 * 1000, "ms")
    stuck.close()


def test_an_unread_get_stream_does_not_hold_up_its_session(served: Target) -> None:
    client = Client(served, HANDSHAKE)
    client.request("resources/subscribe", {"uri": "note://fixed"})
    stuck = Connection(served.port, receive_buffer=4096)
    stuck.send(encode_http_request("GET", "/mcp", client.headers))
    assert stuck.head()[0] == 200
    client.call("touch", {"uri": "note://fixed", "times": 5000})
    for number in range(20):
        assert client.call("echo", {"text": str(number)}).text == str(number)
    stuck.close()


def test_an_unread_subscription_does_not_hold_up_the_others(served: Target) -> None:
    client = Client(served)
    filter = {"notifications": {"toolsListChanged": True}}
    stuck = [client.send_only(client.prepare("subscriptions/listen", filter), receive_buffer=4096) for _ in range(20)]
    reading = client.send_only(client.prepare("subscriptions/listen", filter))
    assert reading.head()[0] == 200
    news = reading.stream()
    assert "acknowledged" in next(news)["data"]
    client.call("change", {"times": 5000})
    assert "list_changed" in next(news)["data"]
    assert client.is_healthy()
    for connection in (*stuck, reading):
        connection.close()

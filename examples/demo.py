"""`make demo`: one server (booking.py), two protocol versions, over stdio and over HTTP, message by message.

The client is a few lines of raw JSON-RPC, so you see exactly what is sent. Each part books a seat: the server reports
progress, asks the user a question, and announces that its list of tools has changed.
"""

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE = 10.0  # seconds for any one step, then the demo fails instead of hanging
WIDTH = max(80, shutil.get_terminal_size((120, 24)).columns)
COLOUR = sys.stdout.isatty()

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
CAPABILITIES = {"elicitation": {"form": {}}}
META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
}
CALL = {"name": "book", "arguments": {"flight": "DY 814"}}
ANSWER = {"action": "accept", "content": {"row": 12, "place": "aisle"}}
CHANGED = "notifications/tools/list_changed"

INTRODUCTION = f"""\
One server, examples/booking.py, books the same flight four times: over stdio and over HTTP, and each time in two
versions of the Model Context Protocol, {HANDSHAKE} and {STATELESS}. The server code is the same for all four.
In each booking the server reports progress, asks the user for a seat, and announces a new tool.

→ is sent to the server, ← comes from the server, and … replaces long values."""

Message = dict[str, Any]
seen = 0

# Values that are the same in every message, or too long for a line.
USUAL = {"clientInfo", "serverInfo", "io.modelcontextprotocol/serverInfo", "io.modelcontextprotocol/clientCapabilities"}
ELIDED = dict.fromkeys(("requestedSchema", "requestState", "instructions"), "…")


# Output


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if COLOUR else f"\n{text}")


def show(arrow: str, message: Message, where: str = "") -> None:
    global seen
    seen += 1
    id = "" if "id" not in message else f"[{message['id']}] "
    what = message.get("method", "result")
    body = json.dumps(_short(message.get("params", message.get("result", {}))), ensure_ascii=False)
    line = f"{arrow} {where}{id}{what} {'' if body == '{}' else body}"
    line = "\n".join(textwrap.wrap(line.rstrip(), WIDTH, subsequent_indent=" " * 8, break_on_hyphens=False))
    paint = {"→": "\033[36m", "←": "\033[32m"}[arrow]
    print(f"{paint}{line}\033[0m" if COLOUR else line)


def _short(value: Any) -> Any:
    """Return the value without long and repeated parts, so that it fits on a line."""
    if isinstance(value, list):
        return [_short(one) for one in value]
    if not isinstance(value, dict):
        return value
    shown = {name.removeprefix("io.modelcontextprotocol/"): one for name, one in value.items() if name not in USUAL}
    return {name: ELIDED.get(name) or _short(one) for name, one in shown.items() if _short(one) != {}}


def expect(condition: Any, what: str) -> None:
    if not condition:
        raise SystemExit(f"demo: this should not happen: {what}")


# Server processes


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server process. It always ends, even after an error."""
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    limit = threading.Timer(4 * PATIENCE, process.kill)
    limit.start()
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()  # this ends a stdio server. An HTTP server needs a signal
        if "-c" in arguments:
            process.terminate()
        expect(process.wait(PATIENCE) == 0, f"the server ended with {process.returncode}")
    finally:
        limit.cancel()
        process.kill()
        process.wait()


# stdio: one message per line, in both directions


class Pipe:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def send(self, message: Message) -> None:
        show("→", message)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self._process.stdin.flush()

    def until(self, *wanted: Callable[[Message], bool]) -> list[Message]:
        """Read messages until each of the wanted kinds has arrived."""
        found: list[Message] = []
        while not all(any(map(one, found)) for one in wanted):
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            expect(line, "the server closed its end")
            found.append(json.loads(line))
            show("←", found[-1])
        return found


def answers(id: Any) -> Callable[[Message], bool]:
    return lambda message: message.get("id") == id and "method" not in message


def is_method(name: str) -> Callable[[Message], bool]:
    return lambda message: message.get("method") == name


def check(messages: list[Message], id: int, act: str) -> None:
    booked = next(filter(answers(id), messages))
    expect("row 12, aisle" in json.dumps(booked), f"{act}: the booking")
    expect(any(map(is_method("notifications/progress"), messages)), f"{act}: progress")


def stdio_handshake(pipe: Pipe) -> None:
    title(f"1. stdio, {HANDSHAKE}: the client opens a session, and the server sends its question as a request")
    opening = {
        "protocolVersion": HANDSHAKE,
        "capabilities": CAPABILITIES,
        "clientInfo": {"name": "demo", "version": "1"},
    }
    pipe.send({"id": 1, "method": "initialize", "params": opening})
    pipe.until(answers(1))
    pipe.send({"method": "notifications/initialized"})
    pipe.send({"id": 2, "method": "tools/call", "params": CALL | {"_meta": {"progressToken": 1}}})
    question = pipe.until(is_method("elicitation/create"))[-1]
    pipe.send({"id": question["id"], "result": ANSWER})
    check(pipe.until(answers(2), is_method(CHANGED)), 2, "stdio, handshake")


def stdio_stateless(pipe: Pipe) -> None:
    title(f"2. The same process, {STATELESS}: no session. The result is a question, and a second call has the answer")
    wanted = {"notifications": {"toolsListChanged": True}, "_meta": META}
    pipe.send({"id": "news", "method": "subscriptions/listen", "params": wanted})
    pipe.until(is_method("notifications/subscriptions/acknowledged"))
    meta = {"_meta": META | {"progressToken": 1}}
    pipe.send({"id": 3, "method": "tools/call", "params": CALL | meta})
    asked = pipe.until(answers(3))[-1]["result"]
    expect(asked["resultType"] == "input_required", "stdio, stateless: a question")
    again = {"requestState": asked["requestState"], "inputResponses": dict.fromkeys(asked["inputRequests"], ANSWER)}
    pipe.send({"id": 4, "method": "tools/call", "params": CALL | again | meta})
    # The session of part 1 uses the same pipe and is notified, too. Our notification has a subscription id.
    ours = pipe.until(answers(4), lambda one: is_method(CHANGED)(one) and "_meta" in one.get("params", {}))
    check(ours, 4, "stdio, stateless")


# HTTP: a POST for every message. The response is JSON or an event stream


class Web:
    def __init__(self, port: int) -> None:
        self._port = port
        self.headers: dict[str, str] = {}

    def send(self, message: Message, **headers: str) -> http.client.HTTPResponse:
        show("→", message, "POST ")
        return self.open("POST", json.dumps({"jsonrpc": "2.0"} | message), headers)

    def open(
        self, method: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        given = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        connection.request(method, "/mcp", body, given | self.headers | (headers or {}))
        reply = connection.getresponse()
        expect(reply.status in (200, 202), f"HTTP {reply.status} for {body}")
        return reply


def said(reply: http.client.HTTPResponse) -> Iterator[Message]:
    """Yield the messages of a response as they arrive."""
    if reply.headers.get_content_type() == "application/json":
        message = json.loads(reply.read())
        show("←", message)
        yield message
        return
    while line := reply.readline():
        field, _, value = line.decode().partition(":")
        if field == "data" and value.strip():
            message = json.loads(value)
            show("←", message, "event ")
            yield message


def http_handshake(web: Web) -> None:
    title(f"3. HTTP, {HANDSHAKE}: a session. Progress and the question arrive as events of the call's response")
    opening = {
        "protocolVersion": HANDSHAKE,
        "capabilities": CAPABILITIES,
        "clientInfo": {"name": "demo", "version": "1"},
    }
    reply = web.send({"id": 1, "method": "initialize", "params": opening})
    next(said(reply))
    web.headers = {"Mcp-Session-Id": reply.headers["Mcp-Session-Id"], "MCP-Protocol-Version": HANDSHAKE}
    web.send({"method": "notifications/initialized"})
    news = said(web.open("GET"))
    messages: list[Message] = []
    for message in said(web.send({"id": 2, "method": "tools/call", "params": CALL | {"_meta": {"progressToken": 1}}})):
        messages.append(message)
        if is_method("elicitation/create")(message):
            web.send({"id": message["id"], "result": ANSWER})
    check(messages, 2, "HTTP, handshake")
    expect(is_method(CHANGED)(next(news)), "HTTP, handshake: the change")
    web.headers = {}


def http_stateless(web: Web) -> None:
    title(f"4. HTTP, {STATELESS}: no session. Another worker process could serve the second call")
    web.headers = {"MCP-Protocol-Version": STATELESS}
    wanted = {"notifications": {"toolsListChanged": True}, "_meta": META}
    listen = {"id": "news", "method": "subscriptions/listen", "params": wanted}
    news = said(web.send(listen, **{"Mcp-Method": "subscriptions/listen"}))
    expect(is_method("notifications/subscriptions/acknowledged")(next(news)), "HTTP, stateless: the subscription")
    names = {"Mcp-Method": "tools/call", "Mcp-Name": "book"}
    params = CALL | {"_meta": META | {"progressToken": 1}}
    asked = [*said(web.send({"id": 2, "method": "tools/call", "params": params}, **names))][-1]["result"]
    expect(asked["resultType"] == "input_required", "HTTP, stateless: a question")
    again = {"requestState": asked["requestState"], "inputResponses": dict.fromkeys(asked["inputRequests"], ANSWER)}
    messages = [*said(web.send({"id": 3, "method": "tools/call", "params": params | again}, **names))]
    check(messages, 3, "HTTP, stateless")
    expect(is_method(CHANGED)(next(news)), "HTTP, stateless: the change")


def port_of(process: subprocess.Popen[bytes]) -> int:
    """Return the port that the server prints."""
    assert process.stderr is not None
    found = re.search(rb"http://127\.0\.0\.1:(\d+)/mcp", process.stderr.readline())
    expect(found, "the HTTP server did not start")
    assert found is not None
    return int(found[1])


def main() -> None:
    started = time.monotonic()
    print(INTRODUCTION)
    with server("booking.py") as process:
        pipe = Pipe(process)
        stdio_handshake(pipe)
        stdio_stateless(pipe)
    with server("-c", "import booking; booking.app.run('http', port=0)") as process:
        web = Web(port_of(process))
        http_handshake(web)
        http_stateless(web)
    took = time.monotonic() - started
    print(f"\nAll 4 bookings succeeded: 2 transports, 2 protocol versions, {seen} messages, {took:.1f} seconds.")
    print("Read examples/booking.py to see the server, or README.md to write your own.")


if __name__ == "__main__":
    main()

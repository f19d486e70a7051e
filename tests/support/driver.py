"""A raw client for tests. It sends messages over every transport and protocol version, and validates the responses.

    async with connect(app, transport="http", revision="2025-11-25", capabilities={"roots": {}}, answer={...}) as peer:
        result = await peer.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, progress_token="t")

`app` is a Server, or a function without arguments that creates one. `transport` is one of:
    memory          `app.open_connection`, in this process
    pipe            the stdio connection over two operating system pipes, in this loop
    stdio           a real process. `app` must be a function at the top level of a module
    unix, tcp       real sockets
    http            `app.asgi(**options)` on a loopback socket. Handshake versions have a session
    http-stateless  the same with `sessions=False`
    sse             the HTTP+SSE transport of 2024-11-05
`revision` is a published one or "draft". For a handshake version, `connect` sends initialize and initialized (and opens
a GET stream over http) before the body runs, unless `handshake=False`. `answer` maps methods of server requests to
functions from params to the result, plain or async. They may raise RemoteError. The same functions answer the requests
of handshake servers and, with `peer.call`, the rounds of the stateless era, so one test can run in both.

    await peer.request(method, params, meta=, headers=, progress_token=, log_level=, id=, revision=)   -> result
    peer.start(...same...)                     -> Pending: awaitable, has .id, .disconnect() closes an HTTP connection
    await peer.call(...same...)                request, and answer input_required until complete. peer.rounds counts
    await peer.notify(method, params)          a notification. Returns the status over HTTP, which should be 202
    await peer.cancel(id)                      notifications/cancelled
    peer.notifications                         all (method, params) so far
    await peer.next_notification(method)       the next notification of a method
    await peer.wait_until(look, "what")        wait until `look` returns a value, checked after each message
    peer.server_requests                       all (method, params) of the server's requests
    peer.messages                              all received messages, decoded, in order
    await peer.raw(data, headers=)             send raw bytes -> Raw(status, headers, messages). On a duplex transport
                                               the status is None, and the next unexpected message is the response
    await peer.send_raw(data)                  send raw bytes on a duplex transport, without waiting
    await peer.http(method, path, headers, body)   any HTTP request -> raw_http.Response
    await peer.wait_for_stderr_line(line)      wait for a line in peer.stderr, the standard error of a process
    peer.initialize_result                     the result of initialize (None in the stateless era)

An error response raises RemoteError with `.headers`, and with `.status_code` over HTTP. Every wait ends after
TIMEOUT_S. `oracle` checks each received message. An invalid message fails the test, even if the test does not read it.
"""

import asyncio
import base64
import contextlib
import inspect
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail import Server
from dovetail.errors import ConnectionLost, RemoteError
from dovetail.server.server import get_dispatcher
from support.raw_http import TIMEOUT_S, Event, HttpServerAddress, Response

HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = "2026-07-28"
PUBLISHED = (*HANDSHAKE, STATELESS)
DRAFT = "draft"
REVISIONS = (*PUBLISHED, DRAFT)
DUPLEX = ("memory", "pipe", "stdio", "unix", "tcp", "sse")
HTTP = ("http", "http-stateless")
TRANSPORTS = (*DUPLEX, *HTTP)

JSON_AND_STREAM = "application/json, text/event-stream"
CLIENT = {"name": "driver", "version": "1"}
NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
MAX_ROUNDS = 10

Answers = Mapping[str, Callable[[Any], Any]]


class Pending:
    """A request without a response yet."""

    def __init__(self, id: int | str, method: str, revision: str) -> None:
        self.id = id
        self.method = method
        self.revision = revision
        self.response: Response | None = None
        self.task: asyncio.Task[None] | None = None
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.head_received = asyncio.Event()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.shield(self.future)

    @property
    def done(self) -> bool:
        return self.future.done()

    async def streaming(self) -> Response:
        """Wait for the head of the HTTP response, and return the response."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.head_received.wait()
        assert self.response is not None
        return self.response

    async def disconnect(self) -> None:
        """Close the HTTP connection of this request."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.future.done():
            self.future.set_exception(ConnectionLost("the test closed the connection"))


@dataclass
class Raw:
    """The response to raw bytes."""

    status: int | None
    headers: dict[str, str]
    messages: list[Any]
    events: list[Event] = field(default_factory=list)
    body: bytes = b""

    @property
    def message(self) -> Any:
        assert len(self.messages) == 1, self.messages
        return self.messages[0]

    @property
    def code(self) -> int:
        """The code of the error response."""
        return self.message["error"]["code"]


class Peer:
    """The client side of one connection."""

    def __init__(self, transport: str, revision: str, capabilities: dict[str, Any], answer: Answers) -> None:
        self.transport = transport
        self.revision = revision
        self.capabilities = capabilities
        self.answer = answer
        self.messages: list[Any] = []
        self.notifications: list[tuple[str, Any]] = []
        self.server_requests: list[tuple[str, Any]] = []
        self.violations: list[BaseException] = []
        self.initialize_result: Any = None
        self.session: str | None = None
        self.rounds = 0
        self.process: asyncio.subprocess.Process | None = None
        self.stderr: list[str] = []  # lines of the process's standard error
        self.web: HttpServerAddress | None = None
        self.path = "/mcp"
        self.listening: Response | None = None
        self.extra_headers: dict[str, str] = {}
        self.ended = asyncio.Event()  # set when the server closes a duplex connection
        self.writer: asyncio.StreamWriter | None = None  # for byte streams
        self.send_bytes: Callable[[bytes], Awaitable[None]] | None = None
        self._pending: dict[tuple[type, int | str], Pending] = {}
        self._unread_notifications: list[tuple[str, Any]] = []
        self._unmatched: list[Any] = []
        self.activity = asyncio.Event()
        self._last_id = 0
        self._revisions_used: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Processes that serve the factory of a test file import this module too. They need not load the official SDK.
        from support import oracle

        self._oracle = oracle

    # Sending

    def start(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        progress_token: int | str | None = None,
        log_level: str | None = None,
        id: int | str | None = None,
        revision: str | None = None,
    ) -> Pending:
        """Send a request without waiting for its response."""
        if id is None:
            self._last_id += 1
            id = self._last_id
        pending = Pending(id, method, revision or self.revision)
        message = self.message(
            method, params, meta=meta, progress_token=progress_token, log_level=log_level, revision=pending.revision
        )
        data = json.dumps({"jsonrpc": "2.0", "id": id} | message).encode()
        self._revisions_used.add(pending.revision)
        if self.send_bytes is not None:
            self._pending[type(id), id] = pending
            pending.task = self.spawn(self.send_bytes(data))
        else:
            all_headers = self.headers(message, pending.revision) | dict(headers or {})
            pending.task = self.spawn(self._post(pending, data, all_headers))
        return pending

    async def request(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Send a request, and return its result or raise RemoteError."""
        return await self.start(method, params, **options)

    async def call(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Send a request and answer its input requests until the result is complete."""
        current_params: dict[str, Any] = dict(params or {})
        self.rounds = 0
        for _ in range(MAX_ROUNDS):
            self.rounds += 1
            result = await self.request(method, current_params, **options)
            if not isinstance(result, dict) or result.get("resultType") != "input_required":
                return result
            current_params = dict(params or {})
            if "requestState" in result:
                current_params["requestState"] = result["requestState"]
            if result.get("inputRequests"):
                current_params["inputResponses"] = {
                    key: await self._answer_request(request["method"], request.get("params") or {})
                    for key, request in result["inputRequests"].items()
                }
        raise AssertionError(f"{method} still requests input after {MAX_ROUNDS} rounds")

    async def notify(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> int | None:
        """Send a notification, and return the HTTP status if there is one."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = dict(params)
        if self.send_bytes is not None:
            await self.send_bytes(json.dumps(message).encode())
            return None
        headers = self.headers(message, self.revision) | options.get("headers", {})
        response = await self.http("POST", self.path, headers, json.dumps(message).encode())
        body = await response.read()
        if response.status == 202:
            self.check(body == b"", f"202 with a body: {body!r}")
        return response.status

    async def cancel(self, id: Any, reason: str | None = None) -> int | None:
        """Send notifications/cancelled for a request."""
        return await self.notify(
            "notifications/cancelled", {"requestId": id} | ({} if reason is None else {"reason": reason})
        )

    async def raw(self, data: bytes, *, headers: Mapping[str, str | None] | None = None) -> Raw:
        """Send raw bytes, and wait for the response."""
        if self.send_bytes is not None:
            await self.send_bytes(data)
            return Raw(None, {}, [await self.next_unmatched()])
        default_headers: dict[str, str | None] = {"content-type": "application/json", "accept": JSON_AND_STREAM}
        default_headers |= self._session_headers(self.revision)
        response = await self.http("POST", self.path, default_headers | dict(headers or {}), data)
        return await self.collect(response)

    async def send_raw(self, data: bytes) -> None:
        """Send raw bytes on a duplex transport."""
        assert self.send_bytes is not None, "use raw() over HTTP"
        await self.send_bytes(data)

    async def http(
        self, method: str, path: str | None = None, headers: Mapping[str, str | None] | Any = (), body: bytes = b""
    ) -> Response:
        """Send any HTTP request."""
        assert self.web is not None, f"{self.transport} is not HTTP"
        return await self.web.open(method, path or self.path, headers, body)

    async def collect(self, response: Response) -> Raw:
        """Read a response to its end, JSON or event stream."""
        messages: list[Any] = []
        body = b""
        async with asyncio.timeout(TIMEOUT_S):
            if response.media_type == "text/event-stream":
                messages += [event.message async for event in response.events() if event.data]
            else:
                body = await response.read()
                if response.media_type == "application/json" and body:
                    messages.append(json.loads(body))
        self.messages += messages
        return Raw(response.status, response.headers, messages, response.events_seen, body)

    # Receiving

    async def next_notification(self, method: str) -> Any:
        """Wait for the next notification of this method, and return its params."""
        return await self.wait_until(lambda: self._take_notification(method), method)

    async def wait_for_stderr_line(self, line: str) -> None:
        """Wait until the process has written this line to standard error."""
        await self.wait_until(lambda: True if line in self.stderr else None, line)

    async def next_unmatched(self) -> Any:
        """Wait for the next message that does not answer a pending request."""
        return (await self.wait_until(lambda: [self._unmatched.pop(0)] if self._unmatched else None, "a message"))[0]

    async def wait_until(self, look: Callable[[], Any], what: str) -> Any:
        """Call `look` after each received message until it returns a value."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while (value := look()) is None:
                    self.activity.clear()
                    await self.activity.wait()
                return value
        except TimeoutError:
            raise AssertionError(f"{what} did not arrive. Received: {self.messages[-20:]}") from None

    def _take_notification(self, method: str) -> Any:
        for index, (name, params) in enumerate(self._unread_notifications):
            if name == method:
                del self._unread_notifications[index]
                return params if params is not None else {}
        return None

    # Building messages

    def message(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        meta: Mapping[str, Any] | None = None,
        progress_token: int | str | None = None,
        log_level: str | None = None,
        revision: str | None = None,
    ) -> dict[str, Any]:
        """Return method and params as a client of the version sends them. A meta value of None removes the key."""
        revision = revision or self.revision
        all_meta: dict[str, Any] = {}
        if revision not in (*HANDSHAKE, DRAFT):
            all_meta["io.modelcontextprotocol/protocolVersion"] = revision
            all_meta["io.modelcontextprotocol/clientInfo"] = CLIENT
            all_meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities
        if progress_token is not None:
            all_meta["progressToken"] = progress_token
        if log_level is not None:
            all_meta["io.modelcontextprotocol/logLevel"] = log_level
        all_meta |= dict((params or {}).get("_meta") or {}) | dict(meta or {})
        all_meta = {key: value for key, value in all_meta.items() if value is not None}
        filled = dict(params or {}) | ({"_meta": all_meta} if all_meta else {})
        return {"method": method} | ({"params": filled} if filled or params is not None else {})

    def headers(self, message: Mapping[str, Any], revision: str) -> dict[str, str | None]:
        """Return the HTTP headers that a client of the version sends with a message."""
        headers: dict[str, str | None] = {"content-type": "application/json", "accept": JSON_AND_STREAM}
        headers |= self.extra_headers
        if revision in (*HANDSHAKE, DRAFT):
            return headers | ({} if message.get("method") == "initialize" else self._session_headers(revision))
        params = message.get("params") or {}
        headers["mcp-protocol-version"] = revision
        headers["mcp-method"] = message.get("method")
        name = params.get(NAME_PARAMS.get(str(message.get("method")), ""))
        if isinstance(name, str):
            headers["mcp-name"] = header_value(name)
        return headers

    def _session_headers(self, revision: str) -> dict[str, str | None]:
        if revision == STATELESS:
            return {}
        headers: dict[str, str | None] = dict(self.extra_headers)
        if self.session is not None:
            headers["mcp-session-id"] = self.session
        if revision not in ("2024-11-05", "2025-03-26"):  # 2025-06-18 introduced the header
            headers["mcp-protocol-version"] = revision
        return headers

    # The handshake

    async def initialize(self, revision: str | None = None, **changes: Any) -> Any:
        """Initialize a session, use its version, and return the result."""
        params = {"protocolVersion": revision or self.revision, "capabilities": self.capabilities, "clientInfo": CLIENT}
        pending = self.start(
            "initialize", params | changes, revision=self._revision_to_check(revision or self.revision)
        )
        result = await pending
        self.initialize_result = result
        self.revision = result["protocolVersion"]
        self._revisions_used = {self.revision}
        self._run_check(
            lambda: self._oracle.check_result(
                self.revision, "initialize", {"jsonrpc": "2.0", "id": 0, "result": result}
            )
        )
        if pending.response is not None:
            self.session = pending.response.headers.get("mcp-session-id")
        return result

    def _revision_to_check(self, revision: str) -> str:
        # The version is unknown until the response arrives. The draft has no schema, so the oracle checks nothing.
        return revision if revision in HANDSHAKE else DRAFT

    async def open(self, listen: bool = True) -> None:
        """Do the complete handshake."""
        await self.initialize()
        await self.notify("notifications/initialized")
        if listen and self.transport == "http":
            await self.listen()

    async def listen(self, last_event_id: str | None = None) -> Response:
        """Open the session's GET stream and read it in a task."""
        headers: dict[str, str | None] = {"accept": "text/event-stream"} | self._session_headers(self.revision)
        if last_event_id is not None:
            headers["last-event-id"] = last_event_id
        response = await self.http("GET", self.path, headers)
        assert response.status == 200, (response.status, await response.read())
        self.read_stream(response)
        return response

    def read_stream(self, response: Response) -> None:
        """Read a stream of server messages in a task."""
        self.listening = response
        self.spawn(self._read_stream(response))

    async def wait_streams_ended(self) -> None:
        """Wait until all streams have ended."""
        await asyncio.gather(*self._tasks)

    def ignore(self, id: int) -> None:
        """Do not match the next response with this id to its request."""
        del self._pending[int, id]

    def expect(self, pending: Pending) -> None:
        """Match the next response with this id to the request again."""
        self._pending[type(pending.id), pending.id] = pending

    async def _read_stream(self, response: Response) -> None:
        with contextlib.suppress(ConnectionError):
            async for event in response.events():
                self.activity.set()
                if event.data:
                    self.receive(event.data.encode(), None)

    # Processing messages

    def receive(self, data: bytes, pending: Pending | None, response: Response | None = None) -> None:
        """Check a message, and pass it to the request or the test that waits for it."""
        try:
            message = json.loads(data, parse_constant=_reject_constant)
        except ValueError as exc:
            self.violations.append(AssertionError(f"not JSON: {data!r} ({exc})"))
            return
        self.check(b"\n" not in data, f"message with a newline: {data!r}")
        self.messages.append(message)
        if isinstance(message, list):
            self._unmatched.append(message)
        else:
            self._dispatch(message, pending, response)
        self.activity.set()

    def _dispatch(self, message: dict[str, Any], pending: Pending | None, response: Response | None) -> None:
        revision = pending.revision if pending is not None else None
        if "method" in message and "id" in message:
            self._run_check(lambda: self._oracle.check_server_request(revision or self.revision, message))
            self.server_requests.append((message["method"], message.get("params")))
            self.spawn(self._reply(message))
        elif "method" in message:
            self._check_notification(message, revision)
            self.notifications.append((message["method"], message.get("params")))
            self._unread_notifications.append(self.notifications[-1])
        else:
            self.settle(message, pending, response)

    def settle(self, message: dict[str, Any], pending: Pending | None, response: Response | None) -> None:
        self.check(("result" in message) != ("error" in message), f"needs either a result or an error: {message}")
        id = message.get("id")
        if pending is None and id is not None:
            pending = self._pending.pop((type(id), id), None)
        if pending is None:
            if "error" in message:
                self._run_check(lambda: self._oracle.check_error(self.revision, message))
            self._unmatched.append(message)
            return
        if response is None or "id" in message:
            same = id == pending.id and type(id) is type(pending.id)
            self.check(same, f"the response to {pending.id!r} has another id: {message}")
        request, violations = pending, len(self.violations)
        if "error" in message:
            self._run_check(lambda: self._oracle.check_error(request.revision, message))
        elif request.method != "initialize":
            self._run_check(lambda: self._oracle.check_result(request.revision, request.method, message))
        self.check(not pending.future.done(), f"second response: {message}")
        if pending.future.done():
            return
        if len(self.violations) > violations:
            pending.future.set_exception(self.violations[-1])
        elif "error" in message:
            pending.future.set_exception(peer_error(message["error"], response))
        else:
            pending.future.set_result(message["result"])

    def _check_notification(self, message: dict[str, Any], revision: str | None) -> None:
        """Check a notification. On a duplex connection it may belong to any version in use."""
        revisions = [revision] if revision else sorted(self._revisions_used) or [self.revision]
        errors: list[BaseException] = []
        for candidate in revisions:
            try:
                self._oracle.check_notification(candidate, message)
                return
            except Exception as exc:
                errors.append(exc)
        self.violations.append(errors[0])

    async def _reply(self, message: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            answer["result"] = await self._answer_request(message["method"], message.get("params") or {})
        except RemoteError as exc:
            answer["error"] = {"code": exc.code, "message": exc.message}
        data = json.dumps(answer).encode()
        if self.send_bytes is not None:
            await self.send_bytes(data)
            return
        response = await self.http("POST", self.path, self.headers(answer, self.revision), data)
        body = await response.read()
        self.check(response.status == 202 and not body, f"a response was answered with {response.status} {body!r}")

    async def _answer_request(self, method: str, params: Any) -> Any:
        name = "elicitation/create" if method == "elicitation/createDialog" and method not in self.answer else method
        if name not in self.answer:
            raise RemoteError(-32601, f"Method not found: {method}")
        result = self.answer[name](params)
        return await result if inspect.isawaitable(result) else result

    async def _post(self, pending: Pending, data: bytes, headers: Mapping[str, str | None]) -> None:
        try:
            response = pending.response = await self.http("POST", self.path, headers, data)
            pending.head_received.set()
            try:
                if response.media_type == "text/event-stream":
                    async for event in response.events():
                        self.activity.set()
                        if event.data:
                            self.receive(event.data.encode(), pending, response)
                else:
                    body = await response.read()
                    self.check(response.media_type == "application/json", f"answered {response.status} {body!r}")
                    self.receive(body, pending, response)
            finally:
                response.abort()
        except (ConnectionError, AssertionError) as exc:
            if not pending.future.done():
                pending.future.set_exception(exc)
        if not pending.future.done():
            pending.future.set_exception(ConnectionLost("the response ended without a result"))

    # Checking

    def check(self, condition: bool, message: str) -> None:
        if not condition:
            self.violations.append(AssertionError(message))

    def _run_check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Exception as exc:
            self.violations.append(exc)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            self.violations.append(exc)
            self.activity.set()

    async def stop(self) -> None:
        """Stop all tasks and streams of this peer."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
        if self.listening is not None:
            self.listening.abort()


def peer_error(error: dict[str, Any], response: Response | None = None) -> RemoteError:
    exc: Any = RemoteError(error["code"], error["message"], error.get("data"))
    exc.status_code = None if response is None else response.status
    exc.headers = {} if response is None else response.headers
    return exc


def header_value(text: str) -> str:
    """Encode a value for an Mcp header: plain if that is safe, else base64."""
    safe = text.isascii() and text.isprintable() and text.strip() == text and not text.startswith("=?base64?")
    return text if safe else f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


@asynccontextmanager
async def connect(
    app: Server | Callable[[], Server],
    transport: str = "memory",
    revision: str = STATELESS,
    *,
    capabilities: Mapping[str, Any] | None = None,
    answer: Answers | None = None,
    handshake: bool = True,
    listen: bool = True,
    options: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Peer]:
    """Connect to the server, as described above. `options` go to `asgi`, `headers` to every HTTP request."""
    peer = Peer(transport, revision, dict(capabilities or {}), answer or {})
    peer.extra_headers = dict(headers or {})
    async with _open_transport(app, transport, peer, dict(options or {})):
        try:
            if handshake and revision in (*HANDSHAKE, DRAFT):
                await peer.open(listen)
            yield peer
        finally:
            await peer.stop()
    if peer.violations:
        raise peer.violations[0]


@asynccontextmanager
async def serve(app: Server, **options: Any) -> AsyncIterator[HttpServerAddress]:
    """Serve the ASGI app with our HTTP server, on a free port, in this event loop."""
    async with serve_asgi(app.asgi(**options), get_dispatcher(app).limits) as web:
        yield web


@asynccontextmanager
async def serve_asgi(application: Any, limits: Any, port: int = 0) -> AsyncIterator[HttpServerAddress]:
    """Serve any ASGI app in the same way."""
    from dovetail.transports.http1.http_listener import HTTPServer, bind_socket

    listener = bind_socket("127.0.0.1", port)
    server = HTTPServer(application, limits)
    # Do what serve() does, without its signal handlers.
    await server.start(listener)
    web = HttpServerAddress(listener.getsockname()[1])
    try:
        yield web
    finally:
        web.close_connections()
        await server.stop(_drain_nothing)
        listener.close()


async def _drain_nothing() -> None:
    return


@asynccontextmanager
async def connect_again(peer: Peer, revision: str | None = None, **options: Any) -> AsyncIterator[Peer]:
    """Connect a second client to the HTTP server of a peer."""
    other = Peer(peer.transport, revision or peer.revision, options.pop("capabilities", {}), options.pop("answer", {}))
    other.web, other.path, other.extra_headers = peer.web, peer.path, dict(options.pop("headers", {}))
    try:
        if options.pop("handshake", True) and other.revision in (*HANDSHAKE, DRAFT):
            await other.open(options.pop("listen", True))
        yield other
    finally:
        await other.stop()
    if other.violations:
        raise other.violations[0]


@asynccontextmanager
async def _open_transport(app: Any, transport: str, peer: Peer, options: dict[str, Any]) -> AsyncIterator[None]:
    if transport == "stdio":
        async with _process(app, peer):
            yield
        return
    server: Server = app if isinstance(app, Server) else app()
    if transport in ("http", "http-stateless", "sse"):
        if transport == "http-stateless":
            options["sessions"] = False
        async with serve(server, **options) as web:
            peer.web = web
            peer.path = "/" + options.get("path", "/mcp").strip("/")
            if transport == "sse":
                async with _sse_2024(peer):
                    yield
            else:
                yield
        return
    await server.start()
    try:
        open_connection = {"memory": _memory, "pipe": _pipe, "unix": _socket, "tcp": _socket}[transport]
        async with open_connection(server, peer):
            yield
    finally:
        await server.stop()


@asynccontextmanager
async def _memory(server: Server, peer: Peer) -> AsyncIterator[None]:
    link = server.open_connection(lambda data: peer.receive(data, None), on_shutdown=peer.ended.set)

    async def send(data: bytes) -> None:
        link.receive(data)

    peer.send_bytes = send
    try:
        yield
    finally:
        await link.close()


@asynccontextmanager
async def _pipe(server: Server, peer: Peer) -> AsyncIterator[None]:
    from dovetail.transports.line_protocol import LineProtocol, serve_connection
    from dovetail.transports.stdio_server import attach_streams

    their_source, our_sink = os.pipe()
    our_source, their_sink = os.pipe()
    try:
        lines = LineProtocol(get_dispatcher(server))
        await attach_streams(lines, their_source, their_sink)
    finally:
        os.close(their_source)
        os.close(their_sink)
    loop = asyncio.get_running_loop()
    task = loop.create_task(serve_connection(lines, 1.0))
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    source, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_source, "rb", 0)
    )
    sink, flow = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(our_sink, "wb", 0)
    )
    writer = asyncio.StreamWriter(sink, flow, None, loop)
    try:
        async with _lines(reader, writer, peer):
            yield
    finally:
        source.close()
        await asyncio.wait_for(task, TIMEOUT_S)


@asynccontextmanager
async def _socket(server: Server, peer: Peer) -> AsyncIterator[None]:
    from dovetail.transports.socket_server import serve_socket

    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        path = str(Path(folder) / "s") if peer.transport == "unix" else None
        async with serve_socket(get_dispatcher(server), path=path) as socket_server:
            if path is not None:
                reader, writer = await asyncio.open_unix_connection(path, limit=64 * 1024 * 1024)
            else:
                port = socket_server.sockets[0].getsockname()[1]
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024 * 1024)
            async with _lines(reader, writer, peer):
                yield


@asynccontextmanager
async def _lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer) -> AsyncIterator[None]:
    """Send and receive newline-delimited messages."""

    async def send(data: bytes) -> None:
        writer.write(data + b"\n")
        await writer.drain()

    async def read() -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                peer.check(line.endswith(b"\n"), f"the last line has no newline: {line[-80:]!r}")
                peer.receive(line.rstrip(b"\n"), None)
        peer.ended.set()

    peer.send_bytes = send
    peer.writer = writer
    task = asyncio.get_running_loop().create_task(read())
    try:
        yield
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def _process(app: Any, peer: Peer) -> AsyncIterator[None]:
    process = peer.process = await spawn(app)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stderr_task = asyncio.get_running_loop().create_task(_read_stderr(process.stderr, peer))
    try:
        async with _lines(process.stdout, process.stdin, peer):
            yield
        async with asyncio.timeout(TIMEOUT_S):
            await process.wait()
    finally:
        _kill_process_tree(process)
        await process.wait()
        await stderr_task


def _kill_process_tree(process: asyncio.subprocess.Process) -> None:
    """Kill a process of `spawn` and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def stop_process(process: asyncio.subprocess.Process) -> None:
    """Terminate a process of `spawn`, then kill it and its children."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await process.communicate()
    finally:
        _kill_process_tree(process)


async def _read_stderr(stderr: asyncio.StreamReader, peer: Peer) -> None:
    while line := await stderr.readline():
        peer.stderr.append(line.decode().rstrip("\n"))
        peer.activity.set()


async def spawn(factory: Callable[[], Server], transport: str = "stdio", **options: Any) -> asyncio.subprocess.Process:
    """Start a process that runs the server of the factory, with piped streams. The caller must read stderr."""
    assert "<locals>" not in factory.__qualname__, "the factory must be a function at the top level of a module"
    command = [
        sys.executable,
        str(Path(__file__).with_name("run_server.py")),
        inspect.getfile(factory),
        factory.__name__,
    ]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *command,
        transport,
        json.dumps(options),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        limit=64 * 1024 * 1024,
        start_new_session=True,
    )


@asynccontextmanager
async def _sse_2024(peer: Peer) -> AsyncIterator[None]:
    """Connect over HTTP+SSE. The first event of the stream names the address to post to."""
    assert peer.web is not None
    response = await peer.web.open("GET", "/sse", {"accept": "text/event-stream"} | peer.extra_headers)
    assert response.status == 200, await response.read()
    assert response.media_type == "text/event-stream"
    events = response.events()
    async with asyncio.timeout(TIMEOUT_S):
        first = await anext(events)
    assert first.name == "endpoint", first
    assert first.data is not None
    address = peer.path = first.data
    peer.listening = response

    async def read() -> None:
        with contextlib.suppress(ConnectionError):
            async for event in events:
                if event.data:
                    peer.check(event.name == "message", f"unexpected event name: {event}")
                    peer.receive(event.data.encode(), None)
        peer.ended.set()

    async def send(data: bytes) -> None:
        headers = {"content-type": "application/json"} | peer.extra_headers
        posted = await peer.http("POST", address, headers, data)
        body = await posted.read()
        peer.check(posted.status == 202, f"a message was answered with {posted.status} {body!r}")

    peer.send_bytes = send
    peer.spawn(read())
    try:
        yield
    finally:
        await peer.stop()

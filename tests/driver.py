"""A neutral client for tests: it speaks raw messages over every transport and revision, and judges what comes back.

    async with connect(app, transport="http", revision="2025-11-25", capabilities={"roots": {}}, answer={...}) as peer:
        result = await peer.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, progress_token="t")

`app`: a Server, or a function of no arguments that makes one. `transport`:
    memory          `app.link`, no bytes leave the process
    pipe            the stdio connection over two operating system pipes, in this loop
    stdio           a real process; `app` must be a function at the top of a module
    unix, tcp       the socket transports, real sockets
    http            `app.asgi(**options)` under uvicorn on a loopback socket; handshake revisions with a session
    http-stateless  the same with `sessions=False`
    sse             the pair of addresses of 2024-11-05
`revision`: a published one or "draft". A handshake revision is opened with initialize and initialized (and, over http,
a GET stream) before the body runs, unless `handshake=False`. `answer`: for the server's questions, by method, a
function from params to the result, plain or async; it may raise RemoteError. The same table serves the handshake's
server-to-client requests and, through `peer.call`, the stateless era's rounds, so one body can run in both.

    await peer.request(method, params, meta=, headers=, progress_token=, log_level=, id=, revision=)   -> result
    peer.start(...same...)                     -> Pending: awaitable; .id; .disconnect() drops an HTTP connection
    await peer.call(...same...)                request, answering input_required until complete; peer.rounds counts
    await peer.notify(method, params)          a notification; over HTTP the status, which should be 202
    await peer.cancel(id)                      notifications/cancelled
    peer.notices, await peer.next_notice(m)    all (method, params) so far; the next untaken one of a method
    await peer.until(look, "what")             anything else that comes true when something comes in
    peer.questions                             all (method, params) the server asked
    peer.messages                              everything received, decoded, in order
    await peer.raw(data, headers=)             bytes as they are -> Raw(status, headers, messages); where there is no
                                               status it is None, and the next message nobody waited for is the answer
    await peer.send_raw(data)                  bytes as they are on a duplex transport, no answer awaited
    await peer.http(method, path, headers, body)   any HTTP request at all -> rawhttp.Response
    await peer.heard(line), peer.stderr        what a process says on standard error
    peer.opened                                the result of initialize (None in the stateless era)

An error response raises RemoteError, with `.status_code` over HTTP and `.headers`. Everything waits at most
PATIENCE seconds.
Each message received is judged by `oracle`; a message that breaks the rules fails the test even if nobody looked at it.
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

import oracle
from dovetail import Server
from dovetail.errors import ConnectionLost, RemoteError
from dovetail.server.server import get_dispatcher
from raw_http import TIMEOUT_S, Event, HttpServerAddress, Response

STATELESS = oracle.STATELESS
DRAFT = "draft"
HANDSHAKE = oracle.HANDSHAKE
REVISIONS = (*oracle.PUBLISHED, DRAFT)
DUPLEX = ("memory", "pipe", "stdio", "unix", "tcp", "sse")
HTTP = ("http", "http-stateless")
TRANSPORTS = (*DUPLEX, *HTTP)

JSON_AND_STREAM = "application/json, text/event-stream"
CLIENT = {"name": "driver", "version": "1"}
NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
MAX_ROUNDS = 10

Answers = Mapping[str, Callable[[Any], Any]]


class Pending:
    """A request under way."""

    def __init__(self, id: int | str, method: str, revision: str) -> None:
        self.id = id
        self.method = method
        self.revision = revision
        self.response: Response | None = None
        self.task: asyncio.Task[None] | None = None
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.headed = asyncio.Event()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._bounded().__await__()

    async def _bounded(self) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.shield(self.future)

    @property
    def done(self) -> bool:
        return self.future.done()

    async def streaming(self) -> Response:
        """The HTTP answer, as soon as its head is there."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.headed.wait()
        assert self.response is not None
        return self.response

    async def disconnect(self) -> None:
        """Drop the HTTP connection this request is answered on."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.future.done():
            self.future.set_exception(ConnectionLost("the test dropped the connection"))


@dataclass
class Raw:
    """What came back for bytes sent as they are."""

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
        """The code of the error it is."""
        return self.message["error"]["code"]


class Peer:
    """The client's end of one connection."""

    def __init__(self, transport: str, revision: str, capabilities: dict[str, Any], answer: Answers) -> None:
        self.transport = transport
        self.revision = revision
        self.capabilities = capabilities
        self.answer = answer
        self.messages: list[Any] = []
        self.notices: list[tuple[str, Any]] = []
        self.questions: list[tuple[str, Any]] = []
        self.violations: list[BaseException] = []
        self.opened: Any = None
        self.session: str | None = None
        self.rounds = 0
        self.process: asyncio.subprocess.Process | None = None
        self.stderr: list[str] = []  # what the process said there, line by line
        self.web: HttpServerAddress | None = None
        self.path = "/mcp"
        self.listening: Response | None = None
        self.extra_headers: dict[str, str] = {}
        self.ended = asyncio.Event()  # a duplex connection was closed by the server
        self.writer: asyncio.StreamWriter | None = None  # the sending half of a byte stream
        self.send_bytes: Callable[[bytes], Awaitable[None]] | None = None
        self._pending: dict[tuple[type, int | str], Pending] = {}
        self._untaken: list[tuple[str, Any]] = []
        self._strays: list[Any] = []
        self.news = asyncio.Event()
        self._next = 0
        self._spoken: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    # Talking

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
        """Send a request without waiting for its answer."""
        if id is None:
            self._next += 1
            id = self._next
        pending = Pending(id, method, revision or self.revision)
        message = self.message(
            method, params, meta=meta, progress_token=progress_token, log_level=log_level, revision=pending.revision
        )
        data = json.dumps({"jsonrpc": "2.0", "id": id} | message).encode()
        self._spoken.add(pending.revision)
        if self.send_bytes is not None:
            self._pending[type(id), id] = pending
            pending.task = self.spawn(self.send_bytes(data))
        else:
            posted = self.headers(message, pending.revision) | dict(headers or {})
            pending.task = self.spawn(self._post(pending, data, posted))
        return pending

    async def request(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The result of a request, or RemoteError."""
        return await self.start(method, params, **options)

    async def call(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The complete result of a request; questions on the way are answered from the table."""
        asked: dict[str, Any] = dict(params or {})
        self.rounds = 0
        for _ in range(MAX_ROUNDS):
            self.rounds += 1
            result = await self.request(method, asked, **options)
            if not isinstance(result, dict) or result.get("resultType") != "input_required":
                return result
            asked = dict(params or {})
            if "requestState" in result:
                asked["requestState"] = result["requestState"]
            if result.get("inputRequests"):
                asked["inputResponses"] = {
                    key: await self._answer_request(one["method"], one.get("params") or {})
                    for key, one in result["inputRequests"].items()
                }
        raise AssertionError(f"{method} still asks after {MAX_ROUNDS} rounds")

    async def notify(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> int | None:
        """Send a notification; the HTTP status where there is one."""
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
            self.hold(body == b"", f"202 with a body: {body!r}")
        return response.status

    async def cancel(self, id: Any, reason: str | None = None) -> int | None:
        """Send the notice that cancels a request."""
        return await self.notify(
            "notifications/cancelled", {"requestId": id} | ({} if reason is None else {"reason": reason})
        )

    async def raw(self, data: bytes, *, headers: Mapping[str, str | None] | None = None) -> Raw:
        """Send bytes as they are and wait for what comes back."""
        if self.send_bytes is not None:
            await self.send_bytes(data)
            return Raw(None, {}, [await self.next_stray()])
        given = {"content-type": "application/json", "accept": JSON_AND_STREAM} | self._session_headers(self.revision)
        response = await self.http("POST", self.path, given | dict(headers or {}), data)
        return await self.collect(response)

    async def send_raw(self, data: bytes) -> None:
        """Send bytes as they are on a duplex transport."""
        assert self.send_bytes is not None, "over HTTP use raw"
        await self.send_bytes(data)

    async def http(
        self, method: str, path: str | None = None, headers: Mapping[str, str | None] | Any = (), body: bytes = b""
    ) -> Response:
        """Any HTTP request."""
        assert self.web is not None, f"{self.transport} is not HTTP"
        return await self.web.open(method, path or self.path, headers, body)

    async def collect(self, response: Response) -> Raw:
        """Read an answer to its end, whatever it is."""
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

    # Listening

    async def next_notification(self, method: str) -> Any:
        """The params of the next notification of this method that was not taken yet."""
        return await self.wait_until(lambda: self._take_notification(method), method)

    async def wait_for_stderr_line(self, line: str) -> None:
        """Wait until the process has said this line on standard error."""
        await self.wait_until(lambda: True if line in self.stderr else None, line)

    async def next_stray(self) -> Any:
        """The next message that answers no request made here."""
        return (await self.wait_until(lambda: [self._strays.pop(0)] if self._strays else None, "a message"))[0]

    async def wait_until(self, look: Callable[[], Any], what: str) -> Any:
        """Look again whenever something came in, until there is something to see."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while (found := look()) is None:
                    self.news.clear()
                    await self.news.wait()
                return found
        except TimeoutError:
            raise AssertionError(f"{what} did not come; received {self.messages[-20:]}") from None

    def _take_notification(self, method: str) -> Any:
        for place, (name, params) in enumerate(self._untaken):
            if name == method:
                del self._untaken[place]
                return params if params is not None else {}
        return None

    # Messages out

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
        """Method and params as a client of the revision would say them; a meta value of None leaves the key out."""
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
        """The HTTP headers a client of the revision sends with a message."""
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
        if revision not in ("2024-11-05", "2025-03-26"):  # the header came with 2025-06-18
            headers["mcp-protocol-version"] = revision
        return headers

    # The handshake

    async def initialize(self, revision: str | None = None, **changes: Any) -> Any:
        """Open a session and take its revision; the result."""
        params = {"protocolVersion": revision or self.revision, "capabilities": self.capabilities, "clientInfo": CLIENT}
        pending = self.start("initialize", params | changes, revision=self._guess(revision or self.revision))
        result = await pending
        self.opened = result
        self.revision = result["protocolVersion"]
        self._spoken = {self.revision}
        self._judge(
            lambda: oracle.judge_result(self.revision, "initialize", {"jsonrpc": "2.0", "id": 0, "result": result})
        )
        if pending.response is not None:
            self.session = pending.response.headers.get("mcp-session-id")
        return result

    def _guess(self, revision: str) -> str:
        # Until the answer is there nobody knows its revision; the dialect without a schema keeps the oracle silent.
        return revision if revision in HANDSHAKE else DRAFT

    async def open(self, listen: bool = True) -> None:
        """The whole handshake."""
        await self.initialize()
        await self.notify("notifications/initialized")
        if listen and self.transport == "http":
            await self.listen()

    async def listen(self, last_event_id: str | None = None) -> Response:
        """Open the session's GET stream and follow it."""
        headers: dict[str, str | None] = {"accept": "text/event-stream"} | self._session_headers(self.revision)
        if last_event_id is not None:
            headers["last-event-id"] = last_event_id
        response = await self.http("GET", self.path, headers)
        assert response.status == 200, (response.status, await response.read())
        self.follow_listening(response)
        return response

    def follow_listening(self, response: Response) -> None:
        """Read a stream of what the server says unasked, in a task."""
        self.listening = response
        self.spawn(self._follow_listening(response))

    async def reading_ended(self) -> None:
        """Wait until every stream that is read has ended."""
        await asyncio.gather(*self._tasks)

    def ignore(self, id: int) -> None:
        """Do not take the next response with this id for the answer to the request that has it."""
        del self._pending[int, id]

    def expect(self, pending: Pending) -> None:
        """Wait for the answer to a request again."""
        self._pending[type(pending.id), pending.id] = pending

    async def _follow_listening(self, response: Response) -> None:
        with contextlib.suppress(ConnectionError):
            async for event in response.events():
                self.news.set()
                if event.data:
                    self.receive(event.data.encode(), None)

    # Messages in

    def receive(self, data: bytes, pending: Pending | None, response: Response | None = None) -> None:
        """Take one message, judge it, and hand it to whoever waits for it."""
        try:
            message = json.loads(data, parse_constant=_no_constant)
        except ValueError as exc:
            self.violations.append(AssertionError(f"not JSON: {data!r} ({exc})"))
            return
        self.hold(b"\n" not in data, f"a message over several lines: {data!r}")
        self.messages.append(message)
        if isinstance(message, list):
            self._strays.append(message)
        else:
            self._sort(message, pending, response)
        self.news.set()

    def _sort(self, message: dict[str, Any], pending: Pending | None, response: Response | None) -> None:
        revision = pending.revision if pending is not None else None
        if "method" in message and "id" in message:
            self._judge(lambda: oracle.judge_server_request(revision or self.revision, message))
            self.questions.append((message["method"], message.get("params")))
            self.spawn(self._reply(message))
        elif "method" in message:
            self._judge_notification(message, revision)
            self.notices.append((message["method"], message.get("params")))
            self._untaken.append(self.notices[-1])
        else:
            self.settle(message, pending, response)

    def settle(self, message: dict[str, Any], pending: Pending | None, response: Response | None) -> None:
        self.hold(("result" in message) != ("error" in message), f"not one of result and error: {message}")
        id = message.get("id")
        found = pending or (self._pending.pop((type(id), id), None) if id is not None else None)
        if found is None:
            if "error" in message:
                self._judge(lambda: oracle.judge_error(self.revision, message))
            self._strays.append(message)
            return
        if response is None or "id" in message:
            same = id == found.id and type(id) is type(found.id)
            self.hold(same, f"the answer to {found.id!r} carries another id: {message}")
        before = len(self.violations)
        if "error" in message:
            self._judge(lambda: oracle.judge_error(found.revision, message))
        elif found.method != "initialize":
            self._judge(lambda: oracle.judge_result(found.revision, found.method, message))
        self.hold(not found.future.done(), f"answered twice: {message}")
        if found.future.done():
            return
        if len(self.violations) > before:
            found.future.set_exception(self.violations[-1])
        elif "error" in message:
            found.future.set_exception(peer_error(message["error"], response))
        else:
            found.future.set_result(message["result"])

    def _judge_notification(self, message: dict[str, Any], revision: str | None) -> None:
        """On a duplex connection a notice may belong to any revision spoken there."""
        spoken = [revision] if revision else sorted(self._spoken) or [self.revision]
        verdicts: list[BaseException] = []
        for one in spoken:
            try:
                oracle.judge_notification(one, message)
                return
            except Exception as exc:
                verdicts.append(exc)
        self.violations.append(verdicts[0])

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
        self.hold(response.status == 202 and not body, f"a response was answered {response.status} {body!r}")

    async def _answer_request(self, method: str, params: Any) -> Any:
        name = "elicitation/create" if method == "elicitation/createDialog" and method not in self.answer else method
        if name not in self.answer:
            raise RemoteError(-32601, f"Method not found: {method}")
        result = self.answer[name](params)
        return await result if inspect.isawaitable(result) else result

    async def _post(self, pending: Pending, data: bytes, headers: Mapping[str, str | None]) -> None:
        try:
            response = pending.response = await self.http("POST", self.path, headers, data)
            pending.headed.set()
            try:
                if response.media_type == "text/event-stream":
                    async for event in response.events():
                        self.news.set()
                        if event.data:
                            self.receive(event.data.encode(), pending, response)
                else:
                    body = await response.read()
                    self.hold(response.media_type == "application/json", f"answered {response.status} {body!r}")
                    self.receive(body, pending, response)
            finally:
                response.abort()
        except (ConnectionError, AssertionError) as exc:
            if not pending.future.done():
                pending.future.set_exception(exc)
        if not pending.future.done():
            pending.future.set_exception(ConnectionLost("the answer ended without a result"))

    # Judging

    def hold(self, true: bool, otherwise: str) -> None:
        if not true:
            self.violations.append(AssertionError(otherwise))

    def _judge(self, verdict: Callable[[], None]) -> None:
        try:
            verdict()
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
            self.news.set()

    async def hang_up(self) -> None:
        """Stop everything of ours."""
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
    """A value as an Mcp header carries it: plain where that is safe, else base64 between marks."""
    safe = text.isascii() and text.isprintable() and text.strip() == text and not text.startswith("=?base64?")
    return text if safe else f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def _no_constant(name: str) -> None:
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
    """A connection to the server, as told at the top. `options` go to `asgi`, `headers` with every HTTP request."""
    peer = Peer(transport, revision, dict(capabilities or {}), answer or {})
    peer.extra_headers = dict(headers or {})
    async with _open_transport(app, transport, peer, dict(options or {})):
        try:
            if handshake and revision in (*HANDSHAKE, DRAFT):
                await peer.open(listen)
            yield peer
        finally:
            await peer.hang_up()
    if peer.violations:
        raise peer.violations[0]


@asynccontextmanager
async def serve(app: Server, **options: Any) -> AsyncIterator[HttpServerAddress]:
    """The server's ASGI application under uvicorn with our limits, on a free port, in this loop."""
    async with serve_asgi(app.asgi(**options), get_dispatcher(app).limits) as web:
        yield web


@asynccontextmanager
async def serve_asgi(application: Any, limits: Any, port: int = 0) -> AsyncIterator[HttpServerAddress]:
    """Any ASGI application, the same way."""
    import uvicorn

    from dovetail.transports.http_server.uvicorn_server import bind_socket, create_uvicorn_config

    listener = bind_socket("127.0.0.1", port)
    server = uvicorn.Server(create_uvicorn_config(application, limits))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    # What serve() does, without its signals and without its tenths of a second.
    await server.startup([listener])
    assert not server.should_exit, "the application did not start"
    web = HttpServerAddress(listener.getsockname()[1])
    try:
        await server.on_tick(0)
        yield web
    finally:
        web.close_connections()
        for each in server.servers:
            each.close()
        for connection in tuple(server.server_state.connections):
            connection.shutdown()
        await server.lifespan.shutdown()
        if server.server_state.tasks:
            await asyncio.wait(tuple(server.server_state.tasks), timeout=TIMEOUT_S)
        listener.close()


@asynccontextmanager
async def connect_again(peer: Peer, revision: str | None = None, **options: Any) -> AsyncIterator[Peer]:
    """A second client of the HTTP server a peer is connected to."""
    other = Peer(peer.transport, revision or peer.revision, options.pop("capabilities", {}), options.pop("answer", {}))
    other.web, other.path, other.extra_headers = peer.web, peer.path, dict(options.pop("headers", {}))
    try:
        if options.pop("handshake", True) and other.revision in (*HANDSHAKE, DRAFT):
            await other.open(options.pop("listen", True))
        yield other
    finally:
        await other.hang_up()
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
        carrier = {"memory": _memory, "pipe": _pipe, "unix": _socket, "tcp": _socket}[transport]
        async with carrier(server, peer):
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
    from dovetail.transports.line_protocol import serve_connection
    from dovetail.transports.stdio_server import open_stdio

    their_source, our_sink = os.pipe()
    our_source, their_sink = os.pipe()
    try:
        lines = await open_stdio(get_dispatcher(server), their_source, their_sink)
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
        async with serve_socket(get_dispatcher(server), path=path) as door:
            if path is not None:
                reader, writer = await asyncio.open_unix_connection(path, limit=64 * 1024 * 1024)
            else:
                port = door.sockets[0].getsockname()[1]
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024 * 1024)
            async with _lines(reader, writer, peer):
                yield


@asynccontextmanager
async def _lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer) -> AsyncIterator[None]:
    """Newline-delimited messages both ways."""

    async def send(data: bytes) -> None:
        writer.write(data + b"\n")
        await writer.drain()

    async def read() -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                peer.hold(line.endswith(b"\n"), f"the last line is not ended: {line[-80:]!r}")
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
    listening = asyncio.get_running_loop().create_task(_read_stderr(process.stderr, peer))
    try:
        async with _lines(process.stdout, process.stdin, peer):
            yield
        async with asyncio.timeout(TIMEOUT_S):
            await process.wait()
    finally:
        _kill_process_tree(process)
        await process.wait()
        await listening


def _kill_process_tree(process: asyncio.subprocess.Process) -> None:
    """Whatever a process of `spawn` and its children left running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def stop_process(process: asyncio.subprocess.Process) -> None:
    """End a process of `spawn`: politely, and if that does not help, with everything it started."""
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
        peer.news.set()


async def spawn(factory: Callable[[], Server], transport: str = "stdio", **options: Any) -> asyncio.subprocess.Process:
    """A process that runs what the factory makes, its standard streams piped; what it says on stderr must be read."""
    assert "<locals>" not in factory.__qualname__, "a process can only run a function at the top of a module"
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
    """The pair of 2024-11-05: the first event of the stream names the address to post to."""
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
                    peer.hold(event.name == "message", f"an event of another name: {event}")
                    peer.receive(event.data.encode(), None)
        peer.ended.set()

    async def send(data: bytes) -> None:
        headers = {"content-type": "application/json"} | peer.extra_headers
        posted = await peer.http("POST", address, headers, data)
        body = await posted.read()
        peer.hold(posted.status == 202, f"a message was answered {posted.status} {body!r}")

    peer.send_bytes = send
    peer.spawn(read())
    try:
        yield
    finally:
        await peer.hang_up()

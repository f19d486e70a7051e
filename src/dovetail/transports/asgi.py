"""The HTTP endpoint as a plain ASGI application: every POST is an exchange, both eras on one path.

Screens each request (host, origin, type, size), chooses the era, runs the exchange in the request's own task and
sends the answer. Handshake sessions are `sessions`' business, the 2024 transport is `sse_2024`'s.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from dovetail.errors import Denied, InternalError, InvalidRequest, ParseError, ProtocolError
from dovetail.protocol import modern
from dovetail.protocol.exchange import Exchange, Service, check_meta
from dovetail.protocol.http import JSON, LOOPBACK, Gate, Refusal, accepted, collect, media_type, status_of
from dovetail.protocol.principal import named
from dovetail.protocol.stats import EndpointStats
from dovetail.transports.reply import Reply, SilentReplies, send_body, send_json, silent_replies
from dovetail.transports.request import Guard, Headers, Receive, Request, Responses, Scope, Send
from dovetail.transports.sessions import Sessions
from dovetail.transports.spool import Budget, Spool, spooled
from dovetail.transports.sse_2024 import OldTransport
from dovetail.transports.suspending import Suspending
from dovetail.wire import jsonrpc
from dovetail.wire.codec import decode
from dovetail.wire.revisions import STATELESS

log = logging.getLogger("dovetail")

Authenticate = Callable[[Mapping[bytes, bytes]], Awaitable[str | None]]  # a Principal is a str

_STATELESS = frozenset(one.encode() for one in STATELESS)
_EXPOSED = b"mcp-session-id, mcp-protocol-version, www-authenticate, dpop-nonce, retry-after"
_ALLOWED = (
    b"content-type, accept, authorization, dpop, last-event-id, mcp-session-id, mcp-protocol-version, mcp-method, "
    b"mcp-name"
)
_DOCUMENT = ((b"content-type", b"application/json"), (b"cache-control", b"public, max-age=300"))

P = TypeVar("P")


class Endpoint:
    """One server behind one path."""

    def __init__(
        self,
        service: Service,
        *,
        path: str = "/mcp",
        public_url: str | None = None,
        allowed_hosts: Collection[str] = (),
        allowed_origins: Collection[str] = (),
        cors: Collection[str] = (),
        responses: Responses | str = "auto",
        sessions: bool = True,
        health: bool = False,
        old_sse: bool = True,
        authenticate: Authenticate | None = None,
        guard: Guard | None = None,
        on_start: Callable[[], Awaitable[None]] | None = None,
        on_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._service = service
        self._limits = service.limits
        self._waiting = Budget(service.limits.waiting_bytes)
        self._path = "/" + path.strip("/")
        if responses not in ("auto", "json", "sse"):
            raise ValueError(f"responses must be 'auto', 'json' or 'sse', not {responses!r}")
        if authenticate is not None and not inspect.iscoroutinefunction(authenticate):
            raise TypeError("authenticate must be a coroutine function: async def authenticate(headers)")
        if authenticate is not None and guard is not None:
            raise ValueError("the server has auth=, so authenticate= would decide the same a second time: pass one")
        cors, allowed_origins = _several(cors), _several(allowed_origins)
        self._gate = Gate(_several(allowed_hosts), (*allowed_origins, *cors), public_url)
        self._cors = frozenset(one.lower().rstrip("/") for one in cors)
        self._responses: Responses = responses
        self._health = health
        self._authenticate = authenticate
        self._guard = guard
        self._on_start = on_start
        self._on_stop = on_stop
        self._modern = modern.Modern(service.implementation, service.revisions, service.limits.result)
        self._silent = silent_replies(service.limits.keep_alive)
        self._sessions = Sessions(service, self._waiting, self._silent, stateful=sessions)
        self._old = OldTransport(service, self._path) if old_sse and self._sessions.stateful else None
        self.ready = True

    def here(self, scope: Scope) -> bool:
        """Whether a request is for the one path of both eras."""
        return _relative(scope) == self._path

    def serves(self, scope: Scope) -> bool:
        """Whether a request is for this server, by its path."""
        path = _relative(scope)
        old = self._old is not None and self._old.serves(path)
        told = self._guard is not None and self._guard.tells(path, scope)
        return self.here(scope) or old or told or (self._health and path in ("/live", "/ready"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._not_http(scope, receive, send)
            return
        cors: Headers = []
        try:
            headers = collect(scope["headers"])
            if self._cors:
                cors = self._cors_headers(headers)
            path = _relative(scope)
            if self._health and path in ("/live", "/ready"):
                await self._tell_health(path, send)
                return
            if not self.ready:
                raise Refusal(503, "The server is shutting down", [(b"retry-after", b"1"), (b"connection", b"close")])
            server = scope.get("server")
            self._gate.check(headers, server[0] if server else None)
            request = Request(scope, receive, send, headers, cors, _address(scope))
            if request.method == "OPTIONS" and cors:
                await send_body(send, 204, cors + _preflight(headers), b"")
                return
            if self._guard is not None:
                document = self._guard.document(path, request)
                if document is not None:
                    await send_body(send, 200, [*_DOCUMENT, *cors], document)
                    return
                request.principal = await self._identified(self._guard.identify(path, request))
            elif self._authenticate is not None:
                request.principal = named(await self._identified(self._authenticate(headers)))
            await self._route(path, request)
        except Refusal as refusal:
            body = jsonrpc.failure(None, InvalidRequest.code, refusal.message)
            await send_json(send, refusal.status, body, refusal.headers + cors)

    def _route(self, path: str, request: Request) -> Awaitable[None]:
        """What to await for this path and method. Not a coroutine: that would be one more on every road."""
        if path != self._path:
            if self._old is not None and self._old.serves(path):
                return self._serve_old(path, request, self._old)
            root = request.scope.get("root_path") or ""
            raise Refusal(404, f"Nothing is here; the server is at {root}{self._path}")
        method = request.method
        if method == "POST":
            return self._post(request)
        if method == "GET" and self._sessions.stateful:
            return self._sessions.get(request)
        if method == "DELETE" and self._sessions.stateful:
            return self._sessions.delete(request)
        allow = b"POST, GET, DELETE" if self._sessions.stateful else b"POST"
        raise Refusal(405, f"{method} is not served here", [(b"allow", allow)])

    async def _serve_old(self, path: str, request: Request, old: OldTransport) -> None:
        await old.admit(path, request)
        await old.serve(path, request, await self._old_body(request))

    async def _identified(self, answer: Awaitable[P]) -> P:
        try:
            return await answer
        except Denied as denied:
            challenge: Headers = [(b"www-authenticate", denied.challenge.encode())] if denied.challenge else []
            if denied.nonce is not None:
                challenge.append((b"dpop-nonce", denied.nonce.encode()))
            raise Refusal(denied.status or 401, str(denied), challenge) from None
        except Exception as exc:
            log.error("authenticate failed: %s", type(exc).__name__, exc_info=exc)
            raise Refusal(500, "The caller could not be identified; the server's log says why") from None

    # POST

    async def _post(self, request: Request) -> None:
        request.mode = self._mode(request.headers)
        body = await self._body(request)
        try:
            message = request.message = decode(body)
        except ParseError as exc:
            await send_json(request.send, 400, jsonrpc.refusal(None, exc), request.cors)
            return
        request.size = len(body)
        del body  # a large one is not kept while it is worked on
        if self._modern.serves and (
            request.headers.get(modern.VERSION_HEADER) in _STATELESS
            or (type(message) is dict and modern.speaks(message))
        ):
            await self._stateless(request)
        else:
            await self._sessions.post(request)

    async def _stateless(self, request: Request) -> None:
        message = request.message
        if request.mode == "json" and type(message) is dict and message.get("method") == "subscriptions/listen":
            if not accepted(request.headers.get(b"accept"))[1]:
                raise Refusal(406, "A subscription is a stream: Accept must take text/event-stream")
            request.mode = "auto"
        reply = Reply(request.send, request.mode, request.cors, self._limits.keep_alive, self._waiting)
        try:
            kind = jsonrpc.kind(message)
            if kind == "notice":
                await reply.accept()
                return
            if kind != "request":
                raise InvalidRequest("Invalid request: answers travel in inputResponses, not as responses")
            exchange = self._modern.admit(message, request.headers, request.principal)
            if request.size > self._limits.meta:
                check_meta(exchange, self._limits.meta)
        except ProtocolError as exc:
            await self._refuse(request, reply, jsonrpc.readable_id(message), exc)
            return
        exchange.emit = reply.emit
        exchange.origin = request.principal or request.address
        exchange.size = request.size
        watch = _Watch(exchange, request.receive, reply, self._silent)
        try:
            try:
                # Nothing here holds the result: a large one must not stay while the client reads it.
                last = reply.finish(
                    self._modern.seal(exchange, await Suspending(self._service.handle(exchange), watch.start))
                )
            except ProtocolError as exc:
                last = self._refuse(request, reply, exchange.id, exc)
            except Exception as exc:
                log.error("the result of %s could not be sent: %s", exchange.method, type(exc).__name__)
                last = self._refuse(request, reply, exchange.id, InternalError("The result could not be encoded"))
            finally:
                watch.stop()
            await last
        except asyncio.CancelledError:
            reply.abandon()
            if exchange.verdict != "gone":
                raise
            exchange.task.uncancel()

    def _refuse(self, request: Request, reply: Reply, id: jsonrpc.Id | None, exc: ProtocolError) -> Awaitable[None]:
        return reply.finish(self._modern.refuse(id, exc), status_of(exc), request.headers_for(exc, stateless=True))

    def _mode(self, headers: Mapping[bytes, bytes]) -> Responses:
        """How the answer may look: what the server is set to, narrowed by what the client takes."""
        given = headers.get(b"content-type")
        if given != JSON and media_type(given) != JSON:
            raise Refusal(415, "Content-Type must be application/json")
        plain, stream = accepted(headers.get(b"accept"))
        if plain and stream:
            return self._responses
        if not plain and not stream:
            raise Refusal(406, "Accept must take application/json and text/event-stream")
        return "json" if plain else "sse"

    async def _body(self, request: Request) -> bytes:
        limit = self._limits.body
        length = request.headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 12 or int(length) > limit):
            # The connection stays: closed while the client still sends, it would be reset and the answer lost with it.
            raise Refusal(413, f"The body may be at most {limit} bytes")
        message = await request.receive()
        body = message.get("body", b"")
        if message.get("more_body"):
            spool = spooled(body, self._waiting)
            del message, body
            body = await self._rest(spool, request.receive)
        if len(body) > limit:
            raise Refusal(413, f"The body may be at most {limit} bytes")
        return body

    async def _rest(self, spool: Spool, receive: Receive) -> bytes:
        """A body that comes in pieces, within the time it may take."""
        more = True
        try:
            async with asyncio.timeout(self._limits.body_time):
                while more and spool.size <= self._limits.body:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "The connection closed before the body was complete")
                    spool.append(message.get("body", b""))
                    more = message.get("more_body", False)
                    del message  # what waits is the spool's to keep
            return spool.read()
        except TimeoutError:
            raise Refusal(
                408, f"The body took longer than {self._limits.body_time:g} s", [(b"connection", b"close")]
            ) from None
        finally:
            spool.close()

    async def _old_body(self, request: Request) -> bytes:
        if request.method != "POST":
            return b""
        if media_type(request.headers.get(b"content-type")) != JSON:
            raise Refusal(415, "Content-Type must be application/json")
        return await self._body(request)

    # Around it

    def _cors_headers(self, headers: Mapping[bytes, bytes]) -> Headers:
        origin = headers.get(b"origin")
        if origin is None:
            return []
        name = origin.decode("latin-1").lower()
        if name not in self._cors and "*" not in self._cors:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]

    async def _tell_health(self, path: str, send: Send) -> None:
        good = path == "/live" or self.ready
        await send_body(send, 200 if good else 503, [(b"content-type", b"text/plain")], b"ok" if good else b"no")

    async def _not_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "lifespan":
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    self.ready = True
                    if self._on_start is not None:
                        await self._on_start()
                except Exception as exc:
                    await send({"type": "lifespan.startup.failed", "message": str(exc)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def stats(self) -> EndpointStats:
        """Return what is open now."""
        sessions, old = self._sessions, self._old
        connections = 0 if old is None else old.connections
        return EndpointStats(
            sessions=len(sessions) + connections,
            streams=sessions.streams + connections,
            buffered_bytes=self._waiting.used,
            replay_bytes=sessions.replay_bytes,
        )

    async def close(self) -> None:
        """Stop taking work, end what is open."""
        if not self.ready:
            return
        self.ready = False
        if self._on_stop is not None:
            await self._on_stop()
        await self._sessions.close()
        if self._old is not None:
            await self._old.close()


class _Watch:
    """Looks whether the client is still there, once the work has begun to wait. spec: cancellation

    From then on the reply also counts as silent.
    """

    __slots__ = ("_exchange", "_receive", "_reply", "_silent", "_task")

    def __init__(
        self, exchange: Exchange, receive: Receive, reply: Reply, silent: Mapping[Responses, SilentReplies]
    ) -> None:
        self._exchange = exchange
        self._receive = receive
        self._reply = reply
        self._silent = silent
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._reply.watch_silence(self._silent)
        self._task = asyncio.get_running_loop().create_task(self._look())
        if self._exchange.task is None:
            self._exchange.task = asyncio.current_task()

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._exchange.end("gone")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _several(names: Collection[str]) -> Collection[str]:
    return (names,) if isinstance(names, str) else names


def _relative(scope: Scope) -> str:
    """The path below wherever the application is mounted, without a slash at its end."""
    path: str = scope["path"]
    root: str = scope.get("root_path") or ""
    if root and path.startswith(root):
        path = path[len(root) :]
    return "/" + path.strip("/")


def _address(scope: Scope) -> str | None:
    """The client's address, where it says anything: on loopback everyone looks the same."""
    client = scope.get("client")
    return None if client is None or client[0] in LOOPBACK else client[0]


def _preflight(headers: Mapping[bytes, bytes]) -> Headers:
    asked = headers.get(b"access-control-request-headers", b"").lower()
    params = [name for one in asked.split(b",") if (name := one.strip()).startswith(b"mcp-param-")]
    return [
        (b"access-control-allow-methods", b"POST, GET, DELETE, OPTIONS"),
        (b"access-control-allow-headers", b", ".join([_ALLOWED, *params])),
        (b"access-control-max-age", b"600"),
    ]

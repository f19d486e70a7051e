"""Handshake sessions over Streamable HTTP: ids, the GET stream, DELETE, resumption. The whole of it, in one place.

A session is bound to the principal that opened it and to nothing else; a request is answered on its own reply,
whatever its id; a lost connection does not stop the work. spec: handshake/transports#streamable-http
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from dovetail.errors import (
    Busy,
    HeaderMismatch,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    ProtocolError,
    UnsupportedRevision,
)
from dovetail.protocol import downgrade, legacy, sse
from dovetail.protocol.exchange import Exchange, Service, check_meta
from dovetail.protocol.http import Refusal, accepted, status_of
from dovetail.protocol.modern import VERSION_HEADER
from dovetail.protocol.principal import Principal
from dovetail.transports.reply import STREAM_HEADERS, Reply, SilentReplies, send_body, send_json
from dovetail.transports.request import Request, Responses
from dovetail.transports.resumable import Reader, SessionReply, resumed
from dovetail.transports.session import STANDALONE, Session, change
from dovetail.transports.spool import Budget
from dovetail.transports.streams import Shelf, Stream
from dovetail.wire import jsonrpc
from dovetail.wire.jsonrpc import Id
from dovetail.wire.revisions import DRAFT, UNNAMED_HTTP, stateless
from dovetail.wire.shape import replace

log = logging.getLogger("dovetail")

SESSION_HEADER: Final = b"mcp-session-id"
LAST_EVENT: Final = b"last-event-id"
_SWEEP: Final = 5.0


class Sessions:
    """All sessions of one endpoint."""

    def __init__(
        self, service: Service, budget: Budget, silent: Mapping[Responses, SilentReplies], *, stateful: bool
    ) -> None:
        # What a version header may name.
        self._named = frozenset(one.encode() for one in service.revisions if not stateless(one))
        self.stateful = stateful and bool(self._named)
        self._unnamed = None if self.stateful else UNNAMED_HTTP.encode()  # a session knows its own
        self._service = service
        self._limits = service.limits
        self._shelf = Shelf(service.limits, budget)
        self._silent = silent
        self._sessions: dict[str, Session] = {}
        self._sweepers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def streams(self) -> int:
        """How many streams are read now."""
        return sum(session.streams_read for session in tuple(self._sessions.values()))

    @property
    def replay_bytes(self) -> int:
        """How many bytes of events are kept for clients that reconnect."""
        return self._shelf.kept

    # POST

    def post(self, request: Request) -> Awaitable[None]:
        """What to await for one POST."""
        message = request.message
        if type(message) is list:
            return self._batch(request, message)
        try:
            kind = jsonrpc.kind(message)
            if kind == "request" and message["method"] == legacy.INITIALIZE:
                return self._initialize(request)
            if not self._named:
                raise _unserved(request.headers, self._service.revisions)
        except ProtocolError as exc:
            return _refuse(request, jsonrpc.readable_id(message), exc)
        session = self._session(request)
        if kind == "request":
            return self._request(request, session)
        if kind == "notice":
            self._notice(session, message)
        else:
            session.answered(message)
        return send_body(request.send, 202, request.cors, b"")

    def _initialize(self, request: Request) -> Awaitable[None]:
        rules, response = legacy.open_session(request.message, self._service, request.principal)
        headers = list(request.cors)
        if self.stateful:
            session = self._open(rules, request.address)
            headers.append((SESSION_HEADER, session.id.encode()))
        reply = Reply(request.send, request.mode, headers, self._limits.keep_alive, self._shelf.budget)
        return reply.finish(response)

    async def _request(self, request: Request, session: Session) -> None:
        message = request.message
        try:
            exchange = self._admit(request, session, message)
            own = session.rules.own(exchange, self._service)
            if own is not None:
                await send_json(request.send, 200, legacy.seal(exchange, own, self._limits.result), request.cors)
                if exchange.method == "shutdown":
                    self._drop(session)
                return
            self._enter(session, exchange)
        except ProtocolError as exc:
            await _refuse(request, message["id"], exc, session.revision)
            return
        reply = SessionReply(request, session, self._limits, self._shelf)
        reply.watch_silence(self._silent)
        try:
            try:
                answer = await self._run(exchange, session, reply)
                last = reply.end() if answer is None else reply.finish(answer)
                del answer  # a large one is not kept while the client reads it
            except (Busy, InsufficientScope) as exc:
                refusal = legacy.refuse(session.revision, exchange.id, exc)
                last = reply.finish(refusal, status_of(exc), request.headers_for(exc))
            await last
        except BaseException:
            reply.drop()
            raise

    def _admit(self, request: Request, session: Session, message: dict[str, Any]) -> Exchange:
        exchange = session.rules.admit(message)
        if request.principal is not exchange.caller.principal:  # the same one, perhaps with more scopes by now
            exchange.caller = replace(exchange.caller, principal=request.principal)
        exchange.headers = request.headers
        exchange.origin = request.principal or request.address
        exchange.size = request.size
        if request.size > self._limits.meta:
            check_meta(exchange, self._limits.meta)
        return exchange

    def _enter(self, session: Session, exchange: Exchange) -> None:
        """Count a request among those of the session, if there is room."""
        if session.running is None:
            session.running = set()
        if len(session.running) >= self._limits.calls_per_connection:
            raise Busy("Too many requests are in flight in this session", own=True)
        session.running.add(exchange)

    async def _run(self, exchange: Exchange, session: Session, reply: SessionReply) -> bytes | None:
        """Run one exchange to its response; None if it was cancelled."""
        reply.serves(exchange, self.stateful)
        loop = asyncio.get_running_loop()
        exchange.task = asyncio.current_task(loop)
        running = session.running
        assert running is not None
        answer: bytes | None = None
        try:
            answer = legacy.seal(exchange, await self._service.handle(exchange), self._limits.result)
        except (Busy, InsufficientScope):
            raise  # has a status of its own, where it is not one answer of several
        except ProtocolError as exc:
            answer = legacy.refuse(session.revision, exchange.id, exc)
        except asyncio.CancelledError:
            if exchange.verdict != "cancelled":
                raise
        except Exception as exc:
            log.error("the result of %s could not be sent: %s", exchange.method, type(exc).__name__)
            answer = legacy.refuse(session.revision, exchange.id, InternalError("The result could not be encoded"))
        finally:
            running.discard(exchange)
            session.used = loop.time()
        if exchange.verdict != "cancelled":
            return answer
        exchange.task.uncancel()
        return _cancelled(exchange)  # even if the work went on to a result of its own

    def _notice(self, session: Session, message: dict[str, Any]) -> None:
        if message["method"] == "notifications/initialized":
            if self.stateful:
                session.ready(self._service)
        elif message["method"] == "notifications/cancelled":
            session.cancel((message.get("params") or {}).get("requestId"))

    async def _batch(self, request: Request, messages: list[Any]) -> None:
        """Several messages at once, in the one revision that had them. spec: handshake/basic#batching"""
        session = self._session(request)
        if not session.rules.batches or not messages or len(messages) > self._limits.calls_per_connection:
            fault = "are not part of this revision" if not session.rules.batches else "hold something, and not too much"
            exc = InvalidRequest(f"Invalid request: batches {fault}")
            await send_json(request.send, 400, legacy.refuse(session.revision, None, exc), request.cors)
            return
        reply = SessionReply(request, session, self._limits, self._shelf)
        reply.watch_silence(self._silent)
        try:
            answers = await asyncio.gather(*(self._member(request, session, message, reply) for message in messages))
            given = [answer for answer in answers if answer is not None]
            if given:
                await reply.finish(b"[" + b",".join(given) + b"]")
            else:
                await (reply.end() if reply.streaming else reply.accept())
        except BaseException:
            reply.drop()
            raise

    async def _member(self, request: Request, session: Session, message: Any, reply: SessionReply) -> bytes | None:
        try:
            kind = jsonrpc.kind(message)
            if kind == "notice":
                self._notice(session, message)
                return None
            if kind != "request":
                session.answered(message)
                return None
            exchange = self._admit(request, session, message)
            own = session.rules.own(exchange, self._service)
            if own is not None:
                return legacy.seal(exchange, own, self._limits.result)
            self._enter(session, exchange)
            return await asyncio.get_running_loop().create_task(self._run(exchange, session, reply))
        except ProtocolError as exc:
            return legacy.refuse(session.revision, jsonrpc.readable_id(message), exc)

    # GET and DELETE

    async def get(self, request: Request) -> None:
        """The stream of what the server says unasked, or the rest of one that broke off."""
        if not accepted(request.headers.get(b"accept"))[1]:
            raise Refusal(406, "Accept must take text/event-stream")
        session = self._session(request)
        self._check_streams(request.principal, request.address)
        last = request.headers.get(LAST_EVENT)
        if last is None:
            stream = self._standalone(session)
            place = stream.last
        else:
            stream, place = resumed(session, last)
        reader = Reader(stream, request.send, request.receive, self._limits, request.lasts)
        stream.attach(reader)
        stream.wake.set()  # whoever read it before lets go
        prime = stream.number() if last is None and session.primes else None
        if stream.name == STANDALONE:
            for method, uri in session.pending or {}:
                stream.append(change(method, uri))
            session.pending = None
        try:
            headers = [*STREAM_HEADERS, *request.cors]
            await request.send({"type": "http.response.start", "status": 200, "headers": headers})
            if prime is not None:
                await reader.write(sse.event(b"", id=prime))
            await reader.run(place)
        finally:
            stream.detach(reader)
            session.used = asyncio.get_running_loop().time()

    def _standalone(self, session: Session) -> Stream:
        stream = session.stream(STANDALONE) or session.open_stream(self._shelf, STANDALONE)
        if stream.reader is not None:
            raise Refusal(409, "This session already has a stream open")
        return stream

    async def delete(self, request: Request) -> None:
        """End a session on the client's wish."""
        self._drop(self._session(request))
        await send_body(request.send, 204, request.cors, b"")

    # Keeping

    def _session(self, request: Request) -> Session:
        headers, principal = request.headers, request.principal
        version = headers.get(VERSION_HEADER, self._unnamed)
        if version is not None and version not in self._named:
            raise Refusal(400, f"MCP-Protocol-Version must be one of {', '.join(self._service.revisions)}")
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self.stateful:
            revision = None if version is None else version.decode("latin-1")
            return Session("", legacy.assumed(revision, principal), None, loop)
        id = headers.get(SESSION_HEADER)
        if id is None:
            raise Refusal(400, "Mcp-Session-Id is required; open a session with initialize")
        session = self._sessions.get(id.decode("latin-1"))
        if session is not None and self._expired(session, now):
            self._drop(session)
            session = None
        # Someone else's session is not told apart from one that never was.
        if session is None or session.rules.caller.principal != principal:
            raise Refusal(404, "There is no such session; open one with initialize")
        session.used = now
        return session

    def _open(self, rules: legacy.Session, address: str | None) -> Session:
        limits, principal = self._limits, rules.caller.principal
        if principal is not None:
            mine = sum(1 for one in tuple(self._sessions.values()) if one.rules.caller.principal == principal)
            if mine >= limits.sessions_per_principal:
                raise Refusal(429, "Too many sessions", [(b"retry-after", b"60")])
        elif address is not None:
            mine = sum(1 for one in tuple(self._sessions.values()) if one.address == address)
            if mine >= limits.sessions_per_address:
                raise Refusal(429, "Too many sessions from this address", [(b"retry-after", b"60")])
        if len(self._sessions) >= limits.sessions and not self._make_room():
            raise Refusal(503, "Too many sessions", [(b"retry-after", b"60")])
        session = Session(secrets.token_urlsafe(24), rules, address, asyncio.get_running_loop())
        self._sessions[session.id] = session
        self._arm()
        return session

    def _make_room(self) -> bool:
        """Let the longest unused session go; its client will open another if it ever comes back."""
        quiet = [one for one in tuple(self._sessions.values()) if one.quiet]
        if not quiet:
            return False
        self._drop(min(quiet, key=lambda one: one.used))
        return True

    def _check_streams(self, principal: Principal | None, address: str | None) -> None:
        if principal is None and address is None:
            return
        count = 0
        for session in tuple(self._sessions.values()):
            if (principal is not None and session.rules.caller.principal == principal) or (
                principal is None and session.address == address
            ):
                count += not session.quiet
        if count >= self._limits.streams:
            raise Refusal(429, "Too many streams", [(b"retry-after", b"5")])

    def _drop(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        session.close()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._sweepers:
            for other in tuple(self._sweepers):
                if other.is_closed():
                    self._sweepers.pop(other, None)
            limits = self._limits
            soon = min(_SWEEP, limits.session_opening / 2, limits.session_idle / 2, limits.replay_time / 2)
            self._sweepers[loop] = loop.call_later(soon, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what is over of the sessions of this event loop, and of event loops that have ended."""
        del self._sweepers[loop]
        now, limits = loop.time(), self._limits
        for session in tuple(self._sessions.values()):
            if session.loop is not loop and not session.loop.is_closed():
                continue
            if self._expired(session, now):
                self._drop(session)
            else:
                session.end_unread_questions(now, limits.replay_time)
                session.forget_streams(now, limits.replay_time)
        if self._sessions:
            self._arm()

    def _expired(self, session: Session, now: float) -> bool:
        if session.running and not session.quiet:
            return False  # its calls have a time of their own
        limits, age = self._limits, now - session.born
        unopened = not session.rules.ready and age > limits.session_opening
        unused = now - session.used > limits.session_idle and session.quiet
        return unopened or unused or age > limits.session_lifetime

    async def close(self) -> None:
        """End all sessions."""
        sweeper = self._sweepers.pop(asyncio.get_running_loop(), None)
        if sweeper is not None:
            sweeper.cancel()
        for session in list(self._sessions.values()):
            self._drop(session)


def _unserved(headers: Mapping[bytes, bytes], revisions: tuple[str, ...]) -> ProtocolError:
    """What a server without this era says to a request of it. spec: streamable-http#protocol-version-header"""
    version = headers.get(VERSION_HEADER)
    if version is None:
        return HeaderMismatch("Header mismatch: mcp-protocol-version is required")
    return UnsupportedRevision(version.decode("latin-1"), revisions)


def _cancelled(exchange: Exchange) -> bytes | None:
    if exchange.caller.revision == DRAFT:
        return jsonrpc.failure(exchange.id, downgrade.DRAFT_CANCELLED, "Request cancelled")
    return None


async def _refuse(request: Request, id: Id | None, exc: ProtocolError, revision: str | None = None) -> None:
    body = jsonrpc.refusal(id, exc) if revision is None else legacy.refuse(revision, id, exc)
    status = status_of(exc) if isinstance(exc, Busy | InsufficientScope) or revision is None else 200
    await send_json(request.send, status, body, [*request.cors, *request.headers_for(exc)])

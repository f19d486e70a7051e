"""A client's end of Streamable HTTP, both eras: every message is a POST, its reply JSON or an event stream.

In the handshake era it also keeps the session, a stream for what the server says unasked, and takes up broken streams
where they ended. What a status or a page means is told in words a user can act on.
"""

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from dovetail.errors import CannotConnect, Disconnected, MCPError, NotMCP, ParseError, ResultError, TransportError, clip
from dovetail.protocol.backoff import backoff
from dovetail.protocol.channel import Channel, Headers, Inbox, Request
from dovetail.protocol.http import JSON, SSE, media_type
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.modern import VERSION_HEADER
from dovetail.protocol.probe import DISCOVER, INITIALIZE
from dovetail.protocol.speaking import refused
from dovetail.protocol.sse import EventTooLarge, Parser
from dovetail.transports.door import Door, body_of, refusal, told
from dovetail.transports.http1 import Broken, Reply
from dovetail.transports.talking import unusable
from dovetail.wire.incoming import Incoming, answered, read

log = logging.getLogger("dovetail")

SESSION: Final = b"mcp-session-id"
LAST_EVENT: Final = b"last-event-id"

_BOTH: Final = (b"accept", b"application/json, text/event-stream")
_STREAM: Final = (b"accept", SSE)
_CONTENT: Final = (b"content-type", JSON)
# How transports say that a session is gone, seen with 400; an answer to the request itself has another id or code.
_SESSION_GONE: Final = re.compile(
    r"(?:bad request: *)?(?:(?:no valid|invalid|unknown|missing) (?:mcp-)?session\b|"
    r"(?:mcp-)?session(?:[ -]id)?(?: header)?(?: is)? (?:not found|required|unknown|invalid|missing|expired))",
    re.IGNORECASE,
)
_GONE_CODES: Final = frozenset({-32000, -32001, -32600})
_NOBODYS: Final = (None, "server-error")  # ids of an error that answers no request
# What says "not now" rather than "there is no such stream".
_LATER: Final = frozenset({408, 425, 429})
_PATH: Final = "is the path right? MCP servers are often at /mcp"


class Post:
    """One server at one URL."""

    mirrors = True

    def __init__(self, url: str, limits: ClientLimits, timeouts: Timeouts, **options: Any) -> None:
        self._limits = limits
        self._make_older = lambda: _older(url, limits, timeouts, options)
        self._door = Door(url, answer=limits.answer, connect_time=timeouts.connect, **options)
        self._inbox: Inbox | None = None
        self._revision: str | None = None
        self._session: bytes | None = None
        self._own: list[tuple[bytes, bytes]] = []  # what every request of a handshake session carries
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: TransportError | None = None
        self._patience = timeouts.probe
        self._leaving = timeouts.close
        self._hearing = asyncio.Event()  # the stream for what the server says unasked is open, or never will be
        self._deaf = False  # it never will be
        self._unasked = 0  # messages that came on it

    async def open(self, inbox: Inbox) -> None:
        """Nothing to reach yet: the first request does that."""
        self._inbox = self._door.inbox = inbox

    def facts(self, since: float | None = None) -> dict[str, Any]:
        """Nothing is known beyond what each reply says."""
        return {}

    def advice(self) -> str | None:
        """Each reply brings its own."""
        return None

    def older(self) -> Channel | None:
        """The same URL by the transport of 2024."""
        return self._make_older()

    # Requests

    async def exchange(self, request: Request) -> Incoming:
        """Send a request and follow its reply to the response."""
        headers = [_BOTH, _CONTENT, *(request.headers if request.stateless else self._own)]
        reply = await self._door.send("POST", headers, request.body)
        try:
            return await self._response(reply, request)
        except BaseException:
            reply.close()
            raise

    async def _response(self, reply: Reply, request: Request) -> Incoming:
        if reply.status >= 300:
            return await self._refused(reply, request)
        kind = media_type(reply.headers.get(b"content-type"))
        if request.method == "initialize":
            self._session = reply.headers.get(SESSION)
            self._own = [(SESSION, self._session)] if self._session else []
        if kind == SSE:
            return await self._followed(reply, request)
        data = await self._read(reply)
        if kind != JSON:
            raise NotMCP(f"the answer is {_named(kind, data)}, not JSON").at(status=reply.status, hint=_PATH)
        try:
            found = self._sort(read(data), request)
        except ParseError as exc:
            if request.id in answered(data):
                raise unusable(data, str(exc)).at(status=reply.status) from None
            why = f"not JSON: {exc}" if data else "empty, not JSON"
            raise NotMCP(f"the answer is {why}").at(status=reply.status, hint=_PATH) from None
        if found is None and request.method in (DISCOVER, INITIALIZE):
            words = clip(data[:400].decode("utf-8", "replace"), 200)
            why = f"the answer is JSON, but no message of this protocol: {words!r}"
            raise NotMCP(why).at(status=reply.status, hint=_PATH)
        if found is None:
            raise ResultError("the reply does not contain the answer to the request").at(status=reply.status)
        return found

    async def _refused(self, reply: Reply, request: Request) -> Incoming:
        said = await refusal(reply, self._door.url)
        if self._session is not None and not request.stateless and _sessionless(reply.status, said):
            self._lose("the server no longer knows the session")
            raise _unsent("the server no longer knows the session")
        if isinstance(said, MCPError):
            raise said
        if said.error is None:
            return said
        raise refused(self._revision, request.method, said.error).at(status=reply.status)

    async def _read(self, reply: Reply) -> bytes:
        return await body_of(reply, self._door.url)

    def _sort(self, messages: list[Incoming], request: Request | None) -> Incoming | None:
        """The answer among these messages; the rest goes to the inbox."""
        found = None
        for message in messages:
            if message.answers:
                if request is not None and message.id in (request.id, None):
                    found = message
                elif request is not None and message.id == str(request.id):
                    raise unusable(message.encoded(), f"its id is the text {message.id!r}")
            elif message.method is None and request is not None and message.id == request.id:
                raise unusable(message.encoded(), "it holds neither a result nor an error")
            elif self._inbox is not None:
                if request is not None:
                    self._inbox.alive(request.id)
                else:
                    self._unasked += 1
                self._inbox.receive(message, None if request is None else request.id)
        return found

    # Event streams

    async def _followed(self, reply: Reply, request: Request) -> Incoming:
        """The response on an event stream; in the handshake era a broken one is taken up again where it ended."""
        parser = Parser(self._limits.answer)
        fruitless = 0
        try:
            while True:
                last = parser.last_event_id
                found = await self._until_answer(reply, parser, request)
                if found is not None:
                    return found
                fruitless = 0 if parser.last_event_id != last else fruitless + 1
                if request.stateless or parser.last_event_id is None or fruitless > self._limits.reconnects:
                    raise Disconnected("the server ended the stream before the answer")
                reply.close()
                await asyncio.sleep(self._pause(parser.retry, fruitless))
                reply = await self._resume(parser.last_event_id)
                parser = _continued(parser)
        finally:
            reply.release()

    async def _until_answer(self, reply: Reply, parser: Parser, request: Request | None) -> Incoming | None:
        try:
            async for chunk in reply:
                for event in parser.feed(chunk):
                    if event.event == "message" and event.data:
                        found = self._sort(self._messages(event.data, request), request)
                        if found is not None:
                            return found
        except EventTooLarge as exc:
            raise ResultError(f"the answer is too large: {exc}").at(hint="raise ClientLimits(answer=...)") from None
        except TransportError as exc:
            if not isinstance(exc, Broken):
                raise told(exc, self._door.url) from None
            if request is not None and (request.stateless or parser.last_event_id is None):
                raise Disconnected("the connection was lost before the answer came") from None
        return None

    def _messages(self, data: str, request: Request | None) -> list[Incoming]:
        try:
            return read(data)
        except ParseError as exc:
            if self._inbox is not None:
                self._inbox.junk(data[:400])
            if request is not None and request.id in answered(text := data.encode()):
                raise unusable(text, str(exc)) from None
            return []

    async def _resume(self, last: str | None) -> Reply:
        headers = [_STREAM, *self._own]
        if last is not None:
            headers.append((LAST_EVENT, last.encode()))
        reply = await self._door.send("GET", headers)
        if reply.status >= 300 or media_type(reply.headers.get(b"content-type")) != SSE:
            status = reply.status
            reply.close()
            raise Disconnected(f"the stream could not be taken up again: status {status}").at(status=status)
        return reply

    def _pause(self, asked: int | None, fruitless: int) -> float:
        """How long to wait before a stream is opened again: never less than our own minimum."""
        limits = self._limits
        wait = max(backoff(limits.reconnect_after, fruitless, limits.reconnect_most), (asked or 0) / 1000)
        return min(wait, limits.reconnect_most) * random.uniform(1.0, 1.2)

    async def _hear(self) -> None:
        """What a handshake server says unasked, for as long as the session lasts.

        spec: handshake/transports#listening-for-messages-from-the-server
        """
        parser = Parser(self._limits.answer)
        loop = asyncio.get_running_loop()
        fruitless = 0
        opened = False
        while self._ended is None:
            last, heard, since = parser.last_event_id, self._unasked, loop.time()
            why: MCPError = Disconnected("the server ended it")
            try:
                await self._hear_out(parser, opened)
                opened = True
            except MCPError as exc:
                why = exc
                if self._is_final(exc, opened):
                    return
            finally:
                self._hearing.set()
            # A stream that lasted is no vain attempt: proxies end quiet ones every few minutes.
            lasted = loop.time() - since >= self._limits.reconnect_most
            told = parser.last_event_id != last or self._unasked != heard
            fruitless = 0 if lasted or told else fruitless + 1
            if fruitless == self._limits.reconnects + 1 and self._is_given_up(why):
                return
            await asyncio.sleep(self._pause(parser.retry, fruitless))
            parser = _continued(parser)

    async def _hear_out(self, parser: Parser, again: bool) -> None:
        """One stretch of the stream; without an id to go on from, nobody knows what was said before it."""
        reply = await self._resume(parser.last_event_id)
        self._hearing.set()
        try:
            if again and parser.last_event_id is None and self._inbox is not None:
                self._inbox.missed()
            await self._until_answer(reply, parser, None)
        finally:
            reply.close()

    def _is_final(self, exc: MCPError, opened: bool) -> bool:
        """Whether the stream need not be asked for again."""
        if exc.status == 404 and self._session is not None and opened:
            self._lose("the server no longer knows the session")
            return True
        self._deaf = not opened and exc.status is not None and exc.status < 500 and exc.status not in _LATER
        return self._deaf  # it offers no such stream

    def _is_given_up(self, why: MCPError) -> bool:
        """After many vain attempts: a server that is away is lost, one that is there is asked again, seldom."""
        if isinstance(why, CannotConnect):
            self._lose("the server cannot be reached any more")
            return True
        most = self._limits.reconnect_most
        log.warning(
            "%s: the stream of what the server says unasked does not last (%s); it is opened again every %g s",
            self._door.address,
            why.args[0],
            most,
        )
        return False

    # Everything else

    async def tell(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification or an answer."""
        reply = await self._door.send("POST", [_BOTH, _CONTENT, *self._own, *headers], body)
        try:
            if reply.status >= 300:
                said = await refusal(reply, self._door.url)
                if isinstance(said, MCPError):
                    raise said
                log.warning("a notification was refused: %s", clip(said.error.message if said.error else ""))
            else:
                await self._read(reply)
        finally:
            reply.close()

    def cancel(self, request: Request, reason: str) -> bytes | None:
        """A stateless request is cancelled by closing its reply, which is done; a session must be told."""
        if request.stateless or request.method == "initialize" or self._ended is not None:
            return None
        notice = request.cancellation(reason)
        self._spawn(self._tell_quietly(notice))
        return notice

    async def settled(self, revision: str) -> None:
        """From now on this revision is spoken."""
        self._revision = revision
        self._own.append((VERSION_HEADER, revision.encode()))
        self._spawn(self._hear())

    async def hearing(self) -> bool:
        """Wait for the stream of what is said unasked; some servers are silent until they have something to say."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._hearing.wait()
        return not self._deaf

    async def close(self) -> None:
        """End the session and close every connection."""
        try:
            if self._ended is None:
                self._ended = Disconnected("the client was closed")
                if self._session is not None:
                    with contextlib.suppress(MCPError, TimeoutError):
                        async with asyncio.timeout(self._leaving):
                            (await self._door.send("DELETE", [_BOTH, *self._own])).close()
        finally:  # also when whoever closes it does not wait for the server
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._door.close()

    def _lose(self, why: str) -> None:
        if self._ended is None:
            self._ended = Disconnected(why)
            if self._inbox is not None:
                self._inbox.lost(self._ended)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_quietly(self, body: bytes) -> None:
        with contextlib.suppress(MCPError):
            await self.tell(body)


def _sessionless(status: int, told: Incoming | MCPError) -> bool:
    """Whether a refusal says that the session is gone, so that nothing of the request was done.

    404 says so; servers have been seen to say 400 and tell it in words, which are believed only of an error that is no
    answer to the request: that one may have run. spec: handshake/transports#session-management
    """
    if status != 400 or not isinstance(told, Incoming) or told.error is None:
        return status == 404
    error = told.error
    return told.id in _NOBODYS and error.code in _GONE_CODES and _SESSION_GONE.match(error.message) is not None


def _unsent(why: str) -> Disconnected:
    error = Disconnected(why)
    error.sent = False
    return error


def _continued(parser: Parser) -> Parser:
    """A parser for the next stretch of the same stream: it remembers where the last one ended."""
    fresh = Parser(parser.max_event)
    fresh.last_event_id = parser.last_event_id
    fresh.retry = parser.retry
    return fresh


def _named(kind: bytes, data: bytes) -> str:
    if b"html" in kind:
        return "a web page"
    return "empty" if not data else f"of type {clip(kind.decode('latin-1'))}" if kind else "of no named type"


def _older(url: str, limits: ClientLimits, timeouts: Timeouts, options: Mapping[str, Any]) -> Channel:
    from dovetail.transports.sse_2024_caller import OldCaller

    return OldCaller(url, limits, timeouts, **options)

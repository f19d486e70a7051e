"""Conversation: one server, one connection, one revision. It sends, follows the replies, cancels, and times out.

Knows neither what a transport is made of nor what the methods mean. Everything that goes wrong leaves here as one
exception that says which server and which step.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from dovetail.client.answering import Answering
from dovetail.client.clock import Clock, Clocks
from dovetail.client.mailbox import Mailbox
from dovetail.errors import (
    AnswerError,
    Busy,
    Disconnected,
    InternalError,
    MCPError,
    PeerError,
    ProtocolError,
    RequestTimeout,
    ResultError,
    TransportError,
    clip,
)
from dovetail.protocol.channel import Channel, Headers, Request
from dovetail.protocol.recording import Tap, To
from dovetail.protocol.speaking import Speaker, progress_of, refused
from dovetail.wire import jsonrpc
from dovetail.wire.codec import encode
from dovetail.wire.incoming import Incoming, body
from dovetail.wire.jsonrpc import Id
from dovetail.wire.lifecycle import Implementation, ServerCapabilities
from dovetail.wire.progress import CancelledParams
from dovetail.wire.shape import UNSET

log = logging.getLogger("dovetail")

Heard = Callable[[str, Any], None]

_JUNK_SHOWN = 3
_LONGER = {"tools/call": "call_tool(..., timeout=seconds) gives it longer, and Timeouts(call=...) all calls"}
_LONGER_READ = "Timeouts(read=...) gives it longer"
_REPLIES = 256  # that wait for the server to read them, besides its questions


class Conversation:
    """The client's relation with one server, from its opening to its loss."""

    def __init__(
        self,
        channel: Channel,
        name: str,
        answering: Answering,
        mailbox: Mailbox,
        *,
        questions: int,
        heard: Heard,
        missed: Callable[[], None],
        waiting: Clocks | None = None,
        taps: list[Tap] | None = None,
        on_lost: Callable[["Conversation"], None] | None = None,
    ) -> None:
        self.channel = channel
        self.name = name
        self.speaker: Speaker | None = None
        self.server: Implementation | None = None
        self.capabilities = ServerCapabilities()
        self.instructions: str | None = None
        self.why_lost: TransportError | None = None
        self.gone = asyncio.Event()  # set with `why_lost`
        self.junk_seen = 0
        self.first_junk: str | None = None
        self.subscribed: Counter[str] = Counter()  # who listens to which resource
        self._answering = answering
        self._mailbox = mailbox
        self._questions = questions
        self._heard = heard
        self._on_lost = on_lost
        self.missed = missed  # called when what the server says unasked may not all have come
        self._waiting = waiting  # the clocks of those who wait for it to be opened
        self._taps: list[Tap] = [] if taps is None else taps
        self._loop = asyncio.get_running_loop()
        self._last = 0
        self._held = 0  # how many things a user is busy with
        self._clocks = Clocks()
        self._answers: dict[Any, asyncio.Task[None]] = {}

    @property
    def running(self) -> int:
        """How many requests have been sent and not answered."""
        return self._clocks.running

    # Asking the server

    def request(
        self,
        method: str,
        params: Any,
        clock: Clock,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Headers = (),
    ) -> Awaitable[Any]:
        """What to await for the result of a request, still raw."""
        speaker = self.speaker
        if speaker is None:
            raise Disconnected("the conversation is not open").at(server=self.name, step=method)
        self._last = id = self._last + 1
        request = Request(
            id,
            method,
            speaker.request(id, method, params, meta),
            [*speaker.headers(method, params), *headers] if speaker.stateless and self.channel.mirrors else (),
            speaker.stateless,
            params,
        )
        return self.exchange(request, clock)

    def next_id(self) -> int:
        """An id for a request made elsewhere."""
        self._last += 1
        return self._last

    async def exchange(self, request: Request, clock: Clock) -> Any:
        """Send a request and return its raw result; an error response is raised."""
        if self.why_lost is not None:
            raise self._located(Disconnected("the connection is gone"), request.step, sent=False)
        if self._taps:
            self._tap("server", request.body, request.headers)
        self._clocks.start(request.id, clock)
        try:
            message = await self.channel.exchange(request)
        except asyncio.CancelledError:
            if not clock.is_why():
                self._cancel(request, "the caller gave up")
                raise
            if clock.fault is not None:
                self._cancel(request, "a question could not be answered")
                raise self._located(clock.fault, request.step) from clock.fault.__cause__
            self._cancel(request, "timed out")
            late = RequestTimeout(clock.verdict()).at(hint=_LONGER.get(request.method, _LONGER_READ))
            raise self._located(late, request.step, since=clock.begun) from None
        except MCPError as exc:
            if self._taps and isinstance(exc, PeerError):  # an error response told by its HTTP status
                self._tap("client", jsonrpc.failure(request.id, exc.code, exc.message, exc.data))
            raise self._located(exc, request.step) from exc.__cause__
        finally:
            self._clocks.stop(request.id)
        if self._taps:
            self._tap("client", message.encoded())
        if clock.progress is not None and clock.reported:
            await self._mailbox.flush(clock.due - self._loop.time())  # the answer is here: it is not given up
        if message.error is not None:
            raise self._located(refused(self.revision, request.method, message.error), request.step)
        if message.result is UNSET:
            raise self._located(ResultError("the response holds neither result nor error"), request.step)
        return message.result

    @property
    def revision(self) -> str | None:
        """The revision being spoken, once that is settled."""
        return None if self.speaker is None else self.speaker.revision

    def _located(self, exc: MCPError, step: str, *, sent: bool | None = None, since: float | None = None) -> MCPError:
        if sent is not None and isinstance(exc, Disconnected):
            exc.sent = sent
        if self.speaker is None:
            since = None  # while it is opened, everything the server said may explain what is wrong
        facts = self.channel.facts(since) if isinstance(exc, TransportError) else {}
        return exc.at(server=self.name, step=step, revision=self.revision, **facts)

    async def tell(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        speaker = self.speaker
        # spec: streamable-http#standard-request-headers
        headers = speaker.headers(method, {}) if speaker is not None and speaker.stateless else ()
        await self._send(jsonrpc.notice(method, params), headers)

    async def _send(self, data: bytes, headers: Headers = ()) -> None:
        if self._taps:
            self._tap("server", data, headers)
        await self.channel.tell(data, headers)

    def _cancel(self, request: Request, reason: str) -> None:
        told = self.channel.cancel(request, reason)
        if told is not None and self._taps:
            self._tap("server", told)

    def _tap(self, to: To, data: bytes, headers: Headers = ()) -> None:
        for tap in tuple(self._taps):
            try:
                tap(to, data, headers)
            except Exception as exc:  # whoever watches must not cost a request its answer
                log.error("%s: what records its messages failed and is told no more", self.name, exc_info=exc)
                if tap in self._taps:
                    self._taps.remove(tap)

    # What the server says

    def receive(self, message: Incoming, of: Id | None = None) -> None:
        """A notification, or a request of the server, where it is known because of which request of ours."""
        if self._taps:
            self._tap("client", message.encoded())
        method = message.method
        if method is None:
            return  # an answer to nothing we asked
        if message.id is not None:
            self._question(message.id, method, message.params, of)
        elif method == "notifications/progress":
            self._progress(message.params)
        elif method == "notifications/cancelled":
            self._cancelled(message.params)
        else:
            self._heard(method, message.params)

    def alive(self, id: Id) -> None:
        """Something came that belongs to a request."""
        clock = self._clocks.get(id)
        if clock is not None:
            clock.alive()

    def junk(self, text: str) -> None:
        """Something came that is no message: said a few times, then only counted."""
        if self._taps:
            self._tap("client", text.encode("utf-8", "replace"))
        self.junk_seen += 1
        self.first_junk = self.first_junk or text.strip()
        if self.junk_seen <= _JUNK_SHOWN:
            more = "; further ones are only counted" if self.junk_seen == _JUNK_SHOWN else ""
            log.warning("%s wrote something that is no message%s: %s", self.name, more, clip(text, 200))

    def lost(self, why: TransportError) -> None:
        """The connection is gone."""
        if self.why_lost is None:
            self.why_lost = why
            self.gone.set()
            for task in self._answers.values():
                task.cancel()
            if self._on_lost is not None:
                self._on_lost(self)

    def _progress(self, params: Any) -> None:
        try:
            token, done, total, text = progress_of(params)
        except ResultError:
            return
        clock = self._clocks.get(token)
        if clock is not None:
            clock.alive()
            if clock.progress is not None:
                self._mailbox.call(clock.progress, done, total, text)

    def _cancelled(self, params: Any) -> None:
        try:
            id = body(params, CancelledParams, "notifications/cancelled").request_id
        except ResultError:
            return
        task = self._answers.get(id) if id is not None else None
        if task is not None:
            task.cancel()

    # Questions of the server: handshake revisions ask over the connection

    def _question(self, id: Id, method: str, params: Any, of: Id | None) -> None:
        if self.why_lost is not None:
            return  # the answer would go nowhere
        if self.speaker is not None and self.speaker.stateless:
            # A server asks within its result, and answers must not be sent. spec: streamable-http#sending-messages
            self.junk(f"the request {method}, which is not for servers in this revision")
        elif len(self._answers) >= self._questions + _REPLIES:
            self.junk(f"the request {method}, while it does not read the answers to earlier ones")
        elif method == "ping":
            self._later(id, self._reply(jsonrpc.result(id, b"{}")))
        elif len(self._answers) >= self._questions:
            self._later(None, self._reply(jsonrpc.refusal(id, Busy("Too many questions are open"))))
        else:
            self._later(id, self._answer(id, method, params, of))

    def _later(self, id: Id | None, work: Coroutine[Any, Any, None]) -> None:
        key: Any = id if id is not None and id not in self._answers else object()
        task = self._loop.create_task(work)
        self._answers[key] = task
        task.add_done_callback(lambda _: self._answers.pop(key, None))

    def hold(self) -> None:
        """A user is being asked something: no limit of time counts."""
        self._held += 1
        self._clocks.pause()
        if self._waiting is not None:
            self._waiting.pause()

    def go_on(self) -> None:
        """The user has answered."""
        self._held -= 1
        if self._held == 0:
            self._clocks.resume()
            if self._waiting is not None:
                self._waiting.resume()

    async def _answer(self, id: Id, method: str, params: Any, of: Id | None) -> None:
        self.hold()
        try:
            answer = await self._answering.answer(method, params)
            reply = jsonrpc.result(id, encode(answer))
        except ProtocolError as exc:
            reply = jsonrpc.refusal(id, exc)
        except AnswerError as exc:
            self._blame(of, method, exc)
            reply = jsonrpc.refusal(id, InternalError("The client could not answer"))
        except Exception as exc:
            log.error("%s asked %s: the handler failed", self.name, clip(method), exc_info=exc)
            reply = jsonrpc.refusal(id, InternalError("The client could not answer"))
        finally:
            self.go_on()
        await self._reply(reply)

    def _blame(self, of: Id | None, method: str, exc: AnswerError) -> None:
        """Tell whoever made the request because of which it was asked; where that cannot be known, the log."""
        clock = self._clocks.of(of)
        if clock is not None:
            clock.fail(exc)
        else:
            log.error("%s asked %s: %s", self.name, clip(method), exc, exc_info=exc.__cause__)

    async def _reply(self, data: bytes) -> None:
        try:
            await self._send(data)
        except MCPError as exc:
            log.warning("%s could not be answered: %s", self.name, exc)

    async def close(self) -> None:
        """Leave the server."""
        if self.why_lost is None:
            self.why_lost = Disconnected("the client was closed")
            self.gone.set()
        for task in tuple(self._answers.values()):
            task.cancel()
        try:
            await self.channel.close()
        finally:
            self._clocks.close()

"""A client's end of a two-way connection: whole messages out and in, each response to whoever waits for it.

What carries the messages is a subclass's business: `connect`, `write` and `disconnect` are all it adds.
"""

import asyncio
from typing import Any

from dovetail.errors import Disconnected, InvalidRequest, ParseError, ResultError, TransportError, clip
from dovetail.protocol.channel import Channel, Headers, Inbox, Request
from dovetail.wire.incoming import Incoming, answered, read
from dovetail.wire.jsonrpc import Id

_QUOTED = 200
_UNREAD = (ParseError.code, InvalidRequest.code)
# A server in memory may answer before anyone has waited: now and then the loop gets its turn all the same, so that
# whoever asks and asks leaves time to others, and can be cancelled.
_TURN = 16


class Talking:
    """One connection on which both sides may speak at any time."""

    mirrors = False

    def __init__(self) -> None:
        self._inbox: Inbox | None = None
        self._waiting: dict[Id, tuple[asyncio.Future[Incoming], Request]] = {}
        self._at_once = 0  # how many requests were answered before anyone had to wait
        self._ended: TransportError | None = None
        self._loop = asyncio.get_running_loop()

    # What carries it

    async def connect(self) -> None:
        """Reach the other side."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Send one message."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Let go of the other side."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait while the other side does not read."""

    def facts(self, since: float | None = None) -> dict[str, Any]:
        """What is known about the other side."""
        return {}

    def advice(self) -> str | None:
        """Nothing is known that could help."""
        return None

    def older(self) -> Channel | None:
        """The same server by an older transport."""
        return None

    # A channel

    async def open(self, inbox: Inbox) -> None:
        """Reach the server."""
        self._inbox = inbox
        await self.connect()

    async def exchange(self, request: Request) -> Incoming:
        """Send a request and wait for its response."""
        if self._ended is not None:
            raise _again(self._ended, sent=False)
        waiting: asyncio.Future[Incoming] = self._loop.create_future()
        self._waiting[request.id] = waiting, request
        try:
            self.write(request.body)
            if waiting.done():
                self._at_once += 1
                if self._at_once % _TURN == 0:
                    await asyncio.sleep(0)
            return await waiting
        finally:
            self._waiting.pop(request.id, None)

    def cancel(self, request: Request, reason: str) -> bytes | None:
        """Tell the server that a request is no longer wanted. spec: cancellation#cancellation-flow"""
        if self._ended is not None or request.method == "initialize":
            return None
        notice = request.cancellation(reason)
        self.write(notice)
        return notice

    async def tell(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification or an answer."""
        if self._ended is not None:
            raise _again(self._ended, sent=False)
        self.write(body)
        await self.drain()

    async def settled(self, revision: str) -> None:
        """The connection needs to know nothing of it."""

    async def hearing(self) -> bool:
        """Everything comes on the one connection."""
        return True

    async def close(self) -> None:
        """End the connection; the server need not finish what nobody waits for."""
        for _, request in tuple(self._waiting.values()):
            self.cancel(request, "the client is leaving")
        self.end(Disconnected("the client was closed"))
        await self.disconnect()

    # What comes in

    def take(self, data: bytes) -> None:
        """One message, as bytes."""
        inbox = self._inbox
        if inbox is None:
            return
        try:
            messages = read(data)
        except ParseError as exc:
            self._refuse(data, str(exc))
            return
        for message in messages:
            if message.answers and message.id is not None:
                asked = self._waiting.get(message.id)
                if asked is None and type(message.id) is str:
                    self._refuse(_own(message, data, messages), f"its id is the text {clip(message.id)!r}")
                elif asked is not None and not asked[0].done():
                    asked[0].set_result(message)
            elif message.answers:
                self._nameless(message, _own(message, data, messages))
            elif message.method is None:
                self._refuse(_own(message, data, messages), "it holds neither a result nor an error")
            else:
                inbox.receive(message)

    def _nameless(self, message: Incoming, data: bytes) -> None:
        """A response without an id: a server that could not read a request answers so; to the only one, if it is."""
        if message.error is not None and message.error.code in _UNREAD and len(self._waiting) == 1:
            (waiting, _), *_ = self._waiting.values()
            if not waiting.done():
                waiting.set_result(message)
        else:
            self._refuse(data, "its id is null")

    def _refuse(self, data: bytes, why: str) -> None:
        """What came is no message; if it was to be an answer, whoever waits for it need not wait longer."""
        assert self._inbox is not None
        self._inbox.junk(data[:400].decode("utf-8", "replace"))
        self._fail(answered(data), unusable(data, why))

    def skipped(self, what: str, beginning: bytes = b"") -> None:
        """Something came that was too large to be taken in."""
        if self._inbox is not None:
            self._inbox.junk(what)
        error = ResultError(f"the answer is too large: {what}").at(hint="raise ClientLimits(answer=...)")
        self._fail(answered(beginning), error)

    def _fail(self, ids: list[int], error: ResultError) -> None:
        for id in ids:
            asked = self._waiting.get(id)
            if asked is not None and not asked[0].done():
                asked[0].set_exception(ResultError(*error.args).at(hint=error.hint))

    def end(self, why: TransportError) -> None:
        """The connection is over: whoever waits is told."""
        if self._ended is not None:
            return
        self._ended = why
        for waiting, _ in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_again(why, sent=True))
        if self._inbox is not None:
            self._inbox.lost(why)


def _own(message: Incoming, data: bytes, messages: list[Incoming]) -> bytes:
    """The bytes of one message of several."""
    return data if len(messages) == 1 else message.encoded()


def unusable(data: bytes, why: str) -> ResultError:
    """What to tell whoever waits for an answer that came, but not as the protocol has it."""
    words = clip(data[:_QUOTED].decode("utf-8", "replace"), _QUOTED)
    return ResultError(f"the server broke the protocol: what it answered is no response ({why}): {words}")


def _again(why: TransportError, *, sent: bool) -> Disconnected:
    """The same news for one more caller: an exception carries where it was raised, so each gets its own."""
    told = Disconnected(*why.args).at(exit_code=why.exit_code, stderr=why.stderr, hint=why.hint)
    told.sent = sent
    return told

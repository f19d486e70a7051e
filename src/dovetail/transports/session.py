"""Session: one handshake client over Streamable HTTP, from `initialize` to its end.

Holds who the client is, what runs for it, its streams and the questions put to it. Small while idle: whatever a
session may never need is made when it first does.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dovetail.errors import Disconnected, PeerError
from dovetail.protocol import legacy
from dovetail.protocol.exchange import Exchange, Service
from dovetail.protocol.peer import Peer
from dovetail.transports.streams import Shelf, Stream
from dovetail.wire import jsonrpc
from dovetail.wire.revisions import NEWEST_HANDSHAKE, older

STANDALONE: Final = "0"  # the stream of what the server says unasked


class Session:
    """One client's session."""

    __slots__ = (
        "_asked",
        "_next_stream",
        "_peer",
        "_stop_listening",
        "_streams",
        "address",
        "born",
        "closed",
        "id",
        "loop",
        "pending",
        "primes",
        "rules",
        "running",
        "used",
    )

    def __init__(self, id: str, rules: legacy.Session, address: str | None, loop: asyncio.AbstractEventLoop) -> None:
        self.id = id
        self.rules = rules
        # Whether streams begin with an event that only hands out an id: older clients trip over it.
        self.primes = not older(rules.caller.revision, NEWEST_HANDSHAKE)
        self.address = address
        self.loop = loop  # the one it was opened in
        self.born = self.used = loop.time()
        self.closed = False
        self.running: set[Exchange] | None = None
        self.pending: dict[tuple[str, str | None], None] | None = None
        self._peer: Peer[asyncio.Future[Any]] | None = None
        self._asked: dict[asyncio.Future[Any], Stream] | None = None  # open questions and where they were put
        self._streams: dict[str, Stream] | None = None
        self._next_stream = 1
        self._stop_listening: Callable[[], None] | None = None

    @property
    def revision(self) -> str:
        """The revision agreed on."""
        return self.rules.caller.revision

    @property
    def quiet(self) -> bool:
        """Whether no call is at work and no stream is read. A call that waits for an answer is not at work."""
        at_work = self.running and any(not exchange.questions for exchange in self.running)
        return not at_work and all(stream.reader is None for stream in (self._streams or {}).values())

    @property
    def streams_read(self) -> int:
        """How many of its streams a client reads."""
        return sum(stream.reader is not None for stream in tuple((self._streams or {}).values()))

    def ready(self, service: Service) -> None:
        """The client has finished opening."""
        if not self.rules.ready:
            self.rules.ready = True
            self._stop_listening = service.listen(self)

    # Changes

    def wants(self, method: str, uri: str | None) -> bool:
        """Whether a change is for this session."""
        return self.rules.wants(method, uri)

    def deliver(self, method: str, uri: str | None) -> None:
        """Put a change on the GET stream, or keep it, each kind once, until there is one."""
        stream = (self._streams or {}).get(STANDALONE)
        for one in self.rules.echoes(uri):
            if stream is None or stream.reader is None:
                self.pending = self.pending or {}
                self.pending[method, one] = None
            else:
                stream.append(change(method, one))

    # Streams

    def stream(self, name: str) -> Stream | None:
        """A stream of this session by its name."""
        return (self._streams or {}).get(name)

    def open_stream(self, shelf: Shelf, name: str | None = None) -> Stream:
        """A new stream."""
        if name is None:
            name = str(self._next_stream)
            self._next_stream += 1
        if self._streams is None:
            self._streams = {}
        stream = self._streams[name] = Stream(name, shelf, self._streams)
        return stream

    def keep(self, shelf: Shelf, data: bytes) -> bytes:
        """Keep a message as a stream of its own, complete from the start; what is sent of it."""
        return self.open_stream(shelf).complete(data, primed=self.primes)

    def forget_streams(self, now: float, keep: float) -> None:
        """Let go of streams that ended long enough ago."""
        streams = self._streams or {}
        for name in [name for name, one in streams.items() if one.ended_at and now - one.ended_at > keep]:
            streams.pop(name).clear()

    # Asking

    async def ask(
        self, stream: Stream, emit: Callable[[bytes], Awaitable[None]], method: str, params: dict[str, Any]
    ) -> Any:
        """Ask the client on a reply's stream; its answer comes in a POST of its own."""
        self._peer = self._peer or Peer()
        self._asked = self._asked or {}
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        id, data = self._peer.ask(waiting, method, params)
        self._asked[waiting] = stream
        try:
            await emit(data)
            return await waiting
        finally:
            del self._asked[waiting]
            if self._peer.forget(id) and not self.closed:
                await emit(jsonrpc.notice("notifications/cancelled", {"requestId": id}))

    def end_unread_questions(self, now: float, keep: float) -> None:
        """End the questions whose stream nobody has read for so long that it can no longer be resumed."""
        for waiting, stream in (self._asked or {}).items():
            if stream.unread_since is not None and now - stream.unread_since > keep and not waiting.done():
                waiting.set_exception(Disconnected("The client left before it answered"))

    def answered(self, message: dict[str, Any]) -> None:
        """A response came in."""
        found = self._peer.answered(message) if self._peer is not None else None
        if found is None or found[0].done():
            return
        waiting, answer = found
        if isinstance(answer, PeerError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def cancel(self, id: Any) -> None:
        """Stop the requests of this id."""
        for exchange in tuple(self.running or ()):
            if exchange.id == id and type(exchange.id) is type(id):
                exchange.end("cancelled")

    def close(self) -> None:
        """End everything."""
        self.closed = True
        if self._stop_listening is not None:
            self._stop_listening()
        for waiting in self._peer.drain() if self._peer is not None else ():
            if not waiting.done():
                waiting.set_exception(Disconnected("The session ended"))
        for exchange in tuple(self.running or ()):
            exchange.end("cancelled")
        for stream in tuple((self._streams or {}).values()):  # one that ends may be forgotten
            stream.finish()
            if stream.reader is None:
                stream.clear()  # nobody can ask for it any more


def change(method: str, uri: str | None) -> bytes:
    """The notice of a change."""
    return jsonrpc.notice(method, None if uri is None else {"uri": uri})

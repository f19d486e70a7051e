"""Channel and Inbox: what a client needs of a transport, and what a transport needs of the client.

A transport carries requests and brings back their responses; everything else that comes in goes to the inbox. It knows
nothing of what the messages mean beyond that.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from dovetail.errors import TransportError, clip
from dovetail.wire import jsonrpc
from dovetail.wire.incoming import Incoming
from dovetail.wire.jsonrpc import Id
from dovetail.wire.shape import Struct

Headers = Sequence[tuple[bytes, bytes]]


class Request(Struct, eq=False):
    """A request on its way: the message as bytes, and the headers that mirror it where there are headers."""

    id: Id
    method: str
    body: bytes
    headers: Headers = ()
    stateless: bool = False
    params: Any = None

    @property
    def step(self) -> str:
        """What it is for, in an error."""
        return step(self.method, self.params)

    def cancellation(self, reason: str) -> bytes:
        """The notice that its answer is no longer wanted. spec: cancellation#cancellation-flow"""
        return jsonrpc.notice("notifications/cancelled", {"requestId": self.id, "reason": reason})


def step(method: str, params: Any) -> str:
    """A request as an error names it: the method, and which tool, prompt or resource it is about."""
    given: dict[str, Any] = params if type(params) is dict else {}
    if type(given.get("ref")) is dict:  # of completion/complete
        given = given["ref"]
    about = given.get("name") or given.get("uri")
    return f"{method} {clip(about, 200)}" if isinstance(about, str) else method


class Inbox(Protocol):
    """Where a channel puts what nobody asked for."""

    def receive(self, message: Incoming, of: Id | None = None) -> None:
        """A notification, or a request of the server; `of` is the request whose reply brought it, where one did."""
        ...

    def alive(self, id: Id) -> None:
        """Something came that belongs to this request, though not its answer."""
        ...

    def junk(self, text: str) -> None:
        """Something came that is no message."""
        ...

    def missed(self) -> None:
        """What the server said unasked may not all have come."""
        ...

    def hold(self) -> None:
        """A user is busy with a login: no limit of time counts until `go_on`."""
        ...

    def go_on(self) -> None:
        """The user is done."""
        ...

    def lost(self, why: TransportError) -> None:
        """The channel is gone; nothing more will come."""
        ...


class Authorizer(Protocol):
    """Whoever knows the credentials of requests."""

    async def headers(self, method: str, url: str) -> list[tuple[bytes, bytes]]:
        """The credentials of one request."""
        ...

    async def challenged(self, status: int, challenge: str, nonce: str | None, sent: str | None, tries: int) -> bool:
        """A request was refused; whether it is worth sending again with other credentials."""
        ...

    async def close(self) -> None:
        """A channel that used it is closed, others may go on."""
        ...


class Channel(Protocol):
    """One way to a server."""

    @property
    def mirrors(self) -> bool:
        """Whether requests are accompanied by headers."""
        ...

    async def open(self, inbox: Inbox) -> None:
        """Start or reach the server; CannotStart or CannotConnect if that fails."""
        ...

    async def exchange(self, request: Request) -> Incoming:
        """Send a request and wait for its response; TransportError or AuthError if none will come."""
        ...

    def cancel(self, request: Request, reason: str) -> bytes | None:
        """The answer is no longer wanted: tell the server, without waiting; what it was told, if anything."""
        ...

    async def tell(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification with the headers that mirror it, or the answer to a request of the server."""
        ...

    async def settled(self, revision: str) -> None:
        """The handshake is over: from now on this revision is spoken."""
        ...

    async def hearing(self) -> bool:
        """Wait until what the server says unasked would be heard, not for long, since some never confirm it.

        False if it never will be.
        """
        ...

    async def close(self) -> None:
        """End it; safe to call twice and from any task."""
        ...

    def older(self) -> "Channel | None":
        """The same server by an older transport, where there is one to fall back to."""
        ...

    def advice(self) -> str | None:
        """What to try if the server ended before it could be used."""
        ...

    def facts(self, since: float | None = None) -> dict[str, Any]:
        """What is known that helps to understand a failure: `exit_code`, `stderr`; of words, those since a time."""
        ...

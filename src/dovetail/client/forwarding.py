"""Forwarding: the server behind a client, offered to the callers of another server.

Bytes go through as they came where both sides speak the same revision. Progress, log messages and questions go to the
caller whose request they belong to; where that cannot be told, to nobody.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeAlias

from dovetail.client.mailbox import Mailbox
from dovetail.client.parking import Parked, Parking, Send
from dovetail.client.requesting import Options, Requesting
from dovetail.client.rounds import INPUT_REQUIRED
from dovetail.errors import (
    InternalError,
    InvalidParams,
    MCPError,
    MethodNotFound,
    NotFound,
    NotOffered,
    PeerError,
    ProtocolError,
    RateLimited,
    RequestTimeout,
    ResourceNotFound,
    ToolError,
)
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Exchange, Whole
from dovetail.protocol.mounting import Hear, Kind
from dovetail.protocol.principal import Principal
from dovetail.protocol.topics import PROMPTS, RESOURCES, TOOLS, UPDATED
from dovetail.wire.incoming import body
from dovetail.wire.inputs import InputRequest, InputRequiredResult
from dovetail.wire.lifecycle import ClientCapabilities, ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.logs import LEVELS, severity
from dovetail.wire.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROGRESS_TOKEN, reserved
from dovetail.wire.methods import METHODS
from dovetail.wire.progress import ProgressParams
from dovetail.wire.shape import Result

log = logging.getLogger("dovetail")

_NOTICES: Final = {"tools": TOOLS, "prompts": PROMPTS, "resources": RESOURCES, "resource": UPDATED}
_ASKS: Final = b'"input_required"'

# Before it was ever reached, a server may have anything.
_UNKNOWN: Final = ServerCapabilities(
    tools=ListChangedCapability(list_changed=True),
    prompts=ListChangedCapability(list_changed=True),
    resources=ResourcesCapability(subscribe=True, list_changed=True),
    completions={},
)

# Looks at a question before it is put to a caller: the answer to give instead, or None; ProtocolError to refuse it.
Screen: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]

_current: ContextVar[Exchange | None] = ContextVar("dovetail_forwarded", default=None)


class Forwarding:
    """One client as something to mount."""

    distant = True

    def __init__(
        self,
        client: Any,
        requesting: Requesting,
        mailbox: Mailbox,
        relaying: Callable[[Any, Any, Any], None],
        *,
        shared: bool = False,
        screen: Screen | None = None,
    ) -> None:
        self.name: str = client.name
        self._client = client
        self._requesting = requesting
        self._mailbox = mailbox
        self._calls: list[Exchange] = []
        self._parking = Parking()
        self._screen = screen
        self._hearers: list[Hear] = []
        self._listening: asyncio.Task[None] | None = None
        self._deaf = False  # the server tells of nothing
        self._not_before = 0.0  # is it listened to again
        requesting.counted = shared
        relaying(self._asked, self._logged, self._own if shared else None)

    # Life

    async def start(self) -> None:
        """Connect, unless that is done, and listen to what changes."""
        if not self._client.connected:
            await self._client.connect()
            self._deaf, self._not_before = False, 0.0
        if self._hearers and not self._deaf:
            self._listen()

    def _listen(self) -> None:
        """Listen, unless that is done; again, a while after it has ended, and then nobody knows what was missed."""
        loop, before = asyncio.get_running_loop(), self._listening
        if before is None or (before.done() and loop.time() >= self._not_before):
            self._listening = loop.create_task(self._hear_lists(again=before is not None))

    async def stop(self) -> None:
        """Leave the server."""
        self._parking.clear()
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])
        await self._client.close()

    def capabilities(self) -> ServerCapabilities:
        """What the server declared."""
        return self._client.capabilities if self._client.connected else _UNKNOWN

    # Lists

    async def listed(self, kind: Kind, exchange: Exchange) -> Mapping[str, Any]:
        """What the server lists."""
        client, offered = self._client, self.capabilities()
        match kind:
            case "tool":
                return {one.name: one for one in await client.list_tools()} if offered.tools is not None else {}
            case "prompt":
                return {one.name: one for one in await client.list_prompts()} if offered.prompts is not None else {}
            case "resource":
                return {one.uri: one for one in await client.list_resources()} if offered.resources is not None else {}
            case _:
                found = await client.list_resource_templates() if offered.resources is not None else ()
                return {one.uri_template: one for one in found}

    async def holds(self, kind: Kind, name: str, exchange: Exchange) -> bool:
        """Whether the server lists it; what a template may stand for, only the server knows."""
        if name in await self.listed(kind, exchange):
            return True
        return kind == "resource" and bool(await self.listed("resource template", exchange))

    # Changes

    def follow(self, hear: Hear) -> Callable[[], None]:
        """Hear of the server's changes, once it is reached."""
        self._hearers.append(hear)

        def stop() -> None:
            if hear in self._hearers:
                self._hearers.remove(hear)

        return stop

    def audible(self, uri: str, principal: Principal | None) -> bool:
        """Whether a caller may hear of a resource: only the server knows."""
        return True

    async def subscribed(self, uris: list[str], principal: Principal | None) -> Callable[[], None]:
        """Hear of these resources too."""
        await self.start()
        listening = self._client.listen(tools=False, prompts=False, resources=False, uris=uris)
        with contextlib.suppress(MCPError):
            await listening.__aenter__()
        task = asyncio.get_running_loop().create_task(self._hear(listening))
        return task.cancel  # pyright: ignore[reportReturnType]

    async def _hear_lists(self, *, again: bool) -> None:
        self._deaf = not await self._hear(self._client.listen(), (TOOLS, PROMPTS, RESOURCES) if again else ())
        self._not_before = asyncio.get_running_loop().time() + self._client.limits.reconnect_most

    async def _hear(self, changes: Any, missed: Sequence[str] = ()) -> bool:
        """Pass on what changes until that ends; False if it is not told."""
        try:
            async with changes:
                for notice in missed:
                    self._tell(notice)
                async for change in changes:
                    self._tell(_NOTICES[change.kind], change.uri)
        except NotOffered:
            return False
        except Exception as exc:
            log.warning("the changes of %s are not heard any more: %s", self.name, exc)
        return True

    def _tell(self, notice: str, uri: str | None = None) -> None:
        for hear in tuple(self._hearers):
            hear(notice, uri)

    # Requests

    async def serve(self, exchange: Exchange, most: float | None = None) -> Result | bytes:
        """Have the server answer, in the words it shares with the caller, or translated; `most`: within these seconds.

        People may take their time to answer what it asks.
        """
        send = partial(self._send, most=_FOREVER if most is None else most)
        await self._started(exchange)
        mark = _current.set(exchange)
        self._calls.append(exchange)
        try:
            if exchange.caller.stateless and not self._requesting.stateless and METHODS[exchange.method].asks:
                return self._said(exchange, await self._parking.run(exchange, send))
            return self._said(exchange, await self._through(exchange, send))
        except MCPError as exc:
            raise self._refusal(exc, exchange) from None
        finally:
            self._calls.remove(exchange)
            _current.reset(mark)

    async def _started(self, exchange: Exchange) -> None:
        try:
            await self.start()
        except MCPError as exc:
            raise self._refusal(exc, exchange) from None

    async def _send(self, exchange: Exchange, params: dict[str, Any], *, most: float) -> Any:
        row = METHODS[exchange.method]
        wants = exchange.progress_token is not None or self._parking.of(exchange) is not None
        progress = self._progress(exchange) if wants else None
        options = Options(progress=progress, meta=self._meta(exchange), total=most)
        said = Whole(await self._requesting.forwarded(row, params, options))
        await self._mailbox.flush(self._client.timeouts.call)  # what came on the way goes before the answer
        return said

    async def _through(self, exchange: Exchange, send: Send) -> Any:
        """The raw result. A server of the stateless era asks in it: where the caller can be asked, it is."""
        params = {name: value for name, value in exchange.params.items() if name != "_meta"}
        rounds = 0
        while True:
            raw = await send(exchange, params)
            if not self._requesting.stateless or _ASKS not in raw:
                return raw
            asked = body(raw, InputRequiredResult, f"the result of {exchange.method}")
            if asked.result_type != INPUT_REQUIRED or rounds >= self._client.limits.rounds:
                return raw
            questions = asked.input_requests or {}
            answers = self._screened(questions) if exchange.caller.stateless else await self._each(exchange, questions)
            if answers is None:
                return raw
            rounds += 1
            params = params | {"inputResponses": answers}
            if asked.request_state is not None:
                params["requestState"] = asked.request_state

    async def _each(self, exchange: Exchange, questions: Mapping[str, InputRequest]) -> dict[str, Any]:
        return {key: await self._ask(exchange, one.method, one.params or {}) for key, one in questions.items()}

    def _screened(self, questions: Mapping[str, InputRequest]) -> dict[str, Any] | None:
        """The answers to give instead of the caller's; None if it is to be asked, InvalidParams for some of each."""
        if self._screen is None:
            return None
        given = {key: self._screen(one.method, one.params or {}) for key, one in questions.items()}
        answers = {key: one for key, one in given.items() if one is not None}
        if answers and len(answers) < len(questions):
            raise InvalidParams(f"Not allowed: some of what {self.name} asks at once")
        return answers or None

    def _meta(self, exchange: Exchange) -> dict[str, Any]:
        """The caller's own `_meta`, and, to a stateless server, who it is and what it can be asked."""
        meta = {name: value for name, value in exchange.meta.items() if name != PROGRESS_TOKEN and not reserved(name)}
        if not self._requesting.stateless:
            return meta
        caller = exchange.caller
        meta[CLIENT_CAPABILITIES] = caller.capabilities
        if caller.client is not None:
            meta[CLIENT_INFO] = caller.client
        if caller.level is not None:
            meta[LOG_LEVEL] = LEVELS[caller.level]
        return meta

    def _said(self, exchange: Exchange, raw: Result | Whole) -> Result | bytes:
        if isinstance(raw, Result):
            return raw
        revision = self._client.revision
        if exchange.caller.revision == revision:
            return raw
        row = METHODS[exchange.method]
        if exchange.caller.stateless and self._requesting.stateless and _ASKS in raw:
            return body(raw, InputRequiredResult, f"the result of {row.name}")
        known = self._requesting.tools.get(str(exchange.params.get("name")))
        if self._requesting.stateless and known is not None:
            exchange.wraps = downgrade.is_wrapped(known.tool.output_schema)
        return body(raw, row.result or Result, f"the result of {row.name}")

    def _refusal(self, exc: MCPError, exchange: Exchange) -> MCPError:
        """The server's refusal as this side's own; what never travels is logged, and only told of."""
        if exchange.method == "resources/read" and (isinstance(exc, NotFound) or _names_no_resource(exc)):
            return ResourceNotFound(str(exchange.params.get("uri")))
        if isinstance(exc, PeerError) and not isinstance(exc, RateLimited):
            told = ProtocolError(exc.message, exc.data)
            told.code = exc.code
            return told
        if isinstance(exc, ProtocolError | ToolError | RateLimited):
            return exc
        if isinstance(exc, RequestTimeout):
            return InternalError(f"{self.name} did not answer in time")
        log.warning("a request for %s failed: %s", self.name, exc)
        return InternalError(f"{self.name} could not answer; the server's log says why")

    # On the way

    def _progress(self, exchange: Exchange) -> Any:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            token = exchange.progress_token
            if token is None:
                return
            params = ProgressParams(progress_token=token, progress=done, total=total, message=message)
            await exchange.notify("notifications/progress", params)

        return progress

    def _logged(self, params: dict[str, Any]) -> None:
        exchange = self._whose()
        level = params.get("level")
        if exchange is None or exchange.caller.level is None or level not in LEVELS:
            return
        if severity(level) >= exchange.caller.level:
            self._mailbox.call(exchange.notify, "notifications/message", params)

    def _whose(self) -> Exchange | None:
        """Whose request something belongs to: told by the stream it came on, or because there is only one caller."""
        if (current := self._going_on()) is not None:
            return current
        work = [*self._parking.exchanges, *self._calls]
        if self._requesting.own or not work:
            return None
        last = work[-1]
        return last if all(one is last or _same_caller(one, last) for one in work) else None

    def _going_on(self) -> Exchange | None:
        """The exchange this runs for, if it is not over."""
        current = _current.get()
        if current is None or current in self._calls or self._parking.of(current) is not None:
            return current
        return None

    def _own(self) -> bool:
        """Whether a question is about what the client itself requested."""
        if self._going_on() is not None:
            return False
        return self._requesting.is_own() or not (self._calls or self._parking.busy)

    async def _asked(self, method: str, params: dict[str, Any]) -> Any:
        """A handshake server asks: so is the caller, directly or by ending its round."""
        exchange = self._whose()
        if exchange is None:
            raise InvalidParams("Invalid params: it cannot be told whose request the question belongs to")
        parked: Parked | None = self._parking.of(exchange)
        if parked is None:
            return await self._ask(exchange, method, params)
        if self._screen is not None and (given := self._screen(method, params)) is not None:
            return given
        if not _able(exchange.caller.capabilities, method):
            raise MethodNotFound(method)
        return await parked.ask(method, {name: value for name, value in params.items() if name != "_meta"})

    async def _ask(self, exchange: Exchange, method: str, params: dict[str, Any]) -> Any:
        if self._screen is not None and (given := self._screen(method, params)) is not None:
            return given
        if exchange.ask is None or not _able(exchange.caller.capabilities, method):
            raise MethodNotFound(method)
        method, params = downgrade.question(exchange.caller.revision, method, params)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        exchange.pause(asked_at)
        try:
            return await exchange.ask(method, params)
        finally:
            exchange.resume(asked_at, loop.time())


_FOREVER: Final = 86400.0  # the caller's own limits end it


def _names_no_resource(exc: MCPError) -> bool:
    """The stateless era has no code for it: it is told by the URI that comes back."""
    return isinstance(exc, PeerError) and exc.code == InvalidParams.code and "uri" in (exc.data or ())


def _same_caller(one: Exchange, other: Exchange) -> bool:
    """Whether two requests are surely of one: an address may be that of many."""
    mine, others = one.caller, other.caller
    if mine.principal is not None or others.principal is not None:
        return mine.principal == others.principal
    return mine is others or (mine.session != "" and mine.session == others.session)


def _able(declared: ClientCapabilities, method: str) -> bool:
    return getattr(declared, method.partition("/")[0], None) is not None

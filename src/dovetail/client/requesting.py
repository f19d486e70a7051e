"""Requests as the client's methods make them: typed, kept while fresh, gathered page by page, questions answered.

Sits between the surface, which knows the methods, and the keeper, which knows the connection.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

from dovetail.client.answering import Answering
from dovetail.client.caching import Cache
from dovetail.client.clock import NEVER, Progress
from dovetail.client.keeping import Keeper, Sending
from dovetail.client.knowing import Known, Names, Tools
from dovetail.client.paging import Unlisted, whole_list, without_malformed
from dovetail.client.rounds import Pending, decode_result
from dovetail.client.visiting import URL_REQUIRED, Visiting
from dovetail.errors import (
    AnswerError,
    HeaderMismatch,
    MCPError,
    MethodNotFound,
    NotFound,
    PeerError,
    RequestTimeout,
    ResultError,
)
from dovetail.protocol.around import Call, Middleware, around
from dovetail.protocol.channel import Headers, step
from dovetail.protocol.exchange import Caller, Exchange
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.wire.incoming import body, plain
from dovetail.wire.methods import METHODS, Method
from dovetail.wire.shape import Struct, replace
from dovetail.wire.tools import CallToolResult, Tool

log = logging.getLogger("dovetail")

CALL = METHODS["tools/call"]

_own: ContextVar["Requesting | None"] = ContextVar("dovetail_own", default=None)


class Options(Struct, frozen=True, kw_only=True):
    """What a caller wants of one request."""

    timeout: float | None = None  # since the last sign of life
    total: float | None = None
    progress: Progress | None = None
    meta: Mapping[str, Any] | None = None
    retry: bool | None = None


PLAIN = Options()


class Outgoing(Exchange):
    """A request this side makes, as middleware sees it; its id is given when it is sent."""

    outgoing: ClassVar[bool] = True

    send: Callable[["Outgoing"], Awaitable[Any]] | None = None


class Requesting:
    """Makes requests over the keeper's conversation."""

    def __init__(
        self,
        name: str,
        keeper: Keeper,
        answering: Answering,
        timeouts: Timeouts,
        limits: ClientLimits,
        *,
        cache: bool,
        check_results: bool,
    ) -> None:
        self._name = name
        self.unlisted = Unlisted()
        self._keeper = keeper
        self._answering = answering
        self._timeouts = timeouts
        self._limits = limits
        self._cache = Cache(limits.cached) if cache else None
        self._check_results = check_results
        self._chain: Call | None = None
        self.caller: Callable[[], Caller] | None = None
        self.tools = Tools()
        self.counted = False  # whether requests of this side's own are to be told from those made for others
        self.own = 0  # of them, at work
        self.visiting = Visiting(name, answering, limits, timeouts.read)
        self._names = Names()

    def surround(self, middleware: Sequence[Middleware], caller: Callable[[], Caller]) -> None:
        """Put middleware around every request; `caller` says who this side is to the server."""
        self._chain = around(middleware, _sent) if middleware else None
        self.caller = caller

    def _around(
        self, method: str, params: dict[str, Any], options: Options, send: Callable[[dict[str, Any], Options], Any]
    ) -> Awaitable[Any]:
        """What `send` brings, with the middleware around it, if there is any."""
        if self._chain is None or self.caller is None:
            return send(params, options)
        meta = dict(options.meta or {})
        exchange = Outgoing(
            0, method, params, meta, self.caller(), send=lambda out: send(out.params, _with(options, out))
        )
        return self._chain(exchange)

    def heard(self, method: str) -> None:
        """A notice of change: what it speaks of is no longer fresh."""
        if self._cache is not None:
            self._cache.heard(method)

    def renew(self) -> None:
        """The connection is a new one: what was known of the server may no longer be true, and is asked for again."""
        self.tools.outdate()
        self._names.clear()
        if self._cache is not None:
            self._cache.clear()

    def forget(self) -> None:
        """What was known of the server is of no use any more."""
        self.tools.clear()
        self._names.clear()
        if self._cache is not None:
            self._cache.clear()

    # One request

    async def once(self, row: Method, params: dict[str, Any], options: Options = PLAIN, rounds: int = 0) -> Any:
        """The result of one request, or a Pending if the server asks instead."""
        if self.counted:
            with self._counting():
                return await self._round(row, params, options, rounds)
        return await self._round(row, params, options, rounds)

    @contextlib.contextmanager
    def _counting(self) -> Generator[None]:
        self.own += 1
        mark = _own.set(self)
        try:
            yield
        finally:
            _own.reset(mark)
            self.own -= 1

    def is_own(self) -> bool:
        """Whether something came on the stream of a request of this side's own."""
        return _own.get() is self

    def _round(self, row: Method, params: dict[str, Any], options: Options, rounds: int) -> Awaitable[Any]:
        if row is CALL:
            if self._chain is None:
                return self._call(params, options, rounds)
            return self._around(row.name, params, options, lambda told, how: self._call(told, how, rounds))

        async def send(params: dict[str, Any], options: Options) -> Any:
            sending = self._sending(row, options, safe=True)
            try:
                raw = await self._keeper.request(row.name, params, sending)
            except NotFound as exc:
                raise self.advised(exc, row.name, params) from None
            except PeerError as exc:
                if not self._wants_a_visit(exc):
                    raise
                raw = await self.visiting.through(
                    exc, row.name, lambda: self._keeper.request(row.name, params, sending)
                )
            return self._decoded(raw, row, params, rounds)

        return self._around(row.name, params, options, send)

    async def through(self, row: Method, params: dict[str, Any], options: Options = PLAIN) -> Any:
        """The result of a request, whatever is asked on the way; the time to answer is not counted in its total."""
        once = self.once if self.counted else self._round
        now = asyncio.get_running_loop().time
        begun = now()
        result = await once(row, params, options, 0)
        while isinstance(result, Pending):
            asked = now()
            answers = await self._answers(result)
            if result.questions:
                begun += now() - asked
            total = self._sending(row, options, safe=True).total
            left = begun + total - now()
            if left <= 0:
                late = RequestTimeout(f"no answer within the total limit of {total:g} s; the server asked again")
                raise self.located(late, row.name, params)
            result = await once(row, result.answered(answers), replace(options, total=left), result.rounds)
        return result

    async def cached(self, row: Method, params: dict[str, Any], options: Options = PLAIN) -> Any:
        """As `through`; a fresh result is not asked for again, nor is one that is already on its way."""
        if self._cache is None or options is not PLAIN:
            return await self.through(row, params, options)
        return await self._cache.get(row.name, params, lambda: self.through(row, params))

    def _sending(self, row: Method, options: Options, *, safe: bool) -> Sending:
        usual = self._timeouts.call if row is CALL else self._timeouts.read
        idle = usual if options.timeout is None else options.timeout
        return Sending(
            idle=idle,
            total=options.total if options.total is not None else max(self._timeouts.total, idle),
            progress=options.progress,
            meta=options.meta,
            safe=safe if options.retry is None else options.retry,
        )

    async def any(self, method: str, params: dict[str, Any], timeout: float | None) -> Any:
        """The result of a request nobody here knows, as plain JSON."""

        async def send(params: dict[str, Any], options: Options) -> Any:
            idle = self._timeouts.call if timeout is None else timeout
            sending = Sending(idle=idle, total=max(self._timeouts.total, idle), meta=options.meta)
            return plain(await self._keeper.request(method, params, sending))

        return await self._around(method, params, PLAIN, send)

    def _decoded(self, raw: Any, row: Method, params: dict[str, Any], rounds: int) -> Any:
        try:
            return decode_result(raw, row, params, rounds)
        except ResultError as exc:
            raise self.located(exc, row.name, params) from None

    def located(self, exc: MCPError, method: str, params: Any = None) -> MCPError:
        """The same error, told which request it is about."""
        current = self._keeper.current
        revision = None if current is None else current.revision
        return exc.at(server=self._name, step=step(method, params), revision=revision)

    def advised(self, exc: NotFound, method: str, params: dict[str, Any]) -> MCPError:
        """The same error, with what may have been meant."""
        name = str(params.get("name") or params.get("uri") or "")
        return self.located(exc.at(hint=self._names.advice(method, name)), method, params)

    async def _answers(self, pending: Pending) -> dict[str, Any]:
        try:
            if pending.rounds > self._limits.rounds:
                raise AnswerError(f"it asked in more than {self._limits.rounds} rounds")
            if len(pending.questions) > self._limits.questions:
                raise AnswerError(f"it asked {len(pending.questions)} questions at once")
            if not pending.questions:
                await asyncio.sleep(self._limits.reconnect_after)  # the server only wants to be asked again later
            return await self._answering.answer_all(pending.questions)
        except AnswerError as exc:
            raise self.located(exc, pending.method, pending.params) from exc.__cause__

    async def forwarded(self, row: Method, params: dict[str, Any], options: Options) -> Any:
        """The result of somebody else's request, still raw: nothing is answered, kept or checked here."""

        async def send(params: dict[str, Any], options: Options) -> Any:
            called = row is CALL and type(params.get("name")) is str
            known = await self._known(params["name"], options) if called else None
            safe = row is not CALL or (known is not None and known.safe)
            sending = self._sending(row, options, safe=safe)
            try:
                return await self._keeper.request(row.name, params, sending, _mirrored(known, params))
            except PeerError as exc:
                if exc.code != HeaderMismatch.code or not self.mirrors or row is not CALL:
                    raise
                known = await self._learn_again(params["name"])
                return await self._keeper.request(row.name, params, sending, _mirrored(known, params))

        return await self._around(row.name, params, options, send)

    # Calls

    async def _call(self, params: dict[str, Any], options: Options, rounds: int) -> CallToolResult | Pending:
        name = params["name"]
        known = await self._known(name, options)
        sending = self._sending(CALL, options, safe=known is not None and known.safe)
        try:
            raw = await self._keeper.request(CALL.name, params, sending, _mirrored(known, params))
        except NotFound as exc:
            raise self.advised(exc, CALL.name, params) from None
        except PeerError as exc:
            if self._wants_a_visit(exc):
                raw = await self.visiting.through(
                    exc, CALL.name, lambda: self._keeper.request(CALL.name, params, sending)
                )
            elif exc.code != HeaderMismatch.code or not self.mirrors:
                raise
            else:
                # Refused unread, so it may be sent again with the headers of today's definition.
                # spec: streamable-http#client-behavior
                known = await self._learn_again(name)
                raw = await self._keeper.request(CALL.name, params, sending, _mirrored(known, params))
        result = self._decoded(raw, CALL, params, rounds)
        if self.tools.outdated(name):  # it was another connection by which the answer came
            known = await self._known_by_now(name, options)
        if known is not None and self._check_results and isinstance(result, CallToolResult):
            try:
                known.check(result, self._name)
            except ResultError as exc:
                raise self.located(exc, CALL.name, params) from None
        return result

    def _wants_a_visit(self, exc: PeerError) -> bool:
        return exc.code == URL_REQUIRED and not self.stateless

    async def _known(self, name: str, options: Options) -> Known | None:
        """What is known of a tool; what was known before the connection was lost is asked for again."""
        if self.tools.outdated(name):
            limit = self._sending(CALL, options, safe=True).idle
            try:
                async with asyncio.timeout(min(limit, NEVER)):
                    await self.list_tools()
            except TimeoutError:
                raise RequestTimeout(f"no answer within {limit:g} s").at(server=self._name, step="tools/list") from None
            except (PeerError, ResultError) as exc:
                log.warning("%s: its tools could not be listed again: %s", self._name, exc)
                self.tools.clear()
        return self.tools.get(name)

    async def _known_by_now(self, name: str, options: Options) -> Known | None:
        """As `_known`, when the tool has already run: its result is not lost over a list, but goes unchecked."""
        try:
            return await self._known(name, options)
        except MCPError as exc:
            log.warning("%s: a result of %s is not checked: %s", self._name, name, exc)
            return None

    async def _learn_again(self, name: str) -> Known | None:
        if self._cache is not None:
            self._cache.clear()
        await self.list_tools()
        return self.tools.get(name)

    @property
    def mirrors(self) -> bool:
        """Whether calls are accompanied by headers."""
        current = self._keeper.current
        return current is not None and current.channel.mirrors and self.stateless

    @property
    def stateless(self) -> bool:
        """Whether the server speaks the stateless era."""
        current = self._keeper.current
        return current is not None and current.speaker is not None and current.speaker.stateless

    # Lists

    async def list_tools(self) -> list[Tool]:
        """All tools that may be used."""
        tools = self.tools.usable(await self.whole("tools/list", "tools", Tool), self._name, mirrors=self.mirrors)
        self.tools.up_to_date()
        return tools

    async def whole(self, method: str, field: str, item: type[Any]) -> list[Any]:
        """All items of a list."""

        def fetch(cursor: str | None) -> Awaitable[Any]:
            return self.page(method, field, item, cursor)

        try:
            return await whole_list(fetch, field, self._limits)
        except PeerError as exc:
            if exc.code != MethodNotFound.code:
                raise
            return []  # a server without such things has none of them
        except ResultError as exc:
            raise self.located(exc, method) from None

    async def page(self, method: str, field: str, item: type[Any], cursor: str | None) -> Any:
        """One page of a list, less what is malformed."""
        row = METHODS[method]
        params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}

        async def send(params: dict[str, Any], options: Options) -> Any:
            raw = await self._keeper.request(method, params, self._sending(row, options, safe=True))
            try:
                return body(raw, row.result or object, f"the result of {method}")
            except ResultError as exc:
                return without_malformed(raw, row.result, field, item, self._name, exc, self.unlisted)

        def fetch() -> Awaitable[Any]:
            return self._around(method, params, PLAIN, send)

        page = await (self._cache.get(method, params, fetch) if self._cache is not None else fetch())
        if field != "resource_templates":
            self._names.learn(method, getattr(page, field), first=cursor is None)
        return page


async def _sent(exchange: Exchange) -> Any:
    assert isinstance(exchange, Outgoing)
    assert exchange.send is not None
    return await exchange.send(exchange)


def _with(options: Options, exchange: Exchange) -> Options:
    return replace(options, meta=exchange.meta) if exchange.meta else options


def _mirrored(known: Known | None, params: dict[str, Any]) -> Headers:
    return known.mirrored(params.get("arguments") or {}) if known is not None and known.headers else ()

"""Requests as the client's methods make them: typed, kept while fresh, gathered page by page, questions answered.

Sits between the surface, which knows the methods, and the keeper, which knows the connection.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

from dovetail.client.deadlines import MAX_TIMEOUT_S, ProgressHandler
from dovetail.client.handlers import InputHandlers
from dovetail.client.input_rounds import (
    URL_ELICITATION_REQUIRED,
    PendingRequest,
    URLElicitations,
    build_resume_params,
    decode_result,
)
from dovetail.client.pagination import SkippedItems, collect_pages, skip_malformed_items
from dovetail.client.reconnect import Reconnector, SendOptions
from dovetail.client.result_cache import ResultCache
from dovetail.client.tool_index import NameIndex, ToolEntry, ToolIndex
from dovetail.error_context import add_context
from dovetail.errors import (
    HeaderMismatch,
    InputRequestError,
    InvalidResult,
    MCPError,
    MethodNotFound,
    NotFound,
    RemoteError,
    RequestTimeout,
)
from dovetail.protocol.client_transport import Headers, describe_request
from dovetail.protocol.exchange import Caller, Exchange
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.middleware import CallNext, Middleware, compose_middleware
from dovetail.wire.base import Struct, replace
from dovetail.wire.methods import METHODS, Method
from dovetail.wire.raw_message import decode_body, to_plain
from dovetail.wire.tools import CallToolResult, Tool

log = logging.getLogger("dovetail")

CALL_TOOL = METHODS["tools/call"]

_current_sender: ContextVar["RequestSender | None"] = ContextVar("dovetail_own", default=None)


class RequestOptions(Struct, frozen=True, kw_only=True):
    """What a caller wants of one request."""

    timeout: float | None = None  # since the last sign of life
    total_timeout: float | None = None
    progress_handler: ProgressHandler | None = None
    meta: Mapping[str, Any] | None = None
    retry: bool | None = None


DEFAULT_OPTIONS = RequestOptions()


class OutgoingExchange(Exchange):
    """A request this side makes, as middleware sees it; its id is given when it is sent."""

    is_outgoing: ClassVar[bool] = True

    send: Callable[["OutgoingExchange"], Awaitable[Any]] | None = None


class RequestSender:
    """Makes requests over the keeper's conversation."""

    def __init__(
        self,
        name: str,
        reconnector: Reconnector,
        handlers: InputHandlers,
        timeouts: Timeouts,
        limits: ClientLimits,
        *,
        cache: bool,
        validate_results: bool,
    ) -> None:
        self._name = name
        self.skipped_items = SkippedItems()
        self._reconnector = reconnector
        self._handlers = handlers
        self._timeouts = timeouts
        self._limits = limits
        self._cache = ResultCache(limits.max_cached_results) if cache else None
        self._validate_results = validate_results
        self._middleware_chain: CallNext | None = None
        self.create_caller: Callable[[], Caller] | None = None
        self.tool_index = ToolIndex()
        self.tracks_own_requests = (
            False  # whether requests of this side's own are to be told from those made for others
        )
        self.own_request_count = 0  # of them, at work
        self.url_elicitations = URLElicitations(name, handlers, limits, timeouts.request)
        self._name_index = NameIndex()

    def set_middleware(self, middleware: Sequence[Middleware], create_caller: Callable[[], Caller]) -> None:
        """Put middleware around every request; `caller` says who this side is to the server."""
        self._middleware_chain = compose_middleware(middleware, _send_exchange) if middleware else None
        self.create_caller = create_caller

    def _run_middleware(
        self,
        method: str,
        params: dict[str, Any],
        options: RequestOptions,
        send: Callable[[dict[str, Any], RequestOptions], Any],
    ) -> Awaitable[Any]:
        """What `send` brings, with the middleware around it, if there is any."""
        if self._middleware_chain is None or self.create_caller is None:
            return send(params, options)
        meta = dict(options.meta or {})
        exchange = OutgoingExchange(
            0, method, params, meta, self.create_caller(), send=lambda out: send(out.params, _apply_meta(options, out))
        )
        return self._middleware_chain(exchange)

    def invalidate(self, method: str) -> None:
        """A notice of change: what it speaks of is no longer fresh."""
        if self._cache is not None:
            self._cache.invalidate(method)

    def mark_stale(self) -> None:
        """The connection is a new one: what was known of the server may no longer be true, and is asked for again."""
        self.tool_index.mark_stale()
        self._name_index.clear()
        if self._cache is not None:
            self._cache.clear()

    def clear(self) -> None:
        """What was known of the server is of no use any more."""
        self.tool_index.clear()
        self._name_index.clear()
        if self._cache is not None:
            self._cache.clear()

    # One request

    async def send(
        self, row: Method, params: dict[str, Any], options: RequestOptions = DEFAULT_OPTIONS, rounds: int = 0
    ) -> Any:
        """The result of one request, or a Pending if the server asks instead."""
        if self.tracks_own_requests:
            with self._track_own_request():
                return await self._send_round(row, params, options, rounds)
        return await self._send_round(row, params, options, rounds)

    @contextlib.contextmanager
    def _track_own_request(self) -> Generator[None]:
        self.own_request_count += 1
        token = _current_sender.set(self)
        try:
            yield
        finally:
            _current_sender.reset(token)
            self.own_request_count -= 1

    def is_own_request(self) -> bool:
        """Whether something came on the stream of a request of this side's own."""
        return _current_sender.get() is self

    def _send_round(self, row: Method, params: dict[str, Any], options: RequestOptions, rounds: int) -> Awaitable[Any]:
        if row is CALL_TOOL:
            if self._middleware_chain is None:
                return self._call_tool(params, options, rounds)
            return self._run_middleware(
                row.name, params, options, lambda params, how: self._call_tool(params, how, rounds)
            )

        async def send(params: dict[str, Any], options: RequestOptions) -> Any:
            send_options = self._build_send_options(row, options, can_repeat=True)
            try:
                raw = await self._reconnector.request(row.name, params, send_options)
            except NotFound as exc:
                raise self.add_name_hint(exc, row.name, params) from None
            except RemoteError as exc:
                if not self._requires_url_elicitation(exc):
                    raise
                raw = await self.url_elicitations.elicit_and_retry(
                    exc, row.name, lambda: self._reconnector.request(row.name, params, send_options)
                )
            return self._decode(raw, row, params, rounds)

        return self._run_middleware(row.name, params, options, send)

    async def send_until_complete(
        self, row: Method, params: dict[str, Any], options: RequestOptions = DEFAULT_OPTIONS
    ) -> Any:
        """The result of a request, whatever is asked on the way; the time to answer is not counted in its total."""
        send_round = self.send if self.tracks_own_requests else self._send_round
        now = asyncio.get_running_loop().time
        started_at = now()
        result = await send_round(row, params, options, 0)
        while isinstance(result, PendingRequest):
            input_started_at = now()
            responses = await self._answer_input_requests(result)
            if result.input_requests:
                started_at += now() - input_started_at
            total = self._build_send_options(row, options, can_repeat=True).total_timeout
            remaining = started_at + total - now()
            if remaining <= 0:
                error = RequestTimeout(f"no answer within the total limit of {total:g} s; the server asked again")
                raise self.add_request_context(error, row.name, params)
            result = await send_round(
                row, build_resume_params(result, responses), replace(options, total_timeout=remaining), result.round
            )
        return result

    async def send_cached(self, row: Method, params: dict[str, Any], options: RequestOptions = DEFAULT_OPTIONS) -> Any:
        """As `through`; a fresh result is not asked for again, nor is one that is already on its way."""
        if self._cache is None or options is not DEFAULT_OPTIONS:
            return await self.send_until_complete(row, params, options)
        return await self._cache.get(row.name, params, lambda: self.send_until_complete(row, params))

    def _build_send_options(self, row: Method, options: RequestOptions, *, can_repeat: bool) -> SendOptions:
        default_timeout = self._timeouts.call if row is CALL_TOOL else self._timeouts.request
        idle_timeout = default_timeout if options.timeout is None else options.timeout
        return SendOptions(
            idle_timeout=idle_timeout,
            total_timeout=options.total_timeout
            if options.total_timeout is not None
            else max(self._timeouts.total, idle_timeout),
            progress_handler=options.progress_handler,
            meta=options.meta,
            can_repeat=can_repeat if options.retry is None else options.retry,
        )

    async def send_raw(self, method: str, params: dict[str, Any], timeout: float | None) -> Any:
        """The result of a request nobody here knows, as plain JSON."""

        async def send(params: dict[str, Any], options: RequestOptions) -> Any:
            idle_timeout = self._timeouts.call if timeout is None else timeout
            send_options = SendOptions(
                idle_timeout=idle_timeout, total_timeout=max(self._timeouts.total, idle_timeout), meta=options.meta
            )
            return to_plain(await self._reconnector.request(method, params, send_options))

        return await self._run_middleware(method, params, DEFAULT_OPTIONS, send)

    def _decode(self, raw: Any, row: Method, params: dict[str, Any], rounds: int) -> Any:
        try:
            return decode_result(raw, row, params, rounds)
        except InvalidResult as exc:
            raise self.add_request_context(exc, row.name, params) from None

    def add_request_context(self, exc: MCPError, method: str, params: Any = None) -> MCPError:
        """The same error, told which request it is about."""
        current = self._reconnector.current
        revision = None if current is None else current.revision
        return add_context(exc, server=self._name, step=describe_request(method, params), protocol_version=revision)

    def add_name_hint(self, exc: NotFound, method: str, params: dict[str, Any]) -> MCPError:
        """The same error, with what may have been meant."""
        name = str(params.get("name") or params.get("uri") or "")
        return self.add_request_context(add_context(exc, hint=self._name_index.suggest(method, name)), method, params)

    async def _answer_input_requests(self, pending: PendingRequest) -> dict[str, Any]:
        try:
            if pending.round > self._limits.max_input_rounds:
                raise InputRequestError(f"it asked in more than {self._limits.max_input_rounds} rounds")
            if len(pending.input_requests) > self._limits.max_input_requests:
                raise InputRequestError(f"it asked {len(pending.input_requests)} questions at once")
            if not pending.input_requests:
                await asyncio.sleep(self._limits.reconnect_delay)  # the server only wants to be asked again later
            return await self._handlers.answer_all(pending.input_requests)
        except InputRequestError as exc:
            raise self.add_request_context(exc, pending.method, pending.params) from exc.__cause__

    async def forward(self, row: Method, params: dict[str, Any], options: RequestOptions) -> Any:
        """The result of somebody else's request, still raw: nothing is answered, kept or checked here."""

        async def send(params: dict[str, Any], options: RequestOptions) -> Any:
            is_tool_call = row is CALL_TOOL and type(params.get("name")) is str
            tool = await self._lookup_tool(params["name"], options) if is_tool_call else None
            can_repeat = row is not CALL_TOOL or (tool is not None and tool.can_repeat)
            send_options = self._build_send_options(row, options, can_repeat=can_repeat)
            try:
                return await self._reconnector.request(row.name, params, send_options, _build_headers(tool, params))
            except RemoteError as exc:
                if exc.code != HeaderMismatch.code or not self.sends_headers or row is not CALL_TOOL:
                    raise
                tool = await self._refresh_tool(params["name"])
                return await self._reconnector.request(row.name, params, send_options, _build_headers(tool, params))

        return await self._run_middleware(row.name, params, options, send)

    # Calls

    async def _call_tool(
        self, params: dict[str, Any], options: RequestOptions, rounds: int
    ) -> CallToolResult | PendingRequest:
        name = params["name"]
        tool = await self._lookup_tool(name, options)
        send_options = self._build_send_options(CALL_TOOL, options, can_repeat=tool is not None and tool.can_repeat)
        try:
            raw = await self._reconnector.request(CALL_TOOL.name, params, send_options, _build_headers(tool, params))
        except NotFound as exc:
            raise self.add_name_hint(exc, CALL_TOOL.name, params) from None
        except RemoteError as exc:
            if self._requires_url_elicitation(exc):
                raw = await self.url_elicitations.elicit_and_retry(
                    exc, CALL_TOOL.name, lambda: self._reconnector.request(CALL_TOOL.name, params, send_options)
                )
            elif exc.code != HeaderMismatch.code or not self.sends_headers:
                raise
            else:
                # Refused unread, so it may be sent again with the headers of today's definition.
                # spec: streamable-http#client-behavior
                tool = await self._refresh_tool(name)
                raw = await self._reconnector.request(
                    CALL_TOOL.name, params, send_options, _build_headers(tool, params)
                )
        result = self._decode(raw, CALL_TOOL, params, rounds)
        if self.tool_index.is_stale(name):  # it was another connection by which the answer came
            tool = await self._lookup_tool_after_call(name, options)
        if tool is not None and self._validate_results and isinstance(result, CallToolResult):
            try:
                tool.validate_result(result, self._name)
            except InvalidResult as exc:
                raise self.add_request_context(exc, CALL_TOOL.name, params) from None
        return result

    def _requires_url_elicitation(self, exc: RemoteError) -> bool:
        return exc.code == URL_ELICITATION_REQUIRED and not self.is_stateless

    async def _lookup_tool(self, name: str, options: RequestOptions) -> ToolEntry | None:
        """What is known of a tool; what was known before the connection was lost is asked for again."""
        if self.tool_index.is_stale(name):
            idle_timeout = self._build_send_options(CALL_TOOL, options, can_repeat=True).idle_timeout
            try:
                async with asyncio.timeout(min(idle_timeout, MAX_TIMEOUT_S)):
                    await self.list_tools()
            except TimeoutError:
                raise add_context(
                    RequestTimeout(f"no answer within {idle_timeout:g} s"), server=self._name, step="tools/list"
                ) from None
            except (RemoteError, InvalidResult) as exc:
                log.warning("%s: its tools could not be listed again: %s", self._name, exc)
                self.tool_index.clear()
        return self.tool_index.get(name)

    async def _lookup_tool_after_call(self, name: str, options: RequestOptions) -> ToolEntry | None:
        """As `_known`, when the tool has already run: its result is not lost over a list, but goes unchecked."""
        try:
            return await self._lookup_tool(name, options)
        except MCPError as exc:
            log.warning("%s: a result of %s is not checked: %s", self._name, name, exc)
            return None

    async def _refresh_tool(self, name: str) -> ToolEntry | None:
        if self._cache is not None:
            self._cache.clear()
        await self.list_tools()
        return self.tool_index.get(name)

    @property
    def sends_headers(self) -> bool:
        """Whether calls are accompanied by headers."""
        current = self._reconnector.current
        return current is not None and current.transport.has_headers and self.is_stateless

    @property
    def is_stateless(self) -> bool:
        """Whether the server speaks the stateless era."""
        current = self._reconnector.current
        return current is not None and current.encoder is not None and current.encoder.is_stateless

    # Lists

    async def list_tools(self) -> list[Tool]:
        """All tools that may be used."""
        tools = self.tool_index.add_listed(
            await self.list_all("tools/list", "tools", Tool), self._name, sends_headers=self.sends_headers
        )
        self.tool_index.mark_fresh()
        return tools

    async def list_all(self, method: str, field: str, item_type: type[Any]) -> list[Any]:
        """All items of a list."""

        def fetch(cursor: str | None) -> Awaitable[Any]:
            return self.list_page(method, field, item_type, cursor)

        try:
            return await collect_pages(fetch, field, self._limits)
        except RemoteError as exc:
            if exc.code != MethodNotFound.code:
                raise
            return []  # a server without such things has none of them
        except InvalidResult as exc:
            raise self.add_request_context(exc, method) from None

    async def list_page(self, method: str, field: str, item_type: type[Any], cursor: str | None) -> Any:
        """One page of a list, less what is malformed."""
        row = METHODS[method]
        params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}

        async def send(params: dict[str, Any], options: RequestOptions) -> Any:
            raw = await self._reconnector.request(
                method, params, self._build_send_options(row, options, can_repeat=True)
            )
            try:
                return decode_body(raw, row.result or object, f"the result of {method}")
            except InvalidResult as exc:
                return skip_malformed_items(raw, row.result, field, item_type, self._name, exc, self.skipped_items)

        def fetch() -> Awaitable[Any]:
            return self._run_middleware(method, params, DEFAULT_OPTIONS, send)

        page = await (self._cache.get(method, params, fetch) if self._cache is not None else fetch())
        if field != "resource_templates":
            self._name_index.add_page(method, getattr(page, field), is_first_page=cursor is None)
        return page


async def _send_exchange(exchange: Exchange) -> Any:
    assert isinstance(exchange, OutgoingExchange)
    assert exchange.send is not None
    return await exchange.send(exchange)


def _apply_meta(options: RequestOptions, exchange: Exchange) -> RequestOptions:
    return replace(options, meta=exchange.meta) if exchange.meta else options


def _build_headers(tool: ToolEntry | None, params: dict[str, Any]) -> Headers:
    return tool.build_headers(params.get("arguments") or {}) if tool is not None and tool.header_paths else ()

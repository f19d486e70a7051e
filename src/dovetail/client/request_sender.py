"""Send the requests of a client, decode and cache results, collect pages, and answer input requests.

`Client`, which has a method for each request, calls `RequestSender`. `RequestSender` calls `Reconnector`, which
manages the connection.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from dovetail.client.deadlines import MAX_TIMEOUT_S, ProgressHandler
from dovetail.client.handlers import InputHandlers
from dovetail.client.input_rounds import (
    URL_ELICITATION_REQUIRED,
    LoadExtensions,
    RequestAwaitingInput,
    URLElicitations,
    build_resume_params,
    decode_result,
)
from dovetail.client.pagination import (
    LIST_BY_METHOD,
    TEMPLATES,
    TOOLS,
    ListMethod,
    PageCollector,
    SkippedItems,
    skip_malformed_items,
)
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
    NotSupported,
    RemoteError,
    RequestTimeout,
)
from dovetail.log import log
from dovetail.protocol.client_messages import ASSUMED_CAPABILITIES, build_name_header
from dovetail.protocol.exchange import Caller, Exchange
from dovetail.protocol.interfaces.client_transport import Headers, describe_request
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.middleware import Middleware, compose_middleware
from dovetail.wire import codec
from dovetail.wire.base import Params, Result, Struct, replace
from dovetail.wire.methods import METHODS, Method
from dovetail.wire.raw_message import decode_body, to_plain
from dovetail.wire.tools import CallToolResult

if TYPE_CHECKING:
    from dovetail.client.client_extensions import ClientExtensions
    from dovetail.protocol.interfaces.extension import ExtensionMethod

R = TypeVar("R", bound=Result)

CALL_TOOL = METHODS["tools/call"]

_current_sender: ContextVar["RequestSender | None"] = ContextVar("dovetail_own", default=None)


class RequestOptions(Struct, frozen=True, kw_only=True):
    """Options that the caller passed for one request."""

    timeout: float | None = None  # The request fails after this many seconds without a message from the server.
    total_timeout: float | None = None
    progress_handler: ProgressHandler | None = None
    meta: Mapping[str, Any] | None = None
    retry: bool | None = None
    extensions: "ClientExtensions | None" = None  # Replaces the client's extensions for this request.


DEFAULT_OPTIONS = RequestOptions()


class OutgoingExchange(Exchange):
    """An outgoing request of a client, for use in middleware. The request has no ID until the client sends it."""

    is_outgoing: ClassVar[bool] = True

    send: Callable[["OutgoingExchange"], Awaitable[Any]] | None = None


class RequestSender:
    """Sends the requests of one session."""

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
        self._default_call_options: dict[bool, SendOptions] = {}
        self._limits = limits
        self._cache = ResultCache(limits.max_cached_results, is_enabled=cache)
        self._validate_results = validate_results
        self._middleware_chain: Callable[[OutgoingExchange], Awaitable[Any]] | None = None
        self.create_caller: Callable[[], Caller] | None = None
        self.tool_index = ToolIndex()
        self.extensions: ClientExtensions | LoadExtensions | None = None  # Extensions that add result types.
        self.tracks_own_requests = False  # True if this client also forwards requests of other clients
        # The number of open requests of this client. Forwarded requests do not count.
        self.own_request_count = 0
        self.url_elicitations = URLElicitations(name, handlers, limits, timeouts.request)
        self._name_index = NameIndex()

    def set_middleware(self, middleware: Sequence[Middleware], create_caller: Callable[[], Caller]) -> None:
        """Wrap every request in middleware. `create_caller` returns the caller that the middleware sees."""
        self._middleware_chain = compose_middleware(middleware, _send_exchange) if middleware else None
        self.create_caller = create_caller

    def _run_middleware(
        self,
        method: str,
        params: dict[str, Any],
        options: RequestOptions,
        send: Callable[[dict[str, Any], RequestOptions], Any],
    ) -> Awaitable[Any]:
        if self._middleware_chain is None or self.create_caller is None:
            return send(params, options)
        meta = dict(options.meta or {})
        exchange = OutgoingExchange(
            0, method, params, meta, self.create_caller(), send=lambda out: send(out.params, _apply_meta(options, out))
        )
        return self._middleware_chain(exchange)

    def invalidate(self, method: str) -> None:
        """Remove cached results that are outdated after a change notification."""
        self._cache.invalidate(method)

    def mark_stale(self) -> None:
        """Clear the caches and mark all tools as outdated.

        The server may have changed before this connection was opened.
        """
        self.tool_index.mark_stale()
        self._name_index.clear()
        self._cache.clear()

    def clear(self) -> None:
        """Clear all stored data about the server."""
        self.tool_index.clear()
        self._name_index.clear()
        self._cache.clear()

    def send(
        self, row: Method, params: dict[str, Any], options: RequestOptions = DEFAULT_OPTIONS, rounds: int = 0
    ) -> Awaitable[Any]:
        """Send a request. Return an awaitable for the result or a `RequestAwaitingInput`.

        This method is not a coroutine, because a coroutine would add a frame to every request.
        """
        request = self._call_tool if row is CALL_TOOL else partial(self._request, row)
        if self._middleware_chain is None:
            return request(params, options, rounds)
        return self._run_middleware(row.name, params, options, lambda params, options: request(params, options, rounds))

    def is_own_request(self) -> bool:
        """Return whether the current message belongs to one of this client's own requests."""
        return _current_sender.get() is self

    def _start_tracking(self) -> Token["RequestSender | None"]:
        self.own_request_count += 1
        return _current_sender.set(self)

    def _stop_tracking(self, token: Token["RequestSender | None"]) -> None:
        _current_sender.reset(token)
        self.own_request_count -= 1

    async def _request(self, row: Method, params: dict[str, Any], options: RequestOptions, rounds: int) -> Any:
        send_options = self._build_send_options(row, options, can_repeat=True)
        headers = build_name_header(row, params) if row.extension is not None else ()
        started_at = 0.0 if self.extensions is None else time.monotonic()
        token = self._start_tracking() if self.tracks_own_requests else None
        try:
            raw = await self._reconnector.request(row.name, params, send_options, headers)
        except NotFound as exc:
            raise self.add_name_hint(exc, row.name, params) from None
        except RemoteError as exc:
            if not self._requires_url_elicitation(exc):
                raise
            raw = await self.url_elicitations.elicit_and_retry(
                exc, row.name, lambda: self._reconnector.request(row.name, params, send_options, headers)
            )
        finally:
            if token is not None:
                self._stop_tracking(token)
        try:
            result = decode_result(raw, row, params, rounds, self.extensions)
            if self.extensions is not None and type(result) is not row.result:
                return await self._complete_added(result, row, params, options, self.extensions, started_at)
            return result
        except InvalidResult as exc:
            raise self.add_request_context(exc, row.name, params) from None

    async def send_until_complete(
        self, row: Method, params: dict[str, Any], options: RequestOptions = DEFAULT_OPTIONS
    ) -> Any:
        """Send a request, and answer the server's input requests until the result is complete."""
        started_at = time.monotonic()
        result = await self.send(row, params, options)
        return await self.complete(result, options, started_at) if isinstance(result, RequestAwaitingInput) else result

    async def complete(self, pending: RequestAwaitingInput, options: RequestOptions, started_at: float) -> Any:
        """Answer the server's input requests until the result is complete.

        `started_at` is the time of the first request. The time that answers take does not count toward the total
        timeout.
        """
        row, result = METHODS[pending.method], pending
        while isinstance(result, RequestAwaitingInput):
            input_started_at = time.monotonic()
            responses = await self._answer_input_requests(result)
            if result.input_requests:
                started_at += time.monotonic() - input_started_at
            total = self._build_send_options(row, options, can_repeat=True).total_timeout
            remaining = started_at + total - time.monotonic()
            if remaining <= 0:
                error = RequestTimeout(
                    f"no response within the total limit of {total:g} s, because the server asked "
                    "for input several times"
                )
                raise self.add_request_context(error, row.name, pending.params)
            result = await self.send(
                row, build_resume_params(result, responses), replace(options, total_timeout=remaining), result.round
            )
        return result

    async def send_cached(self, row: Method, params: dict[str, Any], options: RequestOptions = DEFAULT_OPTIONS) -> Any:
        """Return a cached result if possible. If an equal request is already open, share its result."""
        if options is not DEFAULT_OPTIONS:
            return await self.send_until_complete(row, params, options)
        return await self._cache.get(row.name, params, lambda: self.send_until_complete(row, params))

    def _build_send_options(self, row: Method, options: RequestOptions, *, can_repeat: bool) -> SendOptions:
        is_default_call = options is DEFAULT_OPTIONS and row is CALL_TOOL
        if is_default_call and can_repeat in self._default_call_options:
            return self._default_call_options[can_repeat]
        timeouts = self._timeouts
        default_timeout = timeouts.call if row is CALL_TOOL else timeouts.request
        idle_timeout = default_timeout if options.timeout is None else options.timeout
        send_options = SendOptions(
            idle_timeout=idle_timeout,
            total_timeout=max(timeouts.total, idle_timeout) if options.total_timeout is None else options.total_timeout,
            progress_handler=options.progress_handler,
            meta=options.meta,
            can_repeat=can_repeat if options.retry is None else options.retry,
        )
        if is_default_call:
            self._default_call_options[can_repeat] = send_options
        return send_options

    async def send_raw(self, method: str, params: dict[str, Any], timeout: float | None) -> Any:
        """Send a request with any method and return its result as plain JSON."""

        async def send(params: dict[str, Any], options: RequestOptions) -> Any:
            idle_timeout = self._timeouts.call if timeout is None else timeout
            send_options = SendOptions(
                idle_timeout=idle_timeout,
                total_timeout=max(self._timeouts.total, idle_timeout),
                meta=options.meta,
                ignore_capabilities=True,
            )
            return to_plain(await self._reconnector.request(method, params, send_options))

        return await self._run_middleware(method, params, DEFAULT_OPTIONS, send)

    async def send_extension(
        self, method: "ExtensionMethod[Any, R]", params: Params | None, timeout: float | None
    ) -> R:
        """Send a request of an extension and return its typed result. Raise NotSupported if the server does not have
        the extension.

        Only requests whose results can be cached are sent again after a lost connection.
        """
        from dovetail.protocol.interfaces.extension import get_row

        row = get_row(method)
        if params is None:
            params = _create_empty_params(row)
        if not isinstance(params, row.params):
            raise TypeError(f"the parameters of {row.name} must be {row.params.__name__}, not {type(params).__name__}")
        await self.check_extension(row)
        plain_params = codec.to_plain(params)
        options = RequestOptions(timeout=self._timeouts.call if timeout is None else timeout, retry=row.is_cacheable)
        if row.is_cacheable and timeout is None:
            return await self._cache.get(row.name, plain_params, lambda: self.send(row, plain_params, options))
        return await self.send(row, plain_params, options)

    async def check_extension(self, row: Method) -> None:
        """Raise NotSupported if the server does not declare the extension of a method, or does not have the method."""
        connection = await self._reconnector.get_connection()
        capabilities = connection.server_capabilities
        if capabilities is not ASSUMED_CAPABILITIES and row.extension not in (capabilities.extensions or {}):
            error = NotSupported(f"the server does not declare the extension {row.extension!r}")
        elif connection.revision is not None and not row.exists_in(connection.revision):
            error = NotSupported(f"{row.name} does not exist in this protocol version")
        else:
            return
        raise self.add_request_context(error, row.name)

    def skip_item(self, reason: str) -> None:
        """Store and log why an item was left out of a list."""
        self.skipped_items.add(self._name, reason)

    def add_request_context(self, exc: MCPError, method: str, params: Any = None) -> MCPError:
        """Add the server, method and protocol version to an error."""
        current = self._reconnector.current
        revision = None if current is None else current.revision
        return add_context(exc, server=self._name, step=describe_request(method, params), protocol_version=revision)

    def add_name_hint(
        self, exc: NotFound, method: str, params: dict[str, Any], listing: ListMethod | None = None
    ) -> MCPError:
        """Add a hint with similar names to an error. The names come from `listing` or the list for `method`."""
        listing = listing or LIST_BY_METHOD.get(method)
        name = str(params.get("name") or params.get("uri") or "")
        hint = None if listing is None else self._name_index.suggest(listing, name)
        return self.add_request_context(add_context(exc, hint=hint), method, params)

    async def _answer_input_requests(self, pending: RequestAwaitingInput) -> dict[str, Any]:
        try:
            if pending.round > self._limits.max_input_rounds:
                raise InputRequestError(f"the server asked for input more than {self._limits.max_input_rounds} times")
            if len(pending.input_requests) > self._limits.max_input_requests:
                raise InputRequestError(
                    f"the server sent {len(pending.input_requests)} input requests at once, more "
                    f"than the limit of {self._limits.max_input_requests}"
                )
            if not pending.input_requests:
                # The server needs no input. It only wants to receive the request again later.
                await asyncio.sleep(self._limits.reconnect_delay)
            return await self._handlers.answer_all(pending.input_requests)
        except InputRequestError as exc:
            raise self.add_request_context(exc, pending.method, pending.params) from exc.__cause__

    def forward(
        self, row: Method, params: dict[str, Any], options: RequestOptions, *, skip_middleware: bool = False
    ) -> Awaitable[Any]:
        """Forward a request from another client. Return an awaitable for the encoded result.

        This method is not a coroutine, because a coroutine would add a frame to most requests.
        """
        if self._middleware_chain is not None and not skip_middleware:
            send = partial(self.forward, row, skip_middleware=True)
            return self._run_middleware(row.name, params, options, send)
        if row is not CALL_TOOL:
            send_options = self._build_send_options(row, options, can_repeat=True)
            return self._reconnector.request(row.name, params, send_options)
        name = str(params.get("name"))
        tool = self.tool_index.entries.get(name)
        if tool is None or tool.sends_headers:
            return self._forward_call(name, params, options)
        send_options = self._build_send_options(row, options, can_repeat=tool.can_repeat)
        return self._reconnector.request(row.name, params, send_options)

    async def _forward_call(self, name: str, params: dict[str, Any], options: RequestOptions) -> Any:
        if name in self.tool_index.stale_names:
            await self._list_stale_tools(options)
        tool = self.tool_index.entries.get(name)
        send_options = self._build_send_options(CALL_TOOL, options, can_repeat=tool is not None and tool.can_repeat)
        try:
            return await self._reconnector.request(CALL_TOOL.name, params, send_options, _build_headers(tool, params))
        except RemoteError as exc:
            if exc.code != HeaderMismatch.code or not self.sends_headers:
                raise
            tool = await self._refresh_tool(name)
            return await self._reconnector.request(CALL_TOOL.name, params, send_options, _build_headers(tool, params))

    async def _call_tool(
        self, params: dict[str, Any], options: RequestOptions, rounds: int
    ) -> CallToolResult | RequestAwaitingInput:
        name = params["name"]
        if name in self.tool_index.stale_names:
            await self._list_stale_tools(options)
        tool = self.tool_index.entries.get(name)
        send_options = self._build_send_options(CALL_TOOL, options, can_repeat=tool is not None and tool.can_repeat)
        headers = _build_headers(tool, params) if tool is not None and tool.header_paths else ()
        extensions = self.extensions if options.extensions is None else options.extensions
        started_at = 0.0 if extensions is None else time.monotonic()
        token = self._start_tracking() if self.tracks_own_requests else None
        try:
            raw = await self._reconnector.request(CALL_TOOL.name, params, send_options, headers)
        except NotFound as exc:
            raise self.add_name_hint(exc, CALL_TOOL.name, params) from None
        except RemoteError as exc:
            raw, tool = await self._retry_call(exc, tool, params, send_options)
        finally:
            if token is not None:
                self._stop_tracking(token)
        try:
            result = decode_result(raw, CALL_TOOL, params, rounds, extensions)
            if extensions is not None and type(result) is not CallToolResult:
                result = await self._complete_added(result, CALL_TOOL, params, options, extensions, started_at)
            # The call opened a new connection, so the known definition of the tool may be outdated.
            if name in self.tool_index.stale_names:
                tool = await self._lookup_tool_after_call(name, options)
            if tool is not None and self._validate_results and isinstance(result, CallToolResult):
                tool.validate_result(result, self._name)
        except InvalidResult as exc:
            raise self.add_request_context(exc, CALL_TOOL.name, params) from None
        return result

    async def _retry_call(
        self, exc: RemoteError, tool: ToolEntry | None, params: dict[str, Any], send_options: SendOptions
    ) -> tuple[Any, ToolEntry | None]:
        """Send a call again that the server rejected before it ran the tool. Return the result and the tool.

        If sending it again does not help, raise the error.
        """
        if self._requires_url_elicitation(exc):
            raw = await self.url_elicitations.elicit_and_retry(
                exc, CALL_TOOL.name, lambda: self._reconnector.request(CALL_TOOL.name, params, send_options)
            )
            return raw, tool
        if exc.code != HeaderMismatch.code or not self.sends_headers:
            raise exc
        # spec: streamable-http#client-behavior
        tool = await self._refresh_tool(params["name"])
        headers = _build_headers(tool, params)
        return await self._reconnector.request(CALL_TOOL.name, params, send_options, headers), tool

    async def _complete_added(
        self,
        result: Any,
        row: Method,
        params: dict[str, Any],
        options: RequestOptions,
        extensions: "ClientExtensions | LoadExtensions",
        started_at: float,
    ) -> Any:
        if not isinstance(result, Result):
            return result
        if callable(extensions):
            extensions = extensions()
        ends_at = started_at + self._build_send_options(row, options, can_repeat=True).total_timeout
        try:
            return await extensions.complete(result, row, options.timeout, ends_at, options.progress_handler)
        except MCPError as exc:
            raise self.add_request_context(exc, row.name, params) from exc.__cause__

    def validate_result(self, name: str, result: CallToolResult) -> None:
        """Check the result of a tool against its output schema. Tools that were not listed are not checked."""
        tool = self.tool_index.entries.get(name)
        if tool is not None and self._validate_results:
            tool.validate_result(result, self._name)

    def _requires_url_elicitation(self, exc: RemoteError) -> bool:
        return exc.code == URL_ELICITATION_REQUIRED and not self.is_stateless

    async def _list_stale_tools(self, options: RequestOptions) -> None:
        """List the tools again, because the known definitions come from a lost connection."""
        idle_timeout = self._build_send_options(CALL_TOOL, options, can_repeat=True).idle_timeout
        try:
            async with asyncio.timeout(min(idle_timeout, MAX_TIMEOUT_S)):
                await self.list_all(TOOLS)
        except TimeoutError:
            raise add_context(
                RequestTimeout(f"no response within {idle_timeout:g} s"), server=self._name, step="tools/list"
            ) from None
        except (RemoteError, InvalidResult) as exc:
            log.warning("%s: could not list its tools again: %s", self._name, exc)
            self.tool_index.clear()

    async def _lookup_tool_after_call(self, name: str, options: RequestOptions) -> ToolEntry | None:
        try:
            await self._list_stale_tools(options)
            return self.tool_index.entries.get(name)
        except MCPError as exc:
            log.warning("%s: the result of %s was not validated: %s", self._name, name, exc)
            return None

    async def _refresh_tool(self, name: str) -> ToolEntry | None:
        self._cache.clear()
        await self.list_all(TOOLS)
        return self.tool_index.entries.get(name)

    @property
    def sends_headers(self) -> bool:
        """Return whether the server expects tool arguments in HTTP headers."""
        current = self._reconnector.current
        encoder = None if current is None or not current.transport.has_headers else current.encoder
        return encoder is not None and encoder.is_stateless

    @property
    def is_stateless(self) -> bool:
        """Return whether the connection uses a protocol version without a handshake."""
        encoder = self._reconnector.encoder
        return encoder is not None and encoder.is_stateless

    async def list_all(self, listing: ListMethod) -> list[Any]:
        """Fetch all pages of a list and return its items, except tools that must not be used."""
        pages, cursor = PageCollector(listing.field, self._limits), None
        try:
            while True:
                cursor = pages.add(await self.list_page(listing, cursor))
                if cursor is None:
                    break
        except RemoteError as exc:
            if exc.code != MethodNotFound.code:
                raise
            # A server without this method has no items.
            pages.items.clear()
        except NotSupported:
            pages.items.clear()
        except InvalidResult as exc:
            raise self.add_request_context(exc, listing.method.name) from None
        if listing is not TOOLS:
            return pages.items
        return self.tool_index.add_listed(pages.items, self._name, sends_headers=self.sends_headers, is_complete=True)

    async def list_page(self, listing: ListMethod, cursor: str | None) -> Any:
        """Return one page of a list, without malformed items."""
        row = listing.method
        params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
        page, fetch = await self._cache.find_or_start(row.name, params)
        if fetch is not None:
            try:
                if self._middleware_chain is None:
                    send_options = self._build_send_options(row, DEFAULT_OPTIONS, can_repeat=True)
                    page = self._decode_page(listing, await self._reconnector.request(row.name, params, send_options))
                else:
                    page = await self._run_middleware(
                        row.name, params, DEFAULT_OPTIONS, partial(self._fetch_page, listing)
                    )
            except BaseException as exc:
                self._cache.fail(fetch, exc)
                raise
            self._cache.complete(fetch, page)
        if listing is not TEMPLATES:
            self._name_index.add_page(listing, page, is_first_page=cursor is None)
        return page

    async def _fetch_page(self, listing: ListMethod, params: dict[str, Any], options: RequestOptions) -> Any:
        send_options = self._build_send_options(listing.method, options, can_repeat=True)
        return self._decode_page(listing, await self._reconnector.request(listing.method.name, params, send_options))

    def _decode_page(self, listing: ListMethod, raw: Any) -> Any:
        row = listing.method
        try:
            return decode_body(raw, row.result or object, f"the result of {row.name}")
        except InvalidResult as exc:
            return skip_malformed_items(raw, listing, self._name, exc, self.skipped_items)


async def _send_exchange(exchange: OutgoingExchange) -> Any:
    assert exchange.send is not None
    return await exchange.send(exchange)


def _create_empty_params(row: Method) -> Params:
    try:
        return row.params()
    except TypeError:
        required = (f"{field.name}=..." for field in msgspec.structs.fields(row.params) if field.required)
        example = f"{row.params.__name__}({', '.join(required)})"
        raise TypeError(f"{row.name} requires parameters. Pass {example}") from None


def _apply_meta(options: RequestOptions, exchange: Exchange) -> RequestOptions:
    return replace(options, meta=exchange.meta) if exchange.meta else options


def _build_headers(tool: ToolEntry | None, params: dict[str, Any]) -> Headers:
    return tool.build_headers(params.get("arguments") or {}) if tool is not None and tool.header_paths else ()

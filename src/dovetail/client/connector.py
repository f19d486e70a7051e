"""Open a connection to a server, and negotiate the protocol version.

`protocol.negotiation` decides what to send. If a server does not respond to `server/discover` quickly, the client
also sends `initialize`, so that a slow server is not mistaken for an old one. If a server exits on
`server/discover`, the client starts it again and sends only `initialize`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from dovetail.client.connection import Connection
from dovetail.client.deadlines import DeadlineTimer, RequestDeadline
from dovetail.error_context import add_context, clip
from dovetail.errors import (
    AuthError,
    ConnectError,
    ConnectionLost,
    HTTPStatusError,
    InternalError,
    InvalidResult,
    MCPError,
    MethodNotFound,
    NotMCPServer,
    ProcessStartError,
    RemoteError,
    RequestTimeout,
)
from dovetail.log import log, log_and_suppress
from dovetail.protocol.client_messages import (
    ASSUMED_CAPABILITIES,
    RequestEncoder,
    encode_initialize,
    find_unsupported_methods,
)
from dovetail.protocol.headers import VERSION_HEADER
from dovetail.protocol.interfaces.client_transport import ClientTransport, EncodedRequest
from dovetail.protocol.limits import Timeouts
from dovetail.protocol.negotiation import DISCOVER, INITIALIZE, Era, VersionNegotiation, check_protocol_version
from dovetail.wire.base import Struct, replace
from dovetail.wire.lifecycle import (
    TASKS_EXTENSION,
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializeResult,
    RootsCapability,
)
from dovetail.wire.logs import LoggingLevel
from dovetail.wire.meta import SERVER_INFO
from dovetail.wire.raw_message import decode_body
from dovetail.wire.revisions import NEWEST_REVISION, STATELESS_REVISIONS, is_stateless

# Servers with the older HTTP+SSE transport answer a POST request with one of these status codes.
# spec: streamable-http#backward-compatibility
_FALLBACK_STATUS_CODES = frozenset({400, 404, 405})
# A proxy or a rate limiter may send these status codes, so they do not show which versions the server supports.
_INTERMEDIARY_STATUS_CODES = frozenset({407, 408, 429, 502, 503, 504})


class ClientIdentity(Struct, frozen=True, kw_only=True):
    """The name, version and capabilities that this client sends to servers."""

    client_info: Implementation
    capabilities: ClientCapabilities
    # The capabilities for `initialize`. They include the capabilities of clients whose requests are forwarded.
    handshake_capabilities: ClientCapabilities | None = None
    log_level: LoggingLevel | None = None

    def build_handshake_capabilities(self) -> ClientCapabilities:
        """Return the capabilities for `initialize`. Tasks are left out, because handshake versions do not have them."""
        capabilities = self.handshake_capabilities or self.capabilities
        extensions = {name: value for name, value in (capabilities.extensions or {}).items() if name != TASKS_EXTENSION}
        return replace(capabilities, extensions=extensions or None)

    def create_encoder(self, revision: str) -> RequestEncoder:
        """Return the request encoder for a protocol version."""
        capabilities = self.capabilities
        if is_stateless(revision) and capabilities.roots is not None:
            # Servers without a handshake do not need notifications about changed roots.
            capabilities = replace(capabilities, roots=RootsCapability())
        return RequestEncoder(revision, self.client_info, capabilities, self.log_level)


class ConnectionAttempt:
    def __init__(
        self,
        create_transport: Callable[[], ClientTransport],
        create_connection: Callable[[ClientTransport], Connection],
        identity: ClientIdentity,
        timeouts: Timeouts,
        deadline: RequestDeadline,
        *,
        protocol_version: str | None,
        discover_result: DiscoverResult | Literal[False] | None = None,
    ) -> None:
        # If the result of an earlier `server/discover` request is known, the client does not send the request again.
        self._discover_result: DiscoverResult | Literal[False] | None = discover_result
        self._create_transport = create_transport
        self._create_connection = create_connection
        self._identity = identity
        self._timeouts = timeouts
        self._deadline = deadline
        self._negotiation = VersionNegotiation(protocol_version)
        self._loop = asyncio.get_running_loop()
        self._connection = create_connection(create_transport())
        self._discover_error: ConnectionLost | None = None
        # After `initialize` was sent over stdio, the connection must use a handshake version.
        self._has_sent_initialize = False
        self.is_certain = True

    async def run(self) -> Connection:
        """Open a connection and return it. On failure, close everything and raise one exception with the reason."""
        try:
            await self._connection.transport.open(self._connection)
            if self._discover_result is not None:
                self._use_discovery(
                    self._discover_result
                    if self._discover_result is not False
                    else DiscoverResult(
                        supported_versions=[self._negotiation.revision], capabilities=ASSUMED_CAPABILITIES
                    )
                )
                # The protocol version comes from an earlier connection. The server has not confirmed it.
                self.is_certain = False
            while self._negotiation.next_method is not None:
                if self._negotiation.next_method == INITIALIZE:
                    await self._initialize()
                    continue
                if self._has_sent_initialize and not self._connection.transport.has_headers:
                    self._negotiation.require_stateless()
                    await self._restart(self._create_transport())
                await self._discover()
            return self._connection
        except BaseException as caught:
            exc = self._convert_timeout(caught)
            await self._close_after_failure()
            if isinstance(exc, ConnectionLost):
                # The connection failed before the caller's request was sent.
                exc.maybe_sent = False
            if isinstance(exc, MCPError):
                error = add_context(exc, server=self._connection.name, step=self._negotiation.next_method)
                raise _explain_error(error, self._connection) from exc.__cause__
            raise

    def _convert_timeout(self, exc: BaseException) -> BaseException:
        if not isinstance(exc, asyncio.CancelledError) or not self._deadline.is_cancel_cause():
            return exc
        error = RequestTimeout(f"the server was not ready within {self._timeouts.initialize:g} seconds")
        return add_context(error, **self._connection.transport.get_diagnostics())

    async def _restart(self, transport: ClientTransport) -> None:
        await self._close_quietly()
        self._connection = self._create_connection(transport)
        self._has_sent_initialize = False
        await self._connection.transport.open(self._connection)

    async def _close_after_failure(self) -> None:
        """Close a failed connection. The caller gets the first error, even if the deadline passes during the close."""
        was_expired = self._deadline.is_expired
        close_task = self._loop.create_task(self._close_quietly())
        try:
            await asyncio.shield(close_task)
        except asyncio.CancelledError:
            if was_expired or not self._deadline.is_cancel_cause():
                raise
            await asyncio.shield(close_task)

    async def _close_quietly(self) -> None:
        # An error while closing would hide the first error.
        with log_and_suppress(MCPError):
            await self._connection.close()

    async def _discover(self) -> None:
        discover_task = self._loop.create_task(self._send_request(DISCOVER))
        try:
            if self._negotiation.can_fall_back and not self._connection.transport.has_headers:
                await asyncio.wait([discover_task], timeout=self._timeouts.discover)
                if not discover_task.done():
                    await self._race(discover_task)
                    return
            await self._handle_discover(discover_task)
        except ConnectionLost as exc:
            if not self._negotiation.can_fall_back:
                raise
            self._discover_error = exc
            # Some older servers exit when they receive `server/discover`.
            self._negotiation.fall_back()
            await self._restart(self._create_transport())
        finally:
            discover_task.cancel()

    def _use_discovery(self, result: DiscoverResult) -> None:
        self._negotiation.handle_discovery(result)
        if self._negotiation.next_method is None:
            self._apply_result(result, _parse_implementation((result.meta or {}).get(SERVER_INFO)))

    async def _handle_discover(self, discover_task: "asyncio.Future[Any]") -> None:
        try:
            self._use_discovery(decode_body(await discover_task, DiscoverResult, DISCOVER))
        except RemoteError as exc:
            if not self._negotiation.handle_discovery_error(exc.code, exc.data):
                raise
            # Some older servers answer unknown methods with an internal error.
            if exc.code == InternalError.code:
                message = "%s failed to handle server/discover (%s), trying an older protocol version"
                log.warning(message, self._connection.name, clip(exc.message, 200))
        except (HTTPStatusError, NotMCPServer, InvalidResult) as exc:
            if exc.status_code in _INTERMEDIARY_STATUS_CODES or not self._negotiation.can_fall_back:
                raise
            self._negotiation.fall_back()

    async def _race(self, discover_task: "asyncio.Future[Any]") -> None:
        """Wait for `server/discover`, and send `initialize` at the same time.

        If the server answers `initialize`, use its session. Otherwise open a new connection without a session.
        """
        self._negotiation.fall_back()
        initialize_task = self._loop.create_task(self._initialize())
        try:
            await asyncio.wait([discover_task, initialize_task], return_when=asyncio.FIRST_COMPLETED)
            if initialize_task.done() and initialize_task.exception() is not None:
                await asyncio.wait([discover_task])
            elif not initialize_task.done():
                await asyncio.wait(
                    [initialize_task], timeout=self._timeouts.discover if _has_succeeded(discover_task) else None
                )
            if not _has_succeeded(discover_task):
                await initialize_task
            elif not _has_succeeded(initialize_task):
                self._negotiation.handle_discovery(
                    decode_body(discover_task.result(), DiscoverResult, DISCOVER), is_final=False
                )
            else:
                self.is_certain = self._negotiation.next_method is not None
        finally:
            discover_task.cancel()
            initialize_task.cancel()
            await asyncio.wait([discover_task, initialize_task])

    async def _initialize(self) -> None:
        try:
            raw = await self._send_request(INITIALIZE)
        except (RemoteError, HTTPStatusError, NotMCPServer) as exc:
            if isinstance(exc, RemoteError) and self._negotiation.handle_initialize_error(exc.data):
                return
            if isinstance(exc, RemoteError) and self._discover_error is not None:
                # Both requests failed, so the error of `server/discover` is reported.
                raise self._discover_error from None
            fallback = (
                self._connection.transport.create_fallback() if exc.status_code in _FALLBACK_STATUS_CODES else None
            )
            if fallback is None:
                raise
            await self._try_fallback(fallback, exc)
            return
        result = decode_body(raw, InitializeResult, INITIALIZE)
        self._negotiation.handle_initialize(result.protocol_version)
        self._apply_result(result, result.server_info)
        # The transport adds this header only after the handshake, so the header is passed here.
        # spec: handshake/transports#protocol-version-header
        version_header = (VERSION_HEADER, result.protocol_version.encode())
        await self._connection.notify("notifications/initialized", headers=[version_header])
        await self._connection.transport.complete_handshake(result.protocol_version)

    async def _try_fallback(self, fallback: ClientTransport, original_error: MCPError) -> None:
        try:
            await self._restart(fallback)
        except MCPError:
            # If both transports fail, the error of the newer transport is more helpful.
            raise original_error from None

    def _apply_result(self, result: DiscoverResult | InitializeResult, server_info: Implementation | None) -> None:
        connection = self._connection
        connection.encoder = self._identity.create_encoder(self._negotiation.revision)
        connection.server_capabilities = result.capabilities
        connection.unsupported_methods = find_unsupported_methods(self._negotiation.revision, result.capabilities)
        connection.instructions = result.instructions
        connection.server_info = server_info

    async def _send_request(self, method: str) -> Any:
        id = self._connection.next_id()
        revision = self._negotiation.revision
        self._has_sent_initialize = self._has_sent_initialize or method == INITIALIZE
        if method == DISCOVER:
            encoder = self._identity.create_encoder(revision)
            request = EncodedRequest(
                id, method, encoder.encode_request(id, method, {}), encoder.build_headers(method, {}), is_stateless=True
            )
        else:
            client_info, capabilities = (
                self._identity.client_info,
                self._identity.build_handshake_capabilities(),
            )
            request = EncodedRequest(id, method, encode_initialize(revision, client_info, capabilities, id))
        return await self._connection.exchange(request, RequestDeadline())


def _has_succeeded(task: "asyncio.Future[Any]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _parse_implementation(data: Any) -> Implementation | None:
    try:
        return msgspec.convert(data, Implementation)
    except msgspec.ValidationError:
        pass  # Other fields are ignored if one of them is invalid.
    try:
        title = data.get("title")
        return Implementation(
            name=str(data["name"]), version=str(data["version"]), title=title if isinstance(title, str) else None
        )
    except (TypeError, KeyError, AttributeError):
        return None


_STDOUT_HINT: Final = (
    "is it an MCP server? An MCP server must write only messages to stdout. Write other output to stderr"
)


def _invalid_message_hint(connection: Connection) -> str:
    if (connection.first_invalid_message or "").startswith("HTTP/"):
        return "the server uses HTTP. Connect with an http:// URL"
    return _STDOUT_HINT if "exit_code" in connection.transport.get_diagnostics() else "is it an MCP server?"


def _explain_error(exc: MCPError, connection: Connection) -> MCPError:
    if isinstance(exc, ConnectionLost) and exc.exit_code is not None:
        exc = add_context(
            ProcessStartError(f"{exc.args[0]} before the connection was open"),
            server=exc.server,
            step=exc.step,
            exit_code=exc.exit_code,
            stderr=exc.stderr,
            hint=exc.hint,
        )
    if (
        isinstance(exc, ProcessStartError | ConnectionLost | RequestTimeout)
        and connection.first_invalid_message is not None
    ):
        exc.args = (
            f"{exc.args[0]}. It sent {clip(connection.first_invalid_message, 200)!r}, which is not a valid message",
        )
        add_context(exc, hint=_invalid_message_hint(connection))
    if isinstance(exc, RequestTimeout):
        add_context(exc, hint="is it an MCP server? If it needs longer to start, pass timeout=Timeouts(initialize=...)")
    if isinstance(exc, RemoteError) and exc.code == MethodNotFound.code:
        add_context(exc, hint="is it an MCP server? It supports neither initialize nor server/discover")
    return add_context(exc, hint=connection.transport.suggest_fix()) if isinstance(exc, ProcessStartError) else exc


# The client remembers which targets need a handshake, so that it does not send `server/discover` again.
_KNOWN_ERAS: dict[str, Era] = {}
_MAX_KNOWN_ERAS = 1024

CreateConnection = Callable[[ClientTransport], Connection]


class Connector:
    """Opens connections to one server.

    Each new connection gets the log level and the subscriptions of the previous connection.
    """

    def __init__(
        self,
        create_transport: Callable[[], ClientTransport],
        create_connection: CreateConnection,
        identity: ClientIdentity,
        timeouts: Timeouts,
        *,
        key: str | None,
        protocol_version: str | None,
        discover_result: DiscoverResult | Literal[False] | None = None,
    ) -> None:
        check_protocol_version(protocol_version)
        if discover_result is False and protocol_version not in ("stateless", *STATELESS_REVISIONS):
            raise ValueError(
                f"discover_result=False requires protocol_version={NEWEST_REVISION!r}, because the client does not "
                "ask which versions the server supports"
            )
        self._discover_result: DiscoverResult | Literal[False] | None = discover_result
        self.identity = identity
        self.resource_subscriptions: dict[str, str] = {}  # maps normalized URIs to the URIs that the caller passed
        self._create_transport = create_transport
        self._create_connection = create_connection
        self._timeouts = timeouts
        self._key = key if protocol_version is None else None
        self._protocol_version = protocol_version

    async def open(self, deadlines: DeadlineTimer) -> Connection:
        """Open a connection that is ready for requests. All steps share one timeout."""
        timeout = self._timeouts.initialize
        deadline = RequestDeadline(timeout, timeout)
        deadlines.start(deadline, deadline)
        try:
            connection = await self._connect(deadline)
        finally:
            deadlines.stop(deadline)
        try:
            await self._restore(connection, deadline)
        except BaseException:
            await asyncio.shield(connection.close())
            raise
        return connection

    async def _connect(self, deadline: RequestDeadline) -> Connection:
        key = self._key
        # A known result of `server/discover` contains the protocol versions, so `_KNOWN_ERAS` is not needed.
        known_era = None if key is None or self._discover_result is not None else _KNOWN_ERAS.get(key)
        attempt = self._create_attempt(known_era or self._protocol_version, deadline)
        try:
            connection = await attempt.run()
        except MCPError as exc:
            if known_era is None or isinstance(exc, ConnectError | AuthError):
                raise
            # Another server may be running at this target now.
            _KNOWN_ERAS.pop(key or "", None)
            if deadline.is_expired or isinstance(exc, RequestTimeout):
                raise
            attempt = self._create_attempt(None, deadline)
            connection = await attempt.run()
        encoder = connection.encoder
        if key is not None and encoder is not None and attempt.is_certain and len(_KNOWN_ERAS) < _MAX_KNOWN_ERAS:
            _KNOWN_ERAS[key] = "stateless" if encoder.is_stateless else "handshake"
        return connection

    def _create_attempt(self, protocol_version: str | None, deadline: RequestDeadline) -> ConnectionAttempt:
        # The server may change before the next connection, so a known `server/discover` result is used only once.
        discover_result = self._discover_result
        if discover_result is not False:
            self._discover_result = None
        return ConnectionAttempt(
            self._create_transport,
            self._create_connection,
            self.identity,
            self._timeouts,
            deadline,
            protocol_version=protocol_version,
            discover_result=discover_result,
        )

    async def _restore(self, connection: Connection, deadline: RequestDeadline) -> None:
        """Restore the log level and the subscriptions after a handshake.

        In newer protocol versions, each request contains both.
        """
        if connection.encoder is None or connection.encoder.is_stateless:
            return
        if self.identity.log_level is not None and connection.server_capabilities.logging is not None:
            await self._request_logs(connection, self.identity.log_level, deadline)
        if not self.resource_subscriptions or "resources/subscribe" in connection.unsupported_methods:
            return
        await connection.transport.wait_until_listening()
        for uri in sorted(self.resource_subscriptions.values()):
            connection.add_subscriber(uri)
            try:
                await connection.request("resources/subscribe", {"uri": uri}, deadline)
            except RemoteError as exc:
                log.warning(
                    "could not resubscribe on %s to updates of %s: %s",
                    connection.name,
                    clip(uri),
                    clip(exc.message),
                )

    async def _request_logs(self, connection: Connection, level: LoggingLevel, deadline: RequestDeadline) -> None:
        # If the server refuses the log level, the connection still works.
        with contextlib.suppress(RemoteError):
            await connection.request("logging/setLevel", {"level": level}, deadline)

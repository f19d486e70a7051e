"""Protocol versions with a handshake, in which `initialize` opens a session that stores the caller.

Like the `stateless` module, this module has the functions admit, seal and refuse. The owner of the connection keeps the
HandshakeState.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from dovetail.errors import (
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ProtocolError,
    RemoteError,
    ResourceNotFound,
    UnsupportedProtocolVersion,
)
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import (
    LARGE_RESULT_BYTES,
    Caller,
    IncomingExchange,
    Service,
    check_result_size,
    create_long_token_error,
    make_type_error,
    make_uri_length_error,
)
from dovetail.protocol.principal import Principal
from dovetail.protocol.subscription_filter import (
    MAX_SUBSCRIPTION_BYTES,
    MAX_SUBSCRIPTIONS,
    RESOURCE_UPDATED,
    find_subscribed_uris,
)
from dovetail.protocol.uri_key import uri_key
from dovetail.wire import jsonrpc
from dovetail.wire.base import EmptyResult, Result, Struct
from dovetail.wire.codec import convert, encode
from dovetail.wire.jsonrpc import MAX_ID_BYTES, RequestId
from dovetail.wire.lifecycle import InitializeParams, InitializeResult
from dovetail.wire.logs import SetLevelParams, get_severity
from dovetail.wire.meta import PROGRESS_TOKEN
from dovetail.wire.methods import BATCH_REVISIONS, METHODS, Method
from dovetail.wire.revisions import HANDSHAKE_REVISIONS, NEWEST_HANDSHAKE_REVISION, get_order, is_stateless
from dovetail.wire.subscriptions import SubscribeParams

INITIALIZE: Final = "initialize"
DEFAULT_LOG_LEVEL: Final = get_severity("info")
EMPTY_RESULT: Final = EmptyResult()

# The session answers these methods itself and does not pass them to the server.
SESSION_METHODS: Final = frozenset(
    {"ping", "shutdown", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
)


def negotiate_revision(requested: str, supported: tuple[str, ...]) -> str:
    """Return the version that the client asked for, or the newest version that the server supports.

    spec: handshake/lifecycle#version-negotiation
    """
    handshake_revisions = [revision for revision in supported if not is_stateless(revision)]
    if not handshake_revisions:
        raise UnsupportedProtocolVersion(requested, tuple(reversed(supported)))
    if requested in handshake_revisions:
        return requested
    published = [revision for revision in handshake_revisions if revision in HANDSHAKE_REVISIONS]
    return max(published or handshake_revisions, key=get_order)


class ResourceWatcher(Struct, frozen=True):
    """The caller of a session. For this caller, the server watches resources of mounted servers."""

    service: Service
    principal: Principal | None
    origin: str | None


class HandshakeState:
    """The caller and the subscriptions of one client session."""

    __slots__ = ("_stop_by_key", "caller", "is_ready", "subscriptions", "watcher", "watches_resources")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.is_ready = False
        # False in a cluster, because the worker with the GET stream watches the resources.
        # The value is also False for a session that lasts for one request.
        self.watches_resources = True
        self.watcher: ResourceWatcher | None = None  # In a cluster, this object watches all subscribed resources.
        # Each function ends one subscription to a mounted server.
        self._stop_by_key: dict[str, Callable[[], None]] | None = None
        # Maps each normalized URI to the URIs that the client sent.
        self.subscriptions: dict[str, list[str]] | None = None

    @property
    def allows_batches(self) -> bool:
        """Return whether the client may send a JSON array of messages."""
        return self.caller.protocol_version in BATCH_REVISIONS

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        """Return whether this session receives a change. A session receives list changes and updates of subscribed
        resources.
        """
        if not self.is_ready:
            return False
        if method != RESOURCE_UPDATED:
            return True
        return self.subscriptions is not None and uri is not None and uri_key(uri) in self.subscriptions

    def get_subscribed_uris(self, uri: str | None) -> list[str | None]:
        """Return the subscribed URIs that a change affects, exactly as the client wrote them."""
        return find_subscribed_uris(self.subscriptions or {}, uri)

    def accepts_notification(self, method: str) -> bool:
        """Return whether the protocol version of the client has this notification."""
        return METHODS[method].exists_in(self.caller.protocol_version)

    def admit(self, message: dict[str, Any], requests: Mapping[str, Mapping[str, Method]]) -> IncomingExchange:
        """Check a request in this session, and return it as an `IncomingExchange`.

        `requests` contains the requests of the server, by protocol version and method.
        """
        method = message["method"]
        if method == INITIALIZE:
            raise InvalidRequest("Invalid request: this session is already initialized")
        if method not in requests[self.caller.protocol_version]:
            raise MethodNotFound(method)
        params: dict[str, Any] = message.get("params") or {}
        meta = params.get("_meta")
        if type(meta) is not dict:
            if meta is not None:  # Some encoders write null for a missing member.
                raise make_type_error("_meta", "an object")
            meta = {}
        elif type(token := meta.get(PROGRESS_TOKEN)) is str and len(token) > MAX_ID_BYTES:
            raise create_long_token_error()
        return IncomingExchange(message["id"], method, params, meta, self.caller)

    def admit_notification(self, message: dict[str, Any]) -> IncomingExchange:
        """Convert a notification to an `IncomingExchange`. A notification has no ID and gets no response."""
        params: dict[str, Any] = message.get("params") or {}
        meta = params.get("_meta")
        return IncomingExchange("", message["method"], params, meta if type(meta) is dict else {}, self.caller)

    def handle_session_request(self, exchange: IncomingExchange, service: Service) -> Result:
        """Return the result of a request with one of `SESSION_METHODS`."""
        match exchange.method:
            case "logging/setLevel":
                if service.capabilities().logging is None:
                    raise MethodNotFound(exchange.method)
                self.caller.log_level = get_severity(convert(exchange.params, SetLevelParams).level)
            case "resources/subscribe" | "resources/unsubscribe":
                resources_capability = service.capabilities().resources
                if resources_capability is None or not resources_capability.subscribe:
                    raise MethodNotFound(exchange.method)
                self._update_subscription(exchange, service)
            case _:
                pass
        return EMPTY_RESULT

    def _update_subscription(self, exchange: IncomingExchange, service: Service) -> None:
        uri = convert(exchange.params, SubscribeParams).uri
        if len(uri) > service.limits.max_uri_bytes:
            raise make_uri_length_error(service.limits.max_uri_bytes)
        if not service.can_subscribe(uri, exchange.caller.principal):
            raise ResourceNotFound(uri)
        if self.subscriptions is None:
            self.subscriptions = {}
        key = uri_key(uri)
        spellings = self.subscriptions.get(key, [])
        if exchange.method == "resources/unsubscribe":
            # If the client did not subscribe with this spelling of the URI, end all subscriptions to the resource.
            remaining = [spelling for spelling in spellings if spelling != uri] if uri in spellings else []
            self.subscriptions[key] = remaining
            if not remaining:
                del self.subscriptions[key]
                if self._stop_by_key is not None and (stop := self._stop_by_key.pop(key, None)) is not None:
                    stop()
        elif uri not in spellings:
            if sum(map(len, self.subscriptions.values())) >= MAX_SUBSCRIPTIONS:
                raise InvalidRequest(f"Invalid request: a session can have at most {MAX_SUBSCRIPTIONS} subscriptions")
            stored_bytes = sum(len(spelling) for stored in self.subscriptions.values() for spelling in stored)
            if stored_bytes + len(uri) > MAX_SUBSCRIPTION_BYTES:
                raise InvalidRequest(
                    f"Invalid request: the URIs of a session's subscriptions exceed {MAX_SUBSCRIPTION_BYTES} bytes"
                )
            if not spellings and self.watches_resources:
                self._watch(key, uri, service, exchange.caller.principal, exchange.origin)
            self.subscriptions[key] = [*spellings, uri]

    def _watch(self, key: str, uri: str, service: Service, principal: Principal | None, origin: str | None) -> None:
        stop = service.watch_resource(uri, principal, origin)
        if stop is not None:
            self._stop_by_key = self._stop_by_key or {}
            self._stop_by_key[key] = stop

    def update_watches(self) -> None:
        """Watch exactly the resources to which the client is subscribed now. Without a watcher, do nothing."""
        if self.watcher is None:
            return
        subscriptions, stop_by_key = self.subscriptions or {}, self._stop_by_key or {}
        for key in stop_by_key.keys() - subscriptions.keys():
            stop_by_key.pop(key)()
        for key, spellings in subscriptions.items():
            if key not in stop_by_key and spellings:
                self._watch(key, spellings[0], self.watcher.service, self.watcher.principal, self.watcher.origin)

    def stop_watching(self) -> None:
        """Remove the watcher, and stop watching all resources."""
        self.watcher = None
        stop_by_key, self._stop_by_key = self._stop_by_key, None
        for stop in (stop_by_key or {}).values():
            stop()

    def close(self) -> None:
        """End the subscriptions of this session."""
        self.watcher = None
        stop_by_key, self._stop_by_key, self.subscriptions = self._stop_by_key, None, None
        for stop in (stop_by_key or {}).values():
            stop()


def open_session(message: dict[str, Any], service: Service, principal: Principal | None = None) -> HandshakeState:
    """Create the session for an `initialize` request. Use `encode_introduction` for the response."""
    initialize_params = convert(message.get("params") or {}, InitializeParams)
    if len(encode(initialize_params)) > service.limits.max_meta_bytes:  # The session keeps these parameters in memory.
        raise InvalidParams(
            f"Invalid params: the parameters of initialize are larger than {service.limits.max_meta_bytes} bytes"
        )
    revision = negotiate_revision(initialize_params.protocol_version, service.protocol_versions)
    session_id = os.urandom(8).hex()
    caller = Caller(
        revision,
        False,
        initialize_params.capabilities,
        DEFAULT_LOG_LEVEL,
        principal,
        initialize_params.client_info,
        session_id,
    )
    return HandshakeState(caller)


def encode_introduction(id: RequestId, session: HandshakeState, service: Service) -> bytes:
    """Encode the response to an `initialize` request, with the description of the server."""
    revision = session.caller.protocol_version
    capabilities = service.capabilities()
    # Declare only those extensions that have a method in this protocol version.
    requests = () if capabilities.extensions is None else service.requests[revision].values()
    extensions = {row.extension for row in requests}
    result = InitializeResult(
        protocol_version=revision,
        capabilities=downgrade.downgrade_capabilities(revision, capabilities, extensions),
        server_info=downgrade.downgrade_implementation(revision, service.implementation),
        instructions=service.instructions,
    )
    return encode(jsonrpc.Response(id, result))


def create_implicit_session(revision: str | None, principal: Principal | None = None) -> HandshakeState:
    """Create a session that lasts for one handshake request, for a server that does not keep sessions."""
    session = HandshakeState(
        Caller(revision or NEWEST_HANDSHAKE_REVISION, False, log_level=DEFAULT_LOG_LEVEL, principal=principal)
    )
    session.is_ready, session.watches_resources = True, False
    return session


def seal(exchange: IncomingExchange, result: Result | bytes, max_result_bytes: int) -> bytes:
    """Encode a response in the caller's protocol version."""
    if exchange.method == "shutdown":
        return jsonrpc.encode_result(exchange.id, b"null")
    if isinstance(result, bytes):
        data = jsonrpc.encode_result(exchange.id, result)
    else:
        result = downgrade.downgrade_result(
            exchange.caller.protocol_version, exchange.method, result, wrap_structured=exchange.wraps
        )
        data = encode(jsonrpc.Response(exchange.id, result))
    if len(data) > max_result_bytes:
        check_result_size(exchange, result, max_result_bytes)
    if len(data) > LARGE_RESULT_BYTES and exchange.buffer is not None:
        exchange.buffer.count_encoded(len(data))
    return data


def refuse(revision: str, id: RequestId | None, exc: ProtocolError) -> bytes:
    """Encode an error response for a protocol version."""
    return jsonrpc.encode_error(id, downgrade.get_error_code(revision, exc), exc.message, exc.data)


Waiter = TypeVar("Waiter")


class PendingRequests(Generic[Waiter]):
    """The requests from a server to a client that have no response yet."""

    __slots__ = ("_create_id", "_last_number", "_progress_tokens", "_waiters")

    def __init__(self, create_id: Callable[[], RequestId] | None = None) -> None:
        self._create_id = create_id  # A function that returns a new ID. By default, IDs are numbers.
        self._last_number = 0
        self._waiters: dict[RequestId, Waiter] = {}
        self._progress_tokens: dict[RequestId, RequestId] = {}

    @property
    def open_questions(self) -> int:
        """Return the number of requests without a response."""
        return len(self._waiters)

    def create_request(self, waiter: Waiter, method: str, params: dict[str, Any]) -> tuple[RequestId, bytes]:
        """Create a request with a new ID. Return the ID and the encoded request."""
        self._last_number += 1
        id = self._last_number if self._create_id is None else self._create_id()
        self._waiters[id] = waiter
        meta = params.get("_meta")
        token = meta.get(PROGRESS_TOKEN) if type(meta) is dict else None
        if token is not None:
            self._progress_tokens[id] = token
        return id, jsonrpc.encode_request(id, method, params)

    def read_progress(self, params: dict[str, Any]) -> dict[str, Any]:
        """Convert the parameters of a progress notification from the draft version to the newest format.

        The draft has the ID of the request instead of a progress token, and one object for the progress.
        """
        progress, id = params.get("progress"), params.get("requestId")
        if type(progress) is not dict or type(id) not in (int, str):
            return params
        assert isinstance(id, int | str)
        details = {name: progress[name] for name in ("total", "message") if name in progress}
        return {PROGRESS_TOKEN: self._progress_tokens.get(id), "progress": progress.get("current")} | details

    def match_response(self, message: dict[str, Any]) -> tuple[Waiter, Any] | None:
        """Find the request that a response answers. Return its future, and the result or the error.

        Return None if the request ID is unknown.
        """
        id = message.get("id")
        waiter = self._remove(id) if type(id) in (int, str) else None
        if waiter is None:
            return None
        error = message.get("error")
        if error is None:
            return waiter, message["result"]
        return waiter, RemoteError(error["code"], error["message"], error.get("data"))

    def discard(self, id: RequestId) -> bool:
        """Stop waiting for a response. Return whether the request was open."""
        return self._remove(id) is not None

    def _remove(self, id: Any) -> Waiter | None:
        self._progress_tokens.pop(id, None)
        return self._waiters.pop(id, None)

    def drain(self) -> list[Waiter]:
        """Remove and return the futures of all open requests, because the session ends."""
        waiters = list(self._waiters.values())
        self._waiters.clear()
        self._progress_tokens.clear()
        return waiters


def encode_change(method: str, uri: str | None) -> bytes:
    """Encode the notification about a change of a list or a resource."""
    return jsonrpc.encode_notification(method, None if uri is None else {"uri": uri})

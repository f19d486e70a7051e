"""Stateless protocol versions, in which each request contains the protocol version and the server keeps no state.

`admit` turns a message into an exchange, `seal` encodes a result, and `refuse` encodes an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from dovetail.errors import InvalidParams, MethodNotFound, ProtocolError, UnsupportedProtocolVersion
from dovetail.protocol.downgrade import get_error_code
from dovetail.protocol.exchange import (
    LARGE_RESULT_BYTES,
    NO_CAPABILITIES,
    Caller,
    ForwardedResult,
    IncomingExchange,
    check_result_size,
    create_long_token_error,
    make_type_error,
)
from dovetail.protocol.headers import METHOD_HEADER, NAME_HEADER, VERSION_HEADER, check_mirrored_header
from dovetail.protocol.principal import Principal
from dovetail.wire import jsonrpc
from dovetail.wire.base import Result, replace
from dovetail.wire.codec import as_raw, convert, decode, encode
from dovetail.wire.jsonrpc import MAX_ID_BYTES, RESPONSE_PREFIX, RequestId
from dovetail.wire.lifecycle import TASKS_EXTENSION, ClientCapabilities, Implementation
from dovetail.wire.logs import LEVELS, get_severity
from dovetail.wire.meta import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    SERVER_INFO,
)
from dovetail.wire.methods import Method
from dovetail.wire.revisions import DRAFT, NEWEST_REVISION, STATELESS_REVISIONS

COMPLETE_RESULT_TYPE: Final = "complete"

_MAX_CACHED_INFO_BYTES: Final = 1024  # Client info above this size is not cached.
_TASKS_ONLY: Final[dict[str, Any]] = {"extensions": {TASKS_EXTENSION: {}}}


def is_stateless_message(message: dict[str, Any]) -> bool:
    """Return whether a message has a stateless protocol version. spec: versioning#terminology"""
    params = message.get("params")
    if type(params) is not dict:
        return False
    meta = params.get("_meta")
    return type(meta) is dict and PROTOCOL_VERSION in meta


class Described(Protocol):
    """The attributes of a server that can change while it is running."""

    @property
    def implementation(self) -> Implementation: ...
    @property
    def requests(self) -> Mapping[str, Mapping[str, Method]]: ...


class StatelessProtocol:
    """Decodes requests to a server and encodes its responses, in the stateless protocol versions."""

    def __init__(self, server: Described, revisions: Sequence[str], max_result_bytes: int) -> None:
        self._served_revisions = frozenset(revisions).intersection(STATELESS_REVISIONS)
        self.is_served = bool(self._served_revisions)  # True if the server supports a stateless version
        self._supported_revisions = tuple(reversed([revision for revision in revisions if revision != DRAFT]))
        self._server = server
        self._max_result_bytes = max_result_bytes
        # The last client info, as JSON and as an object.
        # One tuple contains both values, because several threads may handle requests.
        self._cached_client: tuple[Any, Implementation | None] = None, None
        self._encode_server_info()

    def _encode_server_info(self) -> None:
        self._server_info = self._server.implementation
        meta = {SERVER_INFO: self._server_info}
        self._encoded_meta = as_raw(encode(meta))  # Nearly every result has this `_meta`, so it is encoded once.
        self._result_prefix = b',"result":' + encode({"resultType": COMPLETE_RESULT_TYPE, "_meta": meta})[:-1]

    def admit(
        self, message: dict[str, Any], headers: Mapping[bytes, bytes] | None, principal: Principal | None = None
    ) -> IncomingExchange:
        """Check a request and return it as an `IncomingExchange`. `headers` is None if the transport has none."""
        params: dict[str, Any] = message.get("params") or {}
        meta: Any = params.get("_meta")
        if type(meta) is not dict:
            raise make_type_error("_meta", f"an object with {PROTOCOL_VERSION}")
        revision = meta.get(PROTOCOL_VERSION)
        if type(revision) is not str:
            raise _make_meta_error(PROTOCOL_VERSION, f"_meta must contain {PROTOCOL_VERSION}")
        if headers is not None:
            check_mirrored_header(VERSION_HEADER, headers, revision)
        if revision not in self._served_revisions:
            raise UnsupportedProtocolVersion(revision, self._supported_revisions)
        method = message["method"]
        row = self._server.requests[revision].get(method)
        if headers is not None:
            check_mirrored_header(METHOD_HEADER, headers, method)
            # The name header is optional for requests of extensions, because some clients do not send it.
            if row is not None and row.name_parameter is not None and (row.extension is None or NAME_HEADER in headers):
                check_mirrored_header(NAME_HEADER, headers, params.get(row.name_parameter))
        level = _read_log_level(meta) if LOG_LEVEL in meta else None
        client_info, cached = meta.get(CLIENT_INFO), self._cached_client
        client = cached[1] if client_info == cached[0] else self._read_client(client_info)
        caller = Caller(revision, True, _read_capabilities(meta), level, principal, client)
        if row is None:
            raise MethodNotFound(method)
        if type(token := meta.get(PROGRESS_TOKEN)) is str and len(token) > MAX_ID_BYTES:
            raise create_long_token_error()
        return IncomingExchange(message["id"], method, params, meta, caller, headers)

    def _read_client(self, client_info: Any) -> Implementation | None:
        """Decode the client info. Cache it, because consecutive requests usually send the same info."""
        if client_info is None:
            return None
        client = convert(client_info, Implementation, label=CLIENT_INFO, field=f"_meta.{CLIENT_INFO}")
        encoded_info = encode(client_info)
        # Middleware may change the client info of a request, so the cache has a copy.
        # A client with icons is not cached, because middleware could change the list of icons.
        if client.icons is None and len(encoded_info) <= _MAX_CACHED_INFO_BYTES:
            self._cached_client = decode(encoded_info), client
        return client

    def seal(self, exchange: IncomingExchange, result: Result | bytes) -> bytes:
        """Encode a response. Every result contains its type and the server's name and version.

        spec: basic#resulttype
        """
        if self._server.implementation is not self._server_info:
            self._encode_server_info()
        if isinstance(result, bytes):
            data = (
                jsonrpc.encode_result(exchange.id, result)
                if type(result) is ForwardedResult
                else self._seal_bytes(exchange.id, result)
            )
        else:
            is_plain = result.meta is None and result.result_type is None
            stamped_result = (
                replace(result, meta=self._encoded_meta, result_type=COMPLETE_RESULT_TYPE)
                if is_plain
                else self._add_server_info(result)
            )
            data = encode(jsonrpc.Response(exchange.id, stamped_result))
        if len(data) > self._max_result_bytes:
            check_result_size(exchange, result, self._max_result_bytes)
        if len(data) > LARGE_RESULT_BYTES and exchange.buffer is not None:
            exchange.buffer.count_encoded(len(data))
        return data

    def _add_server_info(self, result: Result) -> Result:
        meta = {SERVER_INFO: self._server_info} | (result.meta or {})
        return replace(result, meta=meta, result_type=result.result_type or COMPLETE_RESULT_TYPE)

    def _seal_bytes(self, id: RequestId, body: bytes) -> bytes:
        if len(body) == 2:
            return b"".join((RESPONSE_PREFIX, encode(id), self._result_prefix, b"}}"))
        # A memoryview avoids copying a large result. For a small result, a copy is faster.
        rest = memoryview(body)[1:] if len(body) > LARGE_RESULT_BYTES else body[1:]
        return b"".join((RESPONSE_PREFIX, encode(id), self._result_prefix, b",", rest, b"}"))

    def refuse(self, id: RequestId | None, exc: ProtocolError) -> bytes:
        """Encode the error response to a request."""
        return jsonrpc.encode_error(id, get_error_code(NEWEST_REVISION, exc), exc.message, exc.data)


def _read_capabilities(meta: dict[str, Any]) -> ClientCapabilities:
    value = meta.get(CLIENT_CAPABILITIES)
    if type(value) is not dict:
        raise _make_meta_error(CLIENT_CAPABILITIES, f"_meta must contain {CLIENT_CAPABILITIES}")
    if not value:
        return NO_CAPABILITIES
    if value == _TASKS_ONLY:  # This case is common, because dovetail clients declare tasks by default.
        return replace(NO_CAPABILITIES, extensions={TASKS_EXTENSION: {}})
    return convert(value, ClientCapabilities, label=CLIENT_CAPABILITIES, field=f"_meta.{CLIENT_CAPABILITIES}")


def _read_log_level(meta: dict[str, Any]) -> int | None:
    level = meta[LOG_LEVEL]
    if level is None:
        return None
    if level not in LEVELS:
        raise _make_meta_error(LOG_LEVEL, f"{LOG_LEVEL} must be one of {', '.join(LEVELS)}")
    return get_severity(level)


def _make_meta_error(name: str, problem: str) -> InvalidParams:
    return InvalidParams(f"Invalid params: {problem}", {"field": f"_meta.{name}"})

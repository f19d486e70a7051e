"""The stateless era: each request names its caller and protocol version, and nothing is remembered.

Three verbs: `admit` makes an Exchange of a message, `seal` makes bytes of a result, `refuse` makes bytes of an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.errors import HeaderMismatch, InvalidParams, MethodNotFound, ProtocolError, UnsupportedProtocolVersion
from dovetail.protocol.exchange import NO_CAPABILITIES, Caller, Exchange, ForwardedResult, check_result_size
from dovetail.protocol.headers import decode_value
from dovetail.protocol.principal import Principal
from dovetail.wire import jsonrpc
from dovetail.wire.base import Result, replace
from dovetail.wire.codec import as_raw, convert, encode
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.lifecycle import ClientCapabilities, Implementation
from dovetail.wire.logs import LEVELS, get_severity
from dovetail.wire.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION, SERVER_INFO
from dovetail.wire.methods import REQUESTS
from dovetail.wire.revisions import DRAFT, STATELESS_REVISIONS

COMPLETE_RESULT_TYPE: Final = "complete"

_RESPONSE_PREFIX: Final = b'{"jsonrpc":"2.0","id":'
_LARGE_RESULT_BYTES: Final = 64 * 1024
_MAX_CACHED_INFO_BYTES: Final = 1024  # bytes of what a caller says of itself that are worth remembering

VERSION_HEADER: Final = b"mcp-protocol-version"
METHOD_HEADER: Final = b"mcp-method"
NAME_HEADER: Final = b"mcp-name"


def is_stateless_message(message: dict[str, Any]) -> bool:
    """Whether a message is of this era by its own account. spec: versioning#terminology"""
    params = message.get("params")
    if type(params) is not dict:
        return False
    meta = params.get("_meta")
    return type(meta) is dict and PROTOCOL_VERSION in meta


class StatelessProtocol:
    """The era's verbs for one server."""

    def __init__(self, implementation: Implementation, revisions: Sequence[str], max_result_bytes: int) -> None:
        self._served_revisions = frozenset(revisions).intersection(STATELESS_REVISIONS)
        self.is_served = bool(self._served_revisions)  # any revision of this era at all
        self._supported_revisions = tuple(reversed([revision for revision in revisions if revision != DRAFT]))
        self._server_info = implementation
        self._max_result_bytes = max_result_bytes
        self._cached_client_info: Any = None  # the last caller's account of itself, and what was read from it
        self._cached_client: Implementation | None = None
        meta = {SERVER_INFO: implementation}
        self._encoded_meta = as_raw(encode(meta))  # as it stands in nearly every result
        self._result_prefix = b',"result":' + encode({"resultType": COMPLETE_RESULT_TYPE, "_meta": meta})[:-1]

    def admit(
        self, message: dict[str, Any], headers: Mapping[bytes, bytes] | None, principal: Principal | None = None
    ) -> Exchange:
        """The exchange a request opens; headers are None where the transport has none."""
        params: dict[str, Any] = message.get("params") or {}
        meta: Any = params.get("_meta")
        if type(meta) is not dict:
            raise InvalidParams(f"Invalid params: _meta must be an object holding {PROTOCOL_VERSION}")
        revision = self._check_revision(meta, headers)
        method = message["method"]
        row = REQUESTS[revision].get(method)
        if headers is not None:
            _check_mirrored_header(METHOD_HEADER, headers, method)
            if row is not None and row.name_parameter is not None:
                _check_mirrored_header(NAME_HEADER, headers, params.get(row.name_parameter))
        level = _read_log_level(meta) if LOG_LEVEL in meta else None
        caller = Caller(
            revision, True, _read_capabilities(meta), level, principal, self._read_client(meta.get(CLIENT_INFO))
        )
        if row is None:
            raise MethodNotFound(method)
        return Exchange(message["id"], method, params, meta, caller, headers)

    def _read_client(self, client_info: Any) -> Implementation | None:
        """Who is asking; most often whoever asked last, which is quicker to see than to read again."""
        if client_info == self._cached_client_info:
            return self._cached_client
        client = None if client_info is None else convert(client_info, Implementation, label=CLIENT_INFO)
        if len(encode(client_info)) <= _MAX_CACHED_INFO_BYTES:
            self._cached_client_info, self._cached_client = client_info, client
        return client

    def seal(self, exchange: Exchange, result: Result | bytes) -> bytes:
        """The response. Every result says what it is and who made it. spec: basic#resulttype"""
        if isinstance(result, bytes):
            data = self._seal_bytes(exchange.id, result)
        else:
            is_plain = result.meta is None and result.result_type is None
            stamped_result = (
                replace(result, meta=self._encoded_meta, result_type=COMPLETE_RESULT_TYPE)
                if is_plain
                else self._add_server_info(result)
            )
            data = jsonrpc.encode_response(exchange.id, stamped_result)
        if len(data) > self._max_result_bytes:
            check_result_size(exchange, result, self._max_result_bytes)
        return data

    def _add_server_info(self, result: Result) -> Result:
        meta = {SERVER_INFO: self._server_info} | (result.meta or {})
        return replace(result, meta=meta, result_type=result.result_type or COMPLETE_RESULT_TYPE)

    def _seal_bytes(self, id: RequestId, body: bytes) -> bytes:
        if type(body) is ForwardedResult:
            return jsonrpc.encode_result(id, body)
        if len(body) == 2:
            return b"".join((_RESPONSE_PREFIX, encode(id), self._result_prefix, b"}}"))
        # From a view, a large result is copied once and not twice; for a small one the view would cost more.
        rest = memoryview(body)[1:] if len(body) > _LARGE_RESULT_BYTES else body[1:]
        return b"".join((_RESPONSE_PREFIX, encode(id), self._result_prefix, b",", rest, b"}"))

    def refuse(self, id: RequestId | None, exc: ProtocolError) -> bytes:
        """The error response."""
        return jsonrpc.encode_protocol_error(id, exc)

    def _check_revision(self, meta: dict[str, Any], headers: Mapping[bytes, bytes] | None) -> str:
        revision = meta.get(PROTOCOL_VERSION)
        if type(revision) is not str:
            raise InvalidParams(f"Invalid params: _meta must hold {PROTOCOL_VERSION}")
        if headers is not None:
            _check_mirrored_header(VERSION_HEADER, headers, revision)
        if revision not in self._served_revisions:
            raise UnsupportedProtocolVersion(revision, self._supported_revisions)
        return revision


def _check_mirrored_header(header: bytes, headers: Mapping[bytes, bytes], value: Any) -> None:
    """The header repeats the body. spec: streamable-http#server-validation"""
    header_value = headers.get(header)
    # The common case, told without decoding: plain words that are no sentinel, said the same way twice.
    is_same = type(value) is str and header_value == value.encode()
    if is_same and value.isascii() and value.isprintable() and not value.startswith("=?"):
        return
    name = header.decode("ascii")
    if header_value is None:
        raise HeaderMismatch(f"Header mismatch: {name} is required")
    text = decode_value(header_value, header=name) if header == NAME_HEADER else header_value.decode("latin-1")
    if text != value:
        raise HeaderMismatch(f"Header mismatch: {name} says '{clip(text, 64)}', the body something else")


def _read_capabilities(meta: dict[str, Any]) -> ClientCapabilities:
    value = meta.get(CLIENT_CAPABILITIES)
    if value == {}:
        return NO_CAPABILITIES
    if type(value) is not dict:
        raise InvalidParams(f"Invalid params: _meta must hold {CLIENT_CAPABILITIES}")
    return convert(value, ClientCapabilities, label=CLIENT_CAPABILITIES)


def _read_log_level(meta: dict[str, Any]) -> int | None:
    level = meta[LOG_LEVEL]
    if level is None:
        return None
    if level not in LEVELS:
        raise InvalidParams(f"Invalid params: {LOG_LEVEL} must be one of {', '.join(LEVELS)}")
    return get_severity(level)

"""The stateless era: each request says who asks, in which revision, and needs nothing remembered.

Three verbs: `admit` makes an Exchange of a message, `seal` makes bytes of a result, `refuse` makes bytes of an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dovetail.errors import (
    HeaderMismatch,
    InvalidParams,
    MethodNotFound,
    ProtocolError,
    UnsupportedRevision,
    clip,
)
from dovetail.protocol.exchange import NO_CAPABILITIES, Caller, Exchange, Whole, check_result
from dovetail.protocol.headers import decode_value
from dovetail.protocol.principal import Principal
from dovetail.wire import jsonrpc
from dovetail.wire.codec import convert, encode, raw
from dovetail.wire.jsonrpc import Id
from dovetail.wire.lifecycle import ClientCapabilities, Implementation
from dovetail.wire.logs import LEVELS, severity
from dovetail.wire.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION, SERVER_INFO
from dovetail.wire.methods import REQUESTS
from dovetail.wire.revisions import DRAFT, STATELESS
from dovetail.wire.shape import Result, replace

COMPLETE: Final = "complete"

_HEAD: Final = b'{"jsonrpc":"2.0","id":'
_LARGE: Final = 64 * 1024
_BRIEF: Final = 1024  # bytes of what a caller says of itself that are worth remembering

VERSION_HEADER: Final = b"mcp-protocol-version"
METHOD_HEADER: Final = b"mcp-method"
NAME_HEADER: Final = b"mcp-name"


def speaks(message: dict[str, Any]) -> bool:
    """Whether a message is of this era by its own account. spec: versioning#terminology"""
    params = message.get("params")
    if type(params) is not dict:
        return False
    meta = params.get("_meta")
    return type(meta) is dict and PROTOCOL_VERSION in meta


class Modern:
    """The era's verbs for one server."""

    def __init__(self, implementation: Implementation, revisions: Sequence[str], result_limit: int) -> None:
        self._served = frozenset(revisions).intersection(STATELESS)
        self.serves = bool(self._served)  # any revision of this era at all
        self._all = tuple(reversed([one for one in revisions if one != DRAFT]))
        self._server_info = implementation
        self._result_limit = result_limit
        self._declared: Any = None  # the last caller's account of itself, and what was read from it
        self._asking: Implementation | None = None
        meta = {SERVER_INFO: implementation}
        self._meta = raw(encode(meta))  # as it stands in nearly every result
        self._stamp = b',"result":' + encode({"resultType": COMPLETE, "_meta": meta})[:-1]

    def admit(
        self, message: dict[str, Any], headers: Mapping[bytes, bytes] | None, principal: Principal | None = None
    ) -> Exchange:
        """The exchange a request opens; headers are None where the transport has none."""
        params: dict[str, Any] = message.get("params") or {}
        meta: Any = params.get("_meta")
        if type(meta) is not dict:
            raise InvalidParams(f"Invalid params: _meta must be an object holding {PROTOCOL_VERSION}")
        revision = self._revision(meta, headers)
        method = message["method"]
        row = REQUESTS[revision].get(method)
        if headers is not None:
            _mirror(METHOD_HEADER, headers, method)
            if row is not None and row.header is not None:
                _mirror(NAME_HEADER, headers, params.get(row.header))
        level = _level(meta) if LOG_LEVEL in meta else None
        caller = Caller(revision, True, _capabilities(meta), level, principal, self._client(meta.get(CLIENT_INFO)))
        if row is None:
            raise MethodNotFound(method)
        return Exchange(message["id"], method, params, meta, caller, headers)

    def _client(self, declared: Any) -> Implementation | None:
        """Who is asking; most often whoever asked last, which is quicker to see than to read again."""
        if declared == self._declared:
            return self._asking
        asking = None if declared is None else convert(declared, Implementation, what=CLIENT_INFO)
        if len(encode(declared)) <= _BRIEF:
            self._declared, self._asking = declared, asking
        return asking

    def seal(self, exchange: Exchange, result: Result | bytes) -> bytes:
        """The response. Every result says what it is and who made it. spec: basic#resulttype"""
        if isinstance(result, bytes):
            data = self._seal_bytes(exchange.id, result)
        else:
            plain = result.meta is None and result.result_type is None
            stamped = replace(result, meta=self._meta, result_type=COMPLETE) if plain else self._stamped(result)
            data = jsonrpc.response(exchange.id, stamped)
        if len(data) > self._result_limit:
            check_result(exchange, result, self._result_limit)
        return data

    def _stamped(self, result: Result) -> Result:
        meta = {SERVER_INFO: self._server_info} | (result.meta or {})
        return replace(result, meta=meta, result_type=result.result_type or COMPLETE)

    def _seal_bytes(self, id: Id, body: bytes) -> bytes:
        if type(body) is Whole:
            return jsonrpc.result(id, body)
        if len(body) == 2:
            return b"".join((_HEAD, encode(id), self._stamp, b"}}"))
        # From a view, a large result is copied once and not twice; for a small one the view would cost more.
        rest = memoryview(body)[1:] if len(body) > _LARGE else body[1:]
        return b"".join((_HEAD, encode(id), self._stamp, b",", rest, b"}"))

    def refuse(self, id: Id | None, exc: ProtocolError) -> bytes:
        """The error response."""
        return jsonrpc.refusal(id, exc)

    def _revision(self, meta: dict[str, Any], headers: Mapping[bytes, bytes] | None) -> str:
        revision = meta.get(PROTOCOL_VERSION)
        if type(revision) is not str:
            raise InvalidParams(f"Invalid params: _meta must hold {PROTOCOL_VERSION}")
        if headers is not None:
            _mirror(VERSION_HEADER, headers, revision)
        if revision not in self._served:
            raise UnsupportedRevision(revision, self._all)
        return revision


def _mirror(header: bytes, headers: Mapping[bytes, bytes], value: Any) -> None:
    """The header repeats the body. spec: streamable-http#server-validation"""
    given = headers.get(header)
    # The common case, told without decoding: plain words that are no sentinel, said the same way twice.
    same = type(value) is str and given == value.encode()
    if same and value.isascii() and value.isprintable() and not value.startswith("=?"):
        return
    name = header.decode("ascii")
    if given is None:
        raise HeaderMismatch(f"Header mismatch: {name} is required")
    text = decode_value(given, header=name) if header == NAME_HEADER else given.decode("latin-1")
    if text != value:
        raise HeaderMismatch(f"Header mismatch: {name} says '{clip(text, 64)}', the body something else")


def _capabilities(meta: dict[str, Any]) -> ClientCapabilities:
    declared = meta.get(CLIENT_CAPABILITIES)
    if declared == {}:
        return NO_CAPABILITIES
    if type(declared) is not dict:
        raise InvalidParams(f"Invalid params: _meta must hold {CLIENT_CAPABILITIES}")
    return convert(declared, ClientCapabilities, what=CLIENT_CAPABILITIES)


def _level(meta: dict[str, Any]) -> int | None:
    level = meta[LOG_LEVEL]
    if level is None:
        return None
    if level not in LEVELS:
        raise InvalidParams(f"Invalid params: {LOG_LEVEL} must be one of {', '.join(LEVELS)}")
    return severity(level)

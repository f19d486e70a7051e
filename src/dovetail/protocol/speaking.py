"""How a client writes its requests in each era, and which error a server's refusal is. Pure bytes and values.

The stateless era's `_meta` says the same thing every time, so it is encoded once.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from dovetail.errors import (
    InternalError,
    InvalidParams,
    MCPError,
    MethodNotFound,
    MissingCapability,
    NotFound,
    PeerError,
    RateLimited,
    ResultError,
    ToolError,
    Unauthorized,
)
from dovetail.protocol.channel import step
from dovetail.protocol.headers import encode_value
from dovetail.protocol.modern import METHOD_HEADER, NAME_HEADER, VERSION_HEADER
from dovetail.wire import jsonrpc
from dovetail.wire.codec import encode
from dovetail.wire.incoming import Failure, plain
from dovetail.wire.jsonrpc import Id
from dovetail.wire.lifecycle import ClientCapabilities, Implementation
from dovetail.wire.logs import LoggingLevel
from dovetail.wire.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROGRESS_TOKEN, PROTOCOL_VERSION
from dovetail.wire.methods import METHODS
from dovetail.wire.revisions import DRAFT, stateless


class Speaker:
    """One client's way of speaking one revision."""

    def __init__(
        self,
        revision: str,
        client: Implementation,
        capabilities: ClientCapabilities,
        level: LoggingLevel | None = None,
    ) -> None:
        self.revision = revision
        self.stateless = stateless(revision)
        self._meta: dict[str, Any] = {}
        if self.stateless:
            self._meta = {
                PROTOCOL_VERSION: revision,
                CLIENT_INFO: client,
                CLIENT_CAPABILITIES: capabilities,
            }
            if level is not None:
                self._meta[LOG_LEVEL] = level
        self._inner = encode(self._meta)[1:-1]
        self._comma = b"," if self._inner else b""
        self._version = (VERSION_HEADER, revision.encode())

    def request(self, id: Id, method: str, params: Any, meta: Mapping[str, Any] | None = None) -> bytes:
        """The message; its progress token is its id, so that a server at work can always say so."""
        text = encode(id)
        if type(params) is dict and "_meta" in params:  # of a caller who writes the whole message: once is enough
            params = dict(params)
            meta = {**(params.pop("_meta") or {}), **(meta or {})}
        inner, comma = self._inner, self._comma
        if meta:
            both = self._meta | dict(meta)
            both.pop(PROGRESS_TOKEN, None)
            inner = encode(both)[1:-1]
            comma = b"," if inner else b""
        try:
            own = encode(params)[:-1] if params else b"{"
        except (TypeError, ValueError, OverflowError) as exc:
            kind = ValueError if isinstance(exc, UnicodeError) else type(exc)  # which is made of other things
            raise kind(f"what is given to {step(method, params)} cannot be sent as JSON: {exc}") from None
        return b"".join(
            (
                b'{"jsonrpc":"2.0","id":',
                text,
                b',"method":"',
                method.encode(),
                b'","params":',
                own,
                b',"_meta":{' if len(own) > 1 else b'"_meta":{',
                inner,
                comma,
                _TOKEN,
                text,
                b"}}}",
            )
        )

    def headers(self, method: str, params: Any) -> list[tuple[bytes, bytes]]:
        """The headers that mirror a request of the stateless era. spec: streamable-http#standard-request-headers"""
        mirrored = [self._version, (METHOD_HEADER, method.encode())]
        row = METHODS.get(method)
        if row is not None and row.header is not None:
            value = params.get(row.header)
            if isinstance(value, str):
                mirrored.append((NAME_HEADER, encode_value(value).encode("ascii")))
        return mirrored


_TOKEN: Final = b'"%s":' % PROGRESS_TOKEN.encode()


def opening(revision: str, client: Implementation, capabilities: ClientCapabilities, id: Id) -> bytes:
    """The request that opens a handshake session."""
    return jsonrpc.request(
        id,
        "initialize",
        {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": client},
    )


def progress_of(params: Any) -> tuple[Id, float, float | None, str | None]:
    """Whose progress, how far, of how much, and in which words; the draft dialect nests it."""
    found: Any = plain(params)
    try:
        inner = found["progress"]
        nested = type(inner) is dict
        token = found["requestId" if nested else "progressToken"]
        done, rest = (inner["current"], inner) if nested else (inner, found)
        if type(token) in (int, str) and type(done) in (int, float):
            total, text = rest.get("total"), rest.get("message")
            return token, done, total if type(total) in (int, float) else None, text if type(text) is str else None
    except (KeyError, TypeError):
        pass
    raise ResultError("notifications/progress lacks its token or its progress")


# The codes of the specifications and seeds that name a thing that is not there, by method and dialect.
_MISSING: Final = {
    "resources/read": frozenset({-32002, -32001}),
    "resources/subscribe": frozenset({-32002, -32001}),
}
# Where there is no code of its own for it, words tell: those of the specification's examples, and those of other SDKs.
# spec: tools#error-handling
_NAMED: Final = {
    "tools/call": ("tool",),
    "prompts/get": ("prompt",),
    "resources/read": ("resource",),
    "resources/subscribe": ("resource",),
    "completion/complete": ("prompt", "resource"),
}
_SAYS_MISSING: Final = re.compile(
    r"(?:MCP error -?\d+: )?"
    r"(?:(?:unknown|no such) (tool|prompt|resource)\b|(tool|prompt|resource)\b.{0,300} not found\b)",
    re.IGNORECASE | re.DOTALL,
)
_UNCODED: Final = frozenset({InvalidParams.code, InternalError.code, -32000, -32002, 0})
_DRAFT_MISSING: Final = frozenset({-32002, -32003, -32004})
_UNAUTHORIZED: Final = -32003
_RATE_LIMITED: Final = frozenset({-32004, 429})
_EXECUTION: Final = -32002


_HANDLERS: Final = {"sampling": "sample=", "roots": "roots="}


def _undeclared(data: Any) -> str:
    needed = data.get("requiredCapabilities") if isinstance(data, dict) else None
    names = [
        ("elicit_url=" if "url" in (inner or ()) else "elicit=") if name == "elicitation" else _HANDLERS[name]
        for name, inner in (needed.items() if isinstance(needed, dict) else ())
        if name == "elicitation" or name in _HANDLERS
    ]
    return f"give the client a handler for it: {' and '.join(names) or 'elicit=, elicit_url=, sample= or roots='}"


_ABSENT: Final = {
    "tools": "this server offers no tools",
    "prompts": "this server offers no prompts",
    "resources": "this server offers no resources",
    "resources/subscribe": "this server does not tell when a resource changes",
    "completion": "this server completes no arguments",
    "logging": "this server sends no log messages",
}


def refused(revision: str | None, method: str, failure: Failure) -> MCPError:
    """The exception an error response stands for."""
    error: MCPError = _kind(revision, method, failure)(failure.code, failure.message, failure.data)
    return error.at(hint=_hint(method, failure.code, failure.data))


def _hint(method: str, code: int, data: Any) -> str | None:
    if code == MissingCapability.code or (isinstance(data, dict) and "requiredCapabilities" in data):
        return _undeclared(data)
    row = METHODS.get(method)
    if code == MethodNotFound.code and row is not None and row.sender == "client":
        return _ABSENT.get(method) or _ABSENT.get(method.partition("/")[0])
    return None


def says_missing(method: str, words: str) -> bool:
    """Whether a server's words say that there is no such tool, prompt or resource."""
    said = _SAYS_MISSING.match(words)
    return said is not None and (said[1] or said[2]).lower() in _NAMED.get(method, ())


def _kind(revision: str | None, method: str, failure: Failure) -> Any:
    code = failure.code
    # The newest revision has no code for it, but the URI that leads nowhere is named. spec: resources#error-handling
    if code == InvalidParams.code and method in _MISSING and type(failure.data) is dict and "uri" in failure.data:
        return NotFound
    if code in _MISSING.get(method, ()) or (revision == DRAFT and code in _DRAFT_MISSING):
        return NotFound
    if code in _UNCODED and says_missing(method, failure.message):
        return NotFound
    if code in _RATE_LIMITED:
        return RateLimited
    if code == _UNAUTHORIZED:
        return Unauthorized
    if code == _EXECUTION and method == "tools/call":
        return _failed_tool
    return PeerError


def _failed_tool(code: int, message: str, data: Any) -> ToolError:
    return ToolError(message or f"the tool failed ({code})")

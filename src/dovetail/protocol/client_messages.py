"""Encode the requests of a client for each protocol version, and turn error responses into exceptions.

In stateless protocol versions, the `_meta` is the same in every request, so it is encoded once.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from dovetail.error_context import add_context, clip
from dovetail.errors import (
    ConnectionLost,
    InternalError,
    InvalidParams,
    InvalidResult,
    MCPError,
    MethodNotFound,
    MissingClientCapability,
    NotFound,
    NotSupported,
    RateLimited,
    RemoteError,
    ToolError,
    Unauthorized,
)
from dovetail.protocol.headers import METHOD_HEADER, NAME_HEADER, VERSION_HEADER, encode_value
from dovetail.protocol.interfaces.client_transport import describe_request
from dovetail.protocol.interfaces.shared_state import WORKER_LOST
from dovetail.wire import jsonrpc
from dovetail.wire.codec import encode
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.lifecycle import (
    TASKS_EXTENSION,
    ClientCapabilities,
    Implementation,
    ListChangedCapability,
    ResourcesCapability,
    ServerCapabilities,
)
from dovetail.wire.logs import LoggingLevel
from dovetail.wire.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROGRESS_TOKEN, PROTOCOL_VERSION
from dovetail.wire.methods import METHODS, Method
from dovetail.wire.raw_message import ErrorObject, to_plain
from dovetail.wire.revisions import DRAFT, REVISIONS, REVISIONS_WITHOUT_COMPLETIONS, is_older, is_stateless


class RequestEncoder:
    """Encodes the messages of a client for one protocol version."""

    def __init__(
        self,
        revision: str,
        client_info: Implementation,
        capabilities: ClientCapabilities,
        log_level: LoggingLevel | None = None,
    ) -> None:
        self.revision = revision
        self.is_stateless = is_stateless(revision)
        self._meta: dict[str, Any] = {}
        if self.is_stateless:
            self._meta = {
                PROTOCOL_VERSION: revision,
                CLIENT_INFO: client_info,
                CLIENT_CAPABILITIES: capabilities,
            }
            if log_level is not None:
                self._meta[LOG_LEVEL] = log_level
        self._meta_members = encode(self._meta)[1:-1]
        self._separator = b"," if self._meta_members else b""
        self._version_header = (VERSION_HEADER, revision.encode())

    def encode_request(self, id: RequestId, method: str, params: Any, meta: Mapping[str, Any] | None = None) -> bytes:
        """Encode a request. The request ID is also the progress token, so every server can report progress."""
        encoded_id = encode(id)
        # The parameters from the caller already contain a `_meta` object.
        if type(params) is dict and "_meta" in params:
            params = dict(params)
            meta = {**(params.pop("_meta") or {}), **(meta or {})}
        meta_members, separator = self._meta_members, self._separator
        if meta:
            merged_meta = self._meta | dict(meta)
            merged_meta.pop(PROGRESS_TOKEN, None)
            if self.is_stateless:  # The protocol version in the body must match the header.
                merged_meta[PROTOCOL_VERSION] = self.revision
            meta_members = encode(merged_meta)[1:-1]
            separator = b"," if meta_members else b""
        try:
            encoded_params = encode(params)[:-1] if params else b"{"
        except (TypeError, ValueError, OverflowError) as exc:
            # UnicodeError needs more arguments than a message, so ValueError is raised instead.
            error_type = ValueError if isinstance(exc, UnicodeError) else type(exc)
            raise error_type(
                f"the parameters of {describe_request(method, params)} cannot be encoded as JSON: {exc}"
            ) from None
        return b"".join(
            (
                b'{"jsonrpc":"2.0","id":',
                encoded_id,
                b',"method":"',
                method.encode(),
                b'","params":',
                encoded_params,
                b',"_meta":{' if len(encoded_params) > 1 else b'"_meta":{',
                meta_members,
                separator,
                _PROGRESS_TOKEN_KEY,
                encoded_id,
                b"}}}",
            )
        )

    def build_headers(self, method: str, params: Any) -> list[tuple[bytes, bytes]]:
        """Build the HTTP headers that repeat values from the body of a request. spec:
        streamable-http#standard-request-headers
        """
        mirrored = [self._version_header, (METHOD_HEADER, method.encode())]
        row = METHODS.get(method)
        if row is not None and row.name_parameter is not None:
            value = params.get(row.name_parameter)
            if isinstance(value, str):
                header_value = value if _PLAIN_NAME.fullmatch(value) else encode_value(value)
                mirrored.append((NAME_HEADER, header_value.encode("ascii")))
        return mirrored


def build_name_header(row: Method, params: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """Build the Mcp-Name header for an extension's request."""
    value = None if row.name_parameter is None else params.get(row.name_parameter)
    return [(NAME_HEADER, encode_value(value).encode("ascii"))] if isinstance(value, str) else []


# This pattern matches the names that a header can contain unchanged.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_./:-]+")
_PROGRESS_TOKEN_KEY: Final = b'"%s":' % PROGRESS_TOKEN.encode()


def encode_initialize(
    revision: str, client_info: Implementation, capabilities: ClientCapabilities, id: RequestId
) -> bytes:
    """Encode the `initialize` request."""
    return jsonrpc.encode_request(
        id,
        "initialize",
        {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": client_info},
    )


def parse_progress(params: Any) -> tuple[RequestId, float, float | None, str | None]:
    """Return the token, progress, total and message of a progress notification."""
    data: Any = to_plain(params)
    try:
        progress = data["progress"]
        is_nested = type(progress) is dict
        token = data["requestId" if is_nested else "progressToken"]
        current, details = (progress["current"], progress) if is_nested else (progress, data)
        if type(token) in (int, str) and type(current) in (int, float):
            total, message = details.get("total"), details.get("message")
            return (
                token,
                current,
                total if type(total) in (int, float) else None,
                message if type(message) is str else None,
            )
    except (KeyError, TypeError):
        pass
    raise InvalidResult("notifications/progress must contain a token and a progress value")


# For each method, the error codes that servers send if the resource does not exist.
_NOT_FOUND_CODES: Final = {
    "resources/read": frozenset({-32002, -32001}),
    "resources/subscribe": frozenset({-32002, -32001}),
}
# Some servers report a missing item only in the text of the error. The texts of common SDKs are recognized.
# spec: tools#error-handling
_ITEM_KINDS_BY_METHOD: Final = {
    "tools/call": ("tool",),
    "prompts/get": ("prompt",),
    "resources/read": ("resource",),
    "resources/subscribe": ("resource",),
    "completion/complete": ("prompt", "resource"),
}
_NOT_FOUND_MESSAGE: Final = re.compile(
    r"(?:MCP error -?\d+: )?"
    r"(?:(?:unknown|no such) (tool|prompt|resource)\b|(tool|prompt|resource)\b.{0,300} not found\b)",
    re.IGNORECASE | re.DOTALL,
)
_UNSPECIFIC_CODES: Final = frozenset({InvalidParams.code, InternalError.code, -32000, -32002, 0})
_DRAFT_NOT_FOUND_CODES: Final = frozenset({-32002, -32003, -32004})
_UNAUTHORIZED_CODE: Final = -32003
_RATE_LIMITED_CODES: Final = frozenset({-32004, 429})
_TOOL_FAILED_CODE: Final = -32002
_UNDEFINED_CODES: Final = frozenset(range(-32019, -31999)) - {-32002}
_WORKER_LOST_DATA: Final = {"reason": WORKER_LOST}


_HANDLER_OPTIONS: Final = {
    "elicitation": "elicitation_handler=",
    "elicitation.url": "url_elicitation_handler=",
    "sampling": "sampling_handler=",
    "roots": "roots=",
}


def find_elicitation_obstacle(revision: str | None) -> str | None:
    """Return why elicitation does not work in this protocol version. Return None if it works."""
    first_version = METHODS["elicitation/create"].since
    if revision not in REVISIONS or not is_older(revision, first_version):
        return None
    return f"protocol version {revision} has no elicitation. The connection needs {first_version} or newer"


def get_required_capabilities(data: Any) -> Mapping[str, Any]:
    """Return the client capabilities that are missing according to an error."""
    required = data.get("requiredCapabilities") if isinstance(data, dict) else None
    return required if isinstance(required, dict) else {}


def _missing_capability_hint(revision: str | None, data: Any) -> str:
    required = get_required_capabilities(data)
    if "elicitation" in required and (obstacle := find_elicitation_obstacle(revision)) is not None:
        return obstacle
    extensions = required.get("extensions")
    if isinstance(extensions, dict):
        if list(extensions) == [TASKS_EXTENSION]:
            return "pass tasks=True to the client"
        identifiers = clip(", ".join(map(str, extensions)), 200)
        return f"pass extensions=[...] to the client, with the extension {identifiers}"
    names = [
        _HANDLER_OPTIONS[f"{name}.url" if name == "elicitation" and "url" in (modes or ()) else name]
        for name, modes in required.items()
        if name in _HANDLER_OPTIONS
    ]
    return f"pass {' and '.join(names) or ', '.join(_HANDLER_OPTIONS.values())} to the client"


_UNSUPPORTED_HINTS: Final = {
    "tools": "this server has no tools",
    "prompts": "this server has no prompts",
    "resources": "this server has no resources",
    "resources/subscribe": "this server does not send resource updates",
    "completion": "this server does not complete arguments",
    "logging": "this server sends no log messages",
}


# These requests need a capability of the server. spec: handshake/lifecycle#capability-negotiation
_REQUIRED_CAPABILITIES: Final = {
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "resources/read": "resources",
    "resources/subscribe": "resources",
    "resources/unsubscribe": "resources",
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "completions",
    "logging/setLevel": "logging",
}


# The client assumes these capabilities if it has not asked the server.
ASSUMED_CAPABILITIES: Final = ServerCapabilities(
    tools=ListChangedCapability(list_changed=True),
    prompts=ListChangedCapability(list_changed=True),
    resources=ResourcesCapability(subscribe=True, list_changed=True),
    completions={},
)


def find_unsupported_methods(revision: str, capabilities: ServerCapabilities) -> frozenset[str]:
    """Return the methods that a client must not use, because the server did not declare their capabilities."""
    methods = {name for name, field in _REQUIRED_CAPABILITIES.items() if getattr(capabilities, field) is None}
    if capabilities.resources is not None and not capabilities.resources.subscribe:
        methods |= {"resources/subscribe", "resources/unsubscribe"}
    if revision in REVISIONS_WITHOUT_COMPLETIONS:
        methods.discard("completion/complete")
    return frozenset(methods)


def create_unsupported_error(method: str) -> NotSupported:
    """Create the exception for a request that the server does not support."""
    hint = _UNSUPPORTED_HINTS.get(method) or _UNSUPPORTED_HINTS.get(method.partition("/")[0])
    field = _REQUIRED_CAPABILITIES[method]
    capability = "resources.subscribe" if method.endswith("subscribe") else field
    return add_context(NotSupported(f"the server does not declare the capability {capability!r}"), hint=hint)


class RemoteUnauthorized(Unauthorized, RemoteError):
    """Raised if the server requires credentials. If it is mounted, the outer server can forward the error code."""

    status_code: int | None = None

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        RemoteError.__init__(self, code, message, data)
        self.challenge = ""
        self.dpop_nonce = None


def _create_lost_error(code: int, message: str, data: Any) -> ConnectionLost:
    return ConnectionLost(message)


def create_error(revision: str | None, method: str, error_object: ErrorObject) -> MCPError:
    """Create the exception for an error response."""
    error: MCPError = _choose_error_type(revision, method, error_object)(
        error_object.code, error_object.message, error_object.data
    )
    return add_context(error, hint=_find_hint(revision, method, error_object.code, error_object.data))


def _find_hint(revision: str | None, method: str, code: int, data: Any) -> str | None:
    if code == MissingClientCapability.code or (isinstance(data, dict) and "requiredCapabilities" in data):
        return _missing_capability_hint(revision, data)
    row = METHODS.get(method)
    if code == MethodNotFound.code and row is not None and row.sender == "client":
        return _UNSUPPORTED_HINTS.get(method) or _UNSUPPORTED_HINTS.get(method.partition("/")[0])
    return None


def is_not_found_message(method: str, message: str) -> bool:
    """Return whether an error message means that a tool, prompt or resource does not exist."""
    match = _NOT_FOUND_MESSAGE.match(message)
    return match is not None and (match[1] or match[2]).lower() in _ITEM_KINDS_BY_METHOD.get(method, ())


def _choose_error_type(revision: str | None, method: str, error_object: ErrorObject) -> Any:
    code = error_object.code
    # Stateless versions give these codes no meaning, so only the message counts. spec: basic#error-codes
    if code in _UNDEFINED_CODES and revision is not None and is_stateless(revision):
        return NotFound if is_not_found_message(method, error_object.message) else RemoteError
    # The newest protocol version has no error code for a missing resource, but the `data` contains the URI.
    # spec: resources#error-handling
    if (
        code == InvalidParams.code
        and method in _NOT_FOUND_CODES
        and type(error_object.data) is dict
        and "uri" in error_object.data
    ):
        return NotFound
    if code in _NOT_FOUND_CODES.get(method, ()) or (revision == DRAFT and code in _DRAFT_NOT_FOUND_CODES):
        return NotFound
    if code in _UNSPECIFIC_CODES and is_not_found_message(method, error_object.message):
        return NotFound
    if code in _RATE_LIMITED_CODES:
        return RateLimited
    if code == _UNAUTHORIZED_CODE:
        return RemoteUnauthorized
    if code == _TOOL_FAILED_CODE and method == "tools/call":
        return _create_tool_error
    if code == InternalError.code and error_object.data == _WORKER_LOST_DATA:
        return _create_lost_error
    return RemoteError


def _create_tool_error(code: int, message: str, data: Any) -> ToolError:
    return ToolError(message or f"the tool failed ({code})")

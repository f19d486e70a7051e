"""Every exception of dovetail. An error with a code travels as a JSON-RPC error. One without a code never travels.

MCPError
├── ProtocolError                  sent by this side: code, message, data
│   ├── ParseError                 -32700
│   ├── InvalidRequest             -32600
│   ├── MethodNotFound             -32601
│   ├── InvalidParams              -32602
│   │   ├── ResourceNotFound       -32002 in the handshake revisions
│   │   ├── ToolNotFound           -32003 in the draft
│   │   └── PromptNotFound         -32004 in the draft
│   ├── InternalError              -32603
│   ├── HeaderMismatch             -32020
│   ├── MissingClientCapability    -32021
│   ├── UnsupportedProtocolVersion -32022
│   ├── InsufficientScope          403, with the scopes it needs
│   └── ServerBusy                 429 or 503, with retry_after
├── RemoteError                    reported by the other side: code, message, data
│   ├── NotFound                   unknown tool, resource or prompt, also of a Host
│   └── RateLimited                with retry_after
├── TransportError                 no code
│   ├── ProcessStartError          the server's process did not start
│   │   └── ScriptNotFound         also a FileNotFoundError
│   ├── ConnectError               nothing was reached, nothing was sent
│   ├── HTTPStatusError            unexpected HTTP status
│   ├── NotMCPServer               something else answers there
│   ├── VersionNegotiationError    no common protocol version
│   ├── RequestTimeout             also a TimeoutError
│   └── ConnectionLost             the connection broke
│       └── OutcomeUnknown         it broke while the request may have run
├── AuthError
│   ├── Unauthorized               401, received or raised, or the server's own error
│   ├── Forbidden                  403, received or raised
│   └── LoginFailed                the login ended without a token
├── ToolError                      raised by tools, and by client.call
│   ├── ElicitationDeclined        the user declined
│   └── ElicitationCancelled       the user closed the question
├── PolicyError                    refused by the policy or the user
├── ModelError                     the language model failed
├── NotSupported                   the server lacks a capability
├── InputRequestError              an input request could not be answered
└── InvalidResult                  a result violates the method or the tool's schema
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dovetail.error_context import clip as _clip

__all__ = [
    "AuthError",
    "ConnectError",
    "ConnectionLost",
    "DovetailDeprecationWarning",
    "ElicitationCancelled",
    "ElicitationDeclined",
    "Forbidden",
    "HTTPStatusError",
    "HeaderMismatch",
    "InputRequestError",
    "InsufficientScope",
    "InternalError",
    "InvalidParams",
    "InvalidRequest",
    "InvalidResult",
    "LoginFailed",
    "MCPError",
    "MethodNotFound",
    "MissingClientCapability",
    "ModelError",
    "NotFound",
    "NotMCPServer",
    "NotSupported",
    "OutcomeUnknown",
    "ParseError",
    "PolicyError",
    "ProcessStartError",
    "PromptNotFound",
    "ProtocolError",
    "RateLimited",
    "RemoteError",
    "RequestTimeout",
    "ResourceNotFound",
    "ScriptNotFound",
    "ServerBusy",
    "ToolError",
    "ToolNotFound",
    "TransportError",
    "Unauthorized",
    "UnsupportedProtocolVersion",
    "VersionNegotiationError",
]

_MAX_STDERR_CHARS: Final = 1200


class MCPError(Exception):
    """Base of all errors of dovetail.

    Errors of a client say where they happened: `server`, `step` and `protocol_version`, and if known the HTTP
    `status_code`, the `exit_code` and the last `stderr` of the process, and a `hint` what to try next.
    """

    server: str | None = None
    step: str | None = None
    protocol_version: str | None = None
    status_code: int | None = None
    exit_code: int | None = None
    stderr: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        lines = [": ".join([*self._location_parts(), super().__str__()])]
        if self.stderr:
            lines.append("the last lines of the server on stderr:")
            lines += [f"  {line}" for line in _last_lines(self.stderr, _MAX_STDERR_CHARS)]
        if self.hint:
            lines.append(f"try: {self.hint}")
        return "\n".join(lines)

    def _location_parts(self) -> list[str]:
        step = f"{self.step} ({self.protocol_version})" if self.step and self.protocol_version else self.step
        return [part for part in (self.server, step) if part]


class ProtocolError(MCPError):
    """A JSON-RPC error that this side sends. Raise it to refuse a request with `code`, `message` and `data`."""

    code: int = -32603

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class ParseError(ProtocolError):
    """The bytes are not unambiguous JSON."""

    code = -32700


class InvalidRequest(ProtocolError):
    """JSON, but not a message this protocol knows."""

    code = -32600


class MethodNotFound(ProtocolError):
    """No such method in the revision being spoken."""

    code = -32601

    def __init__(self, method: str) -> None:
        super().__init__(f"Method not found: {_clip(method)}")


class InvalidParams(ProtocolError):
    """The method exists, its parameters do not fit."""

    code = -32602


class ResourceNotFound(InvalidParams):
    """Nothing is served under this URI."""

    def __init__(self, uri: str) -> None:
        super().__init__("Resource not found", {"uri": uri})


class ToolNotFound(InvalidParams):
    """No tool of this name is offered to this caller."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool: {_clip(name)}")


class PromptNotFound(InvalidParams):
    """No prompt of this name is offered to this caller."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown prompt: {_clip(name)}")


class InternalError(ProtocolError):
    """An internal error. The message reveals nothing, the log has the details."""

    code = -32603


class HeaderMismatch(ProtocolError):
    """An HTTP header is missing, malformed, or disagrees with the body it mirrors."""

    code = -32020


class MissingClientCapability(ProtocolError):
    """The request needs something the client did not declare."""

    code = -32021

    def __init__(self, required: Mapping[str, Any], message: str | None = None) -> None:
        names = ", ".join(f"{name}.{'/'.join(inner)}" if inner else name for name, inner in required.items())
        super().__init__(
            message or f"The client did not declare what this request needs: {names}",
            {"requiredCapabilities": dict(required)},
        )


class UnsupportedProtocolVersion(ProtocolError):
    """The protocol version asked for is not served here."""

    code = -32022

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        super().__init__(
            f"Unsupported protocol version {_clip(requested)}; this server speaks {', '.join(supported)}",
            {"supported": list(supported), "requested": requested[:64]},
        )


class ServerBusy(ProtocolError):
    """A limit of the server is reached. The same request may succeed later."""

    # Outside the range JSON-RPC reserves, as the error code policy asks. spec: basic#error-codes
    code = 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, {"retryAfterMs": int(retry_after * 1000)})
        self.retry_after = retry_after


class InsufficientScope(ProtocolError):
    """The caller's token lacks scopes. Over HTTP, the response is a 403 that names them."""

    # Outside the range JSON-RPC reserves, as the error code policy asks. spec: basic#error-codes
    code = 403

    def __init__(self, scopes: Sequence[str]) -> None:
        super().__init__(f"This takes the scope {' '.join(scopes)}", {"requiredScopes": list(scopes)})
        self.scopes = tuple(scopes)


class RemoteError(MCPError):
    """An error response received from the other side."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class NotFound(RemoteError):
    """The tool, resource or prompt does not exist."""


class RateLimited(RemoteError):
    """The server limits requests. Try again later, after `retry_after` seconds if the server sent them."""

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait, if the server sent them."""
        delay_ms = self.data.get("retryAfterMs") if isinstance(self.data, dict) else None
        return min(delay_ms, 1e12) / 1000 if isinstance(delay_ms, int | float) else None


class TransportError(MCPError):
    """The connection failed."""


class ProcessStartError(TransportError):
    """The server's process could not be started, or ended before it could be used."""


class ScriptNotFound(ProcessStartError, FileNotFoundError):
    """The script does not exist."""


class ConnectError(TransportError):
    """The server could not be reached. Nothing was sent."""


class HTTPStatusError(TransportError):
    """An unexpected HTTP status. `body` is the beginning of the response."""

    body: str = ""
    retry_after: float | None = None


class NotMCPServer(TransportError):
    """Something answers at the address, but it is not an MCP server."""


class VersionNegotiationError(TransportError):
    """Client and server have no protocol version in common."""


class RequestTimeout(TransportError, TimeoutError):
    """A timeout expired. The client has cancelled the request."""


class ConnectionLost(TransportError):
    """The connection was lost. `maybe_sent` says whether the request may have reached the server."""

    maybe_sent: bool = True


class OutcomeUnknown(ConnectionLost):
    """The connection was lost while the request may have been running. It was not repeated."""


class AuthError(MCPError):
    """Base of the errors about credentials."""


class Unauthorized(AuthError):
    """Credentials are missing or invalid: HTTP 401, or an error of the server that says so.

    Raise it from the function given as `auth=` to ask a caller for credentials. `challenge` is the value of the header
    WWW-Authenticate, received or to be sent. `dpop_nonce` is a nonce that the next DPoP proof must contain.
    """

    status_code: int | None = 401

    def __init__(
        self, message: str = "Authentication is required", *, challenge: str = "Bearer", dpop_nonce: str | None = None
    ) -> None:
        super().__init__(message)
        self.challenge = challenge
        self.dpop_nonce = dpop_nonce


class Forbidden(AuthError):
    """The credentials do not allow this: HTTP 403.

    Raise it from the function given as `auth=` to reject a caller. `challenge` is the value of the header
    WWW-Authenticate, received or to be sent.
    """

    status_code: int | None = 403

    def __init__(self, message: str = "Access denied", *, challenge: str = "") -> None:
        super().__init__(message)
        self.challenge = challenge


class LoginFailed(AuthError):
    """A login ended without a token. `oauth_error` is the error code of the authorization server, if it sent one."""

    oauth_error: str | None = None


class PolicyError(MCPError):
    """The policy or the user refused. `action` is what they decided, `rule` the rule that matched, if one did."""

    def __init__(self, message: str, *, action: str = "deny", rule: Any = None) -> None:
        super().__init__(message)
        self.action = action
        self.rule = rule


class ModelError(MCPError):
    """The language model failed or returned something unusable."""


class NotSupported(MCPError):
    """The server lacks a capability that this needs."""


class InputRequestError(MCPError):
    """An input request of the server could not be answered: no handler, or its answer is invalid."""


class InvalidResult(MCPError):
    """A result violates the method or the schema of the tool."""


class ToolError(MCPError):
    """Raise it from a tool to report a failure to the model.

    A client raises it when a tool failed. `result` is then the whole result.
    """

    result: Any = None

    def _location_parts(self) -> list[str]:
        return [part for part in (self.server, self.step) if part]  # what a tool says holds in every revision


class ElicitationDeclined(ToolError):
    """The user declined to answer."""

    def __init__(self, message: str = "The user declined to answer.") -> None:
        super().__init__(message)


class ElicitationCancelled(ToolError):
    """The user closed the question without an answer."""

    def __init__(self, message: str = "The user dismissed the question.") -> None:
        super().__init__(message)


def _last_lines(text: str, max_chars: int) -> list[str]:
    """As many whole lines from the end as fit; of a single one that is too long, its end."""
    lines = text.splitlines()
    first_line = len(lines) - 1
    remaining = max_chars - len(lines[-1])
    while first_line > 0 and remaining > len(lines[first_line - 1]):
        first_line -= 1
        remaining -= len(lines[first_line]) + 1
    return [line[-max_chars:] for line in lines[first_line:]]


class DovetailDeprecationWarning(DeprecationWarning):
    """A public name, parameter or default is deprecated. The message names its replacement and the removal version."""

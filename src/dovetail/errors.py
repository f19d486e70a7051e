"""All exceptions of dovetail. Only errors with a code are sent to the other side, as JSON-RPC errors.

MCPError
├── ProtocolError                  sent by this side: code, message, data
│   ├── ParseError                 -32700
│   ├── InvalidRequest             -32600
│   ├── MethodNotFound             -32601
│   ├── InvalidParams              -32602
│   │   ├── ResourceNotFound       -32002 up to version 2025-11
│   │   ├── ToolNotFound           -32003 in the draft
│   │   └── PromptNotFound         -32004 in the draft
│   ├── InternalError              -32603
│   ├── HeaderMismatch             -32020
│   ├── MissingClientCapability    -32021
│   ├── UnsupportedProtocolVersion -32022
│   ├── URLElicitationRequired     -32042, only in 2025-11 and the draft
│   ├── InsufficientScope          403, with the scopes it needs
│   └── ServerBusy                 429 or 503, with retry_after
├── RemoteError                    reported by the other side: code, message, data
│   ├── NotFound                   unknown tool, resource, prompt or skill, also raised by a Host
│   └── RateLimited                with retry_after
├── TransportError                 no code
│   ├── ProcessStartError          the server's process did not start
│   │   └── ScriptNotFound         also a FileNotFoundError
│   ├── ConnectError               the server was not reached, so nothing was sent
│   ├── HTTPStatusError            unexpected HTTP status
│   ├── NotMCPServer               another kind of server responds
│   ├── VersionNegotiationError    no common protocol version
│   ├── RequestTimeout             also a TimeoutError
│   └── ConnectionLost             the connection broke
│       └── OutcomeUnknown         the connection broke, but the request may have run
├── AuthError
│   ├── Unauthorized               401, received from a server or raised by a server
│   ├── Forbidden                  403, received from a server or raised by a server
│   └── LoginFailed                the login ended without a token
├── ToolError                      raised by tools, and by client.call
│   ├── ElicitationDeclined        the user declined
│   └── ElicitationCancelled       the user closed the form
├── PolicyError                    refused by the policy or the user
│   └── ConsentDeferred            the user has not answered yet
├── ModelError                     the language model failed
├── NotSupported                   the server lacks a capability
├── InputRequestError              an input request could not be answered
├── TaskLost                       the server does not know a task, for example because it has expired
├── TaskCancelled                  a task was cancelled
├── InvalidResult                  a result violates the method or the tool's schema
│   └── SkillMismatch              a file of a skill differs from the listed size, digest or front matter
├── UnsupportedFileVersion         a newer dovetail wrote this file, also a ValueError
├── UnusableFile                   a stored file cannot be opened or is not a store, also an OSError
└── DamagedFile                    a stored file cannot be read, also a ValueError
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dovetail.error_context import clip as _clip

__all__ = [
    "AuthError",
    "ConnectError",
    "ConnectionLost",
    "ConsentDeferred",
    "DamagedFile",
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
    "SkillMismatch",
    "TaskCancelled",
    "TaskLost",
    "ToolError",
    "ToolNotFound",
    "TransportError",
    "URLElicitationRequired",
    "Unauthorized",
    "UnsupportedFileVersion",
    "UnsupportedProtocolVersion",
    "UnusableFile",
    "VersionNegotiationError",
]

_MAX_STDERR_CHARS: Final = 1200


class MCPError(Exception):
    """Base class of all errors of dovetail.

    Errors that a client raises have the attributes `server`, `step` and `protocol_version`. If known, they also have
    the HTTP `status_code`, the `exit_code` and the last `stderr` of the process, and a `hint` about a solution.
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
            lines.append("the last lines of the server's stderr:")
            lines += [f"  {line}" for line in _last_lines(self.stderr, _MAX_STDERR_CHARS)]
        if self.hint:
            lines.append(f"try: {self.hint}")
        return "\n".join(lines)

    def _location_parts(self) -> list[str]:
        step = f"{self.step} ({self.protocol_version})" if self.step and self.protocol_version else self.step
        return [part for part in (self.server, step) if part]


class ProtocolError(MCPError):
    """A JSON-RPC error. Raise it to reject a request with `code`, `message` and `data`."""

    code: int = -32603

    def __init__(self, message: str, data: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.data: Any = data


class ParseError(ProtocolError):
    """Raised if data is not valid JSON, or if it is ambiguous, for example because a key is repeated."""

    code = -32700


class InvalidRequest(ProtocolError):
    """Raised if JSON data is not a valid MCP message."""

    code = -32600


class MethodNotFound(ProtocolError):
    """Raised if a method is unknown or not available in this protocol version."""

    code = -32601

    def __init__(self, method: str) -> None:
        super().__init__(f"Method not found: {_clip(method)}")


class InvalidParams(ProtocolError):
    """Raised if the parameters of a method are invalid. The `field` in `data` is the path of the first invalid
    parameter.
    """

    code = -32602


class ResourceNotFound(InvalidParams):
    """Raised if the server has no resource with this URI."""

    def __init__(self, uri: str) -> None:
        super().__init__("Resource not found", {"uri": uri})


class ToolNotFound(InvalidParams):
    """Raised if the server has no tool with this name, or hides the tool from this caller."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool: {_clip(name)}", {"field": "name"})


class PromptNotFound(InvalidParams):
    """Raised if the server has no prompt with this name, or hides the prompt from this caller."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown prompt: {_clip(name)}", {"field": "name"})


class InternalError(ProtocolError):
    """An internal error. The details are only in the server's log, not in the message."""

    code = -32603


class HeaderMismatch(ProtocolError):
    """Raised if an HTTP header is missing, malformed, or differs from the body."""

    code = -32020


class MissingClientCapability(ProtocolError):
    """Raised if a request needs a capability that the client did not declare."""

    code = -32021

    def __init__(self, required: Mapping[str, Mapping[str, object]], message: str | None = None) -> None:
        names = ", ".join(f"{name}.{'/'.join(inner)}" if inner else name for name, inner in required.items())
        super().__init__(
            message or f"The client did not declare a required capability: {names}",
            {"requiredCapabilities": dict(required)},
        )


class UnsupportedProtocolVersion(ProtocolError):
    """Raised if the server does not support the requested protocol version."""

    code = -32022

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        super().__init__(
            f"Unsupported protocol version {_clip(requested)}. Supported: {', '.join(supported)}",
            {"supported": list(supported), "requested": requested[:64]},
        )


class URLElicitationRequired(ProtocolError):
    """Raise this exception if the user must open a web page before the request can succeed.

    Clients with protocol version 2025-11 get the error code -32042. Clients with other versions get -32602. To ask the
    user in every version, use `ctx.elicit_url`.
    """

    code = -32042

    def __init__(self, message: str, url: str, elicitation_id: str) -> None:
        elicitation = {"mode": "url", "message": message, "url": url, "elicitationId": elicitation_id}
        super().__init__(message, {"elicitations": [elicitation]})


class ServerBusy(ProtocolError):
    """Raised if the server has reached a limit. The same request may succeed later."""

    # JSON-RPC does not reserve this error code. spec: basic#error-codes
    code = 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, {"retryAfterMs": int(retry_after * 1000)})
        self.retry_after = retry_after


class InsufficientScope(ProtocolError):
    """Raised if the caller's token lacks scopes. Over HTTP, the response has status 403 and lists the missing
    scopes.
    """

    # JSON-RPC does not reserve this error code. spec: basic#error-codes
    code = 403

    def __init__(self, scopes: Sequence[str]) -> None:
        super().__init__(f"This request requires the scope {' '.join(scopes)}", {"requiredScopes": list(scopes)})
        self.scopes = tuple(scopes)


class RemoteError(MCPError):
    """An error response from the server or the client on the other side of the connection.

    `code` and `message` are those of the response. `data` has more details, or is None.
    """

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data: Any = data


class NotFound(RemoteError):
    """Raised if a tool, resource, prompt, skill or file of a skill does not exist."""


class RateLimited(RemoteError):
    """Raised if the server has received too many requests. Try again after `retry_after` seconds."""

    @property
    def retry_after(self) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the server did not send a delay."""
        delay_ms = self.data.get("retryAfterMs") if isinstance(self.data, dict) else None
        return min(delay_ms, 1e12) / 1000 if isinstance(delay_ms, int | float) else None


class TransportError(MCPError):
    """Base class of errors about the connection to a server."""


class ProcessStartError(TransportError):
    """Raised if the server's process could not be started, or exited too early."""


class ScriptNotFound(ProcessStartError, FileNotFoundError):
    """Raised if the script of a server does not exist."""


class ConnectError(TransportError):
    """Raised if the client could not connect to the server. Nothing was sent."""


class HTTPStatusError(TransportError):
    """Raised if the server sent an unexpected HTTP status. `body` is the start of the response."""

    body: str = ""
    retry_after: float | None = None


class NotMCPServer(TransportError):
    """Raised if a program responds at the address, but is not an MCP server."""


class VersionNegotiationError(TransportError):
    """Raised if the client and the server have no protocol version in common."""


class RequestTimeout(TransportError, TimeoutError):
    """Raised if a request took too long. The client has cancelled the request."""


class ConnectionLost(TransportError):
    """Raised if the connection was lost. `maybe_sent` is True if the request may have reached the server."""

    maybe_sent: bool = True


class OutcomeUnknown(ConnectionLost):
    """Raised if the connection was lost while a request was running, so the request may have succeeded.

    The client did not repeat the request.
    """


class AuthError(MCPError):
    """Base class of errors about credentials."""


class Unauthorized(AuthError):
    """Raised if credentials are missing or invalid (HTTP 401).

    Raise this exception from the function passed as `auth=` to ask a caller for credentials. `challenge` is the value
    of the WWW-Authenticate header. `dpop_nonce` is a nonce that the next DPoP proof must contain.
    """

    status_code: int | None = 401

    def __init__(
        self, message: str = "Authentication is required", *, challenge: str = "Bearer", dpop_nonce: str | None = None
    ) -> None:
        super().__init__(message)
        self.challenge = challenge
        self.dpop_nonce = dpop_nonce


class Forbidden(AuthError):
    """Raised if the credentials do not allow a request (HTTP 403).

    Raise this exception from the function passed as `auth=` to reject a caller. `challenge` is the value of the
    WWW-Authenticate header.
    """

    status_code: int | None = 403

    def __init__(self, message: str = "Access denied", *, challenge: str = "") -> None:
        super().__init__(message)
        self.challenge = challenge


class LoginFailed(AuthError):
    """Raised if a login failed. `oauth_error` is the error code of the authorization server, or None."""

    oauth_error: str | None = None


class PolicyError(MCPError):
    """Raised if the policy or the user denied a call.

    `action` is the decision. `rule` is the rule that led to the decision, if any.
    """

    def __init__(self, message: str, *, action: str = "deny", rule: Any = None) -> None:
        super().__init__(message)
        self.action = action
        self.rule = rule


class ConsentDeferred(PolicyError):
    """Raised if the user has not answered a consent request yet. Pass the `ticket` to `Host.answer`."""

    def __init__(self, ticket: str) -> None:
        super().__init__(
            f"the user has not answered the consent request with the ticket {ticket}. Answer it with host.answer(), "
            "and repeat the request",
            action="ask",
        )
        self.ticket = ticket


class ModelError(MCPError):
    """Raised if the language model failed or returned an invalid reply."""


class NotSupported(MCPError):
    """Raised if the server lacks a capability that the client needs."""


class InputRequestError(MCPError):
    """Raised if the client has no handler for a server's input request, or if the handler's answer is invalid."""


class TaskLost(MCPError):
    """Raised if the server does not know a task: it has expired, it never existed, or it belongs to another caller."""


class TaskCancelled(MCPError):
    """Raised if a call runs as a task and the task is cancelled."""


class InvalidResult(MCPError):
    """Raised if a result does not match the protocol or the output schema of its tool."""


class SkillMismatch(InvalidResult):
    """Raised if a file does not match the entry of its skill. Do not use the content of the file.

    `field` names what differs: "size", "digest", "front matter" or "files". `expected` is the value in the entry of
    the skill, and `actual` is the value of the file. `uri` is the URI of the file.
    """

    hint: str | None = (
        "get the skill again, and ask the user again before you use it. If this does not help, read the log of the "
        "server: a server that cannot serve a changed skill logs the reason and keeps the old entry"
    )

    def __init__(self, uri: str, field: str, expected: object, actual: object) -> None:
        super().__init__(
            f"{_clip(uri)} differs from the entry of the skill in its {field}: expected {_clip(str(expected))}, got "
            f"{_clip(str(actual))}"
        )
        self.uri = uri
        self.field = field
        self.expected: Any = expected
        self.actual: Any = actual


class UnsupportedFileVersion(MCPError, ValueError):
    """Raised if a newer version of dovetail wrote a stored file. The file is not changed.

    `path` is the file, `version` its format version, and `supported_version` the newest supported format version.
    """

    hint: str | None = (
        "use a newer version of dovetail, or move the file to another directory to start with an empty file"
    )

    def __init__(self, path: object, version: object, supported_version: int) -> None:
        super().__init__(
            f"{path} has format {_clip(str(version))}, but this version of dovetail supports formats up to "
            f"{supported_version}"
        )
        self.path = str(path)
        self.version = version
        self.supported_version = supported_version


class DamagedFile(MCPError, ValueError):
    """Raised if the content of a stored file is not valid. The file is not changed.

    `path` is the file.
    """

    hint: str | None = "restore the file from a backup, or move it away to start with an empty file"

    def __init__(self, path: object) -> None:
        super().__init__(f"{path} is damaged: its content is not valid")
        self.path = str(path)


class UnusableFile(MCPError, OSError):
    """Raised if a database cannot be used, for example because its path is a directory or the file of another program.

    The file is not changed. `path` is the path of the database.
    """

    def __init__(self, path: object, message: str) -> None:
        super().__init__(message)
        self.path = str(path)


class ToolError(MCPError):
    """Raise this exception in a tool to report a failure to the model.

    When a tool fails, `client.call` raises this exception with the whole result as `result`.
    """

    result: Any = None

    def _location_parts(self) -> list[str]:
        # Tool errors do not depend on the protocol version, so the version is not shown.
        return [part for part in (self.server, self.step) if part]


class ElicitationDeclined(ToolError):
    """Raised if the user declined to answer an elicitation."""

    def __init__(self, message: str = "The user declined to answer.") -> None:
        super().__init__(message)


class ElicitationCancelled(ToolError):
    """Raised if the user closed an elicitation without an answer."""

    def __init__(self, message: str = "The user dismissed the question.") -> None:
        super().__init__(message)


def _last_lines(text: str, max_chars: int) -> list[str]:
    lines = text.splitlines()
    first_line = len(lines) - 1
    remaining = max_chars - len(lines[-1])
    while first_line > 0 and remaining > len(lines[first_line - 1]):
        first_line -= 1
        remaining -= len(lines[first_line]) + 1
    return [line[-max_chars:] for line in lines[first_line:]]


class DovetailDeprecationWarning(DeprecationWarning):
    """Warning about a deprecated public name, parameter or default.

    The message of the warning says what to use instead, and which version will remove the old form.
    """

"""Every exception of dovetail. An exception with a code is about the wire; one without never travels.

MCPError
├── ProtocolError            ours to send: code, message, data
│   ├── ParseError           -32700
│   ├── InvalidRequest       -32600
│   ├── MethodNotFound       -32601
│   ├── InvalidParams        -32602
│   │   ├── ResourceNotFound   -32002 in the handshake revisions
│   │   ├── ToolNotFound       -32003 in the draft dialect
│   │   └── PromptNotFound     -32004 in the draft dialect
│   ├── InternalError        -32603
│   ├── HeaderMismatch       -32020
│   ├── MissingClientCapability    -32021
│   ├── UnsupportedProtocolVersion  -32022
│   ├── InsufficientScope    403, with the scopes it takes
│   └── Busy                 429, with a time after which to try again
├── RemoteError                theirs, received: code, message, data
│   ├── NotFound             there is no such tool, resource or prompt
│   ├── Unauthorized         the server wants to know who asks
│   └── RateLimited          too much at once; the same request may succeed later
├── TransportError           no code
│   ├── ProcessStartError          the server's process did not come up
│   │   └── ScriptNotFound     there is no such file
│   ├── ConnectError        nothing could be reached; nothing was sent
│   ├── HTTPStatusError            an HTTP status nobody asked for
│   ├── NotMCPServer               what answers there is no MCP server
│   ├── VersionNegotiationError     the two sides share no revision of the protocol
│   ├── RequestTimeout       a limit of time passed
│   └── Disconnected         the other side is gone
│       └── Interrupted      it went while it may have been at work on the request
├── AuthError                no code: an HTTP status carries it
│   ├── Denied               ours to send
│   ├── NeedsLogin           401, received
│   ├── Forbidden            403, received
│   └── LoginFailed          the way to a token ended
├── PolicyError              the host said no: the rule and the reason
├── ModelError               a language model could not be asked, or its answer not be read
├── NotSupported               the server did not declare what this needs
├── InputRequestError              a question of the server could not be answered
├── InvalidResult              the result is not what the tool or the method promises
└── ToolError                raised by an author: becomes an error result the model reads
    ├── Declined             the user said no
    └── Dismissed            the user closed the question
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

_MAX_STDERR_CHARS: Final = 1200


class MCPError(Exception):
    """The root of every exception dovetail raises on purpose.

    What a client raises says where it happened: `server`, `step`, `revision`, and, where there is one, the HTTP
    `status`, the process's `exit_code` and last `stderr`, and a `hint` what to try next.
    """

    server: str | None = None
    step: str | None = None
    protocol_version: str | None = None
    status_code: int | None = None
    exit_code: int | None = None
    stderr: str | None = None
    hint: str | None = None

    def at(self, **facts: Any) -> Self:
        """The same error, told where it happened; what is already known stays."""
        for name, value in facts.items():
            if value is not None and getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __str__(self) -> str:
        lines = [": ".join([*self._location_parts(), super().__str__()])]
        if self.stderr:
            lines.append("the server's last words on stderr:")
            lines += [f"  {line}" for line in _last_lines(self.stderr, _MAX_STDERR_CHARS)]
        if self.hint:
            lines.append(f"try: {self.hint}")
        return "\n".join(lines)

    def _location_parts(self) -> list[str]:
        step = f"{self.step} ({self.protocol_version})" if self.step and self.protocol_version else self.step
        return [part for part in (self.server, step) if part]


class ProtocolError(MCPError):
    """A refusal this side sends to the other; `code`, `message` and `data` go on the wire."""

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
        super().__init__(f"Method not found: {clip(method)}")


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
        super().__init__(f"Unknown tool: {clip(name)}")


class PromptNotFound(InvalidParams):
    """No prompt of this name is offered to this caller."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown prompt: {clip(name)}")


class InternalError(ProtocolError):
    """Something of ours failed; the text says nothing about it, the log does."""

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
            f"Unsupported protocol version {clip(requested)}; this server speaks {', '.join(supported)}",
            {"supported": list(supported), "requested": requested[:64]},
        )


class ServerBusy(ProtocolError):
    """A limit on work in progress is reached; the same request may succeed later."""

    # Outside the range JSON-RPC reserves, as the error code policy asks. spec: basic#error-codes
    code = 429

    def __init__(self, message: str, retry_after: float = 1.0, *, own: bool = False) -> None:
        super().__init__(message, {"retryAfterMs": int(retry_after * 1000)})
        self.retry_after = retry_after
        self.own = own  # whether it is the caller's own share that is used up, not everyone's


class InsufficientScope(ProtocolError):
    """The caller's token lacks scopes this request takes; over HTTP it is a 403 that asks for them."""

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
    """The server has no tool, resource or prompt of that name."""


class Unauthorized(RemoteError):
    """The server wants to know who asks, and says so inside the protocol."""


class RateLimited(RemoteError):
    """The server has too much to do; the same request may succeed later, in `retry_after` seconds if it said so."""

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait, where the server named them."""
        delay_ms = self.data.get("retryAfterMs") if isinstance(self.data, dict) else None
        return min(delay_ms, 1e12) / 1000 if isinstance(delay_ms, int | float) else None


class TransportError(MCPError):
    """The channel failed; nothing was said about the request itself."""


class ProcessStartError(TransportError):
    """The server's process could not be started, or ended before it could be used."""


class ScriptNotFound(ProcessStartError, FileNotFoundError):
    """There is no such script to start."""


class ConnectError(TransportError):
    """Nothing could be reached under the address; nothing was sent."""


class HTTPStatusError(TransportError):
    """An HTTP status that is no answer; `body` is the beginning of what came with it."""

    body: str = ""
    retry_after: float | None = None


class NotMCPServer(TransportError):
    """Something answers under the address, but it does not speak this protocol."""


class VersionNegotiationError(TransportError):
    """The two sides share no revision of the protocol."""


class RequestTimeout(TransportError):
    """A limit of time passed; the server was told that the answer is no longer wanted."""


class ConnectionLost(TransportError):
    """The other side is gone; `sent` tells whether any of the request may have reached it."""

    maybe_sent: bool = True


class OutcomeUnknown(ConnectionLost):
    """The connection was lost while the server may have been at work: the call was not repeated."""


class AuthError(MCPError):
    """Something about who the caller is."""


class Denied(AuthError):
    """Raise this from `authenticate` to turn a caller away: 401 to ask for credentials, 403 to refuse them.

    `nonce` is what a DPoP proof must repeat.
    """

    def __init__(
        self,
        message: str = "Authentication is required",
        *,
        status: int = 401,
        challenge: str = "",
        dpop_nonce: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status
        self.challenge = challenge or ("Bearer" if status == 401 else "")
        self.dpop_nonce = dpop_nonce


class NeedsLogin(AuthError):
    """The server asks for credentials: 401. `challenge` is what it says about them."""

    challenge: str = ""


class Forbidden(AuthError):
    """The credentials do not suffice: 403. `challenge` is what the server says about them."""

    challenge: str = ""


class LoginFailed(AuthError):
    """A login came to no token; `reason` is the authorization server's error code, where it gave one."""

    oauth_error: str | None = None


class PolicyError(MCPError):
    """The host said no. `verdict` is what its policy, or the user, decided; `rule` is the rule that did, if one did."""

    def __init__(self, message: str, *, action: str = "deny", rule: Any = None) -> None:
        super().__init__(message)
        self.action = action
        self.rule = rule


class ModelError(MCPError):
    """A language model could not be asked, or what it answered cannot be read."""


class NotSupported(MCPError):
    """The server does not have what this needs."""


class InputRequestError(MCPError):
    """A question of the server could not be answered: nobody handles it, or the answer does not fit it."""


class InvalidResult(MCPError):
    """What the server answered is not what the method, or the tool's own schema, promises."""


class ToolError(MCPError):
    """Raise this from a tool to tell the model what went wrong, in your words.

    A client raises it when a tool failed; `result` is then the whole result.
    """

    result: Any = None

    def _location_parts(self) -> list[str]:
        return [part for part in (self.server, self.step) if part]  # what a tool says holds in every revision


class ElicitationDeclined(ToolError):
    """The user was asked and said no."""

    def __init__(self, message: str = "The user declined to answer.") -> None:
        super().__init__(message)


class ElicitationCancelled(ToolError):
    """The user was asked and closed the question without choosing."""

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


def clip(text: str, limit: int = 128) -> str:
    """Peer text made safe to repeat in a message or a log: bounded, control characters escaped."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return short if short.isprintable() else short.encode("unicode_escape", "backslashreplace").decode("ascii")

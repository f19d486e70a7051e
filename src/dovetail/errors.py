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
│   ├── MissingCapability    -32021
│   ├── UnsupportedRevision  -32022
│   └── Busy                 429, with a time after which to try again
├── PeerError                theirs, received: code, message, data
├── TransportError           no code
│   ├── Disconnected
│   └── CannotStart          a server's process did not come to life
├── AuthError                no code: an HTTP status carries it
│   └── Denied
└── ToolError                raised by an author: becomes an error result the model reads
    ├── Declined             the user said no
    └── Dismissed            the user closed the question
"""

from collections.abc import Mapping, Sequence
from typing import Any


class MCPError(Exception):
    """The root of every exception dovetail raises on purpose."""


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


class MissingCapability(ProtocolError):
    """The request needs something the client did not declare."""

    code = -32021

    def __init__(self, required: Mapping[str, Any], message: str | None = None) -> None:
        named = ", ".join(f"{name}.{'/'.join(inner)}" if inner else name for name, inner in required.items())
        super().__init__(
            message or f"The client did not declare what this request needs: {named}",
            {"requiredCapabilities": dict(required)},
        )


class UnsupportedRevision(ProtocolError):
    """The protocol version asked for is not served here."""

    code = -32022

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        super().__init__(
            f"Unsupported protocol version {clip(requested)}; this server speaks {', '.join(supported)}",
            {"supported": list(supported), "requested": requested[:64]},
        )


class Busy(ProtocolError):
    """A limit on work in progress is reached; the same request may succeed later."""

    # Outside the range JSON-RPC reserves, as the error code policy asks. spec: basic#error-codes
    code = 429

    def __init__(self, message: str, retry_after: float = 1.0, *, own: bool = False) -> None:
        super().__init__(message, {"retryAfterMs": int(retry_after * 1000)})
        self.retry_after = retry_after
        self.own = own  # whether it is the caller's own share that is used up, not everyone's


class PeerError(MCPError):
    """An error response received from the other side."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class TransportError(MCPError):
    """The channel failed; nothing was said about the request itself."""


class Disconnected(TransportError):
    """The other side is gone."""


class CannotStart(TransportError):
    """The process of a server did not come to life; the text says which command, why, and what to try."""


class AuthError(MCPError):
    """Something about who the caller is."""


class Denied(AuthError):
    """Raise this from `authenticate` to turn a caller away: 401 to ask for credentials, 403 to refuse them."""

    def __init__(self, message: str = "Authentication is required", *, status: int = 401, challenge: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.challenge = challenge or ("Bearer" if status == 401 else "")


class ToolError(MCPError):
    """Raise this from a tool to tell the model what went wrong, in your words."""


class Declined(ToolError):
    """The user was asked and said no."""

    def __init__(self, message: str = "The user declined to answer.") -> None:
        super().__init__(message)


class Dismissed(ToolError):
    """The user was asked and closed the question without choosing."""

    def __init__(self, message: str = "The user dismissed the question.") -> None:
        super().__init__(message)


def clip(text: str, limit: int = 128) -> str:
    """Peer text made safe to repeat in a message or a log: bounded, control characters escaped."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return short if short.isprintable() else short.encode("unicode_escape", "backslashreplace").decode("ascii")

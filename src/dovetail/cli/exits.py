"""What the exit status says, and which one an error means."""

from typing import Any, Final

from dovetail.errors import (
    AnswerError,
    AuthError,
    Forbidden,
    MCPError,
    MissingCapability,
    NoCommonRevision,
    NotFound,
    NotMCP,
    NotOffered,
    PeerError,
    PolicyError,
    ResultError,
    TransportError,
    Unauthorized,
)

OK: Final = 0
FAULT: Final = 1
USAGE: Final = 2
CONNECT: Final = 3
AUTH: Final = 4
TOOL: Final = 5
CONTRACT: Final = 6
DENIED: Final = 7
INPUT: Final = 8
INTERRUPTED: Final = 130

MEANINGS: Final = {
    OK: "all is well",
    FAULT: "dovetail itself is at fault; -v shows where",
    USAGE: "the command line is wrong, or what it names does not exist",
    CONNECT: "the server could not be started or reached, or was lost",
    AUTH: "a login is needed, or came to nothing",
    TOOL: "the tool, or the server, answered with an error",
    CONTRACT: "a promise is not kept: by a result, a schema, a recording, the protocol",
    DENIED: "the server, the policy, or the user, said no",
    INPUT: "an answer is needed, and there is nobody to ask",
    INTERRUPTED: "interrupted from the keyboard",
}


def code_of(exc: MCPError) -> int:
    """The exit status of an error."""
    match exc:
        case NotFound() | NotOffered():
            return USAGE
        case Forbidden() | PolicyError():
            return DENIED
        case AuthError() | Unauthorized():
            return AUTH
        case AnswerError():
            return INPUT
        case PeerError() if exc.code == MissingCapability.code or _undeclared(exc.data):
            return INPUT
        case ResultError() | NoCommonRevision() | NotMCP():
            return CONTRACT
        case TransportError():
            return CONNECT
        case _:
            return TOOL


def _undeclared(data: Any) -> bool:
    """Whether a server wanted to ask what this client cannot be asked; old revisions have no code for it."""
    return isinstance(data, dict) and "requiredCapabilities" in data

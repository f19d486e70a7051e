"""What the exit status says, and which one an error means."""

from typing import Final

from dovetail.errors import (
    AnswerError,
    AuthError,
    Disconnected,
    MCPError,
    NoCommonRevision,
    NotMCP,
    PeerError,
    ResultError,
    ToolError,
    TransportError,
)

OK: Final = 0
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
    USAGE: "the command line is wrong, or what it names does not exist",
    CONNECT: "the server could not be reached, or was lost",
    AUTH: "a login is needed, or was refused",
    TOOL: "the tool, or the server, answered with an error",
    CONTRACT: "something does not keep its promise: a result, a schema, a recording",
    DENIED: "a rule, or the user, said no",
    INPUT: "an answer is needed, and there is nobody to ask",
    INTERRUPTED: "interrupted from the keyboard",
}


def code_of(exc: MCPError) -> int:
    """The exit status of an error."""
    match exc:
        case ToolError() | PeerError():
            return TOOL
        case AuthError():
            return AUTH
        case AnswerError():
            return INPUT
        case ResultError() | NoCommonRevision() | NotMCP():
            return CONTRACT
        case Disconnected() | TransportError():
            return CONNECT
        case _:
            return TOOL

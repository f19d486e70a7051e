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

EXIT_OK: Final = 0
EXIT_INTERNAL_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_CONNECT: Final = 3
EXIT_AUTH: Final = 4
EXIT_TOOL_ERROR: Final = 5
EXIT_VALIDATION: Final = 6
EXIT_DENIED: Final = 7
EXIT_INPUT_NEEDED: Final = 8
EXIT_INTERRUPTED: Final = 130

EXIT_CODE_DESCRIPTIONS: Final = {
    EXIT_OK: "all is well",
    EXIT_INTERNAL_ERROR: "dovetail itself is at fault; -v shows where",
    EXIT_USAGE: "the command line is wrong, or what it names does not exist",
    EXIT_CONNECT: "the server could not be started or reached, or was lost",
    EXIT_AUTH: "a login is needed, or came to nothing",
    EXIT_TOOL_ERROR: "the tool, or the server, answered with an error",
    EXIT_VALIDATION: "a promise is not kept: by a result, a schema, a recording, the protocol",
    EXIT_DENIED: "the server, the policy, or the user, said no",
    EXIT_INPUT_NEEDED: "an answer is needed, and there is nobody to ask",
    EXIT_INTERRUPTED: "interrupted from the keyboard",
}


def get_exit_code(exc: MCPError) -> int:
    """The exit status of an error."""
    match exc:
        case NotFound() | NotOffered():
            return EXIT_USAGE
        case Forbidden() | PolicyError():
            return EXIT_DENIED
        case AuthError() | Unauthorized():
            return EXIT_AUTH
        case AnswerError():
            return EXIT_INPUT_NEEDED
        case PeerError() if exc.code == MissingCapability.code or _needs_client_capability(exc.data):
            return EXIT_INPUT_NEEDED
        case ResultError() | NoCommonRevision() | NotMCP():
            return EXIT_VALIDATION
        case TransportError():
            return EXIT_CONNECT
        case _:
            return EXIT_TOOL_ERROR


def _needs_client_capability(data: Any) -> bool:
    """Whether a server wanted to ask what this client cannot be asked; old revisions have no code for it."""
    return isinstance(data, dict) and "requiredCapabilities" in data

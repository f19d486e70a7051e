"""What the exit status says, and which one an error means."""

import re
from typing import Any, Final

from dovetail.errors import (
    AuthError,
    Forbidden,
    InputRequestError,
    InvalidResult,
    MCPError,
    MissingClientCapability,
    NotFound,
    NotMCPServer,
    NotSupported,
    PolicyError,
    ProcessStartError,
    RemoteError,
    TransportError,
    Unauthorized,
    VersionNegotiationError,
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
        case NotFound() | NotSupported():
            return EXIT_USAGE
        case Forbidden() | PolicyError():
            return EXIT_DENIED
        case AuthError():
            return EXIT_AUTH
        case InputRequestError():
            return EXIT_INPUT_NEEDED
        case RemoteError() if exc.code == MissingClientCapability.code or _needs_client_capability(exc.data):
            return EXIT_INPUT_NEEDED
        case InvalidResult() | VersionNegotiationError() | NotMCPServer():
            return EXIT_VALIDATION
        case TransportError():
            return EXIT_CONNECT
        case _:
            return EXIT_TOOL_ERROR


def _needs_client_capability(data: Any) -> bool:
    """Whether a server wanted to ask what this client cannot be asked; old revisions have no code for it."""
    return isinstance(data, dict) and "requiredCapabilities" in data


_LOGIN_HINT: Final = "dovetail auth login, with the same target"
_SCOPE_PATTERN: Final = re.compile(r'\bscope="([^"\\]*)"')
_TRANSLATIONS: Final = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"call_tool\(\.\.\., timeout=seconds\) gives it longer, and .*", "--timeout SECONDS gives it longer"),
        (r", or use call_tool\(\.\.\., retry=True\) if it may run twice", ""),
        (r"Timeouts\(request=\.\.\.\) gives it longer", "--timeout SECONDS gives it longer"),
        (r"pass timeout=Timeouts\(\w+=\.\.\.\)", "pass --timeout SECONDS"),
        (r"inherit_env=\['(\w+)'\]", r"--env \1"),
        (r"env=\{'(\w+)': \.\.\.\}", r"--env \1=VALUE"),
        (r"pass protocol_version=['\"]([\w.-]+)['\"]", r"pass --protocol-version \1"),
        (r"\bprotocol_version=(?!\w)", "--protocol-version"),
        (r"pass auth=OAuth\(client_id=\.\.\.\)", "give --client-id to dovetail auth login"),
        (r"get a fresh token, or log in: auth=\"oauth\"", f"{_LOGIN_HINT}; or --auth TOKEN"),
        (r"give auth=", "give --auth"),
        (r"pass paste=", "log in with --paste"),
        (r"pass it with its issuer=", "log in with --client-id"),
        (r"give it auth=, or pass anonymous=True", "give it auth= in its file, or pass --anonymous"),
        (r"you learn by list_.*", "you learn by dovetail list, with the same target"),
        (r"give the client a handler for it: sample=", "dovetail chat has a model: --model"),
        (r"give the client a handler for it: roots=", "give them in a program of your own: Client(roots=[…])"),
        (r"^raise ClientLimits\(.*", ""),  # which no option does
    )
)


def translate_options(message: str) -> str:
    """Words of the library as somebody at the command line can follow them."""
    for pattern, replacement in _TRANSLATIONS:
        message = pattern.sub(replacement, message)
    return message


def translate_error(exc: MCPError) -> None:
    """Let an error say what to try here."""
    challenge = getattr(exc, "challenge", None) or ""
    scope_match = _SCOPE_PATTERN.search(challenge)
    if isinstance(exc, Forbidden) and "insufficient_scope" in challenge:
        scope_options = (
            "".join(f" --scope {scope}" for scope in scope_match[1].split()) if scope_match else " --scope S"
        )
        exc.hint = f"{_LOGIN_HINT} and{scope_options}; a token of your own must be issued with it"
    elif isinstance(exc, Unauthorized):
        exc.hint = f"{_LOGIN_HINT}; or --auth TOKEN"
    elif exc.hint:
        exc.hint = translate_options(exc.hint) or None
    if isinstance(exc, ProcessStartError | AuthError) and exc.args:
        exc.args = (translate_options(str(exc.args[0])), *exc.args[1:])

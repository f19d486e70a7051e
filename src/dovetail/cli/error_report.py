"""Exit codes, and hints for users of the command line."""

import errno
import re
import shlex
from typing import Any, Final

from dovetail.errors import (
    AuthError,
    DamagedFile,
    Forbidden,
    InputRequestError,
    InsufficientScope,
    InvalidResult,
    MCPError,
    MissingClientCapability,
    NotFound,
    NotMCPServer,
    NotSupported,
    OutcomeUnknown,
    PolicyError,
    ProcessStartError,
    RemoteError,
    RequestTimeout,
    SkillMismatch,
    TaskLost,
    TransportError,
    Unauthorized,
    UnsupportedFileVersion,
    UnusableFile,
    VersionNegotiationError,
)
from dovetail.protocol.client_messages import get_required_capabilities
from dovetail.server.exit_codes import CALLS_CUT

EXIT_OK: Final = 0
EXIT_INTERNAL_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_CONNECT: Final = 3
EXIT_AUTH: Final = 4
EXIT_TOOL_ERROR: Final = 5
EXIT_VALIDATION: Final = 6
EXIT_DENIED: Final = 7
EXIT_INPUT_NEEDED: Final = 8
EXIT_STUCK: Final = CALLS_CUT
EXIT_INTERRUPTED: Final = 130

EXIT_CODE_DESCRIPTIONS: Final = {
    EXIT_OK: "success",
    EXIT_INTERNAL_ERROR: "internal error: a bug in dovetail",
    EXIT_USAGE: "usage error, or something not found",
    EXIT_CONNECT: "connection failed or lost",
    EXIT_AUTH: "login required or failed",
    EXIT_TOOL_ERROR: "the tool or the server returned an error",
    EXIT_VALIDATION: "validation failed (result, schema, recording or protocol)",
    EXIT_DENIED: "denied by the server, the policy or the user",
    EXIT_INPUT_NEEDED: "input required, but no user to ask",
    EXIT_STUCK: "the server stopped while calls were running, after a second signal or `shutdown_timeout`",
    EXIT_INTERRUPTED: "interrupted",
}


def get_exit_code(exc: MCPError) -> int:
    """Return the exit code of an error."""
    match exc:
        case NotFound() | NotSupported() | TaskLost() | UnsupportedFileVersion() | DamagedFile() | UnusableFile():
            return EXIT_USAGE
        case Forbidden() | PolicyError():
            return EXIT_DENIED
        case RemoteError() if is_insufficient_scope(exc):
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
    return isinstance(data, dict) and "requiredCapabilities" in data


def is_insufficient_scope(exc: RemoteError) -> bool:
    """Return whether the server refused a request because the caller lacks a scope."""
    return exc.code == InsufficientScope.code and isinstance(exc.data, dict) and "requiredScopes" in exc.data


def _names_no_login(exc: Unauthorized | Forbidden) -> bool:
    return bool(exc.challenge) and "resource_metadata=" not in exc.challenge


def _format_login(exc: AuthError, options: str = "") -> str:
    """Return the command to log in to the server of an error."""
    server = exc.server or ""
    is_target = server.startswith(("http://", "https://")) or re.fullmatch(r"[\w:-]+", server)
    command = f"dovetail auth login {shlex.quote(server) if is_target else 'TARGET'} {options}".rstrip()
    return f"run `{command}`"


def describe_listen_error(exc: Exception) -> str:
    """Return the message of an error. If a server cannot listen at its address, add what the user can do."""
    if not isinstance(exc, OSError) or exc.strerror is None or exc.filename is not None:
        return translate_options(str(exc))
    code, message = exc.errno, exc.strerror
    if code == errno.EADDRINUSE:
        return f"{message}. Stop the other program, or pass --port 0 to use a free port"
    if code == errno.EACCES:
        return f"{message}. Pass a port from 1024 on with --port, because lower ports need administrator rights"
    return message


def _suggest_policy(match: re.Match[str]) -> str:
    fields = match[1].replace('="', ' = "')
    return f'Run the command at a terminal, or pass --policy FILE with: rules = [{{action = "allow", {fields}}}]'


BRIDGE_HINT: Final = "a program between this command and the server, such as a bridge, does not pass on elicitations"
_SCOPE_PATTERN: Final = re.compile(r'\bscope="([^"\\]*)"')
_TRANSLATIONS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"inherit_env=\['(\w+)'\]", r"--env \1"),
        (r"env=\{'(\w+)': \.\.\.\}", r"--env \1=VALUE"),
        (r"\bprotocol_version=['\"]([\w.-]+)['\"]", r"--protocol-version \1"),
        (r"\bprotocol_version=(?!\w)", "--protocol-version"),
        (r"^protocol_version must", "--protocol-version must"),
        (r"pass auth=OAuth\(client_id=\.\.\.\)", "pass --client-id to `dovetail auth login`"),
        (r"\bauth=(?:\"oauth\"|BearerAuth\([^)]*\))?(?!\w| on the server)", "--auth"),
        (r", or pass HTTPTarget\(url, verify='ca\.pem'\)", ""),
        (r"\ballow_anonymous=True", "--allow-anonymous"),
        (r"^port must", "--port must"),
        (r"\bUse port= for", "Use --port for"),
        (r"[Pp]ass paste_redirect=", "log in with --paste"),
        (r"pass it with issuer=", "log in with --client-id"),
        (r".*\bsampling_handler=.*", "use `dovetail chat --model MODEL`"),
        (r".*\broots=.*", "pass --root DIR"),
        (r"Pass consent= to the host, or add a rule: rule\(\"allow\", (.*)\)$", _suggest_policy),
        (r"Pass the (?:whole )?text of TaskHandle\.reference", "Pass the whole text that --detach has printed"),
        # The command line has no option for this limit, so the hint about it is removed.
        (r"^raise ClientLimits\(.*", ""),
    )
)


def translate_options(message: str) -> str:
    """Replace the names of Python options in a message with the names of command-line options."""
    for pattern, replacement in _TRANSLATIONS:
        message = pattern.sub(replacement, message)
    return message


def translate_error(exc: MCPError) -> None:
    """Rewrite the hint of an error for the command line."""
    exc.hint = _find_credentials_hint(exc) or _find_command_hint(exc) or translate_options(exc.hint or "") or None
    if isinstance(exc, ProcessStartError | AuthError) and exc.args:
        exc.args = (translate_options(str(exc.args[0])), *exc.args[1:])


def _find_credentials_hint(exc: MCPError) -> str | None:
    """Return how to get the login or the scopes that the server requires."""
    match exc:
        case Forbidden() if "insufficient_scope" in (exc.challenge or "") and _names_no_login(exc):
            return "pass --auth with a token that has these scopes. The server does not name a service to log in to"
        case Forbidden() if "insufficient_scope" in (exc.challenge or ""):
            scope_match = _SCOPE_PATTERN.search(exc.challenge or "")
            scopes = scope_match[1].split() if scope_match else ["SCOPE"]
            scope_options = " ".join(f"--scope {shlex.quote(scope)}" for scope in scopes)
            return f"{_format_login(exc, scope_options)}, or pass a token that has the scope"
        case Unauthorized() if _names_no_login(exc):
            return "pass --auth TOKEN. The server does not name a service to log in to"
        case Unauthorized():
            return f"{_format_login(exc)}, or pass --auth TOKEN"
        case RemoteError() if is_insufficient_scope(exc):
            return (
                "callers of a server that runs as a process have no scopes. Run `dovetail run FILE --http`, and call "
                "its URL with --auth TOKEN"
            )
        case _:
            return None


def _find_command_hint(exc: MCPError) -> str | None:
    """Return the option or the command that fixes an error. Use it if the hint of the error names Python code."""
    hint = exc.hint or ""
    match exc:
        case RemoteError() if "elicitation" in get_required_capabilities(exc.data):
            # All commands declare elicitation. If the server did not receive this declaration, a proxy has removed it.
            return hint if "_handler=" not in hint else BRIDGE_HINT
        case RequestTimeout() if "imeout" in hint:
            return "pass --timeout SECONDS to wait longer"
        case OutcomeUnknown() if "retry=" in hint:
            return "check whether the call took effect before you repeat it"
        case SkillMismatch():
            return "run `dovetail skills verify` on the same target to check all files"
        case NotFound() if "list_skills" in hint:
            return "run `dovetail skills list` on the same target to see what is available"
        case NotFound() if "list_" in hint:
            return "run `dovetail list` on the same target to see what is available"
        case _:
            return None

"""What to try next, said as options of the command line where the library names those of its functions."""

import re
from typing import Final

from dovetail.errors import AuthError, CannotStart, Forbidden, MCPError, NeedsLogin

_LOGIN_HINT: Final = "dovetail auth login, with the same target"
_SCOPE_PATTERN: Final = re.compile(r'\bscope="([^"\\]*)"')
_TRANSLATIONS: Final = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"call_tool\(\.\.\., timeout=seconds\) gives it longer, and .*", "--timeout SECONDS gives it longer"),
        (r", or use call_tool\(\.\.\., retry=True\) if it may run twice", ""),
        (r"Timeouts\(read=\.\.\.\) gives it longer", "--timeout SECONDS gives it longer"),
        (r"give timeouts=Timeouts\(\w+=\.\.\.\)", "give --timeout SECONDS"),
        (r"inherit_env=\['(\w+)'\]", r"--env \1"),
        (r"env=\{'(\w+)': \.\.\.\}", r"--env \1=VALUE"),
        (r"pass revision='([\w.-]+)'", r"give --revision \1"),
        (r"\bera= and revision=", "--era and --revision"),
        (r"\brevision=(?!\w)", "--revision"),
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
    elif isinstance(exc, NeedsLogin):
        exc.hint = f"{_LOGIN_HINT}; or --auth TOKEN"
    elif exc.hint:
        exc.hint = translate_options(exc.hint) or None
    if isinstance(exc, CannotStart | AuthError) and exc.args:
        exc.args = (translate_options(str(exc.args[0])), *exc.args[1:])

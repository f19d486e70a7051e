"""What to try next, said as options of the command line where the library names those of its functions."""

import re
from typing import Final

from dovetail.errors import AuthError, CannotStart, Forbidden, MCPError, NeedsLogin

_LOGIN: Final = "dovetail auth login, with the same target"
_SCOPE: Final = re.compile(r'\bscope="([^"\\]*)"')
_SPELLINGS: Final = tuple(
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
        (r"get a fresh token, or log in: auth=\"oauth\"", f"{_LOGIN}; or --auth TOKEN"),
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


def spelled(words: str) -> str:
    """Words of the library as somebody at the command line can follow them."""
    for pattern, instead in _SPELLINGS:
        words = pattern.sub(instead, words)
    return words


def advise(exc: MCPError) -> None:
    """Let an error say what to try here."""
    challenge = getattr(exc, "challenge", None) or ""
    scopes = _SCOPE.search(challenge)
    if isinstance(exc, Forbidden) and "insufficient_scope" in challenge:
        wanted = "".join(f" --scope {one}" for one in scopes[1].split()) if scopes else " --scope S"
        exc.hint = f"{_LOGIN} and{wanted}; a token of your own must be issued with it"
    elif isinstance(exc, NeedsLogin):
        exc.hint = f"{_LOGIN}; or --auth TOKEN"
    elif exc.hint:
        exc.hint = spelled(exc.hint) or None
    if isinstance(exc, CannotStart | AuthError) and exc.args:
        exc.args = (spelled(str(exc.args[0])), *exc.args[1:])

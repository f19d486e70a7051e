"""Names across servers: the host's own spelling, `server.tool`, and the one a model sees.

What a model sees depends on the pair alone, so it never shifts when another server joins; and it is injective: a name
of two parts is the pair itself, one of three ends with a digest of the pair it was cut or cleaned from.
"""

import base64
import hashlib
import re
from typing import Final

MAX_NAME_CHARS: Final = 64
SEPARATOR: Final = "__"

_DIGEST_CHARS: Final = 13  # characters of 5 bits: to hit another server's name takes 2**65 tries
_MAX_SERVER_CHARS: Final = 20  # what is left of a server's name that has to be cut
_MAX_TOOL_CHARS: Final = MAX_NAME_CHARS - _MAX_SERVER_CHARS - _DIGEST_CHARS - 2 * len(SEPARATOR)

_INVALID_CHARS: Final = re.compile(r"[^A-Za-z0-9-]+")  # underscores too, so that none are left side by side
# Neither part may hold the separator, nor make one where they meet. Gemini wants a letter or an underscore first.
_PLAIN_SERVER: Final = re.compile(r"(?!.*__)(?:[A-Za-z]|_[A-Za-z0-9-])(?:[A-Za-z0-9_-]*[A-Za-z0-9-])?")
_PLAIN_TOOL: Final = re.compile(r"(?!.*__)[A-Za-z0-9-][A-Za-z0-9_-]*")
_SERVER_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def make_full_name(server: str, tool: str) -> str:
    """The host's own spelling. A server's name has no dot, so it can be told back."""
    return f"{server}.{tool}"


def split_full_name(name: str) -> tuple[str, str]:
    """The server and the tool of a full name; ValueError if it is none."""
    server, dot, tool = name.partition(".")
    if not dot or not server:
        raise ValueError(f"a full name is written server.tool, not {name!r}")
    return server, tool


def make_model_name(server: str, tool: str) -> str:
    """What a model sees: at most 64 letters, digits, dashes and underscores, another for every other pair."""
    joined = f"{server}{SEPARATOR}{tool}"
    if len(joined) <= MAX_NAME_CHARS and _PLAIN_SERVER.fullmatch(server) and _PLAIN_TOOL.fullmatch(tool):
        return joined
    server_part = _shorten(server, _MAX_SERVER_CHARS - 1)
    if not server_part[:1].isalpha():
        server_part = f"_{server_part}"
    return SEPARATOR.join((server_part, _shorten(tool, _MAX_TOOL_CHARS), _digest_pair(server, tool)))


def _shorten(text: str, max_chars: int) -> str:
    return _INVALID_CHARS.sub("_", text[: 4 * max_chars]).strip("_")[:max_chars].strip("_") or "x"


def _digest_pair(server: str, tool: str) -> str:
    # The length tells where the one ends and the other begins. Surrogates have no UTF-8, but may be in a JSON text.
    pair = f"{len(server)}:{server}{tool}".encode("utf-8", "surrogatepass")
    return base64.b32encode(hashlib.sha256(pair).digest()).decode("ascii").lower()[:_DIGEST_CHARS]


def check_server_name(name: str) -> str:
    """A server's name, or ValueError: letters, digits, dashes and underscores, so that no two look alike."""
    if not _SERVER_NAME_PATTERN.fullmatch(name):
        raise ValueError(f"a server's name is 1 to 64 letters, digits, dashes and underscores, not {name!r}")
    return name


def make_server_name(name: str) -> str:
    """A server's name made from what a file calls it; what is not ASCII leaves a mark, so that no two become one."""
    if _SERVER_NAME_PATTERN.fullmatch(name):
        return name
    ascii_name = re.sub(r"[^A-Za-z0-9_-]+", "-", name[:256]).strip("-")
    if ascii_name and name.isascii() and len(name) <= MAX_NAME_CHARS:
        return ascii_name
    return f"{ascii_name[: MAX_NAME_CHARS - 9] or 'server'}-{_digest_pair(name, '')[:8]}"

"""Names across servers: the host's own spelling, `server.tool`, and the one a model sees.

What a model sees depends on the pair alone, so it never shifts when another server joins; and it is injective: a name
of two parts is the pair itself, one of three ends with a digest of the pair it was cut or cleaned from.
"""

import base64
import hashlib
import re
from typing import Final

LONGEST: Final = 64
SEPARATOR: Final = "__"

_DIGEST: Final = 13  # characters of 5 bits: to hit another server's name takes 2**65 tries
_SERVER: Final = 20  # what is left of a server's name that has to be cut
_TOOL: Final = LONGEST - _SERVER - _DIGEST - 2 * len(SEPARATOR)

_OUTSIDE: Final = re.compile(r"[^A-Za-z0-9-]+")  # underscores too, so that none are left side by side
# Neither part may hold the separator, nor make one where they meet. Gemini wants a letter or an underscore first.
_PLAIN_SERVER: Final = re.compile(r"(?!.*__)(?:[A-Za-z]|_[A-Za-z0-9-])(?:[A-Za-z0-9_-]*[A-Za-z0-9-])?")
_PLAIN_TOOL: Final = re.compile(r"(?!.*__)[A-Za-z0-9-][A-Za-z0-9_-]*")
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def full(server: str, tool: str) -> str:
    """The host's own spelling. A server's name has no dot, so it can be told back."""
    return f"{server}.{tool}"


def split(name: str) -> tuple[str, str]:
    """The server and the tool of a full name; ValueError if it is none."""
    server, dot, tool = name.partition(".")
    if not dot or not server:
        raise ValueError(f"a full name is written server.tool, not {name!r}")
    return server, tool


def exposed(server: str, tool: str) -> str:
    """What a model sees: at most 64 letters, digits, dashes and underscores, another for every other pair."""
    plain = f"{server}{SEPARATOR}{tool}"
    if len(plain) <= LONGEST and _PLAIN_SERVER.fullmatch(server) and _PLAIN_TOOL.fullmatch(tool):
        return plain
    start = _cut(server, _SERVER - 1)
    if not start[:1].isalpha():
        start = f"_{start}"
    return SEPARATOR.join((start, _cut(tool, _TOOL), _digest(server, tool)))


def _cut(text: str, size: int) -> str:
    return _OUTSIDE.sub("_", text[: 4 * size]).strip("_")[:size].strip("_") or "x"


def _digest(server: str, tool: str) -> str:
    # The length tells where the one ends and the other begins. Surrogates have no UTF-8, but may be in a JSON text.
    pair = f"{len(server)}:{server}{tool}".encode("utf-8", "surrogatepass")
    return base64.b32encode(hashlib.sha256(pair).digest()).decode("ascii").lower()[:_DIGEST]


def check_server(name: str) -> str:
    """A server's name, or ValueError: letters, digits, dashes and underscores, so that no two look alike."""
    if not _SERVER_NAME.fullmatch(name):
        raise ValueError(f"a server's name is 1 to 64 letters, digits, dashes and underscores, not {name!r}")
    return name


def cleaned(name: str) -> str:
    """A server's name made from what a file calls it; what is not ASCII leaves a mark, so that no two become one."""
    if _SERVER_NAME.fullmatch(name):
        return name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name[:256]).strip("-")
    if plain and name.isascii() and len(name) <= LONGEST:
        return plain
    return f"{plain[: LONGEST - 9] or 'server'}-{_digest(name, '')[:8]}"

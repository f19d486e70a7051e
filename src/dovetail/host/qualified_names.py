"""The names of tools in a host: the full name `server.tool`, and the name that a model sees.

The model name depends only on the server and the tool, so it does not change when another server is added. It is
unique. A name with two parts consists of the server and the tool. A name with three parts was shortened or cleaned, and
ends with a digest of the server and the tool.
"""

import base64
import hashlib
import re
from typing import Final

MAX_NAME_CHARS: Final = 64
SEPARATOR: Final = "__"

# Each character of the digest has 5 bits, so a collision takes 2**65 attempts.
_DIGEST_CHARS: Final = 13
_MAX_SERVER_CHARS: Final = 20  # Server names are shortened to this length.
_MAX_TOOL_CHARS: Final = MAX_NAME_CHARS - _MAX_SERVER_CHARS - _DIGEST_CHARS - 2 * len(SEPARATOR)

# In a shortened name, underscores are replaced, because two underscores separate its parts.
_INVALID_CHARS: Final = re.compile(r"[^A-Za-z0-9-]+")
# Neither name may contain the separator, and joining the names must not create a second separator.
# Gemini requires that a name starts with a letter or an underscore.
_PLAIN_SERVER: Final = re.compile(r"(?!.*__)(?:[A-Za-z]|_[A-Za-z0-9-])(?:[A-Za-z0-9_-]*[A-Za-z0-9-])?")
_PLAIN_TOOL: Final = re.compile(r"(?!.*__)[A-Za-z0-9-][A-Za-z0-9_-]*")
_SERVER_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def make_full_name(server: str, tool: str) -> str:
    """Return the full name "server.tool". A server name has no dot, so `split_full_name` can split the full name."""
    return f"{server}.{tool}"


def split_full_name(name: str) -> tuple[str, str]:
    """Split a full name into server and tool. Raise ValueError if the full name is invalid."""
    server, dot, tool = name.partition(".")
    if not dot or not server:
        raise ValueError(f"invalid full name {name!r}. It must have the form server.tool")
    return server, tool


def make_model_name(server: str, tool: str) -> str:
    """Return the name of a tool for models. Each tool of each server has a different name.

    The name has at most 64 letters, digits, dashes and underscores.
    """
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
    # Without the length, ("a", "bc") and ("ab", "c") would have the same digest.
    # Names from JSON may contain surrogates, which plain UTF-8 rejects.
    pair = f"{len(server)}:{server}{tool}".encode("utf-8", "surrogatepass")
    return base64.b32encode(hashlib.sha256(pair).digest()).decode("ascii").lower()[:_DIGEST_CHARS]


def check_server_name(name: str) -> str:
    """Raise ValueError if a server name is invalid. Otherwise return the name.

    A valid name consists of 1 to 64 ASCII letters, digits, dashes and underscores.
    """
    if not _SERVER_NAME_PATTERN.fullmatch(name):
        raise ValueError(f"a server name must be 1 to 64 letters, digits, dashes and underscores, not {name!r}")
    return name


def make_server_name(name: str) -> str:
    """Return a valid server name for a name in a configuration file.

    Invalid characters are replaced, and a digest keeps names unique.
    """
    if _SERVER_NAME_PATTERN.fullmatch(name):
        return name
    ascii_name = re.sub(r"[^A-Za-z0-9_-]+", "-", name[:256]).strip("-")
    if ascii_name and name.isascii() and len(name) <= MAX_NAME_CHARS:
        return ascii_name
    return f"{ascii_name[: MAX_NAME_CHARS - 9] or 'server'}-{_digest_pair(name, '')[:8]}"

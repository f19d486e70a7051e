"""Globs of names: which tools, prompts and addresses a rule means.

What tightens means every spelling of a thing, for whoever writes a rule should not have to know them all. What loosens
means the thing itself and nothing that can be taken for it.
"""

import posixpath
import re
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote

from dovetail.host.names import SEPARATOR, exposed, full

_SERVER_GLOB: Final = re.compile(r"[A-Za-z0-9_*?\[\]!-]+")  # what may stand for a server's name
_ROUNDS: Final = 4  # of escaping that anybody undoes


def tightly(glob: str, server: str, tool: str) -> bool:
    """Whether a rule that asks, denies or hides means this."""
    if fnmatchcase(tool, glob) or fnmatchcase(full(server, tool), glob):
        return True
    if SEPARATOR in glob and fnmatchcase(exposed(server, tool), glob):
        return True
    return "://" in tool and fnmatchcase(_address(tool), glob.lower())


def loosely(glob: str, server: str, tool: str, *, named: bool = False) -> bool:
    """Whether a rule that allows means this; `named`: it names the server elsewhere."""
    if SEPARATOR in glob and glob == exposed(server, tool):
        return True
    if "://" in tool and _ambiguous(tool):
        return False
    # Part by part, so that no server can pass for another by a dot in a tool's name.
    whose, dot, inner = glob.partition(".")
    if named or not dot or not _SERVER_GLOB.fullmatch(whose):
        return fnmatchcase(tool, glob)
    return fnmatchcase(server, whose) and fnmatchcase(tool, inner)


def _undone(uri: str) -> str:
    for _ in range(_ROUNDS):
        uri = unquote(uri)
    return uri


def _ambiguous(uri: str) -> bool:
    """Whether an address has steps in its path that some readers follow, or may have under more escaping."""
    plain = _undone(uri)
    return plain != unquote(plain) or any(step in (".", "..") for step in re.split(r"[/\\]", plain))


def _address(uri: str) -> str:
    """An address as most would read it."""
    scheme, _, rest = _undone(uri).lower().partition("://")
    return f"{scheme}://{posixpath.normpath(rest.replace(chr(92), '/'))}"

"""Globs of names: which tools, prompts and addresses a rule means.

What tightens means every spelling of a thing, for whoever writes a rule should not have to know them all. What loosens
means the thing itself and nothing that can be taken for it.
"""

import re
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote

from dovetail.host.names import SEPARATOR, exposed, full
from dovetail.protocol.uri_key import is_ambiguous, is_uri, split_authority, uri_readings

_SERVER_GLOB: Final = re.compile(r"[A-Za-z0-9_*?\[\]!-]+")  # what may stand for a server's name


def tightly(glob: str, server: str, tool: str) -> bool:
    """Whether a rule that asks, denies or hides means this."""
    if fnmatchcase(tool, glob) or fnmatchcase(full(server, tool), glob):
        return True
    if SEPARATOR in glob and fnmatchcase(exposed(server, tool), glob):
        return True
    return is_uri(tool) and _means_uri(glob.lower(), server.lower(), tool)


def _means_uri(glob: str, server: str, uri: str) -> bool:
    """Return whether a glob matches a URI in one of its readings, whatever the case; its escapes may be decoded."""
    names = [name for reading in uri_readings(uri) for name in _spelled(reading.lower(), server)]
    return any(fnmatchcase(name, one) for one in {glob, unquote(glob)} for name in names)


def _spelled(reading: str, server: str) -> list[str]:
    plain = unquote(reading)
    return [reading, plain, full(server, reading), full(server, plain)]


def loosely(glob: str, server: str, tool: str, *, named: bool = False, uri: bool = False) -> bool:
    """Whether a rule that allows means this; `named`: it names the server elsewhere; `uri`: this is surely a URI."""
    if SEPARATOR in glob and glob == exposed(server, tool):
        return True
    address = "://" in tool or (uri and is_uri(tool))
    if address and is_ambiguous(tool):
        return False
    matches = _matches_exactly if address else fnmatchcase
    # Part by part, so that no server can pass for another by a dot in a tool's name.
    whose, dot, inner = glob.partition(".")
    if named or not dot or not _SERVER_GLOB.fullmatch(whose):
        return matches(tool, glob)
    return fnmatchcase(server, whose) and matches(tool, inner)


def _matches_exactly(uri: str, glob: str) -> bool:
    """Return whether a glob matches a URI without a `*` in its authority matching a path, query or fragment."""
    site, rest = split_authority(glob)
    if "://" not in glob or (not rest and site.endswith("*")):
        return fnmatchcase(uri, glob)
    uri_site, uri_rest = split_authority(uri)
    return fnmatchcase(uri_site, site) and fnmatchcase(uri_rest, rest)

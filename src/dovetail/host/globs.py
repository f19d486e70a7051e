"""Globs of names: which tools, prompts and addresses a rule means.

What tightens means every spelling of a thing, for whoever writes a rule should not have to know them all. What loosens
means the thing itself and nothing that can be taken for it.
"""

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from dovetail.host.names import SEPARATOR, make_full_name, make_model_name
from dovetail.protocol.uri_key import MAX_URI_CHARS, is_ambiguous, is_uri, nfc, split_authority, uri_readings

_SERVER_GLOB: Final = re.compile(r"[A-Za-z0-9_*?\[\]!-]+")  # what may stand for a server's name

# Wildcards in a class are ordinary characters already.
_CLASS_OR_ESCAPED_WILDCARD: Final = re.compile(r"\[!?\]?[^\]]*\]|%(5b|5d|2a|3f)")
_IPV6_START: Final = re.compile(r"(?<=//)\[(?=[0-9a-f.]*:[0-9a-f.]*:)")  # as in http://[::1]/, which is not a class
_LITERAL_WILDCARDS: Final = {"5b": "[[]", "5d": "[]]", "2a": "[*]", "3f": "[?]"}


def matches_restrictive(glob: str, server: str, tool: str) -> bool:
    """Whether a rule that asks, denies or hides means this."""
    if fnmatchcase(tool, glob) or fnmatchcase(make_full_name(server, tool), glob):
        return True
    if SEPARATOR in glob and fnmatchcase(make_model_name(server, tool), glob):
        return True
    return is_uri(tool) and _matches_uri(glob.lower(), server.lower(), tool)


def _matches_uri(glob: str, server: str, uri: str) -> bool:
    """Return whether a glob matches a URI in one of its readings, whatever the case. A URI too long to read counts."""
    if len(uri) > MAX_URI_CHARS:
        return True
    readings = uri_readings(uri)
    if "?" in uri or "%" in uri:  # many servers ignore a query that they do not know
        readings |= {reading.partition("?")[0] for reading in readings}
    names = [name for reading in readings for name in _build_names(reading.lower(), server)]
    return any(fnmatchcase(name, spelling) for spelling in _expand_glob(glob) for name in names)


@lru_cache(256)
def _expand_glob(glob: str) -> frozenset[str]:
    """Return a glob as written and with its escapes decoded. An escaped wildcard becomes an ordinary character."""
    literal = _IPV6_START.sub("[[]", glob)
    literal = _CLASS_OR_ESCAPED_WILDCARD.sub(lambda match: _LITERAL_WILDCARDS.get(match[1], match[0]), literal)
    return frozenset({glob, nfc(glob), nfc(unquote(literal))})


def _build_names(reading: str, server: str) -> list[str]:
    decoded = unquote(reading)
    return [reading, decoded, make_full_name(server, reading), make_full_name(server, decoded)]


def matches_permissive(
    glob: str, server: str, tool: str, *, has_server_rule: bool = False, is_certain_uri: bool = False
) -> bool:
    """Return whether a rule that allows means this tool or URI.

    named: the rule names the server elsewhere. uri: `tool` is certainly a URI.
    """
    if SEPARATOR in glob and glob == make_model_name(server, tool):
        return True
    is_address = "://" in tool or (is_certain_uri and is_uri(tool))
    if is_address and is_ambiguous(tool):
        return False
    matches = _matches_exactly if is_address else fnmatchcase
    # Part by part, so that no server can pass for another by a dot in a tool's name.
    server_glob, dot, tool_glob = glob.partition(".")
    if has_server_rule or not dot or not _SERVER_GLOB.fullmatch(server_glob):
        return matches(tool, glob)
    return fnmatchcase(server, server_glob) and matches(tool, tool_glob)


def _matches_exactly(uri: str, glob: str) -> bool:
    """Return whether a glob matches a URI without a `*` in its authority matching a path, query or fragment."""
    authority, remainder = split_authority(glob)
    if "://" not in glob or (not remainder and authority.endswith("*")):
        return fnmatchcase(uri, glob)
    uri_authority, uri_remainder = split_authority(uri)
    return fnmatchcase(uri_authority, authority) and fnmatchcase(uri_remainder, remainder)

"""All the ways in which programs may read a URI, for rules that no spelling of a URI may evade.

- `uri_readings` and `rule_keys` decide which URIs could be the same. Rules that deny or hide use them.
- `is_ambiguous` returns whether programs may disagree about a URI. Rules that allow never match such a URI.

`uri_key` decides which URIs are the same.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from dovetail.protocol.uri_key import ESCAPES_PATTERN, MAX_URI_CHARS, uri_key

_ESCAPES: Final = re.compile(ESCAPES_PATTERN)
_DECODING_ROUNDS: Final = 4  # A URI may pass several programs, and each program may decode it once.
_CACHED_READINGS: Final = 512
_MAX_CACHED_CHARS: Final = 512  # The cache for longer URIs is much smaller, so that callers cannot fill the memory.
_CACHED_LONG_READINGS: Final = 4
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)(.*)", re.DOTALL)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")
_BLANKS: Final = re.compile(r"[\x00-\x20\x7f]")
# The escapes of ? and # are kept, because the plain characters would end the path.
_KEPT_ESCAPES: Final = re.compile(r"%(?=3[Ff]|23)")
# A URI of this form contains nothing to decode or to resolve.
_SIMPLE: Final = re.compile(r"[a-z][a-z0-9+.-]*+:/*+(?:[\w~!$&'()*+,;=:@-][\w.~!$&'()*+,;=:@-]*+/?)*+", re.ASCII)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
_THIS_MACHINE: Final = frozenset({"", "localhost", "127.0.0.1", "[::1]"})
# In a host name, IDNA treats these characters as dots.
_HOST_DOTS: Final = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})
_LITERAL_PERCENT: Final = re.compile(r"%(?!3[Ff]|23)")
_BARE_HOST: Final = re.compile(r"\[[^\]]*\]|[^:]*")  # This matches a host without its port.
_DRIVE: Final = re.compile(r"(/*[A-Za-z])\|(?=/|\Z)")


def is_uri(name: str) -> bool:
    """Return whether a name starts with a URI scheme, such as `file:`."""
    return _URI.match(_strip(name)) is not None


def rule_keys(uri: str) -> frozenset[str]:
    """Return the normalized forms of a URI in a rule. An index of rules or resources contains each form as a key.

    The rule matches each URI that a program may read as one of these forms.
    """
    texts = _clean_texts(uri)
    return frozenset({uri_key(uri), *(form for text in texts[:1] for form in _forms(text, lenient=False))})


def uri_readings(uri: str) -> frozenset[str]:
    """Return all normalized forms of a URI. Each form is one way in which a program may read the URI.

    Programs differ in which characters they decode and how often, in the order of decoding and resolving dot segments,
    and in how they treat slashes, backslashes, control characters, the authority of `file:`, query and fragment.
    """
    return (_cached_readings if len(uri) <= _MAX_CACHED_CHARS else _cached_long_readings)(uri)


def is_ambiguous(uri: str) -> bool:
    """Return whether programs may disagree about which resource a URI means. Very long URIs count as ambiguous."""
    if len(uri) > MAX_URI_CHARS:
        return True
    plain = uri
    for _ in range(_DECODING_ROUNDS if "%" in uri else 0):
        plain = unquote(plain)
    if _BLANKS.search(uri) or _CONTROLS.search(plain) or "\\" in plain or plain != unquote(plain):
        return True
    if any(segment in (".", "..") for segment in re.split("[/:]", plain)):
        return True
    match = _URI.match(uri)
    if match is None or _family(match[1]) not in ("file", *_DEFAULT_PORTS):
        return False
    if _family(match[1]) == "file" and len(match[2]) != 2:
        return False
    # Some programs decode a URI before they search for the end of the authority.
    authority = re.split("[/?#]", match[3], maxsplit=1)[0]
    host = unquote(authority)
    if any(delimiter in host and delimiter not in authority for delimiter in "/?#@"):
        return True
    return not host.isascii() and _nfkc(host) != host


def _readings(uri: str) -> frozenset[str]:
    return frozenset({uri_key(uri), *(form for text in _clean_texts(uri) for form in _forms(text, lenient=True))})


_cached_readings = lru_cache(_CACHED_READINGS)(_readings)
# Results for long URIs are also cached, because all rules for one request check the same URI.
_cached_long_readings = lru_cache(_CACHED_LONG_READINGS)(_readings)


def _strip(uri: str) -> str:
    """Remove characters that URL parsers ignore: control characters, and spaces at both ends."""
    return _CONTROLS.sub("", uri).strip(" ")


def _clean_texts(uri: str) -> list[str]:
    """Return the decoded forms of a URI, with and without resolved dot segments."""
    if _SIMPLE.fullmatch(uri):
        return [uri]
    text = _strip(uri).replace("\\", "/")
    rounds = [text]
    for _ in range(_DECODING_ROUNDS):
        text = _unquote(text).replace("\\", "/")
        if text == rounds[-1]:
            break
        rounds.append(text)
    texts = [_decode(rounds[-1])]
    if "/." in text or len(rounds) > 1:  # A text with neither "/." nor escapes contains no dot segments.
        texts += map(_decode, dict.fromkeys(map(_resolve_dots, rounds)))
    return [*dict.fromkeys(texts)]


def _decode(text: str) -> str:
    for _ in range(_DECODING_ROUNDS):
        decoded = _unquote(text)
        if decoded == text:
            break
        text = decoded
    return _strip(text).replace("\\", "/")


def _unquote(text: str) -> str:
    return unquote(_KEPT_ESCAPES.sub("%25", text)) if _ESCAPES.search(text) else text


def _resolve_dots(text: str) -> str:
    """Resolve plain and escaped dot segments in a URI. Keep repeated slashes, because URL parsers keep them."""
    end = re.search("[?#]", text)
    path, tail = (text, "") if end is None else (text[: end.start()], text[end.start() :])
    start = path.find(":") + 1
    while path[start : start + 1] == "/":
        start += 1
    segments: list[str] = []
    for segment in path[start:].split("/"):
        match segment.lower().replace("%2e", "."):
            case "..":
                del segments[-1:]
            case ".":
                pass
            case _:
                segments.append(segment)
    return path[:start] + "/".join(segments) + tail


def _forms(text: str, *, lenient: bool) -> Iterator[str]:
    """Yield the equivalent forms of a decoded URI. A rule may contain any of these forms.

    lenient: also yield forms without the parts that some programs ignore: user, port of unknown schemes, fragment, and
    query of a file.
    """
    match = _URI.match(text)
    if match is None:
        return
    scheme, slashes, rest = match[1].lower(), len(match[2]), nfc(match[3])
    end = re.search("[?#]", rest)
    path, tail = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
    family = _family(scheme)
    if family == "file":
        places = _file_places(slashes, path, lenient=lenient)
    elif family in _DEFAULT_PORTS:
        places = _web_places(path, _DEFAULT_PORTS[family])
    else:
        places = _other_places(slashes, path, lenient=lenient)
    tails = dict.fromkeys(_tails(tail, drop_query=lenient and family == "file", drop_fragment=lenient))
    for place in dict.fromkeys(places):
        yield from (f"{scheme}:{_escape(place)}{_escape(tail_form)}" for tail_form in tails)


def _family(scheme: str) -> str:
    """Return the scheme of a URI without the prefix of a mounted server.

    For example, a file URI of a server mounted as `files` has the scheme `files+file` and counts as `file`.
    """
    return scheme.lower().rpartition("+")[2]


def _file_places(slashes: int, path: str, *, lenient: bool) -> Iterator[str]:
    host, _, inner = path.partition("/") if slashes == 2 else ("", "", path)
    inner = _DRIVE.sub(r"\1:", inner)
    local = _fold_host(host) in _THIS_MACHINE
    if not local:
        yield from (
            f"//{name}{absolute_path}" for name in _hosts(host, lenient=lenient) for absolute_path in _paths(inner)
        )
    if local or lenient:
        for absolute_path in (*_paths(inner), *(() if local else _paths(path))):
            yield from (f"//{absolute_path}", absolute_path, f"//localhost{absolute_path}")


def _web_places(path: str, default_port: str) -> Iterator[str]:
    authority, _, inner = path.partition("/")
    host, port = authority.rpartition("@")[2], ""
    if match := re.search(r":(\d*)\Z", host):
        host, port = host[: match.start()], match[1].lstrip("0")
    host = _fold_host(host)
    ports = ("", f":{default_port}") if port in ("", default_port) else (f":{port}",)
    for absolute_path in (*_paths(inner), *(() if inner.strip("/") else ("",))):
        yield from (f"//{host}{port}{absolute_path}" for port in ports)


def _other_places(slashes: int, path: str, *, lenient: bool) -> Iterator[str]:
    """Yield the possible forms of a URI with a custom scheme. The first part can be a host or a path segment.

    Servers differ in how they read custom schemes.
    """
    if slashes == 2 or lenient:
        first, slash, inner = path.partition("/")
        paths = [*_paths(inner)] if slash else [""]
        yield from (f"//{host}{inner_path}" for host in _hosts(first, lenient=lenient) for inner_path in paths)
    if slashes != 2 or lenient:
        for absolute_path in _paths(path):
            yield from (f"//{absolute_path}", absolute_path, absolute_path[1:])
            if lenient:
                first, slash, inner = absolute_path[1:].partition("/")
                yield from (f"//{host}{slash}{inner}" for host in _hosts(first, lenient=True))


def _hosts(authority: str, *, lenient: bool) -> Iterator[str]:
    host = _fold_host(authority)
    yield host
    if lenient and ("@" in host or ":" in host):
        bare_host = _BARE_HOST.match(host.rpartition("@")[2])
        yield "" if bare_host is None else bare_host[0].removesuffix(".")


def _paths(path: str) -> Iterator[str]:
    """Yield the normalized path without a final slash. If the path ends with a slash, also yield it with the slash."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    clean = "/" + "/".join(segments)
    yield clean
    if clean != "/" and path.endswith(("/", "/.", "/..")):
        yield f"{clean}/"


def _tails(tail: str, *, drop_query: bool, drop_fragment: bool) -> Iterator[str]:
    """Yield the query and fragment of a URI, as written and with sorted query parameters."""
    query, separator, fragment = tail.partition("#")
    for query_form in (query, "?" + "&".join(sorted(pair for pair in query[1:].split("&") if pair))):
        yield f"{query_form if query_form != '?' else ''}{separator if fragment else ''}{fragment}"
        if drop_fragment:
            yield query_form if query_form != "?" else ""
    if drop_query:
        yield ""


def _fold_host(host: str) -> str:
    host = host.translate(_HOST_DOTS).lower() if host.isascii() else _nfkc(host.translate(_HOST_DOTS)).lower()
    return host.removesuffix(".")


def _escape(text: str) -> str:
    """Escape the percent signs in a text, so that URI templates match them literally."""
    return _LITERAL_PERCENT.sub("%25", text).replace("%3f", "%3F") if "%" in text else text


def nfc(text: str) -> str:
    """Return a text in Unicode normal form C."""
    if text.isascii():
        return text
    from unicodedata import normalize  # This import is here because only text that is not ASCII needs the module.

    return normalize("NFC", text)


def _nfkc(text: str) -> str:
    from unicodedata import normalize

    return normalize("NFKC", text)

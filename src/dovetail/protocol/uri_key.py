"""Canonical keys for URIs. Two spellings of a URI with the same key name the same resource.

Lookups, subscriptions and comparisons use `uri_key`. `template_key` does the same for templates. On the wire, URIs keep
their original spelling. `uri_readings` decides which URIs could be the same.
"""

import re
from itertools import chain, zip_longest
from typing import Final

UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# URIs longer than this are not decoded. nginx and Apache have about the same default limit.
MAX_URI_CHARS: Final = 8192
# This matches an ASCII URI that is already normalized: no escapes, and a lower-case scheme and authority.
# The pattern accepts all other characters, because a stricter pattern would take 6 ms to compile.
_IS_KEY: Final = re.compile(r"[^:/?#%A-Z]*+:(?:(?!//)|//[^/?#%A-Z]*+(?=[/?#]|\Z))[^%]*+")
# These patterns are compiled when they are first used, because most URIs do not need them.
_SITE_PATTERN: Final = r"([^:/?#]*:)(?://((?:[^/?#]*@)?)([^/?#]*))?"
ESCAPES_PATTERN: Final = r"(?:%[0-9A-Fa-f]{2})+"
_EXPRESSION_PATTERN: Final = r"\{[^{}]*\}"


def uri_key(uri: str) -> str:
    """Normalize a URI by RFC 3986, section 6.2.2, but keep its dot segments.

    Scheme and host become lower case, escapes of unreserved characters are decoded, the other escapes become upper
    case, and characters outside ASCII are escaped. Two URIs with the same key name the same resource.
    """
    is_ascii = uri.isascii()
    if is_ascii and _IS_KEY.fullmatch(uri):
        return uri
    text = uri
    if not is_ascii:
        from urllib.parse import quote  # This import is here because few servers need the module.

        text = re.sub(r"[^\x00-\x7f]+", lambda match: quote(match[0], safe="", errors="surrogatepass"), uri)
    if "%" not in text:
        return fold_site(text)
    site, rest = split_authority(re.sub(ESCAPES_PATTERN, _shorten_escapes, text))
    site = fold_site(site)
    return (re.sub(ESCAPES_PATTERN, _upper_escapes, site) if "%" in site else site) + rest


def template_key(template: str) -> str:
    """Normalize a URI template like a URI, but do not change the expressions in braces."""
    expressions = re.findall(_EXPRESSION_PATTERN, template)
    literals = uri_key(re.sub(_EXPRESSION_PATTERN, "{}", template)).split("{}")
    if len(literals) != len(expressions) + 1:  # The template has braces outside of expressions, so it is invalid.
        return template
    return "".join(chain.from_iterable(zip_longest(literals, expressions, fillvalue="")))


def fold_site(uri: str) -> str:
    """Return a URI with its scheme and host in lower case."""
    site = re.match(_SITE_PATTERN, uri)
    if site is None:
        return uri
    scheme, (host, end) = site.end(1), site.span(3)
    if host < 0:
        return uri[:scheme].lower() + uri[scheme:]
    return uri[:scheme].lower() + uri[scheme:host] + uri[host:end].lower() + uri[end:]


def split_authority(uri: str) -> tuple[str, str]:
    """Split a URI or a URI pattern after its authority."""
    start = uri.find("://")
    if start < 0:
        return uri, ""
    end = re.search("[/?#]", uri[start + 3 :])
    return (uri, "") if end is None else (uri[: start + 3 + end.start()], uri[start + 3 + end.start() :])


def _shorten_escapes(match: re.Match[str]) -> str:
    characters = bytes.fromhex(match[0].replace("%", ""))
    return "".join([chr(byte) if byte in UNRESERVED else f"%{byte:02X}" for byte in characters])


def _upper_escapes(match: re.Match[str]) -> str:
    return match[0].upper()

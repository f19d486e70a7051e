"""Mask secrets in messages, headers, texts and URLs before they are recorded or logged.

A secret is recognized by the words of its name, such as `api_token` or `dbPassword`, or by its form, such as
`Bearer …`, a JSON Web Token or a private key. Every recording, trace, audit log and log of requests uses this module.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

MASK: Final = "***"

_json_decoder: Final = msgspec.json.Decoder()

# Names are split into words, converted to lower case and joined with "_" before they are compared.
_WORD_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_SECRET_NAME: Final = re.compile(
    r"passw(?:or)?d|passphrase|pass_?code|pin_?code|pass_word|secret(?!ar)|credential|bearer|cookie"
    r"|tokens?(?=_|$|\d)|authorization(?:_header)?$|code_?verifier|client_?assertion|connection_?string|webhook_url$"
    r"|(?:^|_)(?:pass|pwd|pat|otp|totp|cvv|cvc|jwt|dsn|psk|creds?)(?:_|$|\d)|(?:^|_|http|basic)auth$"
    r"|(?:api|app|access|account|admin|auth|client|deploy|encryption|hmac|host|master|private|root|server|service"
    r"|session|shared|signing|ssh|storage|subscription|webhook)_?keys?(?=_|$|\d)(?!_id$)"
)
# A name with one of these endings describes a secret and does not contain it, such as `token_type`.
_DESCRIPTION_NAME: Final = re.compile(
    r"_(?:algorithm|at|budget|count|enabled|endpoint|exists|expiration|expires|expiry|file|format|in|length|limit"
    r"|methods?|name|names|path|policy|required|size|supported|type|uri|(?<!webhook_)url|usage)$"
)
_MESSAGE_TOKENS: Final = frozenset({"progressToken"})  # These names of the protocol are not secrets.
_MAX_NAME_CHARS: Final = 200
_MAX_CACHED_BYTES: Final = 4096  # The names in larger JSON values are not cached.
_REQUEST_STATE_KEY: Final = "requestState"

# The member names of these objects are chosen by server authors.
# If such a member is an object, its name alone does not make it a secret.
_SCHEMA_KEYS: Final = frozenset({"inputSchema", "outputSchema", "requestedSchema", "schema"})
_SCHEMA_MAPS: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_NAMED_MAPS: Final = frozenset({"inputRequests", "inputResponses", "capabilities", "experimental", "extensions"})
_SCHEMA_VALUES: Final = ("default", "const", "enum", "examples")

# A header or environment variable whose name contains one of these words may be a secret.
_SECRET_SETTING: Final = re.compile(
    r"token|key|secret|pass|pwd|auth|cred|cookie|bearer|jwt|session-id|connection-?string|dsn|webhook|(?:^|_)pat(?:_|$)",
    re.IGNORECASE,
)
_SAFE_HEADERS: Final = frozenset({"sec-websocket-key", "idempotency-key"})
# Headers with this prefix repeat an argument. spec: streamable-http#schema-extension
_PARAM_HEADER_PREFIX: Final = "mcp-param-"

_MAX_NESTED_TEXTS: Final = 8  # JSON texts inside JSON texts are searched up to this depth.
_SECRET_VALUE: Final = re.compile(
    r"(?P<scheme>\b(?i:bearer|basic)) +[\w.~+/=-]{8,}"
    r"|(?<=://)[^/\s:@\"]{0,256}:[^/\s@\"]{1,1024}(?=@)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
    r"|(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"
    r"|(?<![\w-])(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|[sr]k_(?:live|test)_\w{10,}"
    r"|sk-[\w-]{20,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|npm_\w{30,}|pypi-[\w-]{30,})",
    re.DOTALL,
)
_ASSIGNMENT: Final = re.compile(r"(?P<before>[?&;\s]|^)(?P<name>[\w.-]{1,64})=(?P<value>[^\s&;#\"']+)")
_QUERY_SECRETS: Final = frozenset({"key", "sig", "signature"})  # These names are secrets only in the query of a URL.
# Every text that `_SECRET_VALUE` or `_ASSIGNMENT` matches contains one of these parts, in upper or lower case.
# Searching for each part is faster than one pattern for all parts.
_VALUE_HINTS: Final = (
    b"=", b"://", b"bearer", b"basic", b"private key", b"eyj", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"_pat_",
    b"glpat-", b"xox", b"sk_", b"rk_", b"sk-", b"rk-", b"akia", b"aiza", b"npm_", b"pypi-", b"requeststate",
)  # fmt: skip
_MEMBER_NAME: Final = re.compile(rb'"([^"\\]*)"\s*:')


def is_secret_name(name: str) -> bool:
    """Return whether a member or an argument with this name contains a secret."""
    return _is_secret_name(name if len(name) <= _MAX_NAME_CHARS else name[-_MAX_NAME_CHARS:])


@functools.lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    if name in _MESSAGE_TOKENS:
        return False
    words = _WORD_BOUNDARY.sub("_", name).strip("_").lower()
    return _SECRET_NAME.search(words) is not None and _DESCRIPTION_NAME.search(words) is None


def is_secret_setting(name: str) -> bool:
    """Return whether a header or an environment variable with this name may contain a secret."""
    return _SECRET_SETTING.search(name) is not None


def mask_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of headers that contain credentials."""
    return {name: MASK if _is_secret_header(name.lower()) else mask_text(value) for name, value in headers.items()}


def _is_secret_header(header: str) -> bool:
    if header.startswith(_PARAM_HEADER_PREFIX):
        return is_secret_name(header.removeprefix(_PARAM_HEADER_PREFIX))
    return header not in _SAFE_HEADERS and is_secret_setting(header)


def mask_text(text: str) -> str:
    """Mask the credentials in a text, such as `Bearer …`, `password=…` and the user of a URL."""
    return _ASSIGNMENT.sub(_mask_assignment, _SECRET_VALUE.sub(_mask_match, text))


def strip_url(text: str) -> str:
    """Return a URL without its user, query and fragment, which may contain secrets.

    In a text that is not a URL, only credentials are masked.
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = None
    if parts is None or not parts.netloc:
        return mask_text(text)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def mask_secrets(value: Any, *, keep_request_state: bool = False) -> Any:
    """Mask the secrets in a JSON value.

    These are members with secret names and credentials in texts, even inside strings that contain JSON.
    """
    try:
        return _Masker(keep_request_state).mask(value)
    except RecursionError:
        return MASK


def may_hold_secrets(encoded_value: bytes) -> bool:
    """Return whether an encoded JSON value may contain secrets.

    False means that `mask_secrets` would change nothing.
    """
    # The value may contain JSON text, or escapes that hide the name of a secret.
    if b"\\" in encoded_value or not encoded_value.isascii():
        return True
    lowered = encoded_value.lower()
    if any(hint in lowered for hint in _VALUE_HINTS):
        return True
    names = tuple(_MEMBER_NAME.findall(encoded_value))
    # The names of large messages are not cached, because they would use too much memory.
    check_names = _may_name_secrets if len(encoded_value) <= _MAX_CACHED_BYTES else _may_name_secrets.__wrapped__
    return check_names(names)


@functools.lru_cache(512)
def _may_name_secrets(names: tuple[bytes, ...]) -> bool:
    # The value of a member called "value" can be a secret if another member contains its name.
    return any(name == b"value" or is_secret_name(name.decode()) for name in names)


class _Masker:
    """Masks one JSON value, including JSON texts that are nested in its strings."""

    def __init__(self, keep_request_state: bool) -> None:
        self._keep_request_state = keep_request_state
        self._depth = 0  # the number of JSON texts in which the current value is nested

    def mask(self, value: Any, in_schema: bool = False) -> Any:
        if isinstance(value, str):
            return mask_text(self._mask_json_text(value))
        if isinstance(value, list):
            return [self.mask(item, in_schema) for item in value]
        if isinstance(value, dict):
            return self._mask_object(value, in_schema)
        return value

    def _mask_object(self, members: dict[str, Any], in_schema: bool) -> dict[str, Any]:
        masked: dict[str, Any] = {}
        for name, item in members.items():
            if isinstance(item, dict) and ((in_schema and name in _SCHEMA_MAPS) or name in _NAMED_MAPS):
                masked[name] = {key: self._mask_named(key, inner, in_schema) for key, inner in item.items()}
            elif self._is_secret(name, item):
                masked[name] = MASK
            else:
                masked[name] = self.mask(item, in_schema or name in _SCHEMA_KEYS)
        # The object may be a pair of a name and a value, such as an argument to complete.
        pair_name = members.get("name")
        if "value" in masked and isinstance(pair_name, str) and self._is_secret(pair_name, members["value"]):
            masked["value"] = MASK
        return masked

    def _mask_named(self, name: str, item: Any, in_schema: bool) -> Any:
        """Mask the value of a member if its name looks secret. In a schema, mask defaults of secret fields, too."""
        if not isinstance(item, dict):
            return MASK if self._is_secret(name, item) else self.mask(item, in_schema)
        masked = self._mask_object(item, in_schema)
        if in_schema and is_secret_name(name):
            masked |= {key: MASK for key in _SCHEMA_VALUES if self._is_secret(name, item.get(key))}
        return masked

    def _is_secret(self, name: str, value: Any) -> bool:
        if value is None or isinstance(value, bool):
            return False
        if name == _REQUEST_STATE_KEY:
            return isinstance(value, str) and not self._keep_request_state
        if not is_secret_name(name):
            return False
        # "maxTokens": 100 is a number of tokens. A name with "/" is the identifier of an extension.
        is_count = isinstance(value, int | float) and name.lower().endswith("tokens")
        return not is_count and not ("/" in name and isinstance(value, dict))

    def _mask_json_text(self, text: str) -> str:
        """Mask the secrets in a JSON text. The text is encoded again only if it contains a secret."""
        if self._depth >= _MAX_NESTED_TEXTS or not text.lstrip().startswith(("{", "[")):
            return text
        try:
            inner = _json_decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return text
        self._depth += 1
        masked_value = self.mask(inner)
        self._depth -= 1
        return text if masked_value == inner else msgspec.json.encode(masked_value).decode()


def _mask_match(match: re.Match[str]) -> str:
    return f"{match['scheme']} {MASK}" if match["scheme"] else MASK


def _mask_assignment(match: re.Match[str]) -> str:
    name = match["name"]
    if is_secret_name(name) or (match["before"] in ("?", "&") and name.lower() in _QUERY_SECRETS):
        return f"{match['before']}{name}={MASK}"
    return match[0]

"""Mask secrets in messages, headers, texts and URLs before they are recorded or logged.

A secret is recognized by the words of its name, such as `api_token` or `dbPassword`, or by its form, such as
`Bearer …`, a JSON Web Token or a private key. Every recording, trace, audit log and log of requests uses this module.
"""

import functools
import itertools
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from dovetail.errors import HeaderMismatch
from dovetail.protocol.headers import decode_value

MASK: Final = "***"

_json_decoder: Final = msgspec.json.Decoder()

# Names are split into words, converted to lower case and joined with "_" before they are compared.
_WORD_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_SECRET_NAME: Final = re.compile(
    r"passw(?:or)?d|passphrase|pass_?code|pin_?code|pass_word|secret(?!ar)|credential|bearer|cookie|mnemonic"
    r"|tokens?(?=_|$|\d)|authorization(?:_header)?$|code_?verifier|client_?assertion|connection_?string|webhook_url$"
    r"|(?:recovery|seed)_?phrase|card_?number"
    r"|(?:^|_)(?:pass|pwd|pat|pin|otp|totp|cvv|cvc|jwt|dsn|psk|creds?)(?:_|$|\d)|(?:^|_|http|basic)auth$"
    r"|(?:auth|authorization|backup|device|login|mfa|otp|recovery|security|sms|2fa|verification)_?codes?(?=_|$|\d)"
    r"|(?:aes|anthropic|api|app|access|account|admin|auth|aws|azure|cipher|client|consumer|crypto|datadog|decryption"
    r"|deploy|encryption|fernet|gemini|github|gitlab|google|gpg|hmac|host|license|maps|master|openai|pgp|private|root"
    r"|rsa|sendgrid|server|service|session|shared|signing|slack|ssh|storage|stripe|subscription|webhook)"
    r"_?keys?(?=_|$|\d)(?!_id$)"
)
# The value of a name with one of these endings, such as `token_type`, is not a secret.
_DESCRIPTION_NAME: Final = re.compile(
    r"_(?:algorithm|at|budget|count|enabled|endpoint|exists|expiration|expires|expiry|file|format|in|length|limit"
    r"|methods?|name|names|path|policy|required|size|supported|type|uri|(?<!webhook_)url|usage)$"
)
_MESSAGE_TOKENS: Final = frozenset({"progressToken"})  # These names of the protocol are not secrets.
_MAX_NAME_CHARS: Final = 200
_MIN_SECRET_NAME_CHARS: Final = 16  # Names shorter than this cannot contain credentials.
_MAX_CACHED_BYTES: Final = 4096  # The names of members are cached only for JSON values up to this size.
REQUEST_STATE_KEY: Final = "requestState"

# Server authors choose the member names in these objects.
# In these objects, the value of a member called "password" is not always a secret.
_SCHEMA_KEYS: Final = frozenset({"inputSchema", "outputSchema", "requestedSchema", "schema"})
_SCHEMA_MAPS: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_NAMED_MAPS: Final = frozenset({"inputRequests", "inputResponses", "capabilities", "experimental", "extensions"})
_SCHEMA_VALUES: Final = ("default", "const", "enum", "examples")
# In a pair such as {"name": "password", "value": "…"}, one of these keys contains the name.
_PAIR_NAME_KEYS: Final = ("name", "key", "field", "header", "id", "label")

# A header or environment variable whose name contains one of these words may be a secret.
_SECRET_SETTING: Final = re.compile(
    r"token|key|secret|pass|pwd|auth|cred|cookie|bearer|jwt|session-id|connection-?string|dsn|webhook|(?:^|_)pat(?:_|$)",
    re.IGNORECASE,
)
_SAFE_HEADERS: Final = frozenset({"sec-websocket-key", "idempotency-key"})
# Headers with this prefix repeat an argument. spec: streamable-http#schema-extension
_PARAM_HEADER_PREFIX: Final = "mcp-param-"

_MAX_NESTED_TEXTS: Final = 8  # JSON texts inside JSON texts are searched up to this depth. Deeper texts are masked.
_SECRET_VALUE: Final = re.compile(
    r"(?P<scheme>\b(?i:bearer|basic|dpop)) +[\w.~+/=-]{8,}"
    r"|(?P<header>\b(?i:authorization|cookie|x-api-key): *)[^\r\n\"']{4,}"
    r"|(?<=://)[^/\s\"?#]{1,1024}(?=@)"
    r"|-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]*\.[\w-]{8,}(?:\.[\w-]{1,}){0,2}"
    r"|(?<=hooks\.slack\.com/services/)[\w/]{8,}|(?<=/api/webhooks/)\d{8,}/[\w-]{8,}"
    r"|(?<![\w-])(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|gl(?:pat|dt|rt|ptt)-[\w-]{16,}|xox[abeprs]-[\w-]{10,}"
    r"|xapp-[\w-]{10,}|[sr]k_(?:live|test)_\w{10,}|whsec_\w{16,}|sk-[\w-]{20,}|A(?:KIA|SIA)[0-9A-Z]{16}|AIza[\w-]{30,}"
    r"|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|hf_\w{20,}|dop_v1_\w{20,}|shp(?:at|ca|pa|ss)_\w{20,}"
    r"|lin_api_\w{20,}|npm_\w{30,}|pypi-[\w-]{30,}|AGE-SECRET-KEY-1\w{20,}|\d{8,10}:AA[\w-]{30,})",
    re.DOTALL,
)
# This matches a name with the sign before its value, such as `name=`, `"name": ` or `--name `.
# In nested JSON text, the quotes around a name have backslashes.
_ASSIGNED_NAME: Final = re.compile(
    r"(?<![\w.-])(?:(?P<name>[\w.-]{1,64}+)(?:\\{0,15}[\"']\s{0,3}[:=]\s{0,3}|\s{0,3}:?=>?(?!=)\s{0,3})"
    r"|(?P<option>--[\w.-]{1,62}+)[ \t]{1,3}(?=[^\s-]))"
)
_ASSIGNED_VALUE: Final = re.compile(
    r"(?P<quote>[\"'])(?P<quoted>(?:[^\"'\\]|\\.|(?!(?P=quote))[\"'])*+)(?P=quote)?"
    r"|(?P<escaped_quote>\\{1,15}[\"'])(?P<escaped>.*?)(?:(?P=escaped_quote)|\Z)"
    r"|(?P<bare>[^\s&;#\"'{\[][^\s&;#\"']*)",
    re.DOTALL,
)
# This matches a line of YAML, but not prose such as "token: required".
_YAML_LINE: Final = re.compile(
    r"^[ \t-]*+(?P<name>[\w.-]{1,64}+)[ \t]*:[ \t]+"
    r"(?P<value>\"[^\"\n]*+\"|'[^'\n]*+'|(?=[^\s0-9$@!%^&*+=~]*[0-9$@!%^&*+=~])[^\s\"'{\[]\S{5,})[ \t]*$",
    re.MULTILINE,
)
_PLAIN_VALUES: Final = frozenset({"", "null", "none", "true", "false", MASK})
_QUERY_SECRETS: Final = frozenset(
    {"key", "sig", "sid", "sessionid", "session_id"}
)  # These names are secrets only in the query of a URL.
# Each match of the patterns above contains one of these parts, in lower or upper case.
# Searching for each part is faster than searching for one large pattern.
_VALUE_HINTS: Final = (
    b"=", b"://", b"bearer", b"basic", b"dpop", b"authorization", b"cookie", b"x-api-key", b"private key", b"eyj",
    b"hooks.slack.com", b"/api/webhooks/", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"_pat_", b"glpat-", b"gldt-",
    b"glrt-", b"glptt-", b"xox", b"xapp-", b"sk_", b"rk_", b"whsec_", b"sk-", b"rk-", b"akia", b"asia", b"aiza",
    b"ya29.", b"gocspx-", b"sg.", b"hf_", b"dop_v1_", b"shpat_", b"shpca_", b"shppa_", b"shpss_", b"lin_api_", b"npm_",
    b"pypi-", b"age-secret-key-", b":aa", b"requeststate", b'"-', b"--", b"'",
)  # fmt: skip
_YAML_HINT: Final = re.compile(rb'"[ \t-]*[\w.-]{1,64}[ \t]*:[ \t]')  # a text that starts like a line of YAML
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
    return {name: MASK if _is_secret_header(name.lower()) else _mask_header(value) for name, value in headers.items()}


def _is_secret_header(header: str) -> bool:
    if header.startswith(_PARAM_HEADER_PREFIX):
        return is_secret_name(header.removeprefix(_PARAM_HEADER_PREFIX))
    return header not in _SAFE_HEADERS and is_secret_setting(header)


def _mask_header(value: str) -> str:
    """Mask the secrets in a header value. The value may be encoded. spec: streamable-http#value-encoding"""
    try:
        decoded = decode_value(value)
    except HeaderMismatch:
        return mask_secrets(value)
    masked = mask_secrets(decoded)
    if decoded == value:
        return masked
    return value if masked == decoded else MASK


def mask_text(text: str) -> str:
    """Mask the credentials in a text, such as `Bearer …`, `password=…`, `"password": …` and the user of a URL."""
    return _YAML_LINE.sub(_mask_yaml_line, _mask_assignments(_SECRET_VALUE.sub(_mask_match, text)))


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
    if any(hint in lowered for hint in _VALUE_HINTS) or (b": " in lowered and _YAML_HINT.search(lowered)):
        return True
    names = tuple(_MEMBER_NAME.findall(encoded_value))
    # The names of large messages are not cached, because they would use too much memory.
    check_names = _may_name_secrets if len(encoded_value) <= _MAX_CACHED_BYTES else _may_name_secrets.__wrapped__
    return check_names(names)


@functools.lru_cache(512)
def _may_name_secrets(names: tuple[bytes, ...]) -> bool:
    # A member called "value" may be a secret, as in {"name": "password", "value": "..."}.
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
            return self._mask_list(value, in_schema)
        if isinstance(value, dict):
            return self._mask_object(value, in_schema)
        return value

    def _mask_list(self, items: list[Any], in_schema: bool) -> list[Any]:
        masked = [self.mask(item, in_schema) for item in items]
        # A list may be a command line, such as ["--password", "…"].
        for index, (option, item) in enumerate(itertools.pairwise(items), 1):
            if isinstance(option, str) and option.startswith("-") and isinstance(item, str) and is_secret_name(option):
                masked[index] = masked[index] if item.startswith("-") or "=" in option else MASK
        return masked

    def _mask_object(self, members: dict[str, Any], in_schema: bool) -> dict[str, Any]:
        masked: dict[str, Any] = {}
        for raw_name, item in members.items():
            name = raw_name if len(raw_name) < _MIN_SECRET_NAME_CHARS else mask_text(raw_name)
            if isinstance(item, dict) and ((in_schema and name in _SCHEMA_MAPS) or name in _NAMED_MAPS):
                masked[name] = {key: self._mask_named(key, inner, in_schema) for key, inner in item.items()}
            elif self._is_secret(name, item):
                masked[name] = MASK
            else:
                masked[name] = self.mask(item, in_schema or name in _SCHEMA_KEYS)
        # An object may be a pair such as {"name": "password", "value": "…"}.
        if "value" in masked:
            names = (members.get(key) for key in _PAIR_NAME_KEYS)
            if any(isinstance(name, str) and self._is_secret(name, members["value"]) for name in names):
                masked["value"] = MASK
        return masked

    def _mask_named(self, name: str, item: Any, in_schema: bool) -> Any:
        """Mask the value of a member if its name looks secret.

        This includes the defaults of a schema, and the answers to a question with a secret name.
        """
        if not isinstance(item, dict):
            return MASK if self._is_secret(name, item) else self.mask(item, in_schema)
        masked = self._mask_object(item, in_schema)
        if is_secret_name(name) and in_schema:
            masked |= {key: MASK for key in _SCHEMA_VALUES if self._is_secret(name, item.get(key))}
        elif is_secret_name(name) and isinstance(item.get("content"), dict) and "action" in item:
            masked["content"] = dict.fromkeys(masked["content"], MASK)
        return masked

    def _is_secret(self, name: str, value: Any) -> bool:
        if value is None or isinstance(value, bool):
            return False
        if name == REQUEST_STATE_KEY:
            return isinstance(value, str) and not self._keep_request_state
        if not is_secret_name(name):
            return False
        # A name with "/" is an identifier of an extension.
        return not _is_count(name, value) and not ("/" in name and isinstance(value, dict))

    def _mask_json_text(self, text: str) -> str:
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            inner = _json_decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return text
        if self._depth >= _MAX_NESTED_TEXTS:
            return MASK
        self._depth += 1
        masked_value = self.mask(inner)
        self._depth -= 1
        return text if masked_value == inner else msgspec.json.encode(masked_value).decode()


def _is_count(name: str, value: Any) -> bool:
    """Return whether a member is a number of tokens and not a secret, such as "maxTokens": 100."""
    return isinstance(value, int | float) and name.lower().endswith("tokens")


def _mask_match(match: re.Match[str]) -> str:
    if match["scheme"]:
        return f"{match['scheme']} {MASK}"
    return f"{match['header']}{MASK}" if match["header"] else MASK


def _mask_assignments(text: str) -> str:
    pieces, position = list[str](), 0
    has_state = "state=" in text
    for match in _ASSIGNED_NAME.finditer(text):
        name = match["name"] or match["option"]
        if match.start() < position or not (is_secret_name(name) or _is_query_secret(match, has_state)):
            continue
        value = _ASSIGNED_VALUE.match(text, match.end())
        if value is None or _is_plain_value(name, value):
            continue
        quote = value["quote"] or value["escaped_quote"] or ""
        pieces += [text[position : match.end()], quote, MASK, quote]
        position = value.end()
    return "".join([*pieces, text[position:]]) if pieces else text


def _is_query_secret(match: re.Match[str], has_state: bool) -> bool:
    """Return whether a query parameter is a secret. `code` counts as a secret only together with `state`."""
    start = match.start()
    if not match[0].endswith("=") or match.string[max(0, start - 1) : start] not in ("?", "&", "#"):
        return False
    name = match["name"].lower()
    return name in _QUERY_SECRETS or name.endswith("signature") or (name == "code" and has_state)


def _is_plain_value(name: str, value: re.Match[str]) -> bool:
    text = (value["bare"] or value["quoted"] or value["escaped"] or "").rstrip(",;)]}")
    return text.lower() in _PLAIN_VALUES or (text.isdecimal() and _is_count(name, 0))


def _mask_yaml_line(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or match["value"].strip("\"'") in _PLAIN_VALUES:
        return match[0]
    start = match.start("value") - match.start()
    return f"{match[0][:start]}{MASK}"

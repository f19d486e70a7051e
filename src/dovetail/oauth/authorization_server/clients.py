"""Clients of the authorization server. They are registered by the operator, with a metadata document, or dynamically.

The server sends codes to the redirect URI, so this module checks the URI strictly. A browser must not run it as code.
It must not be plain http except on the user's machine, and it must not be ambiguous. spec: client-registration
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.oauth.authorization_server.responses import hash_secret
from dovetail.oauth.authorization_server.store import ClientRecord
from dovetail.oauth.flow import FetchResponse
from dovetail.oauth.guard import keys as signing
from dovetail.oauth.guard.guard import validate_scopes
from dovetail.oauth.login.login_settings import split_scopes
from dovetail.oauth.metadata import is_valid_netloc
from dovetail.protocol.http_checks import LOOPBACK

AUTH_METHODS: Final = ("none", "client_secret_post", "client_secret_basic", "private_key_jwt")
ANY_SECRET_METHOD: Final = "client_secret"  # The client may send its secret in a header or in the form.
GRANT_TYPES: Final = ("authorization_code", "refresh_token")
CLIENT_CREDENTIALS: Final = "client_credentials"
# A client that registered itself is deleted if it is not used for this many seconds.
UNUSED_CLIENT_TTL_S: Final = 90 * 86400.0

_MAX_REDIRECT_URIS: Final = 5
_MAX_KEYS: Final = 10
_DEFAULT_DOCUMENT_TTL_S: Final = 3600.0  # A document without a cache header is cached for this many seconds.
_MAX_DOCUMENT_BYTES: Final = 5 * 1024  # The specification of client metadata documents recommends this limit.
_MAX_URI_CHARS: Final = 2048
_MAX_NAME_BYTES: Final = 128
_UNSAFE_CHARS: Final = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\\"'<>`{}|^*]")
_PRIVATE_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.\-]{2,63}")
# Known applications use these schemes, although RFC 8252, section 7.1, requires a form such as com.example.app.
_KNOWN_SCHEMES: Final = frozenset(
    {
        "cherrystudio", "claude", "cursor", "goose", "kiro", "lmstudio", "raycast", "vscode", "vscode-insiders",
        "vscodium", "warp", "windsurf", "zed",
    }
)  # fmt: skip
# Redirect URIs must not use these schemes, because browsers or operating systems handle such URIs themselves.
_RESERVED_SCHEMES: Final = re.compile(
    "about|blob|chrome|content|data|edge|facetime|feed|file|filesystem|ftps?|gopher|https?|imap|intent|jar|javascript|"
    "ldaps?|livescript|magnet|mailto|market|mhtml|mms|mocha|news|nntp|opera|pop|resource|search|sftp|sips?|smb|sms|smsto|"
    "ssh|steam|tel|telnet|urn|vbscript|vnc|wais|webcal|wss?|wyciwyg|(chrome|moz|ms|search|view|x-apple)[.-].*"
)


class InvalidClient(Exception):
    """Raised if the metadata of a client is invalid. `error` is the OAuth error code."""

    def __init__(self, message: str, error: str = "invalid_client_metadata") -> None:
        super().__init__(message)
        self.error = error


def check_redirect_uri(uri: Any, *, is_registered_by_hand: bool = False) -> str:
    """Return a redirect URI. Raise InvalidClient if the server must not send authorization codes to this URI.

    A client that you register by hand may have any private scheme.
    """
    if not isinstance(uri, str) or not uri or len(uri) > _MAX_URI_CHARS or _UNSAFE_CHARS.search(uri):
        raise InvalidClient("the redirect URI contains invalid characters", "invalid_redirect_uri")
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        raise InvalidClient("the redirect URI is not a valid URI", "invalid_redirect_uri") from None
    if not is_valid_netloc(parts.netloc):
        raise InvalidClient("the redirect URI is not a valid URI", "invalid_redirect_uri")
    if "#" in uri or parts.username is not None or parts.password is not None:
        raise InvalidClient("the redirect URI must not contain a fragment or credentials", "invalid_redirect_uri")
    is_loopback = parts.scheme == "http" and parts.hostname in LOOPBACK
    is_https = parts.scheme == "https" and bool(parts.hostname)
    is_private_scheme = (
        _is_private_scheme(parts.scheme)
        and bool(parts.netloc or parts.path.strip("/"))
        and (is_registered_by_hand or "." in parts.scheme or parts.scheme in _KNOWN_SCHEMES)
    )
    if not (is_loopback or is_https or is_private_scheme):
        raise InvalidClient(
            "the redirect URI must use https, http on the user's machine, or a private scheme such as com.example.app",
            "invalid_redirect_uri",
        )
    return uri


def _is_private_scheme(scheme: str) -> bool:
    return _RESERVED_SCHEMES.fullmatch(scheme) is None and _PRIVATE_SCHEME.fullmatch(scheme) is not None


def match_redirect_uri(client: ClientRecord, requested_uri: str | None) -> str | None:
    """Return the redirect URI to use. Return None if the requested URI is not registered.

    A loopback address may have a different port than the registered URI. All other URIs must be equal as strings.
    RFC 8252, section 7.3
    """
    if requested_uri is None:
        return client.redirect_uris[0] if len(client.redirect_uris) == 1 else None
    if requested_uri in client.redirect_uris:
        return requested_uri
    try:
        check_redirect_uri(requested_uri)
    except InvalidClient:
        return None
    requested_key = _without_port(requested_uri)
    return (
        requested_uri
        if requested_key is not None
        and any(_without_port(registered_uri) == requested_key for registered_uri in client.redirect_uris)
        else None
    )


def _without_port(uri: str) -> tuple[str | None, str, str] | None:
    parts = urlsplit(uri)
    if parts.scheme != "http" or parts.hostname not in LOOPBACK:
        return None
    return parts.hostname, parts.path, parts.query


def is_local_redirect(uri: str) -> bool:
    """Return whether a redirect URI is on the user's machine, where any program could receive the code."""
    parts = urlsplit(uri)
    return parts.scheme not in ("http", "https") or parts.hostname in LOOPBACK


def create_client(metadata: Mapping[str, Any]) -> tuple[ClientRecord, str | None]:
    """Register a client. Return the client and its secret. The secret is None if the client needs none. RFC 7591"""
    uris, method = _parse_redirect_uris(metadata), metadata.get("token_endpoint_auth_method", "none")
    if method not in AUTH_METHODS:
        raise InvalidClient(f"token_endpoint_auth_method must be one of {', '.join(AUTH_METHODS)}")
    secret = secrets.token_urlsafe(32) if method.startswith("client_secret") else None
    jwks, jwks_uri = _parse_keys(metadata, method)
    client = ClientRecord(
        client_id=secrets.token_urlsafe(16),
        client_name=_parse_name(metadata),
        redirect_uris=uris,
        grant_types=_parse_grant_types(metadata),
        method=method,
        secret_mark=None if secret is None else hash_secret(secret),
        jwks=jwks,
        jwks_uri=jwks_uri,
    )
    return client, secret


def build_registration_response(
    client: ClientRecord, secret: str | None, now: float, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the response to a registration. RFC 7591, section 3.2.1"""
    response: dict[str, Any] = {
        "client_id": client.client_id,
        "client_id_issued_at": int(now),
        "client_name": client.client_name,
        "redirect_uris": list(client.redirect_uris),
        "grant_types": list(client.grant_types),
        "response_types": ["code"],
        "token_endpoint_auth_method": client.method,
    }
    keys = {"jwks": client.jwks, "jwks_uri": client.jwks_uri}
    response |= {name: value for name, value in keys.items() if value is not None}
    response |= {
        name: metadata[name]
        for name, is_valid in _ECHOED_METADATA.items()
        if name in metadata and is_valid(metadata[name])
    }
    return response if secret is None else response | {"client_secret": secret, "client_secret_expires_at": 0}


def _is_short_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_URI_CHARS and value.isascii() and value.isprintable()


# The registration response repeats these fields if their values are valid. The server does not use the fields.
_ECHOED_METADATA: Final[dict[str, Callable[[Any], bool]]] = {
    "application_type": lambda value: value in ("web", "native"),
    "scope": _is_short_text,
    "client_uri": lambda value: _is_short_text(value) and value.startswith("https://"),
}


def is_document_url(client_id: str) -> bool:
    """Return whether a client ID is the URL of a client metadata document."""
    if not client_id.startswith("https://") or len(client_id) > _MAX_URI_CHARS or _UNSAFE_CHARS.search(client_id):
        return False
    try:
        parts = urlsplit(client_id)
        _ = parts.port
    except ValueError:
        return False
    is_plain = parts.username is None and parts.password is None and not parts.fragment
    segments = parts.path.split("/")
    return bool(parts.hostname) and is_plain and len(parts.path) > 1 and "." not in segments and ".." not in segments


def parse_client_document(client_id: str, response: FetchResponse) -> ClientRecord:
    """Return the client that a metadata document describes.

    Raise InvalidClient if the document is invalid or describes another client ID.

    spec: security-considerations#client-id-metadata-document-security
    """
    metadata = response.json() if response.status_code == 200 and len(response.body) <= _MAX_DOCUMENT_BYTES else None
    if metadata is None:
        raise InvalidClient("the client metadata document cannot be fetched", "invalid_client")
    if metadata.get("client_id") != client_id:
        raise InvalidClient("the client metadata document describes another client", "invalid_client")
    method = metadata.get("token_endpoint_auth_method", "none")
    if "client_secret" in metadata or method not in ("none", "private_key_jwt"):
        raise InvalidClient("a client with a metadata document cannot have a secret", "invalid_client")
    jwks, jwks_uri = _parse_keys(metadata, method)
    name = _parse_name(metadata)
    if not name:
        raise InvalidClient("the client metadata document has no client_name", "invalid_client")
    return ClientRecord(
        client_id=client_id,
        client_name=name,
        redirect_uris=_parse_redirect_uris(metadata, max_uris=20),
        grant_types=_parse_grant_types(metadata),
        method=method,
        jwks=jwks,
        jwks_uri=jwks_uri,
        by_document=True,
    )


def _parse_keys(metadata: Mapping[str, Any], method: str) -> tuple[dict[str, Any] | None, str | None]:
    """Return the public keys of a client, or the URL of the keys.

    Only clients with a private key have public keys. RFC 7591, section 2
    """
    if method != "private_key_jwt":
        return None, None
    jwks, url = metadata.get("jwks"), metadata.get("jwks_uri")
    if isinstance(url, str) and jwks is None and is_document_url(url):
        return None, url
    keys = (
        signing.parse_jwks(jwks)
        if isinstance(jwks, dict) and isinstance(jwks.get("keys"), list) and url is None
        else []
    )
    if not keys or len(keys) > _MAX_KEYS:
        raise InvalidClient(f"private_key_jwt requires jwks_uri, or jwks with 1 to {_MAX_KEYS} keys")
    return {"keys": [key.jwk for key in keys]}, None


def get_document_ttl(headers: Mapping[str, str]) -> float:
    """Return how many seconds a client metadata document may be cached."""
    cache_control = headers.get("cache-control", "")
    if "no-store" in cache_control or "no-cache" in cache_control:
        return 60.0
    match = re.search(r"max-age=(\d{1,9})", cache_control)
    return min(max(float(match[1]), 60.0), 86400.0) if match else _DEFAULT_DOCUMENT_TTL_S


def _parse_redirect_uris(metadata: Mapping[str, Any], max_uris: int = _MAX_REDIRECT_URIS) -> tuple[str, ...]:
    uris = metadata.get("redirect_uris")
    if not isinstance(uris, list) or not 0 < len(uris) <= max_uris:
        raise InvalidClient(f"redirect_uris must be a list of 1 to {max_uris} URIs", "invalid_redirect_uri")
    return tuple(check_redirect_uri(uri) for uri in uris)


def _parse_name(metadata: Mapping[str, Any]) -> str:
    name = metadata.get("client_name", "")
    if not isinstance(name, str) or len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES or not name.isprintable():
        raise InvalidClient(f"client_name must be printable and at most {_MAX_NAME_BYTES} bytes")
    return name


def _parse_grant_types(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    grant_types, response_types = (
        metadata.get("grant_types", ["authorization_code"]),
        metadata.get("response_types", ["code"]),
    )
    if not isinstance(grant_types, list) or "authorization_code" not in grant_types:
        raise InvalidClient("grant_types must include 'authorization_code'")
    if not isinstance(response_types, list) or "code" not in response_types:
        raise InvalidClient("response_types must include 'code'")
    return tuple(grant_type for grant_type in GRANT_TYPES if grant_type in grant_types)


class RegisteredClient:
    """A client with fixed settings. Pass it to `AuthorizationServer(clients=[...])`.

    A client without `redirect_uris` is a program that gets tokens for itself, not for users.

    Args:
        client_id: The ID of the client.
        redirect_uris: The URIs to which the browser returns after the login.
        client_name: The name that users see. Defaults to the `client_id`.
        client_secret: The secret with which the client authenticates.
        public_keys: The public keys of a client that authenticates with a private key, as a JWK set or PEM strings.
        scopes: The scopes of a client without redirect URIs. For other clients, users decide which scopes to grant.
    """

    def __init__(
        self,
        client_id: str,
        *,
        redirect_uris: Sequence[str] = (),
        client_name: str = "",
        client_secret: str | None = None,
        public_keys: Mapping[str, object] | str | Sequence[Mapping[str, object] | str] | None = None,
        scopes: str | Sequence[str] = (),
    ) -> None:
        if not redirect_uris and client_secret is None and public_keys is None:
            raise ValueError(
                "pass redirect_uris= if users log in with this client. For a program without users, pass "
                "client_secret= or public_keys="
            )
        if redirect_uris and scopes:
            raise ValueError(
                "scopes= is only for programs without redirect_uris=. For other clients, users decide which scopes "
                "to grant"
            )
        if client_secret is not None and not client_secret.strip():
            raise ValueError("client_secret= must not be blank, because any program could then use this client")
        if client_secret is not None and public_keys is not None:
            raise ValueError("pass client_secret= or public_keys=, not both")
        auth_method = "none" if client_secret is None else ANY_SECRET_METHOD
        self._record = ClientRecord(
            client_id=client_id,
            client_name=client_name or client_id,
            redirect_uris=tuple(check_redirect_uri(uri, is_registered_by_hand=True) for uri in redirect_uris),
            method=auth_method if public_keys is None else "private_key_jwt",
            secret_mark=None if client_secret is None else hash_secret(client_secret),
            jwks=None if public_keys is None else {"keys": [key.jwk for key in signing.load_keys(public_keys)]},
            grant_types=GRANT_TYPES if redirect_uris else (CLIENT_CREDENTIALS,),
            scopes=validate_scopes(split_scopes(scopes)),
        )

    def __repr__(self) -> str:
        return f"RegisteredClient({self._record.client_id!r})"


def get_client_record(client: Any) -> ClientRecord:
    if not isinstance(client, RegisteredClient):
        raise TypeError(f"clients= must be a list of RegisteredClient(...), not of {type(client).__name__}")
    return client._record  # pyright: ignore[reportPrivateUsage]


def can_use_client_credentials(client: ClientRecord) -> bool:
    return CLIENT_CREDENTIALS in client.grant_types

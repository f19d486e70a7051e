"""Clients of the authorization server: registered by the operator, by metadata document, or dynamically.

What decides where a code is sent is the redirect URI, so those are looked at closely: nothing a browser would run, no
plain http but on the user's own machine, nothing that could be read in two ways. spec: client-registration
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.oauth.authorization_server.responses import hash_secret
from dovetail.oauth.authorization_server.store import ClientRecord
from dovetail.oauth.flow import HTTPResponse
from dovetail.oauth.guard import keys as signing
from dovetail.oauth.guard.guard import validate_scopes
from dovetail.oauth.login.login_settings import split_scopes
from dovetail.oauth.metadata import is_valid_netloc
from dovetail.protocol.http_checks import LOOPBACK

AUTH_METHODS: Final = ("none", "client_secret_post", "client_secret_basic", "private_key_jwt")
ANY_SECRET_METHOD: Final = "client_secret"  # in the header or in the form, as a client that was never asked likes it
GRANT_TYPES: Final = ("authorization_code", "refresh_token")
CLIENT_CREDENTIALS: Final = "client_credentials"
UNUSED_CLIENT_TTL_S: Final = 90 * 86400.0  # seconds after which a client that registered itself is forgotten

_MAX_REDIRECT_URIS: Final = 5
_MAX_KEYS: Final = 10
_DEFAULT_DOCUMENT_TTL_S: Final = 3600.0  # seconds it is believed, if it does not say
_MAX_DOCUMENT_BYTES: Final = 5 * 1024  # as its own specification advises
_MAX_URI_CHARS: Final = 2048
_MAX_NAME_BYTES: Final = 128
_UNSAFE_CHARS: Final = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\\"'<>`{}|^*]")
# An application should turn its domain round for a scheme (RFC 8252, section 7.1); many that are used every day do not.
_PRIVATE_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.\-]{2,63}")
# What a browser runs, shows or hands on by itself, or a system takes as a command.
_RESERVED_SCHEMES: Final = re.compile(
    "about|blob|chrome|content|data|edge|facetime|feed|file|filesystem|ftps?|gopher|https?|imap|intent|jar|javascript|"
    "ldaps?|livescript|magnet|mailto|market|mhtml|mms|mocha|news|nntp|opera|pop|resource|search|sftp|sips?|smb|sms|smsto|"
    "ssh|steam|tel|telnet|urn|vbscript|vnc|wais|webcal|wss?|wyciwyg|(chrome|moz|ms|search|view|x-apple)[.-].*"
)


class InvalidClient(Exception):
    """What a client says of itself will not do; `error` is OAuth's word for it."""

    def __init__(self, message: str, error: str = "invalid_client_metadata") -> None:
        super().__init__(message)
        self.error = error


def check_redirect_uri(uri: Any) -> str:
    """A redirect URI a code may be sent to; InvalidClient if not."""
    if not isinstance(uri, str) or not uri or len(uri) > _MAX_URI_CHARS or _UNSAFE_CHARS.search(uri):
        raise InvalidClient("a redirect URI is not a plain address", "invalid_redirect_uri")
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        raise InvalidClient("a redirect URI is not an address", "invalid_redirect_uri") from None
    if not is_valid_netloc(parts.netloc):
        raise InvalidClient("a redirect URI is not an address", "invalid_redirect_uri")
    if "#" in uri or parts.username is not None or parts.password is not None:
        raise InvalidClient("a redirect URI has a fragment or credentials in it", "invalid_redirect_uri")
    is_loopback = parts.scheme == "http" and parts.hostname in LOOPBACK
    is_https = parts.scheme == "https" and bool(parts.hostname)
    is_private_scheme = _is_private_scheme(parts.scheme) and bool(parts.netloc or parts.path.strip("/"))
    if not (is_loopback or is_https or is_private_scheme):
        raise InvalidClient(
            "a redirect URI must be https, http on the user's own machine, or of a scheme of the application's own",
            "invalid_redirect_uri",
        )
    return uri


def _is_private_scheme(scheme: str) -> bool:
    """Whether a scheme can be one of an application's own."""
    return _RESERVED_SCHEMES.fullmatch(scheme) is None and _PRIVATE_SCHEME.fullmatch(scheme) is not None


def match_redirect_uri(client: ClientRecord, requested_uri: str | None) -> str | None:
    """The registered redirect URI that is meant; None if there is none. On loopback the port may be another.

    Compared as text, or in every part but the port. RFC 8252, section 7.3
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
    """Whether a redirect stays on the user's own machine, where any program may be listening."""
    parts = urlsplit(uri)
    return parts.scheme not in ("http", "https") or parts.hostname in LOOPBACK


def create_client(metadata: Mapping[str, Any]) -> tuple[ClientRecord, str | None]:
    """The client that registers itself with this, and its secret if it gets one. RFC 7591"""
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


def build_registration_response(client: ClientRecord, secret: str | None, now: float) -> dict[str, Any]:
    """What a client is told after it registered."""
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
    return response if secret is None else response | {"client_secret": secret, "client_secret_expires_at": 0}


def is_document_url(client_id: str) -> bool:
    """Whether a client id is the address of a document about it."""
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


def parse_client_document(client_id: str, response: HTTPResponse) -> ClientRecord:
    """The client whose document this is; InvalidClient if it is not, or says nothing usable.

    spec: security-considerations#client-id-metadata-document-security
    """
    metadata = response.json() if response.status == 200 and len(response.body) <= _MAX_DOCUMENT_BYTES else None
    if metadata is None:
        raise InvalidClient("the client's document cannot be fetched", "invalid_client")
    if metadata.get("client_id") != client_id:
        raise InvalidClient("the client's document is about another client", "invalid_client")
    method = metadata.get("token_endpoint_auth_method", "none")
    if "client_secret" in metadata or method not in ("none", "private_key_jwt"):
        raise InvalidClient("a client known by its document has no secret", "invalid_client")
    jwks, jwks_uri = _parse_keys(metadata, method)
    name = _parse_name(metadata)
    if not name:
        raise InvalidClient("the client's document does not name it", "invalid_client")
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
    """The public keys of a client that proves itself by them, or where they are. RFC 7591, section 2"""
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
        raise InvalidClient("a client with a private key names its public ones: jwks or jwks_uri, and not many")
    return {"keys": [key.jwk for key in keys]}, None


def get_document_ttl(headers: Mapping[str, str]) -> float:
    """How long a client's document is believed: as long as it says, within reason."""
    cache_control = headers.get("cache-control", "")
    if "no-store" in cache_control or "no-cache" in cache_control:
        return 60.0
    match = re.search(r"max-age=(\d{1,9})", cache_control)
    return min(max(float(match[1]), 60.0), 86400.0) if match else _DEFAULT_DOCUMENT_TTL_S


def _parse_redirect_uris(metadata: Mapping[str, Any], max_uris: int = _MAX_REDIRECT_URIS) -> tuple[str, ...]:
    uris = metadata.get("redirect_uris")
    if not isinstance(uris, list) or not 0 < len(uris) <= max_uris:
        raise InvalidClient(f"redirect_uris must be a list of one to {max_uris}", "invalid_redirect_uri")
    return tuple(check_redirect_uri(uri) for uri in uris)


def _parse_name(metadata: Mapping[str, Any]) -> str:
    name = metadata.get("client_name", "")
    if not isinstance(name, str) or len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES or not name.isprintable():
        raise InvalidClient(f"client_name must be a printable text of at most {_MAX_NAME_BYTES} bytes")
    return name


def _parse_grant_types(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Grants this server does not have are left out: many clients name all they know."""
    grant_types, response_types = (
        metadata.get("grant_types", ["authorization_code"]),
        metadata.get("response_types", ["code"]),
    )
    if not isinstance(grant_types, list) or "authorization_code" not in grant_types:
        raise InvalidClient("grant_types must include authorization_code")
    if not isinstance(response_types, list) or "code" not in response_types:
        raise InvalidClient("response_types must include code")
    return tuple(grant_type for grant_type in GRANT_TYPES if grant_type in grant_types)


class RegisteredClient:
    """A client that you register by hand. Pass it as `AuthorizationServer(clients=[...])`.

    A client without `redirect_uris` is a program: it gets tokens for itself, not for users.

    redirect_uris: where users are sent after the login.
    client_name: shown to users. Defaults to the `client_id`.
    client_secret: how the client authenticates.
    public_keys: the public keys of a client that authenticates with a private key: a JWK set or PEM texts.
    scopes: the scopes of a program. Users decide on the scopes of other clients.
    """

    def __init__(
        self,
        client_id: str,
        *,
        redirect_uris: Sequence[str] = (),
        client_name: str = "",
        client_secret: str | None = None,
        public_keys: Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str] | None = None,
        scopes: str | Sequence[str] = (),
    ) -> None:
        if not redirect_uris and client_secret is None and public_keys is None:
            raise ValueError("a client needs redirect_uris=, and a program client_secret= or public_keys=")
        if redirect_uris and scopes:
            raise ValueError("scopes= is for programs, which have no redirect_uris=. Users decide on all other scopes")
        if client_secret is not None and not client_secret.strip():
            raise ValueError("client_secret= is blank. Anyone could be this client")
        if client_secret is not None and public_keys is not None:
            raise ValueError("a client has client_secret= or public_keys=, not both")
        auth_method = "none" if client_secret is None else ANY_SECRET_METHOD
        self._record = ClientRecord(
            client_id=client_id,
            client_name=client_name or client_id,
            redirect_uris=tuple(check_redirect_uri(uri) for uri in redirect_uris),
            method=auth_method if public_keys is None else "private_key_jwt",
            secret_mark=None if client_secret is None else hash_secret(client_secret),
            jwks=None if public_keys is None else {"keys": [key.jwk for key in signing.load_keys(public_keys)]},
            grant_types=GRANT_TYPES if redirect_uris else (CLIENT_CREDENTIALS,),
            scopes=validate_scopes(split_scopes(scopes)),
        )

    def __repr__(self) -> str:
        return f"RegisteredClient({self._record.client_id!r})"


def get_client_record(client: Any) -> ClientRecord:
    """Return the record of a client that was registered by hand."""
    if not isinstance(client, RegisteredClient):
        raise TypeError(f"clients= must be a list of RegisteredClient(...), not of {type(client).__name__}")
    return client._record  # pyright: ignore[reportPrivateUsage]


def can_use_client_credentials(client: ClientRecord) -> bool:
    """Whether a client gets tokens for itself."""
    return CLIENT_CREDENTIALS in client.grant_types

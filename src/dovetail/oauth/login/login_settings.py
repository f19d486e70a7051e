"""Settings for logging in, one class for each kind of login. Pass them as `auth=`.

What cannot work is refused when it is said, not at the first login.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from dovetail.oauth.metadata import is_secure_url, parse_web_url
from dovetail.protocol.http_checks import LOOPBACK
from dovetail.wire.base import Struct

_TOKEN_PATTERN: Final = re.compile(r"[\x21-\x7e]+")
_PRIVATE_KEY_PEM: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_AUTH_METHODS: Final = ("none", "client_secret_basic", "client_secret_post")


class TokenStore(Protocol):
    """Saves logins between runs. Keys are URLs, values are opaque bytes.

    A store that several processes share also has `lock(key)`, an async context manager. It is held while a token is
    renewed.
    """

    def get(self, key: str) -> bytes | None:
        """Return the saved login, or None."""
        ...

    def set(self, key: str, value: bytes) -> None:
        """Save a login."""
        ...

    def delete(self, key: str) -> None:
        """Delete a login. Do nothing if there is none."""
        ...


class RedactedStruct(Struct, frozen=True):
    """Something that holds secrets, and so shows no more than its name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class BearerAuth(RedactedStruct, frozen=True):
    """A token you already have."""

    token: str

    def __post_init__(self) -> None:
        if not isinstance(self.token, str) or not _TOKEN_PATTERN.fullmatch(self.token):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                "BearerAuth takes the token alone: one word of plain characters, without 'Bearer' before it"
            )


class Signer(RedactedStruct, frozen=True):
    """A private key by which a client proves who it is, and how it signs; None: as the key suggests."""

    private_key: str
    algorithm: str | None = None


class OAuth(RedactedStruct, frozen=True, kw_only=True):
    """Log in with a browser. Every option is optional: the client discovers what you do not pass.

    client_id, client_secret, issuer: a client that you registered by hand, and its authorization server.
    client_metadata_url: URL of this client's metadata document.
    private_key: PEM text, used instead of a secret. Set `signing_algorithm` if the key allows several.
    scopes: requested in addition to those the server names. With `exact_scopes`, only these are requested.
    redirect_uri: the redirect URI that you registered. Defaults to a free port on 127.0.0.1.
    open_browser: called with the URL instead of opening a browser.
    paste_redirect: called with the URL, returns the URL the browser ended up at. For machines without a browser.
    token_store: where the login is saved: "memory", "file", "keyring", a directory, or a `TokenStore`.
    allow_private_network: whether the authorization server may be on this machine or in a private network. Defaults
        to True if the server itself is there.
    """

    client_id: str | None = None
    client_secret: str | None = None
    issuer: str | None = None
    client_metadata_url: str | None = None
    client_name: str = "dovetail"
    token_endpoint_auth_method: str | None = None
    private_key: str | None = None
    signing_algorithm: str | None = None
    scopes: str | Sequence[str] = ()
    exact_scopes: bool = False
    redirect_uri: str | None = None
    offline_access: bool = True
    dpop: bool | None = None  # None: where the server wants it
    open_browser: Callable[[str], Any] | None = None
    paste_redirect: Callable[[str], str | Awaitable[str]] | None = None
    token_store: str | Path | TokenStore = "file"
    timeout: float = 300.0  # for the user to log in
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        _check_client(self)
        if self.private_key is not None and self.client_id is None and self.client_metadata_url is None:
            raise ValueError("private_key= belongs to a client: give its client_id= or client_metadata_url= too")
        if self.private_key is not None and self.client_secret is not None:
            raise ValueError("a client proves who it is by client_secret= or by private_key=, not by both")
        if self.redirect_uri is not None and self.paste_redirect is None and not _is_loopback_uri(self.redirect_uri):
            raise ValueError(
                f"redirect_uri must be http://127.0.0.1:…, http://localhost:… or http://[::1]:…, not "
                f"{self.redirect_uri!r}: pass paste_redirect= to use another one"
            )
        _check_callable("open_browser", self.open_browser, "of the URL")
        _check_callable(
            "paste_redirect", self.paste_redirect, "of the URL that returns where the browser ended, such as input"
        )
        _check_key(self.private_key)


class DeviceLogin(RedactedStruct, frozen=True, kw_only=True):
    """Log in on another device: a code is shown, entered there, and waited for."""

    client_id: str | None = None
    client_secret: str | None = None
    issuer: str | None = None
    client_metadata_url: str | None = None
    client_name: str = "dovetail"
    scopes: str | Sequence[str] = ()
    dpop: bool | None = None
    show_code: Callable[[str, str], Any] | None = None  # called with the URL and the code; None: logged as a warning
    token_store: str | Path | TokenStore = "file"
    timeout: float = 900.0
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        _check_client(self)
        _check_callable("show_code", self.show_code, "of the URL and the code")


class ClientCredentials(RedactedStruct, frozen=True, kw_only=True):
    """Log in as a program, by a secret or by a private key (PEM). With `issuer`, both are shown to no other."""

    client_id: str
    client_secret: str | None = None
    private_key: str | None = None
    signing_algorithm: str | None = None  # None: as the key suggests
    scopes: str | Sequence[str] = ()
    token_endpoint_auth_method: str | None = None
    issuer: str | None = None
    dpop: bool | None = None
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        if (self.client_secret is None) == (self.private_key is None):
            raise ValueError("ClientCredentials takes one proof: client_secret= or private_key=")
        _check_auth_method(self.token_endpoint_auth_method)
        _check_scopes_and_issuer(self)
        _check_key(self.private_key)


class EnterpriseLogin(RedactedStruct, frozen=True, kw_only=True):
    """Log in by the company's identity provider: its ID token is exchanged for a grant the server accepts.

    id_token: the ID token, or a function (plain or async) that returns a fresh one whenever it is needed.
    issuer: the server's authorization server; no other is then shown the client's secret or a grant.
    """

    client_id: str
    client_secret: str | None = None
    idp_client_id: str
    idp_token_endpoint: str
    id_token: str | Callable[[], str | Awaitable[str]]
    idp_client_secret: str | None = None
    issuer: str | None = None
    scopes: str | Sequence[str] = ()
    dpop: bool | None = None
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        _check_token("id_token", self.id_token)
        _check_scopes_and_issuer(self)
        if not is_secure_url(self.idp_token_endpoint):
            raise ValueError("idp_token_endpoint must be https: tokens travel there")


class WorkloadIdentity(RedactedStruct, frozen=True, kw_only=True):
    """Log in by a token the platform issued to this workload.

    assertion: the token, or a function (plain or async) that returns a fresh one whenever it is needed.
    issuer: the authorization server it is meant for; no other is then shown it.
    """

    client_id: str | None = None
    assertion: str | Callable[[], str | Awaitable[str]]
    issuer: str | None = None
    scopes: str | Sequence[str] = ()
    dpop: bool | None = None
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        _check_token("assertion", self.assertion)
        _check_scopes_and_issuer(self)


# "oauth", or a bearer token, or one of the login settings.
ClientAuth: TypeAlias = str | BearerAuth | OAuth | ClientCredentials | DeviceLogin | EnterpriseLogin | WorkloadIdentity


def get_signer(settings: Any) -> Signer | None:
    """The private key of a setting, where it has one."""
    key = getattr(settings, "private_key", None)
    return None if key is None else Signer(key, settings.signing_algorithm)


def split_scopes(scopes: str | Sequence[str]) -> list[str]:
    """Scopes as a list; one text may hold several."""
    return scopes.split() if isinstance(scopes, str) else list(scopes)


def _check_scopes_and_issuer(settings: Any) -> None:
    """Whom to ask for tokens, and for which scopes."""
    scopes, issuer = settings.scopes, settings.issuer
    if not isinstance(scopes, str | list | tuple | set | frozenset) or not all(
        isinstance(scope, str) for scope in scopes
    ):
        raise TypeError(f"scopes must be a text or a list of texts, not {scopes!r}")
    if issuer is not None and not (isinstance(issuer, str) and is_secure_url(issuer)):
        raise ValueError(
            f"issuer must be an https URL, or http on this machine, as its metadata says it: not {issuer!r}"
        )


def _check_callable(name: str, value: Any, description: str) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function {description}, not {value!r}")


def _check_key(key: Any) -> None:
    if key is not None and not (isinstance(key, str) and _PRIVATE_KEY_PEM.search(key)):
        raise ValueError(
            "private_key must be a private key in PEM: its text, which begins with -----BEGIN, not its path"
        )


def _check_client(settings: OAuth | DeviceLogin) -> None:
    _check_scopes_and_issuer(settings)
    if settings.client_secret is not None and settings.client_id is None:
        raise ValueError("client_secret= belongs to a client: give its client_id= too")
    metadata_url = settings.client_metadata_url
    if metadata_url is not None:
        parts = parse_web_url(metadata_url)
        if parts is None or parts.scheme != "https" or parts.path in ("", "/"):
            # spec: client-registration#client-id-metadata-documents
            raise ValueError("client_metadata_url must be an https URL with a path: it is the client's name")
    _check_auth_method(getattr(settings, "token_endpoint_auth_method", None))


def _check_auth_method(method: str | None) -> None:
    if method is not None and method not in _AUTH_METHODS:
        raise ValueError(f"token_endpoint_auth_method must be one of {', '.join(_AUTH_METHODS)}, not {method!r}")


def _check_token(name: str, value: Any) -> None:
    if not callable(value) and not (isinstance(value, str) and value):
        raise TypeError(f"{name} must be a token, or a function that returns one")


def _is_loopback_uri(uri: str) -> bool:
    parts = urlsplit(uri)
    return parts.scheme == "http" and parts.hostname in LOOPBACK

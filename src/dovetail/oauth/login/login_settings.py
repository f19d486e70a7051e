"""Settings for logins, with one class for each kind of login. Pass the settings as `auth=`.

Invalid settings raise an error when you create them, not at the first login.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from dovetail.oauth.metadata import is_secure_url, parse_web_url
from dovetail.protocol.http_checks import is_loopback_uri
from dovetail.wire.base import Struct

TOKEN_CHARACTERS: Final = re.compile(r"[\x21-\x7e]+")
_PRIVATE_KEY_PEM: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_AUTH_METHODS: Final = ("none", "client_secret_basic", "client_secret_post")


class TokenStore(Protocol):
    """A store that saves logins between runs. Keys are server URLs, and values are bytes.

    A store that several processes share must also have `lock(key)`, an async context manager. The client holds this
    lock while it renews a token.
    """

    def get(self, key: str) -> bytes | None:
        """Return the saved login, or None if the key has no login."""
        ...

    def set(self, key: str, value: bytes) -> None:
        """Save a login."""
        ...

    def delete(self, key: str) -> None:
        """Delete a login. Do nothing if the key has no login."""
        ...


class RedactedStruct(Struct, frozen=True):
    """A struct that contains secrets. Its repr shows only the class name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class BearerAuth(RedactedStruct, frozen=True):
    """A bearer token that you already have."""

    token: str  # The access token.

    def __post_init__(self) -> None:
        if not isinstance(self.token, str) or not TOKEN_CHARACTERS.fullmatch(self.token):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("BearerAuth requires only the token, without 'Bearer' before it and without spaces")


class Signer(RedactedStruct, frozen=True):
    """A client's private key and its signing algorithm. If the algorithm is None, the default for the key is used."""

    private_key: str
    algorithm: str | None = None


class OAuth(RedactedStruct, frozen=True, kw_only=True):
    """Log in with a browser. All options have defaults, because the client discovers most settings.

    Args:
        client_id: The ID of a client that you registered by hand.
        client_secret: The secret of a client that you registered by hand.
        issuer: The authorization server of a client that you registered by hand.
        client_metadata_url: The URL of this client's metadata document.
        private_key: A private key in PEM format, used instead of a secret. Set `signing_algorithm` if the key allows
            several algorithms.
        scopes: Scopes to request in addition to those of the server. With `exact_scopes=True`, the client requests only
            these scopes.
        redirect_uri: The redirect URI that you registered. Defaults to a free port on 127.0.0.1.
        open_browser: A function that takes the login URL. It is called instead of opening a browser.
        paste_redirect: A function that takes the login URL and returns the URL of the redirect. Use it on machines
            without a browser.
        token_store: Where the login is saved: "memory", "file", "keyring", a directory, or a `TokenStore`.
        allow_private_network: Whether the authorization server may be on this machine or in a private network. Defaults
            to True if the MCP server is also on this machine or in a private network.
    """

    client_id: str | None = None
    client_secret: str | None = None
    issuer: str | None = None
    client_metadata_url: str | None = None
    client_name: str = "dovetail"  # The name of the client that users see.
    # How the client authenticates, such as "client_secret_post". If None, the server's metadata decides.
    token_endpoint_auth_method: str | None = None
    private_key: str | None = None
    signing_algorithm: str | None = None  # The signing algorithm. If None, the default for the key is used.
    scopes: str | Sequence[str] = ()
    exact_scopes: bool = False  # If True, only `scopes` are requested, and not the scopes that the server asks for.
    redirect_uri: str | None = None
    offline_access: bool = True  # If True, a refresh token is requested, so that the user logs in less often.
    dpop: bool | None = None  # If True, tokens are bound to a key of this client. If None, the server decides.
    open_browser: Callable[[str], object] | None = None
    paste_redirect: Callable[[str], str | Awaitable[str]] | None = None
    token_store: str | Path | TokenStore = "file"
    timeout: float = 300.0  # Seconds to wait for the user.
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        _check_client(self)
        if self.private_key is not None and self.client_id is None and self.client_metadata_url is None:
            raise ValueError("private_key= requires client_id= or client_metadata_url=")
        if self.private_key is not None and self.client_secret is not None:
            raise ValueError("pass client_secret= or private_key=, not both")
        if self.redirect_uri is not None and self.paste_redirect is None and not is_loopback_uri(self.redirect_uri):
            raise ValueError(
                "redirect_uri must be http://127.0.0.1:…, http://localhost:… or http://[::1]:…, not "
                f"{self.redirect_uri!r}. To use another redirect URI, pass paste_redirect="
            )
        _check_callable("open_browser", self.open_browser, "that takes the URL")
        _check_callable(
            "paste_redirect",
            self.paste_redirect,
            "that takes the URL and returns the URL of the redirect, for example input",
        )
        _check_key(self.private_key)


class DeviceLogin(RedactedStruct, frozen=True, kw_only=True):
    """Log in with a code that the user enters on another device."""

    client_id: str | None = None  # The ID of a registered client. If None, a new client is registered.
    client_secret: str | None = None  # The secret of the client.
    issuer: str | None = None  # The authorization server. If None, the client discovers it.
    client_metadata_url: str | None = None  # The URL of this client's metadata document.
    client_name: str = "dovetail"  # The name of the client that users see.
    scopes: str | Sequence[str] = ()  # Scopes to request in addition to the scopes that the server asks for.
    dpop: bool | None = None  # If True, tokens are bound to a key of this client. If None, the server decides.
    # A function that shows the URL and the code to the user. If None, a warning with the URL and the code is logged.
    show_code: Callable[[str, str], object] | None = None
    # The place where the login is saved: "memory", "file", "keyring", a directory, or a `TokenStore`.
    token_store: str | Path | TokenStore = "file"
    timeout: float = 900.0  # Seconds to wait for the user.
    # If True, the authorization server may be on this machine or in a private network.
    # If None, a private authorization server is allowed only for a private MCP server.
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        _check_client(self)
        _check_callable("show_code", self.show_code, "that takes the URL and the code")


class ClientCredentials(RedactedStruct, frozen=True, kw_only=True):
    """Log in as a program, with a secret or with a private key."""

    client_id: str  # The ID of the registered client.
    client_secret: str | None = None  # The secret of the client.
    private_key: str | None = None  # A private key in PEM format, instead of a secret.
    signing_algorithm: str | None = None  # The signing algorithm. If None, the default for the key is used.
    scopes: str | Sequence[str] = ()  # The scopes to request.
    # How the client authenticates, such as "client_secret_post". If None, the server's metadata decides.
    token_endpoint_auth_method: str | None = None
    issuer: str | None = None  # The authorization server. The secret or a signature is sent only to this server.
    dpop: bool | None = None  # If True, tokens are bound to a key of this client. If None, the server decides.
    # If True, the authorization server may be on this machine or in a private network.
    # If None, a private authorization server is allowed only for a private MCP server.
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        if (self.client_secret is None) == (self.private_key is None):
            raise ValueError("ClientCredentials requires either client_secret= or private_key=")
        _check_auth_method(self.token_endpoint_auth_method)
        _check_scopes_and_issuer(self)
        _check_key(self.private_key)


class EnterpriseLogin(RedactedStruct, frozen=True, kw_only=True):
    """Log in with the identity provider of a company.

    The client exchanges an ID token from this provider for a grant that the authorization server accepts.
    """

    client_id: str  # The ID of this client at the authorization server.
    client_secret: str | None = None  # The secret of this client at the authorization server.
    idp_client_id: str  # The ID of this client at the identity provider.
    idp_token_endpoint: str  # The token endpoint of the identity provider.
    # The ID token, or a function that returns a new ID token. The function may be async.
    id_token: str | Callable[[], str | Awaitable[str]]
    idp_client_secret: str | None = None  # The secret of this client at the identity provider.
    issuer: str | None = None  # The authorization server. The secret and the grant are sent only to this server.
    scopes: str | Sequence[str] = ()  # The scopes to request.
    dpop: bool | None = None  # If True, tokens are bound to a key of this client. If None, the server decides.
    # If True, the authorization server may be on this machine or in a private network.
    # If None, a private authorization server is allowed only for a private MCP server.
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        _check_token("id_token", self.id_token)
        _check_scopes_and_issuer(self)
        if not is_secure_url(self.idp_token_endpoint):
            raise ValueError("idp_token_endpoint must be an https URL, because tokens are sent to it")


class WorkloadIdentity(RedactedStruct, frozen=True, kw_only=True):
    """Log in with a token from the platform that runs this program."""

    client_id: str | None = None  # The ID of the client, if the authorization server requires one.
    # The token, or a function that returns a new token. The function may be async.
    assertion: str | Callable[[], str | Awaitable[str]]
    issuer: str | None = None  # The authorization server. The token is sent only to this server.
    scopes: str | Sequence[str] = ()  # The scopes to request.
    dpop: bool | None = None  # If True, tokens are bound to a key of this client. If None, the server decides.
    # If True, the authorization server may be on this machine or in a private network.
    # If None, a private authorization server is allowed only for a private MCP server.
    allow_private_network: bool | None = None

    def __post_init__(self) -> None:
        _check_token("assertion", self.assertion)
        _check_scopes_and_issuer(self)


# `auth=` accepts "oauth", a bearer token, or one of the login settings.
ClientAuth: TypeAlias = str | BearerAuth | OAuth | ClientCredentials | DeviceLogin | EnterpriseLogin | WorkloadIdentity


def get_signer(settings: Any) -> Signer | None:
    key = getattr(settings, "private_key", None)
    return None if key is None else Signer(key, settings.signing_algorithm)


def split_scopes(scopes: str | Sequence[str]) -> list[str]:
    """Return scopes as a list. If `scopes` is a string, spaces separate the scopes."""
    return scopes.split() if isinstance(scopes, str) else list(scopes)


def _check_scopes_and_issuer(settings: Any) -> None:
    scopes, issuer = settings.scopes, settings.issuer
    if not isinstance(scopes, str | list | tuple | set | frozenset) or not all(
        isinstance(scope, str) for scope in scopes
    ):
        raise TypeError(f"scopes must be a string or a list of strings, not {scopes!r}")
    if issuer is not None and not (isinstance(issuer, str) and is_secure_url(issuer)):
        raise ValueError(
            f"invalid issuer {issuer!r}: use the `issuer` in the metadata of the authorization server. "
            "It must be an https URL, or an http URL on this machine"
        )


def _check_callable(name: str, value: Any, description: str) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function {description}, not {value!r}")


def _check_key(key: Any) -> None:
    if key is not None and not (isinstance(key, str) and _PRIVATE_KEY_PEM.search(key)):
        raise ValueError(
            "private_key must be the text of a private key in PEM format, not the path of a file. The text starts "
            "with -----BEGIN"
        )


def _check_client(settings: OAuth | DeviceLogin) -> None:
    _check_scopes_and_issuer(settings)
    if settings.client_secret is not None and settings.client_id is None:
        raise ValueError("client_secret= requires client_id=")
    metadata_url = settings.client_metadata_url
    if metadata_url is not None:
        parts = parse_web_url(metadata_url)
        if parts is None or parts.scheme != "https" or parts.path in ("", "/"):
            # spec: client-registration#client-id-metadata-documents
            raise ValueError("client_metadata_url must be an https URL with a path, because it identifies the client")
    _check_auth_method(getattr(settings, "token_endpoint_auth_method", None))


def _check_auth_method(method: str | None) -> None:
    if method is not None and method not in _AUTH_METHODS:
        raise ValueError(f"token_endpoint_auth_method must be one of {', '.join(_AUTH_METHODS)}, not {method!r}")


def _check_token(name: str, value: Any) -> None:
    if not callable(value) and not (isinstance(value, str) and value):
        raise TypeError(f"{name} must be a token, or a function that returns a token")

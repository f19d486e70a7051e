"""What a user says about logging in: one small value per kind of login, given as `auth=`."""

from collections.abc import Callable, Sequence
from typing import Any

from dovetail.wire.shape import Struct


class Discreet(Struct, frozen=True):
    """Something that holds secrets, and so shows no more than its name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class Bearer(Discreet, frozen=True):
    """A token you already have."""

    token: str


class OAuth(Discreet, frozen=True, kw_only=True):
    """Log in with a browser: everything is found out; give what you know.

    client_id, client_secret, issuer: a client you registered by hand, and where.
    client_metadata_url: where this client's metadata document is published.
    scopes: asked for besides those the server names.
    redirect_uri: the fixed one you registered; else a free port on 127.0.0.1.
    open_browser: called with the URL instead of opening a browser.
    paste: called with the URL; returns the URL the browser ended up at, for machines without a browser.
    store: where the login is kept: "memory", "file", "keyring", a folder, or an object with get, set and delete.
    local: whether the authorization server may be on this machine or network; None: if the server's name is of it.
    """

    client_id: str | None = None
    client_secret: str | None = None
    issuer: str | None = None
    client_metadata_url: str | None = None
    client_name: str = "dovetail"
    token_auth_method: str | None = None
    scopes: Sequence[str] = ()
    redirect_uri: str | None = None
    offline: bool = True
    dpop: bool | None = None  # None: where the server wants it
    open_browser: Callable[[str], Any] | None = None
    paste: Callable[[str], Any] | None = None
    store: Any = "file"
    timeout: float = 300.0  # for the user to log in
    local: bool | None = None


class DeviceLogin(Discreet, frozen=True, kw_only=True):
    """Log in on another device: a code is shown, entered there, and waited for."""

    client_id: str | None = None
    client_secret: str | None = None
    issuer: str | None = None
    client_metadata_url: str | None = None
    client_name: str = "dovetail"
    scopes: Sequence[str] = ()
    show: Callable[[str, str], Any] | None = None  # called with the URL and the code
    store: Any = "file"
    timeout: float = 900.0
    local: bool | None = None


class ClientCredentials(Discreet, frozen=True, kw_only=True):
    """Log in as a program, by a secret or by a private key (PEM)."""

    client_id: str
    client_secret: str | None = None
    private_key: str | None = None
    algorithm: str = "ES256"
    scopes: Sequence[str] = ()
    token_auth_method: str | None = None
    issuer: str | None = None
    dpop: bool | None = None
    local: bool | None = None


class EnterpriseLogin(Discreet, frozen=True, kw_only=True):
    """Log in by the company's identity provider: its ID token is exchanged for a grant the server accepts."""

    client_id: str
    client_secret: str | None = None
    idp_client_id: str
    idp_token_endpoint: str
    id_token: str | Callable[[], Any]
    idp_client_secret: str | None = None
    scopes: Sequence[str] = ()
    local: bool | None = None


class WorkloadIdentity(Discreet, frozen=True, kw_only=True):
    """Log in by a token the platform issued to this workload."""

    client_id: str | None = None
    assertion: str | Callable[[], Any]
    scopes: Sequence[str] = ()
    local: bool | None = None

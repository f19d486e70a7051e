"""Who may ask for tokens: known clients, those described by their own document, and those that register themselves.

What decides where a code is sent is the redirect URI, so those are looked at closely: nothing a browser would run, no
plain http but on the user's own machine, nothing that could be read in two ways. spec: client-registration
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.auth import keys as signing
from dovetail.auth.documents import whole
from dovetail.auth.flow import HttpAnswer
from dovetail.auth.guard import checked_scopes
from dovetail.auth.server.store import Client
from dovetail.auth.server.web import mark
from dovetail.auth.settings import words
from dovetail.protocol.http import LOOPBACK

METHODS: Final = ("none", "client_secret_post", "client_secret_basic", "private_key_jwt")
ANY_WAY: Final = "client_secret"  # in the header or in the form, as a client that was never asked likes it
GRANTS: Final = ("authorization_code", "refresh_token")
PROGRAM: Final = "client_credentials"
UNUSED: Final = 90 * 86400.0  # seconds after which a client that registered itself is forgotten

_MOST_URIS: Final = 5
_MOST_KEYS: Final = 10
_DOCUMENT: Final = 3600.0  # seconds it is believed, if it does not say
_LONGEST_DOCUMENT: Final = 5 * 1024  # as its own specification advises
_LONGEST_URI: Final = 2048
_LONGEST_NAME: Final = 128
_UNFIT: Final = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\\"'<>`{}|^*]")
# An application should turn its domain round for a scheme (RFC 8252, section 7.1); many that are used every day do not.
_OWN_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.\-]{2,63}")
# What a browser runs, shows or hands on by itself, or a system takes as a command.
_TAKEN: Final = re.compile(
    "about|blob|chrome|content|data|edge|facetime|feed|file|filesystem|ftps?|gopher|https?|imap|intent|jar|javascript|"
    "ldaps?|livescript|magnet|mailto|market|mhtml|mms|mocha|news|nntp|opera|pop|resource|search|sftp|sips?|smb|sms|smsto|"
    "ssh|steam|tel|telnet|urn|vbscript|vnc|wais|webcal|wss?|wyciwyg|(chrome|moz|ms|search|view|x-apple)[.-].*"
)


class BadClient(Exception):
    """What a client says of itself will not do; `error` is OAuth's word for it."""

    def __init__(self, words: str, error: str = "invalid_client_metadata") -> None:
        super().__init__(words)
        self.error = error


def check_redirect(uri: Any) -> str:
    """A redirect URI a code may be sent to; BadClient if not."""
    if not isinstance(uri, str) or not uri or len(uri) > _LONGEST_URI or _UNFIT.search(uri):
        raise BadClient("a redirect URI is not a plain address", "invalid_redirect_uri")
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        raise BadClient("a redirect URI is not an address", "invalid_redirect_uri") from None
    if not whole(parts.netloc):
        raise BadClient("a redirect URI is not an address", "invalid_redirect_uri")
    if "#" in uri or parts.username is not None or parts.password is not None:
        raise BadClient("a redirect URI has a fragment or credentials in it", "invalid_redirect_uri")
    local = parts.scheme == "http" and parts.hostname in LOOPBACK
    web = parts.scheme == "https" and bool(parts.hostname)
    own = _is_own(parts.scheme) and bool(parts.netloc or parts.path.strip("/"))
    if not (local or web or own):
        raise BadClient(
            "a redirect URI must be https, http on the user's own machine, or of a scheme of the application's own",
            "invalid_redirect_uri",
        )
    return uri


def _is_own(scheme: str) -> bool:
    """Whether a scheme can be one of an application's own."""
    return _TAKEN.fullmatch(scheme) is None and _OWN_SCHEME.fullmatch(scheme) is not None


def redirect_of(client: Client, asked: str | None) -> str | None:
    """The registered redirect URI that is meant; None if there is none. On loopback the port may be another.

    Compared as text, or in every part but the port. RFC 8252, section 7.3
    """
    if asked is None:
        return client.redirect_uris[0] if len(client.redirect_uris) == 1 else None
    if asked in client.redirect_uris:
        return asked
    try:
        check_redirect(asked)
    except BadClient:
        return None
    ours = _but_port(asked)
    return asked if ours is not None and any(_but_port(one) == ours for one in client.redirect_uris) else None


def _but_port(uri: str) -> tuple[str | None, str, str] | None:
    parts = urlsplit(uri)
    if parts.scheme != "http" or parts.hostname not in LOOPBACK:
        return None
    return parts.hostname, parts.path, parts.query


def is_local(uri: str) -> bool:
    """Whether a redirect stays on the user's own machine, where any program may be listening."""
    parts = urlsplit(uri)
    return parts.scheme not in ("http", "https") or parts.hostname in LOOPBACK


def registered(said: Mapping[str, Any]) -> tuple[Client, str | None]:
    """The client that registers itself with this, and its secret if it gets one. RFC 7591"""
    uris, method = _uris(said), said.get("token_endpoint_auth_method", "none")
    if method not in METHODS:
        raise BadClient(f"token_endpoint_auth_method must be one of {', '.join(METHODS)}")
    secret = secrets.token_urlsafe(32) if method.startswith("client_secret") else None
    jwks, jwks_uri = _keys(said, method)
    client = Client(
        client_id=secrets.token_urlsafe(16),
        client_name=_name(said),
        redirect_uris=uris,
        grant_types=_grants(said),
        method=method,
        secret_mark=None if secret is None else mark(secret),
        jwks=jwks,
        jwks_uri=jwks_uri,
    )
    return client, secret


def told(client: Client, secret: str | None, now: float) -> dict[str, Any]:
    """What a client is told after it registered."""
    said: dict[str, Any] = {
        "client_id": client.client_id,
        "client_id_issued_at": int(now),
        "client_name": client.client_name,
        "redirect_uris": list(client.redirect_uris),
        "grant_types": list(client.grant_types),
        "response_types": ["code"],
        "token_endpoint_auth_method": client.method,
    }
    keys = {"jwks": client.jwks, "jwks_uri": client.jwks_uri}
    said |= {name: value for name, value in keys.items() if value is not None}
    return said if secret is None else said | {"client_secret": secret, "client_secret_expires_at": 0}


def names_document(client_id: str) -> bool:
    """Whether a client id is the address of a document about it."""
    if not client_id.startswith("https://") or len(client_id) > _LONGEST_URI or _UNFIT.search(client_id):
        return False
    try:
        parts = urlsplit(client_id)
        _ = parts.port
    except ValueError:
        return False
    plain = parts.username is None and parts.password is None and not parts.fragment
    steps = parts.path.split("/")
    return bool(parts.hostname) and plain and len(parts.path) > 1 and "." not in steps and ".." not in steps


def described(client_id: str, answer: HttpAnswer) -> Client:
    """The client whose document this is; BadClient if it is not, or says nothing usable.

    spec: security-considerations#client-id-metadata-document-security
    """
    said = answer.json() if answer.status == 200 and len(answer.body) <= _LONGEST_DOCUMENT else None
    if said is None:
        raise BadClient("the client's document cannot be fetched", "invalid_client")
    if said.get("client_id") != client_id:
        raise BadClient("the client's document is about another client", "invalid_client")
    method = said.get("token_endpoint_auth_method", "none")
    if "client_secret" in said or method not in ("none", "private_key_jwt"):
        raise BadClient("a client known by its document has no secret", "invalid_client")
    jwks, jwks_uri = _keys(said, method)
    name = _name(said)
    if not name:
        raise BadClient("the client's document does not name it", "invalid_client")
    return Client(
        client_id=client_id,
        client_name=name,
        redirect_uris=_uris(said, most=20),
        grant_types=_grants(said),
        method=method,
        jwks=jwks,
        jwks_uri=jwks_uri,
        by_document=True,
    )


def _keys(said: Mapping[str, Any], method: str) -> tuple[dict[str, Any] | None, str | None]:
    """The public keys of a client that proves itself by them, or where they are. RFC 7591, section 2"""
    if method != "private_key_jwt":
        return None, None
    jwks, url = said.get("jwks"), said.get("jwks_uri")
    if isinstance(url, str) and jwks is None and names_document(url):
        return None, url
    found = signing.read(jwks) if isinstance(jwks, dict) and isinstance(jwks.get("keys"), list) and url is None else []
    if not found or len(found) > _MOST_KEYS:
        raise BadClient("a client with a private key names its public ones: jwks or jwks_uri, and not many")
    return {"keys": [key.jwk for key in found]}, None


def kept_for(headers: Mapping[str, str]) -> float:
    """How long a client's document is believed: as long as it says, within reason."""
    said = headers.get("cache-control", "")
    if "no-store" in said or "no-cache" in said:
        return 60.0
    found = re.search(r"max-age=(\d{1,9})", said)
    return min(max(float(found[1]), 60.0), 86400.0) if found else _DOCUMENT


def _uris(said: Mapping[str, Any], most: int = _MOST_URIS) -> tuple[str, ...]:
    uris = said.get("redirect_uris")
    if not isinstance(uris, list) or not 0 < len(uris) <= most:
        raise BadClient(f"redirect_uris must be a list of one to {most}", "invalid_redirect_uri")
    return tuple(check_redirect(one) for one in uris)


def _name(said: Mapping[str, Any]) -> str:
    name = said.get("client_name", "")
    if not isinstance(name, str) or len(name.encode("utf-8", "replace")) > _LONGEST_NAME or not name.isprintable():
        raise BadClient(f"client_name must be a printable text of at most {_LONGEST_NAME} bytes")
    return name


def _grants(said: Mapping[str, Any]) -> tuple[str, ...]:
    """Grants this server does not have are left out: many clients name all they know."""
    grants, responses = said.get("grant_types", ["authorization_code"]), said.get("response_types", ["code"])
    if not isinstance(grants, list) or "authorization_code" not in grants:
        raise BadClient("grant_types must include authorization_code")
    if not isinstance(responses, list) or "code" not in responses:
        raise BadClient("response_types must include code")
    return tuple(one for one in GRANTS if one in grants)


def known_client(
    client_id: str,
    *,
    redirect_uris: Sequence[str] = (),
    client_name: str = "",
    client_secret: str | None = None,
    keys: Any = None,
    scopes: str | Sequence[str] = (),
) -> Client:
    """A client written down beforehand; with a secret, or with its public keys: a JWK set or PEM texts.

    Without redirect_uris it is a program, which acts for itself and not for users, with these scopes.
    """
    if not redirect_uris and client_secret is None and keys is None:
        raise ValueError("a client has redirect_uris=; a program, which has none, client_secret= or keys=")
    if redirect_uris and scopes:
        raise ValueError("scopes= are those of a program, which has no redirect_uris=: users decide on all others")
    if client_secret is not None and not client_secret.strip():
        raise ValueError("client_secret= is blank: anyone could be this client")
    if client_secret is not None and keys is not None:
        raise ValueError("a client proves who it is by client_secret= or by keys=, not by both")
    return Client(
        client_id=client_id,
        client_name=client_name or client_id,
        redirect_uris=tuple(check_redirect(one) for one in redirect_uris),
        method="private_key_jwt" if keys is not None else "none" if client_secret is None else ANY_WAY,
        secret_mark=None if client_secret is None else mark(client_secret),
        jwks=None if keys is None else {"keys": [key.jwk for key in signing.given(keys)]},
        grant_types=GRANTS if redirect_uris else (PROGRAM,),
        scopes=checked_scopes(words(scopes)),
    )


def acts(client: Client) -> bool:
    """Whether a client gets tokens for itself."""
    return PROGRAM in client.grant_types

"""Metadata documents and where to look for them: the protected resource's, then the authorization server's.

Identifiers are compared as strings, exactly as they came: whoever tidies up a URL compares something else.
"""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from dovetail.auth.flow import Flow, HttpAnswer, get
from dovetail.errors import LoginFailed, clip
from dovetail.protocol.http import LOOPBACK
from dovetail.wire.shape import Struct, field, replace

_PRM: Final = "/.well-known/oauth-protected-resource"
_OAUTH: Final = "/.well-known/oauth-authorization-server"
_OIDC: Final = "/.well-known/openid-configuration"

_BRACKETED: Final = re.compile(r"([^\[\]@]*@)?\[[^\[\]]*\](:[0-9]*)?")


class ProtectedResource(Struct, frozen=True):
    """What a resource says about itself. RFC 9728."""

    resource: str
    authorization_servers: list[str] = field(default_factory=list)
    scopes_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool = False


class AuthorizationServer(Struct, frozen=True, kw_only=True):
    """What an authorization server says about itself. RFC 8414, OpenID Connect Discovery."""

    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    revocation_endpoint: str | None = None
    introspection_endpoint: str | None = None
    userinfo_endpoint: str | None = None
    jwks_uri: str | None = None
    scopes_supported: list[str] | None = None
    response_types_supported: list[str] | None = None
    grant_types_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    authorization_response_iss_parameter_supported: bool = False
    client_id_metadata_document_supported: bool = False
    dpop_signing_alg_values_supported: list[str] | None = None
    assumed: bool = False  # made up by us, because there is no document: the rule of 2025-03


def resource_document(server_url: str, named: str | None) -> Flow[ProtectedResource | None]:
    """The document of the server at this URL: where it says it is, else at the well-known places.

    spec: authorization-server-discovery#protected-resource-metadata-discovery-requirements
    """
    places = [*([named] if named else ()), *_resource_places(server_url)]
    found = yield from _first(places, ProtectedResource)
    return None if found is None else check_resource(found, server_url)


def _first(places: Sequence[str], kind: Any) -> Flow[Any]:
    """The first document there is. None only where every place says that it has none: what cannot be asked or read may
    be one, and to go on without it would be to go by weaker rules."""
    trouble: LoginFailed | None = None
    for url in places:
        answer = yield from get(url)
        found = _document(answer, kind)
        if found is not None:
            return found
        if not answer.absent and trouble is None:
            trouble = _trouble(url, answer, kind)
    if trouble is not None:
        raise trouble
    return None


def _trouble(url: str, answer: HttpAnswer, kind: Any) -> LoginFailed:
    if answer.status == 200:
        needed = next(one.name for one in msgspec.structs.fields(kind) if one.required)
        return LoginFailed(f"{clip(url)} cannot be read: it is no JSON object with a text for {needed}")
    why = answer.why or (f"status {answer.status}" if answer.status else "nothing comes back")
    if 300 <= answer.status < 400:
        why += ", a redirect, which is not followed"
    return LoginFailed(f"{clip(url)} cannot be fetched: {why}").at(hint=answer.hint)


def _resource_places(server_url: str) -> list[str]:
    parts = urlsplit(server_url)
    root = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.rstrip("/")
    return [f"{root}{_PRM}{path}", f"{root}{_PRM}"] if path else [f"{root}{_PRM}"]


def check_resource(document: ProtectedResource, server_url: str) -> ProtectedResource:
    """A document must speak of the server it was found by, or of something it is part of. RFC 9728, section 3.3"""
    ours, theirs = urlsplit(server_url), web_address(document.resource)
    if theirs is None or origin(ours) != origin(theirs) or not _inside(ours.path, theirs.path):
        raise LoginFailed(
            f"the server's metadata speaks of another resource, {clip(document.resource)}: "
            "a token for it could be used elsewhere"
        ).at(
            hint=f"connect to {clip(document.resource)}, if that is what you mean; if the server is yours, public_url= "
            "says what clients connect to"
        )
    return document


def origin(parts: SplitResult) -> tuple[str, str | None, int]:
    """Scheme, host and port; the port that goes without saying is said."""
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _inside(path: str, folder: str) -> bool:
    return (path.rstrip("/") + "/").startswith(folder.rstrip("/") + "/")


def server_document(issuer: str) -> Flow[AuthorizationServer | None]:
    """The document of an authorization server, by every rule of where it may be.

    spec: authorization-server-discovery#authorization-server-metadata-discovery
    """
    found = yield from _first(_server_places(issuer), AuthorizationServer)
    return None if found is None else _check_issuer(found, issuer)


def _check_issuer(found: AuthorizationServer, issuer: str) -> AuthorizationServer:
    if found.issuer != issuer:
        raise LoginFailed(f"the metadata of {clip(issuer)} names another issuer, {clip(found.issuer)}: it is not used")
    return replace(found, assumed=False)


def _server_places(issuer: str) -> list[str]:
    parts = urlsplit(issuer)
    root = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.rstrip("/")
    if not path:
        return [root + _OAUTH, root + _OIDC]
    return [root + _OAUTH + path, root + _OIDC + path, root + path + _OIDC]


def assumed_server(server_url: str) -> Flow[AuthorizationServer]:
    """Without resource metadata the server itself is its authorization server, at default paths if need be.

    spec: handshake/authorization#fallbacks-for-servers-without-metadata-discovery
    """
    parts = urlsplit(server_url)
    root = f"{parts.scheme}://{parts.netloc}"
    found = yield from _first([root + _OAUTH], AuthorizationServer)
    if found is not None:
        # There was no issuer to look it up by, so there is none to be compared with to the letter.
        return _check_issuer(found, root + "/" if found.issuer.endswith("/") else root)
    return AuthorizationServer(
        issuer=root,
        authorization_endpoint=root + "/authorize",
        token_endpoint=root + "/token",
        registration_endpoint=root + "/register",
        assumed=True,
    )


def _document(answer: HttpAnswer, kind: Any) -> Any:
    """The document in an answer. What it says of no need in a way that cannot be understood, it does not say."""
    if answer.status != 200:
        return None
    try:
        said = msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    for one in msgspec.structs.fields(kind):
        try:
            msgspec.convert(said.get(one.encode_name), one.type)
        except msgspec.ValidationError:
            said.pop(one.encode_name, None)
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError:
        return None


def web_address(url: str) -> SplitResult | None:
    """The parts of an address on the web; None if it is not one, or one that cannot be made sense of."""
    try:
        parts = urlsplit(url)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and whole(parts.netloc)
    except ValueError:
        return None
    return parts if fit else None


def whole(netloc: str) -> bool:
    """Whether brackets, if there are some, hold all of the host: readers differ about what comes after them."""
    return not ("[" in netloc or "]" in netloc) or _BRACKETED.fullmatch(netloc) is not None


def secure(url: str) -> bool:
    """Whether credentials may travel to this URL: https, or plain http on this machine."""
    parts = web_address(url)
    return parts is not None and (parts.scheme == "https" or parts.hostname in LOOPBACK)

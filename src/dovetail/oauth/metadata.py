"""Find and check metadata documents of protected resources and authorization servers.

Identifiers are compared as strings, exactly as they came: whoever tidies up a URL compares something else.
"""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.oauth.flow import Flow, HTTPResponse, fetch
from dovetail.protocol.http_checks import LOOPBACK
from dovetail.wire.base import Struct, field, replace

_RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
_OAUTH_METADATA_PATH: Final = "/.well-known/oauth-authorization-server"
_OIDC_METADATA_PATH: Final = "/.well-known/openid-configuration"

_BRACKETED_NETLOC: Final = re.compile(r"([^\[\]@]*@)?\[[^\[\]]*\](:[0-9]*)?")


class ProtectedResourceMetadata(Struct, frozen=True):
    """What a resource says about itself. RFC 9728."""

    resource: str
    authorization_servers: list[str] = field(default_factory=list)
    scopes_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool = False


class AuthorizationServerMetadata(Struct, frozen=True, kw_only=True):
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


def fetch_resource_metadata(server_url: str, metadata_url: str | None) -> Flow[ProtectedResourceMetadata | None]:
    """The document of the server at this URL: where it says it is, else at the well-known places.

    spec: authorization-server-discovery#protected-resource-metadata-discovery-requirements
    """
    urls = [*([metadata_url] if metadata_url else ()), *_resource_metadata_urls(server_url)]
    metadata = yield from _fetch_first(urls, ProtectedResourceMetadata)
    return None if metadata is None else check_resource(metadata, server_url)


def _fetch_first(urls: Sequence[str], document_type: Any) -> Flow[Any]:
    """The first document there is. None only where every place says that it has none: what cannot be asked or read may
    be one, and to go on without it would be to go by weaker rules."""
    failure: LoginFailed | None = None
    for url in urls:
        response = yield from fetch(url)
        document = _decode_document(response, document_type)
        if document is not None:
            return document
        if not response.is_absent and failure is None:
            failure = _fetch_error(url, response, document_type)
    if failure is not None:
        raise failure
    return None


def _fetch_error(url: str, response: HTTPResponse, document_type: Any) -> LoginFailed:
    if response.status == 200:
        required_field = next(
            struct_field.name for struct_field in msgspec.structs.fields(document_type) if struct_field.required
        )
        return LoginFailed(f"{clip(url)} cannot be read: it is no JSON object with a text for {required_field}")
    reason = response.error or (f"status {response.status}" if response.status else "nothing comes back")
    if 300 <= response.status < 400:
        reason += ", a redirect, which is not followed"
    return add_context(LoginFailed(f"{clip(url)} cannot be fetched: {reason}"), hint=response.hint)


def _resource_metadata_urls(server_url: str) -> list[str]:
    parts = urlsplit(server_url)
    root = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.rstrip("/")
    return (
        [f"{root}{_RESOURCE_METADATA_PATH}{path}", f"{root}{_RESOURCE_METADATA_PATH}"]
        if path
        else [f"{root}{_RESOURCE_METADATA_PATH}"]
    )


def check_resource(document: ProtectedResourceMetadata, server_url: str) -> ProtectedResourceMetadata:
    """A document must speak of the server it was found by, or of something it is part of. RFC 9728, section 3.3"""
    server_parts, resource_parts = urlsplit(server_url), parse_web_url(document.resource)
    if (
        resource_parts is None
        or get_origin(server_parts) != get_origin(resource_parts)
        or not _is_inside(server_parts.path, resource_parts.path)
    ):
        raise add_context(
            LoginFailed(
                f"the server's metadata speaks of another resource, {clip(document.resource)}: "
                "a token for it could be used elsewhere"
            ),
            hint=f"connect to {clip(document.resource)}, if that is what you mean; if the server is yours, public_url= "
            "says what clients connect to",
        )
    return document


def get_origin(parts: SplitResult) -> tuple[str, str | None, int]:
    """Scheme, host and port; the port that goes without saying is said."""
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _is_inside(path: str, parent_path: str) -> bool:
    return (path.rstrip("/") + "/").startswith(parent_path.rstrip("/") + "/")


def fetch_server_metadata(issuer: str) -> Flow[AuthorizationServerMetadata | None]:
    """The document of an authorization server, by every rule of where it may be.

    spec: authorization-server-discovery#authorization-server-metadata-discovery
    """
    metadata = yield from _fetch_first(_server_metadata_urls(issuer), AuthorizationServerMetadata)
    return None if metadata is None else _check_issuer(metadata, issuer)


def _check_issuer(metadata: AuthorizationServerMetadata, issuer: str) -> AuthorizationServerMetadata:
    if metadata.issuer != issuer:
        raise LoginFailed(
            f"the metadata of {clip(issuer)} names another issuer, {clip(metadata.issuer)}: it is not used"
        )
    return replace(metadata, assumed=False)


def _server_metadata_urls(issuer: str) -> list[str]:
    parts = urlsplit(issuer)
    root = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.rstrip("/")
    if not path:
        return [root + _OAUTH_METADATA_PATH, root + _OIDC_METADATA_PATH]
    return [root + _OAUTH_METADATA_PATH + path, root + _OIDC_METADATA_PATH + path, root + path + _OIDC_METADATA_PATH]


def discover_fallback_server(server_url: str) -> Flow[AuthorizationServerMetadata]:
    """Without resource metadata the server itself is its authorization server, at default paths if need be.

    spec: handshake/authorization#fallbacks-for-servers-without-metadata-discovery
    """
    parts = urlsplit(server_url)
    root = f"{parts.scheme}://{parts.netloc}"
    metadata = yield from _fetch_first([root + _OAUTH_METADATA_PATH], AuthorizationServerMetadata)
    if metadata is not None:
        # There was no issuer to look it up by, so there is none to be compared with to the letter.
        return _check_issuer(metadata, root + "/" if metadata.issuer.endswith("/") else root)
    return AuthorizationServerMetadata(
        issuer=root,
        authorization_endpoint=root + "/authorize",
        token_endpoint=root + "/token",
        registration_endpoint=root + "/register",
        assumed=True,
    )


def _decode_document(response: HTTPResponse, document_type: Any) -> Any:
    """The document in an answer. What it says of no need in a way that cannot be understood, it does not say."""
    if response.status != 200:
        return None
    try:
        data = msgspec.json.decode(response.body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    for struct_field in msgspec.structs.fields(document_type):
        try:
            msgspec.convert(data.get(struct_field.encode_name), struct_field.type)
        except msgspec.ValidationError:
            data.pop(struct_field.encode_name, None)
    try:
        return msgspec.convert(data, document_type)
    except msgspec.ValidationError:
        return None


def parse_web_url(url: str) -> SplitResult | None:
    """The parts of an address on the web; None if it is not one, or one that cannot be made sense of."""
    try:
        parts = urlsplit(url)
        is_valid = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and is_valid_netloc(parts.netloc)
        )
    except ValueError:
        return None
    return parts if is_valid else None


def is_valid_netloc(netloc: str) -> bool:
    """Whether brackets, if there are some, hold all of the host: readers differ about what comes after them."""
    return not ("[" in netloc or "]" in netloc) or _BRACKETED_NETLOC.fullmatch(netloc) is not None


def is_secure_url(url: str) -> bool:
    """Whether credentials may travel to this URL: https, or plain http on this machine."""
    parts = parse_web_url(url)
    return parts is not None and (parts.scheme == "https" or parts.hostname in LOOPBACK)

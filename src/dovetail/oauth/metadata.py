"""Fetch and check metadata documents of protected resources and authorization servers.

This module compares identifiers as strings, exactly as received. It does not normalize URLs, because otherwise two
different identifiers could be equal.
"""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.oauth.flow import FetchResponse, Flow, fetch
from dovetail.protocol.http_checks import LOOPBACK
from dovetail.wire.base import Struct, field, replace

RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
_OAUTH_METADATA_PATH: Final = "/.well-known/oauth-authorization-server"
_OIDC_METADATA_PATH: Final = "/.well-known/openid-configuration"

_BRACKETED_NETLOC: Final = re.compile(r"([^\[\]@]*@)?\[[^\[\]]*\](:[0-9]*)?")


class ProtectedResourceMetadata(Struct, frozen=True):
    """Metadata of a protected resource. RFC 9728"""

    resource: str
    authorization_servers: list[str] = field(default_factory=list)
    scopes_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool = False


class AuthorizationServerMetadata(Struct, frozen=True, kw_only=True):
    """Metadata of an authorization server. RFC 8414, OpenID Connect Discovery"""

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
    # True if the server publishes no metadata, so that the defaults of protocol version 2025-03 are used.
    assumed: bool = False


def fetch_resource_metadata(server_url: str, metadata_url: str | None) -> Flow[ProtectedResourceMetadata | None]:
    """Fetch the metadata of an MCP server from `metadata_url` or a well-known path.

    spec: authorization-server-discovery#protected-resource-metadata-discovery-requirements
    """
    urls = [*([metadata_url] if metadata_url else ()), *_resource_metadata_urls(server_url)]
    metadata = yield from _fetch_first(urls, ProtectedResourceMetadata)
    return None if metadata is None else check_resource(metadata, server_url)


def _fetch_first(urls: Sequence[str], document_type: Any) -> Flow[Any]:
    """Fetch the URLs in order, and return the first document that exists. Return None if no document exists.

    Raise LoginFailed if a document exists but cannot be read. Without this document, weaker rules would apply.
    """
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


def _fetch_error(url: str, response: FetchResponse, document_type: Any) -> LoginFailed:
    if response.status_code == 200:
        required_field = next(
            struct_field.name for struct_field in msgspec.structs.fields(document_type) if struct_field.required
        )
        return LoginFailed(f"{clip(url)} cannot be read: it must be a JSON object with a string {required_field!r}")
    reason = response.error or (f"status {response.status_code}" if response.status_code else "no response")
    if 300 <= response.status_code < 400:
        reason += " (redirects are not followed)"
    return add_context(LoginFailed(f"{clip(url)} cannot be fetched: {reason}"), hint=response.hint)


def _resource_metadata_urls(server_url: str) -> list[str]:
    parts = urlsplit(server_url)
    root = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.rstrip("/")
    return (
        [f"{root}{RESOURCE_METADATA_PATH}{path}", f"{root}{RESOURCE_METADATA_PATH}"]
        if path
        else [f"{root}{RESOURCE_METADATA_PATH}"]
    )


def check_resource(document: ProtectedResourceMetadata, server_url: str) -> ProtectedResourceMetadata:
    """Raise LoginFailed unless the metadata is for the server's URL or a parent of that URL. RFC 9728, section 3.3"""
    server_parts, resource_parts = urlsplit(server_url), parse_web_url(document.resource)
    if (
        resource_parts is None
        or get_origin(server_parts) != get_origin(resource_parts)
        or not _is_inside(server_parts.path, resource_parts.path)
    ):
        raise add_context(
            LoginFailed(
                f"the server's metadata describes another resource, {clip(document.resource)}. That resource could "
                "misuse the token"
            ),
            hint=f"if you want to use the server at {clip(document.resource)}, connect to that URL. If the server "
            "is yours, set public_url= to the URL that clients use",
        )
    return document


def get_origin(parts: SplitResult) -> tuple[str, str | None, int]:
    """Return the scheme, host and port of a URL. If the URL has no port, return the default port of the scheme."""
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _is_inside(path: str, parent_path: str) -> bool:
    return (path.rstrip("/") + "/").startswith(parent_path.rstrip("/") + "/")


def fetch_server_metadata(issuer: str) -> Flow[AuthorizationServerMetadata | None]:
    """Fetch the metadata of an authorization server from the first well-known path that has it.

    spec: authorization-server-discovery#authorization-server-metadata-discovery
    """
    metadata = yield from _fetch_first(_server_metadata_urls(issuer), AuthorizationServerMetadata)
    return None if metadata is None else _check_issuer(metadata, issuer)


def _check_issuer(metadata: AuthorizationServerMetadata, issuer: str) -> AuthorizationServerMetadata:
    if metadata.issuer != issuer:
        raise LoginFailed(
            f"the metadata of {clip(issuer)} cannot be used, because it names another issuer: {clip(metadata.issuer)}"
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
    """Return metadata for an MCP server without resource metadata, which must be its own authorization server.

    If the server publishes no metadata at all, default paths are used.

    spec: handshake/authorization#fallbacks-for-servers-without-metadata-discovery
    """
    parts = urlsplit(server_url)
    root = f"{parts.scheme}://{parts.netloc}"
    metadata = yield from _fetch_first([root + _OAUTH_METADATA_PATH], AuthorizationServerMetadata)
    if metadata is not None:
        # The issuer in the metadata may end with a slash.
        return _check_issuer(metadata, root + "/" if metadata.issuer.endswith("/") else root)
    return AuthorizationServerMetadata(
        issuer=root,
        authorization_endpoint=root + "/authorize",
        token_endpoint=root + "/token",
        registration_endpoint=root + "/register",
        assumed=True,
    )


def _decode_document(response: FetchResponse, document_type: Any) -> Any:
    if response.status_code != 200:
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
    """Split an http or https URL. Return None if it is invalid."""
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
    """Return False if a URL's host has invalid brackets. URL parsers interpret such a host in different ways."""
    return not ("[" in netloc or "]" in netloc) or _BRACKETED_NETLOC.fullmatch(netloc) is not None


def is_secure_url(url: str) -> bool:
    """Return whether credentials may be sent to a URL. The URL must be https, or http on this machine."""
    parts = parse_web_url(url)
    return parts is not None and (parts.scheme == "https" or parts.hostname in LOOPBACK)

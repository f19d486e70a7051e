"""Settings of the authorization server."""

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from dovetail.oauth.authorization_server.store import ClientRecord
from dovetail.oauth.metadata import parse_web_url
from dovetail.wire.base import Struct, field


class AuthorizationServerSettings(Struct, frozen=True, kw_only=True):
    """The options of an authorization server."""

    issuer: str
    name: str
    resources: tuple[str, ...] = ()  # servers that tokens may be for. If empty, servers in the issuer's origin
    scopes_supported: tuple[str, ...] = ()  # scopes that clients may request. If empty, any scope
    clients: tuple[ClientRecord, ...] = ()
    allow_registration: bool = True
    max_registrations_per_hour: int = 10  # client registrations per address
    max_failures_per_minute: int = 10  # failed logins per client, and per user
    max_token_responses_per_minute: int = 600  # token responses per client and address
    max_decisions_per_minute: int = 60  # consent decisions per address
    max_fetches_per_minute: int = 30  # fetched client documents per address
    is_trusted_client: Callable[[str], bool] | None = None  # decides which hosts may publish client documents
    has_passwords: bool = False  # whether users log in with a password at this server
    development_user: str | None = None  # the user that every login in development mode gets
    introspection_clients: dict[str, str] = field(
        default_factory=dict
    )  # the secrets of the resource servers that may introspect tokens, by client id
    warn: Callable[[str], None] | None = None  # reports problems to the operator

    def url_for(self, path: str) -> str:
        """Return the URL of a path below the issuer."""
        return self.issuer.rstrip("/") + path

    @property
    def origin(self) -> str:
        """Return the issuer's origin."""
        parts = urlsplit(self.issuer)
        return f"{parts.scheme}://{parts.netloc}"

    def select_resource(self, fields: Mapping[str, str]) -> str | None:
        """Return the requested resource if this server issues tokens for it, or None. RFC 8707"""
        requested, allowed = fields.get("resource"), self.resources
        if requested is None:
            return allowed[0] if len(allowed) == 1 else None
        if allowed:
            return next((resource for resource in allowed if resource.rstrip("/") == requested.rstrip("/")), None)
        parts = parse_web_url(requested)
        if parts is None or parts.fragment or parts.username is not None:
            return None
        return requested if f"{parts.scheme}://{parts.netloc}" == self.origin else None

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
    # URLs of servers that accept the tokens. If empty, all servers on the issuer's origin
    resources: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] = ()  # scopes that clients may request. If empty, all scopes
    clients: tuple[ClientRecord, ...] = ()
    allow_registration: bool = True
    max_registrations_per_hour: int = 10  # maximum per address
    max_failures_per_minute: int = 10  # maximum failed logins per client and per user, in any minute
    max_token_responses_per_minute: int = 600  # maximum per client and address
    max_decisions_per_minute: int = 60  # maximum consent decisions per address
    max_fetches_per_minute: int = 30  # maximum fetched client documents per address
    is_trusted_client: Callable[[str], bool] | None = None  # returns whether a host may publish client documents
    has_passwords: bool = False  # True if users log in with a password at this server
    development_user: str | None = None  # in development, the user of every login
    # Secrets of the resource servers that may introspect tokens, by client ID.
    introspection_clients: dict[str, str] = field(default_factory=dict)
    warn: Callable[[str], None] | None = None  # shows problems to the operator

    def url_for(self, path: str) -> str:
        """Return the URL of an endpoint."""
        return self.issuer.rstrip("/") + path

    @property
    def origin(self) -> str:
        """Return the issuer's origin."""
        parts = urlsplit(self.issuer)
        return f"{parts.scheme}://{parts.netloc}"

    def select_resource(self, fields: Mapping[str, str]) -> str | None:
        """Return the requested resource if this server issues tokens for it, otherwise None. RFC 8707"""
        requested, allowed = fields.get("resource"), self.resources
        if requested is None:
            return allowed[0] if len(allowed) == 1 else None
        if allowed:
            return next((resource for resource in allowed if resource.rstrip("/") == requested.rstrip("/")), None)
        parts = parse_web_url(requested)
        if parts is None or parts.fragment or parts.username is not None:
            return None
        return requested if f"{parts.scheme}://{parts.netloc}" == self.origin else None

"""Settings of the authorization server."""

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from dovetail.oauth.authorization_server.store import ClientRecord
from dovetail.oauth.metadata import parse_web_url
from dovetail.wire.base import Struct, field


class AuthorizationServerSettings(Struct, frozen=True, kw_only=True):
    """Settings of an authorization server."""

    issuer: str
    name: str
    # URLs of the servers that clients can request tokens for. If empty, all URLs on the issuer's origin are allowed.
    resources: tuple[str, ...] = ()
    # Scopes that clients may request. If empty, all scopes are allowed.
    scopes_supported: tuple[str, ...] = ()
    clients: tuple[ClientRecord, ...] = ()
    allow_registration: bool = True
    max_registrations_per_hour: int = 10  # All clients at one address share this limit.
    max_failures_per_minute: int = 10  # Each user and each client has this limit, separately for each address.
    max_token_responses_per_minute: int = 600  # Each client has this limit, separately for each of its addresses.
    max_decisions_per_minute: int = 60  # All users at one address share this limit, except in known browsers.
    max_fetches_per_minute: int = 30  # All clients at one address share this limit.
    # A function that takes a host name. It returns True if clients may publish their documents on that host.
    is_trusted_client: Callable[[str], bool] | None = None
    has_passwords: bool = False  # True if users log in with a password at this server.
    development_user: str | None = None  # The user of every login in development mode.
    # The client IDs and secrets of the resource servers that may introspect tokens.
    introspection_clients: dict[str, str] = field(default_factory=dict)
    warn: Callable[[str], None] | None = None  # A function that shows problems to the operator.

    def url_for(self, path: str) -> str:
        return self.issuer.rstrip("/") + path

    @property
    def origin(self) -> str:
        parts = urlsplit(self.issuer)
        return f"{parts.scheme}://{parts.netloc}"

    def select_resource(self, fields: Mapping[str, str]) -> str | None:
        """Return the requested resource if this server issues tokens for it. Otherwise return None. RFC 8707"""
        requested, allowed = fields.get("resource"), self.resources
        if requested is None:
            return allowed[0] if len(allowed) == 1 else None
        if allowed:
            return next((resource for resource in allowed if resource.rstrip("/") == requested.rstrip("/")), None)
        parts = parse_web_url(requested)
        if parts is None or parts.fragment or parts.username is not None:
            return None
        return requested if f"{parts.scheme}://{parts.netloc}" == self.origin else None

"""Settings of the authorization server."""

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from dovetail.oauth.authorization_server.store import ClientRecord
from dovetail.oauth.metadata import parse_web_url
from dovetail.wire.base import Struct, field


class AuthorizationServerSettings(Struct, frozen=True, kw_only=True):
    """What an operator decides."""

    issuer: str
    name: str
    resources: tuple[str, ...] = ()  # what tokens may be for; empty: servers of the issuer's own origin
    scopes_supported: tuple[str, ...] = ()  # what may be asked for; empty: anything
    clients: tuple[ClientRecord, ...] = ()
    allow_registration: bool = True
    max_registrations_per_hour: int = 10  # of one address in an hour
    max_failures_per_minute: int = 10  # of one client, or of one user, in a minute
    max_token_responses_per_minute: int = 600  # token responses to one client at one address, in a minute
    max_decisions_per_minute: int = 60  # of users at one address, in a minute
    max_fetches_per_minute: int = 30  # of documents of clients for one address, in a minute
    is_trusted_client: Callable[[str], bool] | None = None  # which hosts may describe clients by their documents
    has_passwords: bool = False  # whether users prove who they are here
    development_user: str | None = None  # everyone, in development
    introspection_clients: dict[str, str] = field(
        default_factory=dict
    )  # who may ask about tokens: resource servers, with their secrets
    warn: Callable[[str], None] | None = None  # tells the operator

    def url_for(self, path: str) -> str:
        """The address of something below the issuer."""
        return self.issuer.rstrip("/") + path

    @property
    def origin(self) -> str:
        """Where the issuer is."""
        parts = urlsplit(self.issuer)
        return f"{parts.scheme}://{parts.netloc}"

    def select_resource(self, fields: Mapping[str, str]) -> str | None:
        """What the tokens will be for: exactly what was asked, if it is served here. RFC 8707"""
        requested, allowed = fields.get("resource"), self.resources
        if requested is None:
            return allowed[0] if len(allowed) == 1 else None
        if allowed:
            return next((resource for resource in allowed if resource.rstrip("/") == requested.rstrip("/")), None)
        parts = parse_web_url(requested)
        if parts is None or parts.fragment or parts.username is not None:
            return None
        return requested if f"{parts.scheme}://{parts.netloc}" == self.origin else None

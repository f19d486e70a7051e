"""What the operator of an authorization server decides, and what follows of it."""

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from dovetail.auth.documents import web_address
from dovetail.auth.server.store import Client
from dovetail.wire.shape import Struct, field


class Settings(Struct, frozen=True, kw_only=True):
    """What an operator decides."""

    issuer: str
    name: str
    resources: tuple[str, ...] = ()  # what tokens may be for; empty: servers of the issuer's own origin
    scopes: tuple[str, ...] = ()  # what may be asked for; empty: anything
    clients: tuple[Client, ...] = ()
    registration: bool = True
    registrations: int = 10  # of one address in an hour
    failures: int = 10  # of one client, or of one user, in a minute
    issues: int = 600  # token responses to one client at one address, in a minute
    decisions: int = 60  # of users at one address, in a minute
    fetches: int = 30  # of documents of clients for one address, in a minute
    trusts: Callable[[str], bool] | None = None  # which hosts may describe clients by their documents
    passwords: bool = False  # whether users prove who they are here
    user: str | None = None  # everyone, in development
    askers: dict[str, str] = field(
        default_factory=dict
    )  # who may ask about tokens: resource servers, with their secrets
    warn: Callable[[str], None] | None = None  # tells the operator

    def at(self, path: str) -> str:
        """The address of something below the issuer."""
        return self.issuer.rstrip("/") + path

    @property
    def origin(self) -> str:
        """Where the issuer is."""
        parts = urlsplit(self.issuer)
        return f"{parts.scheme}://{parts.netloc}"

    def resource_of(self, fields: Mapping[str, str]) -> str | None:
        """What the tokens will be for: exactly what was asked, if it is served here. RFC 8707"""
        asked, known = fields.get("resource"), self.resources
        if asked is None:
            return known[0] if len(known) == 1 else None
        if known:
            return next((one for one in known if one.rstrip("/") == asked.rstrip("/")), None)
        parts = web_address(asked)
        if parts is None or parts.fragment or parts.username is not None:
            return None
        return asked if f"{parts.scheme}://{parts.netloc}" == self.origin else None

"""What is stored of a login, so that the next start needs no browser: client, token and expiry.

Keyed by the issuer wherever it is kept: credentials of one authorization server are never shown to another.
"""

from typing import Any, Final

import msgspec

from dovetail.oauth.login.login_settings import RedactedStruct
from dovetail.oauth.metadata import AuthorizationServerMetadata
from dovetail.wire.base import field

# A token is renewed this long before it ends, so that it does not end on the way.
RENEW_MARGIN_S: Final = 30.0


class ClientRegistration(RedactedStruct, frozen=True, kw_only=True):
    """A client as one authorization server knows it."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    method: str = "none"  # how it proves at the token endpoint who it is
    redirect_uris: list[str] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)  # it may ask for, if the server said so
    given: bool = False  # by the user, not by the server
    refused: bool = False  # no login came of it any more: the server may have forgotten it


class Token(RedactedStruct, frozen=True, kw_only=True):
    """An access token and what goes with it; `expires_at` in seconds since the epoch."""

    access_token: str
    token_type: str = "Bearer"
    expires_at: float | None = None
    refresh_token: str | None = None
    scope: str | None = None
    early: float = RENEW_MARGIN_S

    def is_fresh(self, now: float) -> bool:
        """Whether it need not be renewed yet."""
        return self.expires_at is None or now < self.expires_at - self.early

    def is_usable(self, now: float) -> bool:
        """Whether it can still be used."""
        return self.expires_at is None or now < self.expires_at


class SavedLogin(RedactedStruct, frozen=True, kw_only=True):
    """Everything needed to go on with one server after a restart."""

    resource: str
    server: AuthorizationServerMetadata
    client: ClientRegistration
    token: Token | None = None
    scopes: list[str] = field(default_factory=list)  # everything ever asked for
    key: dict[str, Any] | None = None  # the DPoP key, as a JWK

    def dump(self) -> bytes:
        """As JSON, to be stored where only the user can read it."""
        return msgspec.json.encode(self)

    @classmethod
    def load(cls, data: bytes) -> "SavedLogin | None":
        """What `dump` stored; None if it is something else."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

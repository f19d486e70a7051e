"""Saved logins, which contain the client registration and the token. The next start then needs no browser.

A saved login contains its issuer, because credentials of one authorization server must never be sent to another.
"""

from typing import Any, Final

import msgspec

from dovetail.errors import UnsupportedFileVersion
from dovetail.oauth.login.login_settings import RedactedStruct
from dovetail.oauth.metadata import AuthorizationServerMetadata
from dovetail.wire.base import Struct, field
from dovetail.wire.codec import encode, to_plain

FORMAT_VERSION: Final = 2

# A token is renewed this many seconds before it expires, so that it does not expire during a request.
RENEW_MARGIN_S: Final = 30.0


class ClientRegistration(RedactedStruct, frozen=True, kw_only=True):
    """Registration of this client at one authorization server."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    method: str = "none"  # the method by which the client authenticates at the token endpoint
    redirect_uris: list[str] = field(default_factory=list)
    # The scopes that the client may request. The list is empty if the server does not limit them.
    scopes: list[str] = field(default_factory=list)
    # Files contain older names of these fields.
    is_configured: bool = field(name="given", default=False)  # True if the user passed the client ID
    # True if the server rejected the client, for example because it has deleted the client
    is_rejected: bool = field(name="refused", default=False)


class Token(RedactedStruct, frozen=True, kw_only=True):
    """An access token with its refresh token and scopes. `expires_at` is in seconds since the epoch."""

    access_token: str
    token_type: str = "Bearer"
    expires_at: float | None = None
    refresh_token: str | None = None
    scope: str | None = None
    renew_margin_s: float = field(name="early", default=RENEW_MARGIN_S)

    def is_fresh(self, now: float) -> bool:
        """Return whether the token can be used without renewing it first."""
        return self.expires_at is None or now < self.expires_at - self.renew_margin_s

    def is_usable(self, now: float) -> bool:
        """Return whether the token has not expired."""
        return self.expires_at is None or now < self.expires_at


class SavedLogin(RedactedStruct, frozen=True, kw_only=True):
    """Everything that a client saves to stay logged in to one server after a restart."""

    resource: str
    server: AuthorizationServerMetadata
    client: ClientRegistration
    token: Token | None = None
    scopes: list[str] = field(default_factory=list)  # All scopes that were requested so far.
    key: dict[str, Any] | None = None  # The DPoP key as a JWK.

    def dump(self) -> bytes:
        """Return the login as JSON. It contains secrets, so store it where only the user can read it."""
        return encode({"version": FORMAT_VERSION} | to_plain(self))

    @classmethod
    def load(cls, data: bytes, source: object = "the saved login") -> "SavedLogin | None":
        """Return a login that `dump` saved, or None if the data is not a login.

        `source` is the file name for error messages.

        Raises:
            UnsupportedFileVersion: a newer version of dovetail wrote the login.
        """
        try:
            version = msgspec.json.decode(data, type=_StoredVersion).version
            if version > FORMAT_VERSION:
                raise UnsupportedFileVersion(source, version, FORMAT_VERSION)
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


class _StoredVersion(Struct, frozen=True):
    version: int = 1  # Files of version 1 have no version field.

"""Session IDs that every worker of a cluster can read, because the ID contains the encrypted identity of the session.

An ID does not contain the parts of a session that can change, such as its subscriptions.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from dovetail.protocol.sealer import Sealer, UnsealError
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.wire.base import Struct
from dovetail.wire.lifecycle import ClientCapabilities, Implementation

MAX_CLIENT_BYTES: Final = 2048  # A larger description of a client is stored, because HTTP headers are limited.
_MAX_ID_BYTES: Final = 8 * 1024
_DIGEST_BYTES: Final = 16


class SessionClient(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The description that a client sent of itself."""

    client_info: Implementation | None = None
    capabilities: ClientCapabilities = ClientCapabilities()


class SessionIdentity(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The parts of a session that never change."""

    key: str  # a random text that identifies the session among the workers
    protocol_version: str
    created_at: int  # in seconds since 1970
    expires_at: int  # in seconds since 1970
    principal_digest: str | None = None  # None if the caller is anonymous
    address: str | None = None  # the address whose limits apply to an anonymous session
    client: SessionClient | None = None  # None if the description is too large for an ID, and is stored instead


class SessionIdSealer:
    """Creates the IDs of sessions, and reads them."""

    def __init__(self, secret_keys: Sequence[str | bytes], server_name: str) -> None:
        self._sealer = Sealer(secret_keys, purpose="session ID")
        self._context = server_name.encode()

    def seal(self, identity: SessionIdentity) -> str:
        """Return the ID of a session."""
        return self._sealer.seal_text(_identities.encode(identity), self._context, identity.expires_at)

    def open(self, id: str, now: float) -> SessionIdentity | None:
        """Return the identity of a session. Return None if the ID is invalid, has expired or is from another server."""
        if len(id) > _MAX_ID_BYTES:
            return None
        try:
            return _identities.decode(self._sealer.open_text(id, self._context, now))
        except UnsealError:
            return None


_identities: Final = VersionedCodec(SessionIdentity)
_clients: Final = VersionedCodec(SessionClient)
encode_client: Final = _clients.encode
decode_client: Final = _clients.decode


def hash_principal(principal: str | None) -> str | None:
    """Return the digest by which an ID names its principal."""
    if principal is None:
        return None
    return hashlib.sha256(b"principal " + str(principal).encode(errors="surrogatepass")).digest()[:_DIGEST_BYTES].hex()

"""PKCE, which binds an authorization code to the client that requested it. RFC 7636"""

import re
import secrets
from hmac import compare_digest
from typing import Final

from dovetail.oauth.proofs import sha256_base64url

_VERIFIER: Final = re.compile(r"[A-Za-z0-9\-._~]{43,128}")
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def create_pkce_pair() -> tuple[str, str]:
    """Create a PKCE verifier and its S256 challenge."""
    verifier = secrets.token_urlsafe(48)
    return verifier, sha256_base64url(verifier)


def is_challenge(text: str) -> bool:
    """Return whether a text is an S256 challenge."""
    return _CHALLENGE.fullmatch(text) is not None


def matches_challenge(verifier: str, challenge: str) -> bool:
    """Return whether a verifier belongs to an S256 challenge."""
    return _VERIFIER.fullmatch(verifier) is not None and compare_digest(
        sha256_base64url(verifier).encode(), challenge.encode()
    )

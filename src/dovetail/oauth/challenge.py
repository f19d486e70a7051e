"""Parser for the WWW-Authenticate header. The run time is linear in the length of the header."""

import re
from collections.abc import Iterator
from typing import Final

from dovetail.wire.base import Struct

# This pattern matches the name of a scheme, or a parameter with its value.
_CHALLENGE_PART: Final = re.compile(
    r"""([A-Za-z0-9!#$%&'*+.^_`|~-]++)(?:\s*+=\s*+(?:"((?:[^"\\]++|\\.)*+)"|([^\s,"]*+)))?""", re.DOTALL
)
_MAX_HEADER_CHARS: Final = 16 * 1024
_SUPPORTED_SCHEMES: Final = ("bearer", "dpop")


class Challenge(Struct, frozen=True):
    """A Bearer or DPoP challenge from a WWW-Authenticate header."""

    scheme: str = "bearer"
    scope: str | None = None
    error: str | None = None
    resource_metadata: str | None = None
    nonce: str | None = None  # The value of the DPoP-Nonce header in the same response.

    @property
    def scopes(self) -> tuple[str, ...]:
        """Return the scopes of the challenge in their original order."""
        return tuple(dict.fromkeys((self.scope or "").split()))


def parse_challenge(header: str, nonce: str | None = None) -> Challenge:
    """Parse a WWW-Authenticate header. If the header contains no supported scheme, return an empty challenge.

    If there are several challenges, the first one takes precedence, and the others supply missing parameters.
    """
    schemes: list[str] = []
    fields: dict[str, str] = {}
    for scheme, name, value in _iter_parameters(header[:_MAX_HEADER_CHARS]):
        if scheme in _SUPPORTED_SCHEMES:
            schemes.append(scheme)
            if name:
                fields.setdefault(name, value)
    first_scheme = schemes[0] if schemes else "bearer"
    return Challenge(first_scheme, fields.get("scope"), fields.get("error"), fields.get("resource_metadata"), nonce)


def _iter_parameters(header: str) -> Iterator[tuple[str, str, str]]:
    """Yield each scheme with its parameters. If parameters come before the first scheme, use the scheme Bearer."""
    scheme = "bearer"
    for match in _CHALLENGE_PART.finditer(header):
        token, quoted, unquoted = match.groups()
        if quoted is not None:
            yield scheme, token.lower(), re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        elif unquoted is not None:
            yield scheme, token.lower(), unquoted
        else:
            scheme = token.lower()
            yield scheme, "", ""

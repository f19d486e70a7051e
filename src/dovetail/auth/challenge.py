"""WWW-Authenticate: what a server says about the credentials it wants. Linear in the length of the header."""

import re
from typing import Final

from dovetail.wire.shape import Struct

_PARAM: Final = re.compile(r"""([A-Za-z0-9_\-.!#$%&'*+^`|~]++)\s*+=\s*+(?:"((?:[^"\\]++|\\.)*+)"|([^\s,"]++))""")
_SCHEME: Final = re.compile(r"(?:^|,)\s*+([A-Za-z0-9!#$%&'*+.^_`|~-]++)(?=\s++[^=\s]|\s*+$|\s*+,)")
_MOST: Final = 16 * 1024


class Challenge(Struct, frozen=True):
    """One challenge, of the Bearer or DPoP scheme."""

    scheme: str = "bearer"
    scope: str | None = None
    error: str | None = None
    resource_metadata: str | None = None
    nonce: str | None = None  # from the DPoP-Nonce header that came with it

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes named, in order."""
        return tuple(dict.fromkeys((self.scope or "").split()))


def parse(header: str, nonce: str | None = None) -> Challenge:
    """The challenge in a WWW-Authenticate header; an empty one where there is none to understand."""
    header = header[:_MOST]
    chosen, params = "bearer", header
    for found in _SCHEME.finditer(header):
        name = found[1].lower()
        if name in ("bearer", "dpop"):
            chosen, params = name, _until_next(header, found.end())
            break
    fields = {found[1].lower(): _value(found) for found in _PARAM.finditer(params)}
    return Challenge(chosen, fields.get("scope"), fields.get("error"), fields.get("resource_metadata"), nonce)


def _until_next(header: str, start: int) -> str:
    following = _SCHEME.search(header, start)
    return header[start : following.start() if following else len(header)]


def _value(found: "re.Match[str]") -> str:
    return re.sub(r"\\(.)", r"\1", found[2]) if found[2] is not None else found[3]

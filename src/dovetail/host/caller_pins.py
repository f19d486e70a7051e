"""The definitions that callers of a gateway have used, by caller.

A caller's yes to a changed definition counts for that caller alone: never for another one, nor for the host's user,
whose pins are in a file. All of it is in memory, bounded, and gone with the host. A caller who may have been
forgotten is asked again.
"""

import hashlib
from typing import Any, Final

from dovetail.host.pins import pinned
from dovetail.wire.codec import encode

ANONYMOUS: Final = "anonymous"  # callers that cannot be told apart: what one of them agrees to is not kept
FORGOTTEN: Final = ""  # the fingerprint of a definition that may have been used and is no longer known

_MAX_CALLERS: Final = 16_384  # more than the sessions a server keeps by default
_MAX_TOOLS: Final = 65_536
_MAX_TOOLS_PER_CALLER: Final = 1_024
_MAX_DEFINITIONS: Final = 256
_MAX_DEFINITION_BYTES: Final = 64 * 1024


class CallerPins:
    """Fingerprints by caller and tool, and the definitions themselves as long as there is room."""

    def __init__(
        self,
        max_callers: int = _MAX_CALLERS,
        max_tools: int = _MAX_TOOLS,
        max_tools_per_caller: int = _MAX_TOOLS_PER_CALLER,
    ) -> None:
        self._max_callers = max_callers
        self._max_tools = max_tools
        self._max_tools_per_caller = max_tools_per_caller
        self._callers: dict[bytes, _Used] = {}  # the caller that was seen last comes last
        self._count = 0
        self._has_forgotten = False
        self._definitions: dict[str, dict[str, Any]] = {}  # by fingerprint, so callers share them

    def get(self, caller: str, identity: str, tool: str) -> str | None:
        """Return the fingerprint a caller used last: FORGOTTEN if it may be lost, None at first sight."""
        key = _key(caller)
        used = self._callers.pop(key, None)
        if used is None:
            return FORGOTTEN if self._has_forgotten else None
        self._callers[key] = used
        return used.fingerprints.get(_key(identity, tool), FORGOTTEN if used.has_forgotten else None)

    def keep(self, caller: str, identity: str, tool: str, fingerprint: str, definition: Any) -> None:
        """Remember the definition a caller uses."""
        if self.get(caller, identity, tool) == fingerprint:
            return
        key = _key(caller)
        used = self._callers.pop(key, None) or _Used(self._has_forgotten)
        self._callers[key] = used
        self._count += used.keep(_key(identity, tool), fingerprint, self._max_tools_per_caller)
        while len(self._callers) > self._max_callers or self._count > self._max_tools:
            oldest = self._callers.pop(next(iter(self._callers)))
            self._count -= len(oldest.fingerprints)
            self._has_forgotten = True
        self._keep_definition(fingerprint, definition)

    def definition(self, fingerprint: str) -> dict[str, Any] | None:
        """Return the definition with this fingerprint, to show what changed; None if it was not kept."""
        return self._definitions.get(fingerprint)

    def _keep_definition(self, fingerprint: str, definition: Any) -> None:
        found = self._definitions.pop(fingerprint, None) or pinned(definition)
        if len(encode(found)) <= _MAX_DEFINITION_BYTES:
            self._definitions[fingerprint] = found
        if len(self._definitions) > _MAX_DEFINITIONS:
            del self._definitions[next(iter(self._definitions))]


class _Used:
    """The fingerprints of one caller."""

    __slots__ = ("fingerprints", "has_forgotten")

    def __init__(self, has_forgotten: bool) -> None:
        self.fingerprints: dict[bytes, str] = {}
        self.has_forgotten = has_forgotten

    def keep(self, tool: bytes, fingerprint: str, limit: int) -> int:
        """Remember one, and return how many more there are than before."""
        before = len(self.fingerprints)
        self.fingerprints.pop(tool, None)
        self.fingerprints[tool] = fingerprint
        if len(self.fingerprints) > limit:
            del self.fingerprints[next(iter(self.fingerprints))]
            self.has_forgotten = True
        return len(self.fingerprints) - before


def _key(*names: str) -> bytes:
    """A key of fixed size, since callers and servers choose their names."""
    return hashlib.sha256(encode(names)).digest()

"""The definitions that callers of a gateway have used, by caller.

A caller's yes to a changed definition counts for that caller alone: never for another one, nor for the host's user,
whose pins are in a file. All of it is in memory and bounded, and ends with the host. If there are too many callers,
those that were idle for longest are dropped. A dropped caller counts as new: the next definition it uses is compared
with the one of the host's user.
"""

import hashlib
from typing import Any, Final

from dovetail.schemas.definition_changes import extract_pinned_fields
from dovetail.wire.codec import encode

ANONYMOUS: Final = "anonymous"  # all callers without a login, session or connection; their agreements are not kept

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
        self._callers: dict[bytes, dict[bytes, str]] = {}  # fingerprints by tool; the last caller comes last
        self._tool_count = 0
        self._definitions: dict[str, dict[str, Any]] = {}  # by fingerprint, so callers share them

    def get(self, caller: str, identity: str, tool: str) -> str | None:
        """Return the fingerprint a caller used last, or None if it has used none or was dropped."""
        key = _build_key(caller)
        fingerprints = self._callers.pop(key, None)
        if fingerprints is None:
            return None
        self._callers[key] = fingerprints
        return fingerprints.get(_build_key(identity, tool))

    def put(self, caller: str, identity: str, tool: str, fingerprint: str, definition: Any) -> None:
        """Remember the definition a caller uses."""
        if self.get(caller, identity, tool) == fingerprint:
            return
        fingerprints = self._callers.setdefault(_build_key(caller), {})
        self._tool_count -= len(fingerprints)
        key = _build_key(identity, tool)
        fingerprints.pop(key, None)
        fingerprints[key] = fingerprint
        if len(fingerprints) > self._max_tools_per_caller:
            del fingerprints[next(iter(fingerprints))]
        self._tool_count += len(fingerprints)
        while len(self._callers) > self._max_callers or self._tool_count > self._max_tools:
            self._tool_count -= len(self._callers.pop(next(iter(self._callers))))
        self._put_definition(fingerprint, definition)

    def get_definition(self, fingerprint: str) -> dict[str, Any] | None:
        """Return the definition with this fingerprint, or None if it was not kept."""
        return self._definitions.get(fingerprint)

    def _put_definition(self, fingerprint: str, definition: Any) -> None:
        pinned_fields = self._definitions.pop(fingerprint, None) or extract_pinned_fields(definition)
        if len(encode(pinned_fields)) <= _MAX_DEFINITION_BYTES:
            self._definitions[fingerprint] = pinned_fields
        if len(self._definitions) > _MAX_DEFINITIONS:
            del self._definitions[next(iter(self._definitions))]


def _build_key(*names: str) -> bytes:
    """A key of fixed size, since callers and servers choose their names."""
    return hashlib.sha256(encode(names)).digest()

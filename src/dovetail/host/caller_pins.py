"""The tool definitions that each caller of a gateway has used.

If a caller accepts a changed definition, the consent counts only for this caller. It does not count for other callers
or for the user of the host, whose pins are in a file. Entries are kept in memory until the host ends, up to a limit.
If the memory has too many callers, the callers that were idle longest are dropped. A dropped caller counts as new: the
next definition that it uses is compared with the pin of the host's user.
"""

import hashlib
from typing import Any, Final, TypeAlias

from dovetail.host.consent.definition_changes import MAX_COMPARED_BYTES, extract_pinned_fields
from dovetail.protocol.exchange import Caller
from dovetail.wire.codec import encode

# All callers without authentication share this ID. Their consent is not stored.
ANONYMOUS: Final = "anonymous"
SESSION_PREFIX: Final = "session:"
_PRINCIPAL_PREFIX: Final = "principal:"

_MAX_CALLERS: Final = 16_384  # A server has fewer sessions by default.
_MAX_TOOLS: Final = 65_536
_MAX_TOOLS_PER_CALLER: Final = 1_024
_MAX_DEFINITIONS: Final = 256
_MAX_KEY_CHARS: Final = 128  # Longer names are hashed.

Key: TypeAlias = str | bytes | tuple[str, str]


def get_caller_id(caller: Caller) -> str:
    """Return the ID of a gateway caller: its principal, its session, or ANONYMOUS.

    The ID of a principal never equals the ID of another caller, whatever the name of the principal is.
    """
    if caller.principal is None:
        return f"{SESSION_PREFIX}{caller.session_id}" if caller.session_id else ANONYMOUS
    principal = str(caller.principal)
    is_plain = principal != ANONYMOUS and not principal.startswith((SESSION_PREFIX, _PRINCIPAL_PREFIX))
    return principal if is_plain else f"{_PRINCIPAL_PREFIX}{principal}"


class CallerPins:
    """Remembers which tool definition each caller used last, up to a size limit."""

    def __init__(
        self,
        max_callers: int = _MAX_CALLERS,
        max_tools: int = _MAX_TOOLS,
        max_tools_per_caller: int = _MAX_TOOLS_PER_CALLER,
    ) -> None:
        self._max_callers = max_callers
        self._max_tools = max_tools
        self._max_tools_per_caller = max_tools_per_caller
        # Maps each caller to its tool fingerprints. The most recently seen caller is last.
        self._callers: dict[Key, dict[Key, str]] = {}
        self._tool_count = 0
        self._definitions: dict[str, dict[str, Any]] = {}  # Maps each fingerprint to a tool definition.

    def get(self, caller: str, identity: str, tool: str) -> str | None:
        """Return the fingerprint of the definition that a caller used last, or None."""
        key = caller if len(caller) <= _MAX_KEY_CHARS else _hash_name(caller)
        fingerprints = self._callers.pop(key, None)
        if fingerprints is None:
            return None
        self._callers[key] = fingerprints
        is_short = len(identity) + len(tool) <= _MAX_KEY_CHARS
        return fingerprints.get((identity, tool) if is_short else _hash_name(identity, tool))

    def put(self, caller: str, identity: str, tool: str, fingerprint: str, definition: Any) -> None:
        """Store which tool definition a caller uses."""
        self.learn(caller, identity, tool, fingerprint)
        self._put_definition(fingerprint, definition)

    def learn(self, caller: str, identity: str, tool: str, fingerprint: str) -> None:
        """Store the fingerprint of the tool definition that a caller uses."""
        if self.get(caller, identity, tool) == fingerprint:
            return
        fingerprints = self._callers.setdefault(caller if len(caller) <= _MAX_KEY_CHARS else _hash_name(caller), {})
        self._tool_count -= len(fingerprints)
        is_short = len(identity) + len(tool) <= _MAX_KEY_CHARS
        key = (identity, tool) if is_short else _hash_name(identity, tool)
        fingerprints.pop(key, None)
        fingerprints[key] = fingerprint
        if len(fingerprints) > self._max_tools_per_caller:
            del fingerprints[next(iter(fingerprints))]
        self._tool_count += len(fingerprints)
        while len(self._callers) > self._max_callers or self._tool_count > self._max_tools:
            self._tool_count -= len(self._callers.pop(next(iter(self._callers))))

    def list_pins(self, caller: str) -> dict[str, str]:
        """Return the fingerprint of each definition that a caller used. Very long names are left out."""
        fingerprints = self._callers.get(caller if len(caller) <= _MAX_KEY_CHARS else _hash_name(caller), {})
        return {"\0".join(key): value for key, value in fingerprints.items() if isinstance(key, tuple)}

    def get_definition(self, fingerprint: str) -> dict[str, Any] | None:
        """Return the definition with this fingerprint, or None if it is not stored."""
        return self._definitions.get(fingerprint)

    def _put_definition(self, fingerprint: str, definition: Any) -> None:
        pinned_fields = self._definitions.pop(fingerprint, None) or extract_pinned_fields(definition)
        if len(encode(pinned_fields)) <= MAX_COMPARED_BYTES:
            self._definitions[fingerprint] = pinned_fields
        if len(self._definitions) > _MAX_DEFINITIONS:
            del self._definitions[next(iter(self._definitions))]


def _hash_name(*names: str) -> bytes:
    """Return a short key for names that may be very long."""
    return hashlib.sha256(encode(names)).digest()

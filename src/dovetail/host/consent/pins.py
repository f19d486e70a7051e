"""Pins: the tool definitions that a user has used or accepted.

A host compares them with the definitions that a server sends later.
"""

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dovetail.errors import DamagedFile, InvalidParams
from dovetail.host.consent.definition_changes import (
    MAX_COMPARED_BYTES,
    DefinitionChange,
    diff_definitions,
    extract_pinned_fields,
)
from dovetail.storage import Document, SharedDocument, rename_fields
from dovetail.wire.base import Struct, field
from dovetail.wire.codec import convert, encode, encode_canonical, to_plain


def fingerprint(definition: object) -> str:
    """Return the SHA-256 digest of a definition. The order of keys in the definition does not matter.

    Args:
        definition: The definition of a tool, prompt, resource or template.
    """
    return hashlib.sha256(encode_canonical(extract_pinned_fields(definition))).hexdigest()


class Pin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool definition that the user has used or accepted."""

    server: str  # the name of the server
    identity: str  # a digest of the server's command or URL
    name: str  # the name of the tool
    fingerprint: str  # the fingerprint of the definition
    definition: dict[str, Any] = field(default_factory=dict[str, Any])  # the definition
    pinned_at: float = 0.0  # when the pin was stored, in seconds since 1970


class ChangedDefinition(Struct, frozen=True, kw_only=True):
    """A definition that no longer matches its pin."""

    pin: Pin
    definition: Any
    differences: list[DefinitionChange]


class PinComparison(Struct, frozen=True, kw_only=True):
    """The result of comparing a server's definitions with the pins."""

    new: list[Any]  # the definitions that have no pin yet
    changed: list[ChangedDefinition]  # the definitions that do not match their pins
    gone: list[Pin]  # the pins of tools that the server does not offer anymore

    @property
    def same(self) -> bool:
        """Return whether all definitions match their pins."""
        return not (self.new or self.changed or self.gone)


def _use_current_names(document: Document) -> None:
    """Rename the fields of file format version 1 to their current names."""
    rename_fields(document.get("pins"), {"seen": "pinned_at"})


class PinStore:
    """A store for the pins of a user.

    Args:
        path: The path of the file. None keeps the pins in memory.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._document = SharedDocument(path, (_use_current_names,))
        # The records, and a dict that maps each pair of identity and name to its record.
        self._index: tuple[Any, dict[tuple[str, str], Any]] = (None, {})
        self.list()  # If the file cannot be used, this call raises the error now and not later.

    def get(self, identity: str, name: str) -> Pin | None:
        """Return the pin with this server identity and name, or None."""
        records = self._document.read().get("pins")
        if self._index[0] is not records:
            self._index = (records, self._index_records(records or ()))
        pins = self._index[1]
        record = pins.get((identity, name))
        if isinstance(record, dict):
            record = pins[identity, name] = self._parse(record)
        return record

    def _index_records(self, records: Iterable[Any]) -> dict[tuple[str, str], Any]:
        try:
            return {(record["identity"], record["name"]): record for record in records}
        except (TypeError, KeyError):
            raise DamagedFile(self._document.path) from None

    def compare(self, identity: str, definitions: Iterable[object]) -> PinComparison:
        """Return which definitions of a server are new, which have changed, and which have disappeared."""
        pins_by_name = {known_pin.name: known_pin for known_pin in self.list() if known_pin.identity == identity}
        new: list[Any] = []
        changed: list[ChangedDefinition] = []
        seen_names: set[str] = set()
        for definition in definitions:
            name = str(extract_pinned_fields(definition).get("name", ""))
            seen_names.add(name)
            pin = pins_by_name.get(name)
            if pin is None:
                new.append(definition)
            elif pin.fingerprint != fingerprint(definition):
                differences = compare_with_pin(pin, definition)
                changed.append(ChangedDefinition(pin=pin, definition=definition, differences=differences))
        return PinComparison(
            new=new,
            changed=changed,
            # A name that is a URI belongs to the pin of a skill. The definitions do not contain skills.
            gone=[
                known_pin for name, known_pin in pins_by_name.items() if name not in seen_names and "://" not in name
            ],
        )

    def accept(self, server: str, identity: str, definitions: Iterable[object]) -> None:
        """Store the pins of a server's definitions. A new pin replaces the earlier pin with the same name."""
        now = time.time()
        new_pins = [_create_pin(server, identity, definition, now) for definition in definitions]
        names = {new_pin.name for new_pin in new_pins}

        def edit(document: Document) -> None:
            remaining = [
                record
                for record in document.get("pins", ())
                if record.get("identity") != identity or record.get("name") not in names
            ]
            document["pins"] = [*remaining, *map(to_plain, new_pins)]

        self._document.change(edit)

    def remove(self, *, server: str | None = None, identity: str | None = None, name: str | None = None) -> int:
        """Remove the pins that match a server, an identity or a name. Return how many were removed.

        Args:
            server: The name of the server.
            identity: The identity of the server.
            name: The name of the tool.
        """
        criteria = (("server", server), ("identity", identity), ("name", name))
        if all(value is None for _, value in criteria):
            raise ValueError("remove() requires a server, an identity or a name")

        def edit(document: Document) -> int:
            existing = [*document.get("pins", ())]
            document["pins"] = [
                record
                for record in existing
                if any(value is not None and record.get(key) != value for key, value in criteria)
            ]
            return len(existing) - len(document["pins"])

        return self._document.change(edit)

    def list(self) -> "list[Pin]":
        """Return all pins, sorted by server, identity and name."""
        records = self._index_records(self._document.read().get("pins") or ()).values()
        return sorted(map(self._parse, records), key=lambda pin: (pin.server, pin.identity, pin.name))

    def _parse(self, record: Any) -> Pin:
        """Parse a pin. Raise DamagedFile if the record is invalid."""
        try:
            return convert(record, Pin)
        except InvalidParams:
            raise DamagedFile(self._document.path) from None


def compare_with_pin(pin: Pin, definition: Any) -> "list[DefinitionChange]":
    """Return the differences between a definition and its pin. Call this function only if the fingerprints differ."""
    definition_changes = diff_definitions(pin.definition, definition) if pin.definition else []
    return definition_changes or [
        DefinitionChange("", "widening", "changed. The old definition was too large to be stored")
    ]


def _create_pin(server: str, identity: str, definition: Any, now: float) -> Pin:
    pinned_fields = extract_pinned_fields(definition)
    return Pin(
        server=server,
        identity=identity,
        name=str(pinned_fields.get("name", "")),
        fingerprint=fingerprint(definition),
        # Very large definitions are never compared, so the fingerprint is enough.
        definition=pinned_fields if len(encode(pinned_fields)) <= MAX_COMPARED_BYTES else {},
        pinned_at=now,
    )

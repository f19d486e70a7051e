"""Pins kept: the definitions a user has seen, by server, so that the next ones can be held against them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dovetail.errors import InvalidParams
from dovetail.host.ledger import Document, Ledger
from dovetail.host.pins import Difference, changes, fingerprint, pinned
from dovetail.wire.codec import convert, encode, plain
from dovetail.wire.shape import Struct, field

_LARGEST: Final = 256 * 1024  # of a definition that is kept whole; of a larger one only the digest


class Pin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One definition as it was agreed to."""

    server: str
    identity: str
    name: str
    fingerprint: str
    definition: dict[str, Any] = field(default_factory=dict[str, Any])
    seen: float = 0.0


class Changed(Struct, frozen=True, kw_only=True):
    """A definition that is no longer the one that was agreed to."""

    pin: Pin
    definition: Any
    differences: list[Difference]


class Comparison(Struct, frozen=True, kw_only=True):
    """What became of a server's definitions."""

    new: list[Any]
    changed: list[Changed]
    gone: list[Pin]

    @property
    def same(self) -> bool:
        """Whether everything is as it was agreed to."""
        return not (self.new or self.changed or self.gone)


class Pins:
    """The definitions of all servers of a user, in a file; without a path, in memory."""

    def __init__(self, path: str | Path | None = None) -> None:
        self._file = Ledger(path)
        self._index: tuple[Any, dict[tuple[str, str], Any]] = (None, {})  # of which list, and by what

    def get(self, identity: str, name: str) -> Pin | None:
        """What was agreed to, if anything was."""
        kept = self._file.read().get("pins")
        if self._index[0] is not kept:
            tables = (one for one in kept or () if isinstance(one, dict))
            self._index = kept, {(str(one.get("identity")), str(one.get("name"))): one for one in tables}
        found = self._index[1].get((identity, name))
        return None if found is None else next(iter(_read([found])), None)

    def compare(self, identity: str, definitions: Iterable[Any]) -> Comparison:
        """A server's definitions, held against what was agreed to."""
        known = {one.name: one for one in self.list() if one.identity == identity}
        new: list[Any] = []
        changed: list[Changed] = []
        seen: set[str] = set()
        for one in definitions:
            name = str(pinned(one).get("name", ""))
            seen.add(name)
            pin = known.get(name)
            if pin is None:
                new.append(one)
            elif pin.fingerprint != fingerprint(one):
                told = changes(pin.definition, one) if pin.definition else []
                whole = told or [Difference("", "widening", "changed; the old definition was too large to be kept")]
                changed.append(Changed(pin=pin, definition=one, differences=whole))
        return Comparison(new=new, changed=changed, gone=[one for name, one in known.items() if name not in seen])

    def keep(self, server: str, identity: str, definitions: Iterable[Any], now: float) -> None:
        """Agree to definitions; they take the place of those of the same name."""
        made = [_pin(server, identity, one, now) for one in definitions]
        names = {one.name for one in made}

        def edit(document: Document) -> None:
            others = [
                one
                for one in document.get("pins", ())
                if one.get("identity") != identity or one.get("name") not in names
            ]
            document["pins"] = [*others, *map(plain, made)]

        self._file.change(edit)

    def forget(self, *, server: str | None = None, identity: str | None = None, name: str | None = None) -> int:
        """Forget what was agreed to, of a server or of one name; how many."""
        wanted = (("server", server), ("identity", identity), ("name", name))
        if all(value is None for _, value in wanted):
            raise ValueError("which pins? Give a server, an identity or a name")

        def edit(document: Document) -> int:
            before = [*document.get("pins", ())]
            document["pins"] = [
                one for one in before if any(value is not None and one.get(key) != value for key, value in wanted)
            ]
            return len(before) - len(document["pins"])

        return self._file.change(edit)

    def list(self) -> "list[Pin]":
        """Everything that was agreed to."""
        return sorted(_read(self._file.read().get("pins") or ()), key=lambda one: (one.server, one.identity, one.name))


def _pin(server: str, identity: str, definition: Any, now: float) -> Pin:
    kept = pinned(definition)
    return Pin(
        server=server,
        identity=identity,
        name=str(kept.get("name", "")),
        fingerprint=fingerprint(definition),
        definition=kept if len(encode(kept)) <= _LARGEST else {},
        seen=now,
    )


def _read(kept: Iterable[Any]) -> "list[Pin]":
    found: list[Pin] = []
    for one in kept:
        try:
            found.append(convert(one, Pin))
        except InvalidParams:
            continue
    return found

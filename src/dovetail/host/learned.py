"""What one server offers, as it told it last: how fresh that is, and who is told when it is something else."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dovetail.connect import Client
from dovetail.host.events import Event
from dovetail.protocol.mounting import Hear, Kind
from dovetail.protocol.topics import PROMPTS, RESOURCES, TOOLS, UPDATED

_NOTICES: Final = {"tools": TOOLS, "prompts": PROMPTS, "resources": RESOURCES, "resource": UPDATED}
_STALE: Final[Mapping[str, tuple[Kind, ...]]] = {
    "tools": ("tool",),
    "prompts": ("prompt",),
    "resources": ("resource", "resource template"),
}
_LIST: Final[Mapping[Kind, str]] = {kind: name for name, kinds in _STALE.items() for kind in kinds}


class Learned:
    """The lists of one server."""

    def __init__(self, server: str, tell: Callable[[Event], None]) -> None:
        self.known: dict[Kind, dict[str, Any]] = {}
        self.hearers: list[Hear] = []
        self._server = server
        self._tell = tell
        self._fresh: dict[Kind, float] = {}
        self._news: Counter[Kind] = Counter()  # notices of changes
        self._seen: dict[Kind, int] = {}  # how many there were when the list was asked for
        self._missed: set[Kind] = set()

    def since(self, kind: Kind) -> float | None:
        """When a list was asked for that still holds, as far as the server told."""
        return self._fresh.get(kind)

    def stale(self) -> None:
        """Nothing is sure any more."""
        self._fresh.clear()

    def changed(self, name: str, uri: str | None = None, details: Any = None) -> None:
        """The server told of a change, or it was noticed."""
        for kind in _STALE.get(name, ()):
            self._fresh.pop(kind, None)
            self._news[kind] += 1
        self._announce(name, uri, details)

    def missed(self, kind: Kind) -> None:
        """Somebody who wanted the list did not get it, or not all of it, and is told when it is there."""
        self._missed.add(kind)

    def news(self, kind: Kind) -> int:
        """How many changes the server told of; to be handed back with the list that is asked for now."""
        return self._news[kind]

    def learn(self, kind: Kind, found: dict[str, Any], now: float, news: int) -> None:
        """Take a list that was asked for at a time, when so many changes had been told of."""
        before, self.known[kind] = self.known.get(kind), found
        if news == self._news[kind]:  # else it changed while it was told
            self._fresh[kind] = now
        untold = before is not None and self._seen.get(kind) == news
        self._seen[kind] = news
        if kind in self._missed or untold:
            self._missed.discard(kind)
            if (before or {}) != found:
                self._announce(_LIST[kind], None, None)
        if before is not None and before != found:
            self._tell(Event(kind="definitions.changed", server=self._server, new=kind, details=(before, found)))

    def _announce(self, name: str, uri: str | None, details: Any) -> None:
        self._tell(Event(kind=f"{name}.changed", server=self._server, details=details))
        for hear in tuple(self.hearers):
            hear(_NOTICES[name], uri)

    def follow(self, hear: Hear) -> Callable[[], None]:
        """Tell somebody of changes; call what is returned to stop."""
        self.hearers.append(hear)

        def stop() -> None:
            if hear in self.hearers:
                self.hearers.remove(hear)

        return stop


def tells(client: Client) -> bool:
    """Whether a server says that it tells of changes."""
    offered = client.capabilities
    return any(one is not None and one.list_changed for one in (offered.tools, offered.prompts, offered.resources))


async def declared(client: Client, kind: Kind) -> dict[str, Any]:
    """What a server offers of a kind, by name or URI."""
    offered = client.capabilities
    match kind:
        case "tool":
            return _each(await client.list_tools() if offered.tools is not None else (), "name")
        case "prompt":
            return _each(await client.list_prompts() if offered.prompts is not None else (), "name")
        case "resource":
            return _each(await client.list_resources() if offered.resources is not None else (), "uri")
        case _:
            found = await client.list_resource_templates() if offered.resources is not None else ()
            return _each(found, "uri_template")


def _each(declarations: Sequence[Any], name: str) -> dict[str, Any]:
    """Each under its name. Of two that differ under one name neither is kept: nobody could say which one is meant."""
    found: dict[str, Any] = {}
    twice: set[str] = set()
    for one in declarations:
        key = getattr(one, name)
        if found.setdefault(key, one) != one:
            twice.add(key)
    return {key: one for key, one in found.items() if key not in twice}

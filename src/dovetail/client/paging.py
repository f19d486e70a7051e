"""Whole lists, page by page: bounded, and not led in circles."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from dovetail.errors import ResultError, clip
from dovetail.protocol.limits import ClientLimits
from dovetail.wire.incoming import plain

log = logging.getLogger("dovetail")

Page = Callable[[str | None], Awaitable[Any]]


async def whole_list(fetch: Page, field: str, limits: ClientLimits) -> list[Any]:
    """All items of a list; an empty cursor is the end, a repeated one an error."""
    items: list[Any] = []
    seen: set[str] = set()
    cursor: str | None = None
    for _ in range(limits.pages):
        page = await fetch(cursor)
        items += getattr(page, field)
        if len(items) > limits.items:
            raise ResultError(f"the list has more than {limits.items} items").at(hint="raise ClientLimits(items=...)")
        cursor = page.next_cursor
        if not cursor:
            return items
        if cursor in seen:
            raise ResultError("the list goes in circles: the server gave the same cursor twice")
        seen.add(cursor)
    raise ResultError(f"the list has more than {limits.pages} pages").at(hint="raise ClientLimits(pages=...)")


_TOLD: Final = 100  # of what was left out; more would be a way to fill the memory


class Unlisted:
    """What was left out of lists, and why: each once, however often the list is read."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def note(self, server: str, what: str) -> None:
        """One more."""
        log.warning("%s: %s", server, what)
        if len(self._found) < _TOLD:
            self._found[what] = None

    def told(self) -> list[str]:
        """All of it."""
        return [*self._found]


def without_malformed(
    raw: Any, kind: Any, field: str, item: Any, server: str, exc: ResultError, unlisted: Unlisted
) -> Any:
    """A page as its type, less the items that are malformed; those are reported."""
    found = plain(raw)
    name = msgspec.structs.fields(kind)
    wire = next(one.encode_name for one in name if one.name == field)
    if not isinstance(found, dict) or not isinstance(found.get(wire), list):
        raise exc
    good: list[Any] = []
    for number, one in enumerate(found[wire]):
        try:
            msgspec.convert(one, item)
            good.append(one)
        except msgspec.ValidationError as fault:
            unlisted.note(server, f"item {number} of {wire} is left out: {clip(str(fault), 200)}")
    if len(good) == len(found[wire]):
        raise exc
    return msgspec.convert(found | {wire: good}, kind)

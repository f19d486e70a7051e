"""Whole lists, page by page: bounded, and not led in circles."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from dovetail.error_context import add_context, clip
from dovetail.errors import InvalidResult
from dovetail.protocol.limits import ClientLimits
from dovetail.wire.raw_message import to_plain

log = logging.getLogger("dovetail")

FetchPage = Callable[[str | None], Awaitable[Any]]


async def collect_pages(fetch: FetchPage, field: str, limits: ClientLimits) -> list[Any]:
    """All items of a list; an empty cursor is the end, a repeated one an error."""
    items: list[Any] = []
    seen_cursors: set[str] = set()
    cursor: str | None = None
    for _ in range(limits.max_pages):
        page = await fetch(cursor)
        items += getattr(page, field)
        if len(items) > limits.max_items:
            raise add_context(
                InvalidResult(f"the list has more than {limits.max_items} items"),
                hint="raise ClientLimits(max_items=...)",
            )
        cursor = page.next_cursor
        if not cursor:
            return items
        if cursor in seen_cursors:
            raise InvalidResult("the list goes in circles: the server gave the same cursor twice")
        seen_cursors.add(cursor)
    raise add_context(
        InvalidResult(f"the list has more than {limits.max_pages} pages"), hint="raise ClientLimits(max_pages=...)"
    )


_MAX_SKIPPED_REASONS: Final = 100  # of what was left out; more would be a way to fill the memory


class SkippedItems:
    """What was left out of lists, and why: each once, however often the list is read."""

    def __init__(self) -> None:
        self._reasons: dict[str, None] = {}

    def add(self, server: str, reason: str) -> None:
        """One more."""
        log.warning("%s: %s", server, reason)
        if len(self._reasons) < _MAX_SKIPPED_REASONS:
            self._reasons[reason] = None

    def list_reasons(self) -> list[str]:
        """All of it."""
        return [*self._reasons]


def skip_malformed_items(
    raw: Any, result_type: Any, field: str, item_type: Any, server: str, exc: InvalidResult, skipped: SkippedItems
) -> Any:
    """A page as its type, less the items that are malformed; those are reported."""
    page = to_plain(raw)
    struct_fields = msgspec.structs.fields(result_type)
    encoded_name = next(struct_field.encode_name for struct_field in struct_fields if struct_field.name == field)
    if not isinstance(page, dict) or not isinstance(page.get(encoded_name), list):
        raise exc
    valid_items: list[Any] = []
    for index, entry in enumerate(page[encoded_name]):
        try:
            msgspec.convert(entry, item_type)
            valid_items.append(entry)
        except msgspec.ValidationError as fault:
            skipped.add(server, f"item {index} of {encoded_name} is left out: {clip(str(fault), 200)}")
    if len(valid_items) == len(page[encoded_name]):
        raise exc
    return msgspec.convert(page | {encoded_name: valid_items}, result_type)

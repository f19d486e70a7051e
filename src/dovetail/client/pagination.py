"""Fetch complete lists page by page, with limits and a check for repeated cursors."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from dovetail.error_context import add_context, clip
from dovetail.errors import InvalidResult
from dovetail.log import log
from dovetail.protocol.limits import ClientLimits
from dovetail.wire.base import Struct
from dovetail.wire.methods import METHODS, Method
from dovetail.wire.prompts import Prompt
from dovetail.wire.raw_message import to_plain
from dovetail.wire.resources import Resource, ResourceTemplate
from dovetail.wire.tools import Tool


class ListMethod(Struct, frozen=True):
    """A method of the protocol or of an extension that returns a list."""

    method: Method
    field: str  # the field of the result that contains the items
    item_type: type[Any]
    calls: str  # the client methods that return the list, as shown in hints
    key: str = "name"  # the field that identifies an item in requests
    # Returns the part of a name that is compared to find similar names.
    shorten: Callable[[str], str] = str


TOOLS: Final = ListMethod(METHODS["tools/list"], "tools", Tool, "list_tools()")
RESOURCES: Final = ListMethod(
    METHODS["resources/list"], "resources", Resource, "list_resources() and list_resource_templates()", key="uri"
)
TEMPLATES: Final = ListMethod(
    METHODS["resources/templates/list"], "resource_templates", ResourceTemplate, "list_resource_templates()"
)
PROMPTS: Final = ListMethod(METHODS["prompts/list"], "prompts", Prompt, "list_prompts()")
# Maps each method to the list of the items that can be requested with it.
LIST_BY_METHOD: Final = {"tools/call": TOOLS, "prompts/get": PROMPTS, "resources/read": RESOURCES}


class PageCollector:
    """Collects the items of a list page by page, up to the client's limits."""

    def __init__(self, field: str, limits: ClientLimits) -> None:
        self.items: list[Any] = []
        self._field = field
        self._limits = limits
        self._seen_cursors: set[str] = set()

    def add(self, page: Any) -> str | None:
        """Add a page. Return the next cursor, or None after the last page.

        Raise InvalidResult if the list is too long.
        """
        limits = self._limits
        self.items += getattr(page, self._field)
        if len(self.items) > limits.max_items:
            raise add_context(
                InvalidResult(f"the list has more than {limits.max_items} items"),
                hint="raise ClientLimits(max_items=...)",
            )
        cursor: str | None = page.next_cursor
        # An empty string is a valid cursor. spec: pagination#implementation-guidelines
        if cursor is None:
            return None
        if cursor in self._seen_cursors:
            raise InvalidResult("the server sent the same cursor twice, so the list would never end")
        self._seen_cursors.add(cursor)
        if len(self._seen_cursors) >= limits.max_pages:
            raise add_context(
                InvalidResult(f"the list has more than {limits.max_pages} pages"),
                hint="raise ClientLimits(max_pages=...)",
            )
        return cursor


_MAX_SKIPPED_REASONS: Final = 100  # The number of reasons is limited to save memory.


class SkippedItems:
    """Reasons why items were left out of lists. Each reason is stored once."""

    def __init__(self) -> None:
        self._reasons: dict[str, None] = {}

    def add(self, server: str, reason: str) -> None:
        log.warning("%s: %s", server, reason)
        if len(self._reasons) < _MAX_SKIPPED_REASONS:
            self._reasons[reason] = None

    def list_reasons(self) -> list[str]:
        return [*self._reasons]


def skip_malformed_items(raw: Any, listing: ListMethod, server: str, exc: InvalidResult, skipped: SkippedItems) -> Any:
    """Remove the malformed items from a page, and record the reasons. If no item is malformed, raise `exc`."""
    page = to_plain(raw)
    result_type: Any = listing.method.result
    struct_fields = msgspec.structs.fields(result_type)
    encoded_name = next(field.encode_name for field in struct_fields if field.name == listing.field)
    if not isinstance(page, dict) or not isinstance(page.get(encoded_name), list):
        raise exc
    valid_items: list[Any] = []
    for index, entry in enumerate(page[encoded_name]):
        try:
            msgspec.convert(entry, listing.item_type)
            valid_items.append(entry)
        except msgspec.ValidationError as fault:
            skipped.add(server, f"skipped item {index} of {encoded_name}: {clip(str(fault), 200)}")
    if len(valid_items) == len(page[encoded_name]):
        raise exc
    return msgspec.convert(page | {encoded_name: valid_items}, result_type)

"""The kinds of items that a server has."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

from dovetail.errors import InvalidParams, PromptNotFound, ResourceNotFound, ToolNotFound

ItemKind: TypeAlias = Literal["tool", "resource", "resource template", "prompt"]

ITEM_KINDS: Final[tuple[ItemKind, ...]] = ("tool", "resource", "resource template", "prompt")

# The error for an item that does not exist.
NOT_FOUND_ERRORS: Final[Mapping[ItemKind, Callable[[str], InvalidParams]]] = {
    "tool": ToolNotFound,
    "resource": ResourceNotFound,
    "resource template": ResourceNotFound,
    "prompt": PromptNotFound,
}

"""WireStruct, the base of all structs that travel, and the base classes of parameters and results.

A field equal to its default is not sent, so a required one has none (an empty list would vanish), a default is what
absence means, None is "not said", and UNSET is for where null is a value. Unions need tags, so text and blob contents
are one struct, as are elicitation's modes; results are told apart by `resultType` before they are decoded. `_meta` is
a dict so that foreign keys survive. A result is stamped on a copy. Comments name revisions by year and month.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, dataclass_transform

from msgspec import UNSET, Struct, StructMeta, UnsetType, field
from msgspec.structs import replace

__all__ = [
    "UNSET",
    "CacheableResult",
    "EmptyResult",
    "JSONValue",
    "PaginatedParams",
    "Params",
    "Result",
    "Struct",
    "UnsetType",
    "WireStruct",
    "field",
    "replace",
]


JSONValue: TypeAlias = "str | int | float | bool | Sequence[JSONValue] | Mapping[str, JSONValue] | None"


class _KeywordOnlyMeta(StructMeta):
    """Makes every derived struct keyword only, because msgspec applies `kw_only` to one class at a time."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> "_KeywordOnlyMeta":
        return super().__new__(mcls, name, bases, namespace, kw_only=True, **config)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class WireStruct(Struct, metaclass=_KeywordOnlyMeta, rename="camel", omit_defaults=True, frozen=True):
    """Something that travels as a JSON object."""


class Params(WireStruct):
    """What every request and notification may carry."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)


class PaginatedParams(Params):
    """A request for one page of a list."""

    cursor: str | None = None


class Result(WireStruct):
    """What every result may carry."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)
    result_type: str | None = None  # since 2026-07, where the era stamps it


class CacheableResult(Result):
    """A result with a lifetime."""

    ttl_ms: int | None = None  # since 2026-07
    cache_scope: Literal["public", "private"] | None = None  # since 2026-07


class EmptyResult(Result):
    """A result that only says: done."""

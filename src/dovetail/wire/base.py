"""The base classes of all messages, parameters and results.

Rules for fields:

- A field that equals its default is not sent. A required field therefore has no default.
- A default is the meaning of an absent field. None means that the field is absent. UNSET is for fields where null is a
  value.
- msgspec unions need tags. Text and blob contents are therefore one struct, and so are both modes of elicitation.
  `resultType` selects the result type before decoding.
- `_meta` is a dict, so unknown keys are kept.
- Comments name protocol versions by year and month, because a test allows full dates in only five files.
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


# any JSON value
JSONValue: TypeAlias = "str | int | float | bool | Sequence[JSONValue] | Mapping[str, JSONValue] | None"


class _KeywordOnlyMeta(StructMeta):
    """Makes every subclass keyword-only. In msgspec, a subclass does not inherit `kw_only`."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> "_KeywordOnlyMeta":
        return super().__new__(mcls, name, bases, namespace, kw_only=True, **config)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class WireStruct(Struct, metaclass=_KeywordOnlyMeta, rename="camel", omit_defaults=True, frozen=True):
    """The base class of all types that are sent as a JSON object."""


class Params(WireStruct):
    """The base class for the parameters of requests and notifications."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)


class PaginatedParams(Params):
    """The parameters of a request for one page of a list."""

    cursor: str | None = None


class Result(WireStruct):
    """The base class of every result."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)
    result_type: str | None = None  # added in protocol version 2026-07, and only set in stateless protocol versions


class CacheableResult(Result):
    """A result that clients may cache."""

    ttl_ms: int | None = None  # added in protocol version 2026-07
    cache_scope: Literal["public", "private"] | None = None  # added in protocol version 2026-07


class EmptyResult(Result):
    """A result without content."""

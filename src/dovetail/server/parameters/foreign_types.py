"""Foreign: types that say themselves how they are read and what their schema is, because msgspec does not know them."""

import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from dovetail.error_context import clip


class MismatchError(ValueError):
    """Several things are wrong with one value: each a path and a reason."""

    def __init__(self, mismatches: Sequence[tuple[tuple[str | int, ...], str]]) -> None:
        self.mismatches = mismatches
        super().__init__("; ".join(f"{format_path(path)}: {reason}" if path else reason for path, reason in mismatches))


def format_path(path: Iterable[str | int], root: str = "") -> str:
    """The way to a part of a value, spelled as it is everywhere: `lines[0].sku`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{clip(step, 64)}" for step in path)
    return f"{root}{''.join(steps)}".removeprefix(".")


class ForeignTypeMeta(type):
    """Lets msgspec take whatever `read` gave back for an instance."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


class ForeignType(metaclass=ForeignTypeMeta):
    """A type msgspec meets as one of the author's own, made for one annotation."""

    schema: ClassVar[Callable[[bool], dict[str, Any]]]  # as a result, or as an argument
    read: ClassVar[Callable[[Any], Any]]


def make_foreign_type(schema: Callable[[bool], dict[str, Any]], read: Callable[[Any], Any]) -> type[ForeignType]:
    """A new one."""
    return ForeignTypeMeta("ForeignType", (ForeignType,), {"schema": staticmethod(schema), "read": staticmethod(read)})


def is_foreign_type(type_: Any) -> bool:
    """Whether a class is one of these."""
    return type(type_) is ForeignTypeMeta


def is_pydantic_type(type_: Any) -> bool:
    """Whether a class is pydantic's to read."""
    return isinstance(type_, type) and hasattr(type_, "__pydantic_validator__")


def may_need_adapters() -> bool:
    """Whether anyone can have written notes that msgspec does not understand: somebody must have imported them."""
    return "pydantic" in sys.modules or "annotated_types" in sys.modules


def needs_hook(annotation: Any) -> bool:
    """Whether msgspec alone would read this annotation wrongly."""
    return is_foreign_type(annotation) or any(needs_hook(argument) for argument in typing.get_args(annotation))

"""Messages about invalid arguments, and the errors that contain them. `argument_errors` finds the problems."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from dovetail.error_context import clip
from dovetail.wire.base import Struct

# An error message lists at most this many names.
MAX_LISTED_NAMES: Final = 20
MAX_NAME_CHARS: Final = 64
MAX_TEXT_BYTES: Final = 2048

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]


class Mismatch(Struct, frozen=True):
    """A part of a value that the type does not allow, with its path and the reason.

    `branch` is the path of the union around it, or None.
    """

    path: Path
    reason: str
    branch: Path | None = None


class MismatchError(ValueError):
    """Raised if parts of a value have the wrong type. `messages` contains problems that pydantic does not report."""

    def __init__(self, mismatches: Sequence[Mismatch], messages: Sequence[str] = ()) -> None:
        self.mismatches = mismatches
        texts = (f"`{format_path(item.path)}`: {item.reason}" if item.path else item.reason for item in mismatches)
        super().__init__("; ".join((*texts, *messages)))


def format_path(path: Iterable[str | int], root: str = "") -> str:
    """Format the path to a part of a value, such as `lines[0].sku`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{clip(step, MAX_NAME_CHARS)}" for step in path)
    return f"{root}{''.join(steps)}".removeprefix(".")


class ArgumentMessage(str):
    """A message about a wrong argument. `path` is empty if the message is about all arguments."""

    __slots__ = ("path",)

    path: str

    def __new__(cls, text: str, path: str) -> Self:
        message = super().__new__(cls, text)
        message.path = path
        return message

    @classmethod
    def about(cls, path: str, reason: str) -> Self:
        """Create a message about a part of an argument. The text begins with the path of the part."""
        path = path.removeprefix(".")
        return cls(f"`{path}`: {reason}" if path else reason, path)


class OverlookedMessage(ArgumentMessage):
    """A message about a problem that msgspec and pydantic do not report, such as an unknown field."""

    __slots__ = ()


class BooleanMessage(OverlookedMessage):
    """An error message for a boolean that was passed where a number is required."""

    __slots__ = ()


def truncate(text: str) -> str:
    """Shorten a text to at most MAX_TEXT_BYTES bytes."""
    raw = text.encode()
    return text if len(raw) <= MAX_TEXT_BYTES else raw[: MAX_TEXT_BYTES - 3].decode("utf-8", "ignore") + "…"

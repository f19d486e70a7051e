"""Helpers to build errors: add where an error happened, and quote foreign text safely. Internal."""

from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)


def add_context(error: E, **context: Any) -> E:
    """Set attributes of an `MCPError` such as `server`, `step` and `hint`, and return it. Set values stay."""
    for name, value in context.items():
        if value is not None and getattr(error, name) is None:
            setattr(error, name, value)
    return error


def clip(text: str, limit: int = 128) -> str:
    """Shorten foreign text and escape its control characters, so that it can be part of a message or a log."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return short if short.isprintable() else short.encode("unicode_escape", "backslashreplace").decode("ascii")

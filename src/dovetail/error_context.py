"""Internal helpers for errors. They add the place of an error, and make text from other programs safe to print."""

from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)


def add_context(error: E, **context: Any) -> E:
    """Set details of an `MCPError` such as `server`, `step` and `hint`, and return the error.

    Details that are already set are not changed.
    """
    for name, value in context.items():
        if value is not None and getattr(error, name) is None:
            setattr(error, name, value)
    return error


def clip(text: str, limit: int = 128) -> str:
    """Shorten text from another program and escape its control characters, so that it is safe to print."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return short if short.isprintable() else short.encode("unicode_escape", "backslashreplace").decode("ascii")

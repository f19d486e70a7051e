"""Internal helpers for errors. They add the place of an error, and make text from other programs safe to print."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, TypeVar

E = TypeVar("E", bound=Exception)

# Other programs choose names, and comparing names is slow. These limits keep the work to a few milliseconds.
_MAX_COMPARED_CHARS: Final = 64
_MAX_CANDIDATES: Final = 1000
_MAX_COMPARED_CANDIDATES: Final = 10
_MIN_SIMILARITY: Final = 0.6


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


def find_similar(name: str, candidates: Iterable[str]) -> list[str]:
    """Return candidates that are similar to a name, the most similar first. Long names and the end of a long list are
    not compared.
    """
    if len(name) > _MAX_COMPARED_CHARS:
        return []
    from difflib import SequenceMatcher  # imported here, because only errors need it

    matcher = SequenceMatcher(b=name)
    promising: list[tuple[float, str]] = []
    for candidate in islice(candidates, _MAX_CANDIDATES):
        if len(candidate) > _MAX_COMPARED_CHARS:
            continue
        matcher.set_seq1(candidate)
        if matcher.real_quick_ratio() >= _MIN_SIMILARITY and (bound := matcher.quick_ratio()) >= _MIN_SIMILARITY:
            promising.append((bound, candidate))
    similar: list[tuple[float, str]] = []
    for _, candidate in sorted(promising, reverse=True)[:_MAX_COMPARED_CANDIDATES]:
        matcher.set_seq1(candidate)
        if (similarity := matcher.ratio()) >= _MIN_SIMILARITY:
            similar.append((similarity, candidate))
    return [candidate for _, candidate in sorted(similar, reverse=True)]

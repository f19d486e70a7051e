"""Internal helpers for errors.

They add the place of an error, make text from other programs safe to print, and check the types of options.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

E = TypeVar("E", bound=Exception)

# Comparing names is slow, and other programs choose the names. These limits keep the time to a few milliseconds.
_MAX_COMPARED_CHARS: Final = 64
_MAX_CANDIDATES: Final = 5000
# In alphabetical order, this many candidates before a name and after it are compared with the name.
_MAX_NEIGHBORS: Final = 40
_MAX_COMPARED_CANDIDATES: Final = 10
_MIN_SIMILARITY: Final = 0.6
_MAX_SHOWN_NAMES: Final = 10


def add_context(error: E, **context: Any) -> E:
    """Set attributes of an `MCPError`, such as `server`, `step` and `hint`, and return the error.

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
    """Return the candidates that are most similar to a name, best first.

    Long names and the end of a very long list are not compared. In a long list, only names with a similar start or a
    similar end are compared.
    """
    if len(name) > _MAX_COMPARED_CHARS:
        return []
    comparable = [
        candidate for candidate in islice(candidates, _MAX_CANDIDATES) if len(candidate) <= _MAX_COMPARED_CHARS
    ]
    if len(comparable) > 4 * _MAX_NEIGHBORS:
        comparable = _find_neighbors(name, comparable)
    from difflib import SequenceMatcher  # This import is here because only errors need the module.

    matcher = SequenceMatcher(b=name)
    promising: list[tuple[float, str]] = []
    for candidate in comparable:
        matcher.set_seq1(candidate)
        if matcher.real_quick_ratio() >= _MIN_SIMILARITY and (bound := matcher.quick_ratio()) >= _MIN_SIMILARITY:
            promising.append((bound, candidate))
    similar: list[tuple[float, str]] = []
    for _, candidate in sorted(promising, reverse=True)[:_MAX_COMPARED_CANDIDATES]:
        matcher.set_seq1(candidate)
        if (similarity := matcher.ratio()) >= _MIN_SIMILARITY:
            similar.append((similarity, candidate))
    return [candidate for _, candidate in sorted(similar, reverse=True)]


def _find_neighbors(name: str, candidates: Iterable[str]) -> set[str]:
    """Return the candidates with the longest common start, and those with the longest common end."""
    by_start, by_end = sorted(candidates), sorted(candidate[::-1] for candidate in candidates)
    start, end = bisect_left(by_start, name), bisect_left(by_end, name[::-1])
    similar_start = by_start[max(0, start - _MAX_NEIGHBORS) : start + _MAX_NEIGHBORS]
    similar_end = by_end[max(0, end - _MAX_NEIGHBORS) : end + _MAX_NEIGHBORS]
    return {*similar_start, *(reversed_name[::-1] for reversed_name in similar_end)}


def suggest_match(name: str, candidates: Iterable[str]) -> str:
    """Return a sentence that suggests the most similar candidate, or an empty string."""
    matches = find_similar(name, candidates)
    return f". Did you mean {clip(matches[0])!r}?" if matches else ""


def make_name_hint(name: str, candidates: Mapping[str, str]) -> str:
    """Return a hint that suggests the most similar name, or shows some of the names if none is similar.

    `candidates` maps the part of each name that is compared to the whole name.
    """
    matches = find_similar(name, candidates)
    if matches:
        return f"Did you mean {clip(candidates[matches[0]])!r}?"
    names = ", ".join(clip(candidate) for candidate in islice(candidates.values(), _MAX_SHOWN_NAMES))
    hidden_count = len(candidates) - _MAX_SHOWN_NAMES
    return f"use one of {names}{f' and {hidden_count} more' if hidden_count > 0 else ''}"


def describe_value(value: Any, *, is_secret: bool = False) -> str:
    """Describe a value for an error message. Secret values are not shown."""
    type_name = type(value).__name__
    if value is None:
        return "None"
    if is_secret or not isinstance(value, str | int | float | type):
        return type_name
    return f"{clip(repr(value))} ({type_name})"


def check_type(subject: str, value: Any, expected_type: Any, description: str) -> None:
    """Raise TypeError unless a value is None or has the expected type. True and False do not count as numbers.

    `subject` names the value, such as "timeout=".
    """
    expected_types: tuple[Any, ...] = expected_type if isinstance(expected_type, tuple) else (expected_type,)
    is_wrong_bool = isinstance(value, bool) and bool not in expected_types
    if value is not None and (is_wrong_bool or not isinstance(value, expected_types)):
        raise TypeError(f"{subject} must be {description}, not {describe_value(value)}")

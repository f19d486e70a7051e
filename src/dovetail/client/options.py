"""A client's options, looked at when it is made: a wrong one is refused there, by its name, not when it is used."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dovetail.errors import clip
from dovetail.wire.logs import LEVELS
from dovetail.wire.roots import Root


def expect(option: str, value: Any, kind: Any, what: str) -> None:
    """TypeError unless the option is of this kind, or not given."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{option}= must be {what}, not {shown(value)}")


def expect_callable(option: str, value: Any) -> None:
    """TypeError unless the option can be called, or is not given."""
    if value is not None and not callable(value):
        raise TypeError(f"{option}= must be a function, not {shown(value)}")


def expect_texts(option: str, value: Any) -> None:
    """TypeError unless the option maps texts to texts, or is not given."""
    expect(option, value, Mapping, "a dict of texts")
    for name, text in (value or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"{option}= must hold only texts, but {name!r} is {shown(text, secret=True)}")


def check_roots(roots: Any) -> None:
    """TypeError unless these are roots: some paths or URIs, or a function that gives them."""
    if roots is None or callable(roots) or isinstance(roots, str | Path | Root):
        return
    expect("roots", roots, Sequence, "a list of paths, URIs or Root, or a function that returns one")
    for root in roots:
        expect("roots", root, (str, Path, Root), "a list of paths, URIs or Root")


def check_middleware(middleware: Any) -> None:
    """TypeError unless these are functions."""
    expect("middleware", middleware, Iterable, "a list of functions")
    for function in middleware:
        if not callable(function):
            raise TypeError(f"middleware= must be a list of functions, but holds {shown(function)}")


def check_times(**times: Any) -> None:
    """TypeError or ValueError unless these are seconds that can pass, or not given."""
    for option, seconds in times.items():
        if isinstance(seconds, bool):
            raise TypeError(f"{option}= must be a number of seconds, not {seconds}")
        expect(option, seconds, (int, float), "a number of seconds")
        if seconds is not None and not seconds > 0:
            raise ValueError(f"{option}= must be more than 0 seconds, not {seconds}; math.inf is no limit at all")


def check_level(option: str, level: Any) -> None:
    """ValueError unless it is one of the levels of log messages, or none."""
    if level is not None and level not in LEVELS:
        raise ValueError(
            f"{option} must be one of {', '.join(LEVELS)}, not {shown(level)}{nearest(str(level), LEVELS)}"
        )


def nearest(given: str, known: Iterable[str]) -> str:
    """A question whether something of a similar name was meant, if there is any."""
    found = get_close_matches(given, list(known), n=1)
    return f"; did you mean {clip(found[0])}?" if found else ""


def shown(value: Any, *, secret: bool = False) -> str:
    """A value as it is repeated to whoever gave it."""
    kind = type(value).__name__
    return kind if secret or not isinstance(value, str | int | float | type) else f"{clip(repr(value))} ({kind})"

"""A client's options, looked at when it is made: a wrong one is refused there, by its name, not when it is used."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dovetail.error_context import clip
from dovetail.wire.logs import LEVELS
from dovetail.wire.roots import Root


def check_type(option: str, value: Any, expected_type: Any, description: str) -> None:
    """TypeError unless the option is of this kind, or not given."""
    if value is not None and not isinstance(value, expected_type):
        raise TypeError(f"{option}= must be {description}, not {describe_value(value)}")


def check_callable(option: str, value: Any) -> None:
    """TypeError unless the option can be called, or is not given."""
    if value is not None and not callable(value):
        raise TypeError(f"{option}= must be a function, not {describe_value(value)}")


def check_string_mapping(option: str, value: Any) -> None:
    """TypeError unless the option maps texts to texts, or is not given."""
    check_type(option, value, Mapping, "a dict of texts")
    for name, text in (value or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"{option}= must hold only texts, but {name!r} is {describe_value(text, is_secret=True)}")


def check_roots(roots: Any) -> None:
    """TypeError unless these are roots: some paths or URIs, or a function that gives them."""
    if roots is None or callable(roots) or isinstance(roots, str | Path | Root):
        return
    check_type("roots", roots, Sequence, "a list of paths, URIs or Root, or a function that returns one")
    for root in roots:
        check_type("roots", root, (str, Path, Root), "a list of paths, URIs or Root")


def check_middleware(middleware: Any) -> None:
    """TypeError unless these are functions."""
    check_type("middleware", middleware, Iterable, "a list of functions")
    for function in middleware:
        if not callable(function):
            raise TypeError(f"middleware= must be a list of functions, but holds {describe_value(function)}")


def check_durations(**durations: Any) -> None:
    """TypeError or ValueError unless these are seconds that can pass, or not given."""
    for option, seconds in durations.items():
        if isinstance(seconds, bool):
            raise TypeError(f"{option}= must be a number of seconds, not {seconds}")
        check_type(option, seconds, (int, float), "a number of seconds")
        if seconds is not None and not seconds > 0:
            raise ValueError(f"{option}= must be more than 0 seconds, not {seconds}; math.inf is no limit at all")


def check_log_level(option: str, level: Any) -> None:
    """ValueError unless it is one of the levels of log messages, or none."""
    if level is not None and level not in LEVELS:
        raise ValueError(
            f"{option} must be one of {', '.join(LEVELS)}, "
            f"not {describe_value(level)}{suggest_match(str(level), LEVELS)}"
        )


def suggest_match(name: str, candidates: Iterable[str]) -> str:
    """A question whether something of a similar name was meant, if there is any."""
    matches = get_close_matches(name, list(candidates), n=1)
    return f"; did you mean {clip(matches[0])}?" if matches else ""


def describe_value(value: Any, *, is_secret: bool = False) -> str:
    """A value as it is repeated to whoever gave it."""
    type_name = type(value).__name__
    return (
        type_name
        if is_secret or not isinstance(value, str | int | float | type)
        else f"{clip(repr(value))} ({type_name})"
    )

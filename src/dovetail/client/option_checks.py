"""Checks of a client's options at creation, so that an error names the wrong option."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.error_context import check_type, describe_value, suggest_match
from dovetail.wire.logs import LEVELS
from dovetail.wire.roots import Root


def check_callable(option: str, value: Any) -> None:
    """Raise TypeError if an option is set and is not callable."""
    if value is not None and not callable(value):
        raise TypeError(f"{option}= must be a function, not {describe_value(value)}")


def check_string_mapping(option: str, value: Any) -> None:
    """Raise TypeError if an option is set and is not a mapping of strings to strings."""
    check_type(f"{option}=", value, Mapping, "a dict of strings")
    for name, text in (value or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(
                f"{option}= must contain only strings, but {name!r} is {describe_value(text, is_secret=True)}"
            )


def check_roots(roots: Any) -> None:
    """Raise an error unless the roots are a list of paths or URIs, or a function that returns such a list.

    Raise ValueError if the scheme of a URI is not `file`. spec: roots#root
    """
    if roots is None or callable(roots):
        return
    if isinstance(roots, str | Path | Root):
        roots = [roots]
    check_type("roots=", roots, Sequence, "a list of paths, URIs or Root, or a function that returns one")
    for root in roots:
        check_type("roots=", root, (str, Path, Root), "a list of paths, URIs or Root")
        uri = root.uri if isinstance(root, Root) else root if isinstance(root, str) and "://" in root else None
        if uri is not None and not is_file_uri(uri):
            raise ValueError(f"roots= must contain paths or file:// URIs, not {describe_value(uri)}")


def is_file_uri(uri: str) -> bool:
    return uri[:7].lower() == "file://"


def check_middleware(middleware: Any) -> None:
    check_type("middleware=", middleware, Iterable, "a list of functions")
    for function in middleware:
        if not callable(function):
            raise TypeError(f"middleware= must be a list of functions, but contains {describe_value(function)}")


def check_durations(**durations: Any) -> None:
    """Raise TypeError or ValueError unless each duration is a positive number of seconds or None."""
    for option, seconds in durations.items():
        check_type(f"{option}=", seconds, (int, float), "a number of seconds")
        if seconds is not None and not seconds > 0:
            raise ValueError(f"{option}= must be more than 0 seconds, not {seconds}. Use math.inf for no limit")


def check_log_level(option: str, level: Any) -> None:
    """Raise ValueError unless the value is a log level or None."""
    if level is not None and level not in LEVELS:
        raise ValueError(
            f"{option} must be one of {', '.join(LEVELS)}, "
            f"not {describe_value(level)}{suggest_match(str(level), LEVELS)}"
        )

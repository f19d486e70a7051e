"""Argument completion: a function per argument, or for free from the choices an annotation names."""

from collections.abc import Callable, Sequence
from typing import Any

from dovetail.server.runner import Runner
from dovetail.wire.completion import Completion

MAX_VALUES = 100  # spec: completion#completion-results


class Completer:
    """A function that suggests values for one argument: `(value)` or `(value, arguments)`."""

    __slots__ = ("runner", "takes_arguments")

    def __init__(self, function: Callable[..., Any]) -> None:
        import inspect

        parameters = inspect.signature(function).parameters.values()
        places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        if not 1 <= len(places) <= 2:
            raise TypeError(f"{function!r}: a completion takes (value) or (value, arguments)")
        self.takes_arguments = len(places) == 2
        self.runner = Runner(function)

    def arguments(self, value: str, others: dict[str, str]) -> tuple[Any, ...]:
        """What to call the function with."""
        return (value, others) if self.takes_arguments else (value,)


def suggestions(found: Completion | Sequence[str] | None) -> Completion:
    """What a completer returned, cut to what one answer may hold."""
    if isinstance(found, Completion):
        values, total, more = found.values, found.total, found.has_more
    else:
        values = [str(one) for one in found or ()]
        total, more = len(values), False
    if len(values) > MAX_VALUES:
        return Completion(values=list(values[:MAX_VALUES]), total=total or len(values), has_more=True)
    return Completion(values=list(values), total=total, has_more=more)


def matching(choices: Sequence[str], value: str) -> list[str]:
    """The choices that begin with what was typed, or, failing that, contain it."""
    typed = value.casefold()
    starting = [one for one in choices if one.casefold().startswith(typed)]
    return starting or [one for one in choices if typed in one.casefold()]

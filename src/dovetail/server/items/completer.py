"""Completion of arguments, with values from a function or from the choices in an annotation."""

from collections.abc import Callable, Sequence
from typing import Any

from dovetail.server.invocation import Runner
from dovetail.wire.completion import Completion

MAX_VALUES = 100  # spec: completion#completion-results


class Completer:
    """A function that suggests values for an argument. It takes `(value)` or `(value, arguments)`."""

    __slots__ = ("runner", "takes_arguments")

    def __init__(self, function: Callable[..., Any]) -> None:
        import inspect

        parameters = inspect.signature(function).parameters.values()
        positional = [
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if not 1 <= len(positional) <= 2:
            raise TypeError(f"{function!r}: a completion function must take (value) or (value, arguments)")
        self.takes_arguments = len(positional) == 2
        self.runner = Runner(function)

    def build_arguments(self, value: str, other_arguments: dict[str, str]) -> tuple[Any, ...]:
        return (value, other_arguments) if self.takes_arguments else (value,)


def build_completion(result: Completion | Sequence[str] | None) -> Completion:
    """Convert the return value of a completion function to a `Completion` with at most `MAX_VALUES` values."""
    if isinstance(result, Completion):
        values, total, has_more = result.values, result.total, result.has_more
    else:
        values = [str(value) for value in result or ()]
        total, has_more = len(values), False
    if len(values) > MAX_VALUES:
        return Completion(values=list(values[:MAX_VALUES]), total=total or len(values), has_more=True)
    return Completion(values=list(values), total=total, has_more=has_more)


def find_matching(choices: Sequence[str], value: str) -> list[str]:
    """Return the choices that start with a text. If there are none, return the choices that contain the text."""
    folded = value.casefold()
    prefix_matches = [choice for choice in choices if choice.casefold().startswith(folded)]
    return prefix_matches or [choice for choice in choices if folded in choice.casefold()]

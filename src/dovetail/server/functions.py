"""Functions: what can be known of a function before it is called: where it stands, and what its annotations mean."""

import functools
import inspect
import types
import typing
from typing import Any


def _unwrap_function(function: Any) -> Any:
    """The plain function that carries the annotations."""
    while True:
        if isinstance(function, functools.partial):
            function = typing.cast("functools.partial[Any]", function).func
        elif isinstance(function, (staticmethod, classmethod, types.MethodType)):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not inspect.isroutine(function) and inspect.isfunction(call := type(function).__call__):
            function = call
        else:
            return function


def describe_location(function: Any) -> str:
    """Name, file and line of a function."""
    inner = _unwrap_function(function)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    code = getattr(inner, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def resolve_hints(function: Any, context_type: type, where: str) -> dict[str, Any]:
    """The resolved annotations of a function; TypeError, beginning with `where`, if they cannot be."""
    inner = _unwrap_function(function)
    if isinstance(inner, type) or not callable(inner):
        raise TypeError(f"{where}: not a function")
    try:
        try:
            return typing.get_type_hints(inner, include_extras=True)
        except NameError:
            # A context imported only for the type checker is still the context.
            local_names = {context_type.__name__: context_type}
            return typing.get_type_hints(inner, localns=local_names, include_extras=True)
    except NameError as exc:
        raise TypeError(f"{where}: the name `{exc.name}` in its annotations is not defined in its module") from None
    except (TypeError, SyntaxError, AttributeError) as exc:
        raise TypeError(f"{where}: its annotations cannot be read: {exc}") from None

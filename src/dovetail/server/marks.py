"""Marks: what functions and methods are to be once they are added to a server, written where they are defined.

`tool`, `resource` and `prompt` only note; the function stays what it was. `offered` finds what a module, a class or an
object has to offer.
"""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar, Unpack, overload

from dovetail.server.options import PromptOptions, ResourceOptions, ToolOptions, check_options

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__dovetail__"


class Mark(NamedTuple):
    """One thing a function is to be: tool, resource or prompt, under a URI if it is a resource."""

    kind: str
    uri: str
    options: dict[str, Any]


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(called: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function or method as a tool for `Server.add`; spellings and options as for `@app.tool`."""
    return _marking("tool", function, options)


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(called: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
def prompt(function: Any = None, /, **options: Any) -> Any:
    """Mark a function or method as a prompt for `Server.add`; spellings and options as for `@app.prompt`."""
    return _marking("prompt", function, options)


def resource(uri: str, /, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
    """Mark a function or method as a resource or a template for `Server.add`; options as for `@app.resource`."""
    if callable(uri):  # `@resource`, without its URI
        raise TypeError('a resource needs its URI: @resource("city://list")')

    def mark(function: F) -> F:
        return _marked(function, Mark("resource", uri, dict(options)))

    return mark


def offered(source: Any) -> Iterator[tuple[str, Callable[..., Any], Mark]]:
    """Each function a module, class or object offers, with its name; all public ones as tools if none is marked.

    Raises:
        TypeError: there is none, or a class is given whose methods need an object.
    """
    found = [(name, one) for name, one in _functions(source) if not name.startswith("_") or hasattr(one, _MARK)]
    marked = [(name, one, mark) for name, one in found for mark in getattr(one, _MARK, ())]
    if not found:
        raise TypeError(f"{source!r} has no public functions to offer")
    yield from marked or [(name, one, Mark("tool", "", {})) for name, one in found]


def _functions(source: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    if inspect.isroutine(source):
        yield getattr(source, "__name__", ""), source
    elif isinstance(source, ModuleType):
        yield from (
            (name, one)
            for name, one in vars(source).items()
            if inspect.isfunction(one) and one.__module__ == source.__name__
        )
    else:
        yield from _methods(source)


def _methods(source: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """In the order of their definition, the methods of parents first; properties are not touched."""
    kinds = [kind for kind in (source if isinstance(source, type) else type(source)).__mro__ if kind is not object]
    names = dict.fromkeys(name for kind in reversed(kinds) for name in vars(kind))
    for name in names:
        static = inspect.getattr_static(source, name, None)
        if isinstance(static, (staticmethod, classmethod)) or inspect.isfunction(static):
            if isinstance(source, type) and inspect.isfunction(static) and not name.startswith("_"):
                raise TypeError(f"{source.__qualname__}.{name} needs an object: add one, not its class")
            yield name, getattr(source, name)


def _marking(kind: str, function: Any, options: dict[str, Any]) -> Any:
    if callable(function):
        return _marked(function, Mark(kind, "", options))

    def mark(decorated: F) -> F:
        return _marked(decorated, Mark(kind, "", ({"name": function} if function is not None else {}) | options))

    return mark


def _marked(function: F, mark: Mark) -> F:
    check_options(mark.kind, mark.options)
    target: Any = getattr(function, "__func__", function)  # under a staticmethod or classmethod
    setattr(target, _MARK, (*getattr(target, _MARK, ()), mark))
    return function

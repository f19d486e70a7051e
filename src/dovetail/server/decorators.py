"""Marks: what functions and methods are to be once they are added to a server, written where they are defined.

`tool`, `resource` and `prompt` only note; the function stays what it was. `offered` finds what a module, a class or an
object has to offer.
"""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar, Unpack, overload

from dovetail.server.item_options import PromptOptions, ResourceOptions, ToolOptions, check_options

F = TypeVar("F", bound=Callable[..., Any])

_REGISTRATIONS_ATTRIBUTE: Final = "__dovetail__"


class Registration(NamedTuple):
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
    return _make_decorator("tool", function, options)


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(called: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
def prompt(function: Any = None, /, **options: Any) -> Any:
    """Mark a function or method as a prompt for `Server.add`; spellings and options as for `@app.prompt`."""
    return _make_decorator("prompt", function, options)


def resource(uri: str, /, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
    """Mark a function or method as a resource or a template for `Server.add`; options as for `@app.resource`."""
    if callable(uri):  # `@resource`, without its URI
        raise TypeError('a resource needs its URI: @resource("city://list")')

    def decorate(function: F) -> F:
        return _register(function, Registration("resource", uri, dict(options)))

    return decorate


def find_registrations(source: Any) -> Iterator[tuple[str, Callable[..., Any], Registration]]:
    """Each function a module, class or object offers, with its name; all public ones as tools if none is marked.

    Raises:
        TypeError: there is none, or a class is given whose methods need an object.
    """
    functions = [
        (name, function)
        for name, function in _list_functions(source)
        if not name.startswith("_") or hasattr(function, _REGISTRATIONS_ATTRIBUTE)
    ]
    registrations = [
        (name, function, registration)
        for name, function in functions
        for registration in getattr(function, _REGISTRATIONS_ATTRIBUTE, ())
    ]
    if not functions:
        raise TypeError(f"{source!r} has no public functions to offer")
    yield from registrations or [(name, function, Registration("tool", "", {})) for name, function in functions]


def _list_functions(source: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    if inspect.isroutine(source):
        yield getattr(source, "__name__", ""), source
    elif isinstance(source, ModuleType):
        yield from (
            (name, function)
            for name, function in vars(source).items()
            if inspect.isfunction(function) and function.__module__ == source.__name__
        )
    else:
        yield from _list_methods(source)


def _list_methods(source: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """In the order of their definition, the methods of parents first; properties are not touched."""
    classes = [
        class_type
        for class_type in (source if isinstance(source, type) else type(source)).__mro__
        if class_type is not object
    ]
    names = dict.fromkeys(name for class_type in reversed(classes) for name in vars(class_type))
    for name in names:
        attribute = inspect.getattr_static(source, name, None)
        if isinstance(attribute, (staticmethod, classmethod)) or inspect.isfunction(attribute):
            if isinstance(source, type) and inspect.isfunction(attribute) and not name.startswith("_"):
                raise TypeError(f"{source.__qualname__}.{name} needs an object: add one, not its class")
            yield name, getattr(source, name)


def _make_decorator(kind: str, function: Any, options: dict[str, Any]) -> Any:
    if callable(function):
        return _register(function, Registration(kind, "", options))

    def decorate(decorated: F) -> F:
        return _register(
            decorated, Registration(kind, "", ({"name": function} if function is not None else {}) | options)
        )

    return decorate


def _register(function: F, registration: Registration) -> F:
    check_options(registration.kind, registration.options)
    target: Any = getattr(function, "__func__", function)  # under a staticmethod or classmethod
    setattr(target, _REGISTRATIONS_ATTRIBUTE, (*getattr(target, _REGISTRATIONS_ATTRIBUTE, ()), registration))
    return function

"""Decorators that mark functions and methods as tools, resources or prompts where they are defined.

`tool`, `resource` and `prompt` do not change the function. `find_registrations` returns the marked functions of a
module, a class or an object.
"""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar, Unpack, overload

from dovetail.server.items.item_options import PromptOptions, ResourceOptions, ToolOptions, check_options

F = TypeVar("F", bound=Callable[..., Any])

_REGISTRATIONS_ATTRIBUTE: Final = "__dovetail__"


class Registration(NamedTuple):
    """The kind, URI and options of a decorated function."""

    kind: str
    uri: str
    options: dict[str, Any]


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(called: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function or method as a tool for `Server.include`. This decorator takes the options of `Server.tool`.

    Args:
        function: The function, or a name for the tool. Defaults to the name of the function.
    """
    return _make_decorator("tool", function, options)


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(called: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
def prompt(function: Any = None, /, **options: Any) -> Any:
    """Mark a function or method as a prompt for `Server.include`. This decorator takes the options of `Server.prompt`.

    Args:
        function: The function, or a name for the prompt. Defaults to the name of the function.
    """
    return _make_decorator("prompt", function, options)


def resource(uri: str, /, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
    """Mark a function or method as a resource or template for `Server.include`.

    This decorator takes the options of `Server.resource`.

    Args:
        uri: The URI, or a template such as `city://{name}`.
    """
    if callable(uri):  # `uri` is callable if the decorator is used without parentheses.
        raise TypeError('@resource requires a URI. Write @resource("city://list")')

    def decorate(function: F) -> F:
        return _register(function, Registration("resource", uri, dict(options)))

    return decorate


def find_registrations(source: Any) -> Iterator[tuple[str, Callable[..., Any], Registration]]:
    """Yield the marked functions of a module, class or object, with their names.

    If no function is marked, yield all public functions as tools.

    Raises:
        TypeError: the source has no function, or it is a class whose methods need an instance.
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
        raise TypeError(f"the module or object {source!r} has no public functions to include")
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
    """Yield the methods of an object in the order of their definition. Inherited methods come first."""
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
                raise TypeError(
                    f"{source.__qualname__}.{name} needs an instance. Pass an instance of the class to include()"
                )
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
    # `__func__` is the function inside a staticmethod or classmethod.
    target: Any = getattr(function, "__func__", function)
    setattr(target, _REGISTRATIONS_ATTRIBUTE, (*getattr(target, _REGISTRATIONS_ATTRIBUTE, ()), registration))
    return function

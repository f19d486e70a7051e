"""HTTP routes of a server beside the MCP endpoint.

The server handles a route request as an exchange. So limits, timeouts and `get_context` work as in a tool call. The
endpoint authenticates the caller before the exchange starts.
"""

import inspect
import re
import typing
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from dovetail.errors import ResourceNotFound
from dovetail.protocol.interfaces.routes import RouteRequest
from dovetail.protocol.middleware import Handler
from dovetail.protocol.principal import Principal
from dovetail.server.invocation import AwaitingRunner, Runner, may_return_coroutine
from dovetail.server.items.access_rules import AccessRule, is_accessible
from dovetail.server.thread_pool import ThreadPool
from dovetail.wire.base import Struct

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LITERAL_SEGMENT: Final = re.compile(r"[^{}/?#%\s]+")
_METHOD_NAME: Final = re.compile(r"[A-Z]+")


class RouteCall(Protocol):
    """An HTTP request to a route. The transport implements this interface."""

    def create_request(self, request_type: type[Any]) -> Any:
        """Return the HTTP request as an object of `request_type`."""
        ...

    async def respond(self, value: object) -> None:
        """Send the value that the route function returned."""
        ...


class Route:
    """A function that answers the HTTP requests to one path."""

    def __init__(
        self, path: str, function: Callable[..., object], methods: Collection[str], rule: AccessRule | None
    ) -> None:
        # Routes ignore a slash at the end of a path, as the MCP endpoint does.
        self.path = path = path.rstrip("/") or "/"
        self.methods = _check_methods(methods)
        self.rule = rule  # None means that the route is open to everyone.
        self._pattern = _compile_path(path)
        self._runner = (AwaitingRunner if may_return_coroutine(function) else Runner)(function)
        self._request_type = _find_request_type(function)

    def match(self, path: str) -> dict[str, str] | None:
        """Return the values of the placeholders, or None if the path does not match."""
        match = self._pattern.fullmatch(path)
        return None if match is None else match.groupdict()

    async def run(self, call: RouteCall, thread_pool: ThreadPool, origin: str | None) -> None:
        arguments = () if self._request_type is None else (call.create_request(self._request_type),)
        await call.respond(await self._runner.run(arguments, {}, thread_pool, origin))


class RouteMatch(Struct, frozen=True):
    """A route that matches the path of a request."""

    route: Route
    path_params: dict[str, str]
    handle: Handler  # the handler of the server that owns the route
    allowed_methods: tuple[str, ...]  # the methods of all routes with this path
    mount_rules: tuple[AccessRule, ...] = ()  # the access rules of all mounts above the server

    @property
    def is_anonymous(self) -> bool:
        """Return whether callers need no credentials."""
        return self.route.rule is None and not self.mount_rules

    def check_access(self, principal: Principal | None) -> None:
        """Raise InsufficientScope or ResourceNotFound unless this caller may use the route."""
        rules = self.mount_rules if self.route.rule is None else (self.route.rule, *self.mount_rules)
        if not all(is_accessible(rule, self.route.path, principal) for rule in rules):
            raise ResourceNotFound(self.route.path)


def _check_methods(methods: Collection[str]) -> tuple[str, ...]:
    if isinstance(methods, str):
        raise TypeError(f"methods= must be a list. Write methods=[{methods!r}]")
    names = tuple(dict.fromkeys(method.upper() for method in methods))
    if not names or not all(map(_METHOD_NAME.fullmatch, names)):
        raise ValueError(f'methods= must be a list of HTTP methods, such as ["POST"], not {methods!r}')
    return (*names, "HEAD") if "GET" in names and "HEAD" not in names else names


def _compile_path(path: str) -> re.Pattern[str]:
    parts = path.split("/")
    if path != "/" and (parts[0] or not all(parts[1:])):
        raise ValueError(f"the path of a route must begin with a slash, such as /webhook, not {path!r}")
    pattern = ""
    for part in parts[1:] if path != "/" else [""]:
        placeholder = _PLACEHOLDER.fullmatch(part)
        if placeholder is None and part and not _LITERAL_SEGMENT.fullmatch(part):
            raise ValueError(
                f"invalid path {path!r}: {part!r} must be plain text or a placeholder, such as /orders/{{id}}"
            )
        pattern += "/" + (re.escape(part) if placeholder is None else f"(?P<{placeholder[1]}>[^/]+)")
    return re.compile(pattern)


def _find_request_type(function: Callable[..., object]) -> type[Any] | None:
    """Return the type of the request that a function takes. Return None if the function takes no argument."""
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if not parameters:
        return None
    if any(parameter.default is parameter.empty for parameter in parameters[1:]):
        raise TypeError("a route function must have one parameter for the request, or no parameters")
    try:
        hint: Any = typing.get_type_hints(function).get(parameters[0].name)
    except (NameError, TypeError):  # The annotated type exists only for type checkers.
        hint = None
    # A function with a Starlette annotation gets a Starlette request, so functions written for Starlette still work.
    is_starlette = isinstance(hint, type) and hint.__module__.startswith("starlette.")
    return hint if is_starlette else RouteRequest

"""The contract for extensions of the protocol.

An extension adds methods, notifications and result types to the protocol, under one identifier. A server and a client
use the same `Extension` object. An extension sees exchanges and middleware, but never the server itself.

spec: specification#extensions
"""

import inspect
import math
import re
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from dovetail.error_context import check_type, clip, describe_value
from dovetail.protocol.exchange import Exchange, IncomingExchange
from dovetail.protocol.middleware import Middleware, validate_middleware
from dovetail.wire.base import CacheableResult, JSONValue, PaginatedParams, Params, Result, Struct
from dovetail.wire.input_required import InputRequest, InputRequiredResult
from dovetail.wire.meta import is_valid_key
from dovetail.wire.methods import METHODS, Method
from dovetail.wire.revisions import PUBLISHED_REVISIONS, REVISIONS, is_within
from dovetail.wire.subscriptions import SubscriptionFilter

P = TypeVar("P", bound=Params)
R = TypeVar("R", bound=Result)
F = TypeVar("F", bound=Callable[..., Any])

# A method is sent as an HTTP header, so it must not contain spaces or control characters.
_METHOD_NAME: Final = re.compile(r"[A-Za-z0-9_.$-]+(?:/[A-Za-z0-9_.$-]+)*")
_MAX_METHOD_CHARS: Final = 200
_NOTIFICATION_PREFIX: Final = "notifications/"
_CORE_RESULT_TYPES: Final = ("complete", "input_required")

ExtensionLifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]


class ExtensionMethod(Generic[P, R]):
    """A request that an extension adds. `Extension.method` creates it. Pass it to `Client.request`."""

    __slots__ = ("_extension", "_row")

    def __init__(self, _extension: "Extension", _row: Method) -> None:
        self._extension = _extension
        self._row = _row

    @property
    def extension(self) -> "Extension":
        """Return the extension that adds the request."""
        return self._extension

    @property
    def name(self) -> str:
        """Return the name of the method, such as "com.example/hello/say"."""
        return self._row.name

    def __repr__(self) -> str:
        return f"<ExtensionMethod {self.name!r} of {self._extension.identifier!r}>"


class ExtensionClient(Protocol):
    """The interface of `Client` for `on_client` functions."""

    @property
    def timeout(self) -> float | None:
        """Return how many seconds the request may take without progress, or None if the caller passed no `timeout`."""
        ...

    @property
    def total_timeout(self) -> float:
        """Return how many seconds the request has left. Progress does not extend this time."""
        ...

    def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Call the `progress_handler` of the request, if the caller passed one.

        Args:
            progress: How much is done. The value must increase with every call.
            total: The value of `progress` when the work is done, if you know it.
            message: A message for the user.
        """
        ...

    async def request(
        self, method: ExtensionMethod[P, R], params: P | None = None, *, timeout: float | None = None
    ) -> R:
        """Send a request of the extension, and return its result.

        Args:
            params: The parameters of the request.
            timeout: Seconds to wait for the result. Defaults to `Timeouts.call`.
        """
        ...

    async def notify(self, method: str, params: Mapping[str, object] | None = None) -> None:
        """Send a notification.

        Args:
            params: The parameters of the notification.
        """
        ...

    async def answer_input_requests(self, requests: Mapping[str, InputRequest]) -> dict[str, object]:
        """Answer input requests with the handlers of the client."""
        ...


ResultHook: TypeAlias = Callable[[Any, ExtensionClient], Awaitable[Result]]


class AddedResultType(Struct, frozen=True):
    """A result type that an extension adds to a method of the protocol."""

    extension: "Extension"
    method: str
    name: str
    struct: type[Result]
    on_client: ResultHook | None


class RequestFunction(Struct, frozen=True):
    """A request that an extension adds, with the function that handles the request."""

    row: Method
    function: Callable[..., Awaitable[Any]] | None  # None if the extension is only for clients
    requires_client: bool  # whether the server refuses clients that do not declare the extension


class NotificationFunction(Struct, frozen=True):
    """A handler for one notification of an extension."""

    params: type[Params]
    function: Callable[..., Any]


class ExtensionSubscription(Struct, frozen=True):
    """The notifications that a server sends to a client for one field of a subscription filter."""

    accepted: JSONValue  # the part of the requested value that the server accepts
    # Yields the method and the parameters of each notification. The server closes this generator.
    notifications: AsyncGenerator[tuple[str, Params], None]


class SubscriptionFunction(Struct, frozen=True):
    """A function that handles a field of a subscription filter."""

    function: "Callable[[Any, Exchange], Awaitable[ExtensionSubscription]]"
    requires_client: bool  # whether the server refuses clients that do not declare the extension


class ExtensionParts(Struct):
    """All methods, handlers, hooks and other objects that were registered on an extension."""

    methods: dict[str, RequestFunction]
    notifications: dict[str, NotificationFunction]
    client_notifications: dict[str, NotificationFunction]
    result_types: dict[tuple[str, str], AddedResultType]
    middleware: list[Middleware]
    client_middleware: list[Middleware]
    subscriptions: dict[str, SubscriptionFunction]
    lifespan: ExtensionLifespan | None = None


class Extension:
    """An addition to the protocol, with methods, notifications and hooks.

    Register everything before you pass the extension to a server or a client. Several servers and clients can use the
    same extension.

    Args:
        identifier: The identifier of the extension, such as "com.example/hello".
        settings: The settings that a server declares. Defaults to an empty object.
        client_settings: The settings that a client declares. Defaults to an empty object.
        requires_client: Whether the server refuses requests of clients that do not declare the extension.
    """

    def __init__(
        self,
        identifier: str,
        *,
        settings: Mapping[str, JSONValue] | None = None,
        client_settings: Mapping[str, JSONValue] | None = None,
        requires_client: bool = False,
    ) -> None:
        self._identifier = _check_identifier(identifier)
        _check_settings("settings=", settings)
        _check_settings("client_settings=", client_settings)
        check_type("requires_client=", requires_client, bool, "True or False")
        self._settings = dict(settings or {})
        self._client_settings = dict(client_settings or {})
        self._requires_client = requires_client
        self._parts = ExtensionParts({}, {}, {}, {}, [], [], {})
        self._is_used = False

    @property
    def identifier(self) -> str:
        """Return the identifier, such as "com.example/hello"."""
        return self._identifier

    @property
    def settings(self) -> Mapping[str, JSONValue]:
        """Return the settings with which a server declares the extension."""
        return self._settings

    @property
    def client_settings(self) -> Mapping[str, JSONValue]:
        """Return the settings that a client sends when it declares the extension."""
        return self._client_settings

    def __repr__(self) -> str:
        return f"<Extension {self._identifier!r}>"

    def method(
        self,
        name: str,
        *,
        since: str = PUBLISHED_REVISIONS[0],
        until: str | None = None,
        name_parameter: str | None = None,
        is_cacheable: bool = False,
        requires_client: bool | None = None,
    ) -> Callable[[Callable[[P, Exchange], Awaitable[R]]], ExtensionMethod[P, R]]:
        """Add a request that clients can send. The decorated async function `(params, exchange)` handles it.

        The annotations of the function are the types of the parameters and the result. They must be subclasses of
        `Params` and `Result`.

        Args:
            name: The name of the method, such as "com.example/hello/say".
            since: The first protocol version that has the method.
            until: The first protocol version that no longer has the method.
            name_parameter: The JSON name of the parameter that clients repeat in the `Mcp-Name` header.
            is_cacheable: Whether clients may cache the result. The result must be a `CacheableResult`.
            requires_client: Whether the server refuses requests of clients that do not declare the extension. Defaults
                to the option of the extension.
        """
        _check_method_name(name)
        for option, revision in (("since", since), ("until", until)):
            if revision is not None and revision not in REVISIONS:
                raise ValueError(f"{option}= must be one of {', '.join(REVISIONS)}, not {revision!r}")
        if not any(is_within(revision, since, until) for revision in REVISIONS):
            raise ValueError(f"no protocol version has {name}, because until={until!r} is not after since={since!r}")
        check_type("requires_client=", requires_client, bool, "True or False")

        def register(function: Callable[[P, Exchange], Awaitable[R]]) -> ExtensionMethod[P, R]:
            self._check_unused(name)
            self._check_new(name, self._parts.methods)
            hints = _read_hints(function, name, 2)
            params_type, result_type = hints[0], _check_hint(name, "return type", hints[-1], Result)
            if name_parameter is not None:
                _check_name_parameter(name, params_type, name_parameter)
            if is_cacheable and not issubclass(result_type, CacheableResult):
                raise TypeError(f"{name}: the result type must be a CacheableResult, because is_cacheable is True")
            row = Method(
                name=name,
                params=params_type,
                result=result_type,
                since=since,
                until=until,
                name_parameter=name_parameter,
                is_cacheable=is_cacheable,
                extension=self._identifier,
            )
            is_required = self._requires_client if requires_client is None else requires_client
            return add_method(self, row, function, requires_client=is_required)

        return register

    def notification(self, name: str) -> Callable[[F], F]:
        """Register an async function `(params, exchange)` for a notification from the client.

        Only clients up to protocol version 2025-11 send notifications.

        Args:
            name: The name of the notification, such as "notifications/com.example/hello/read".
        """
        return self._create_notification_decorator(name, self._parts.notifications, 2)

    def client_notification(self, name: str) -> Callable[[F], F]:
        """Register a function `(params)` for a notification from the server. The function may be async.

        The server sends the notification with `exchange.notify`.

        Args:
            name: The name of the notification, such as "notifications/com.example/hello/heard".
        """
        return self._create_notification_decorator(name, self._parts.client_notifications, 1)

    def _create_notification_decorator(
        self, name: str, handlers: dict[str, NotificationFunction], parameter_count: int
    ) -> Callable[[F], F]:
        _check_method_name(name)
        if not name.startswith(_NOTIFICATION_PREFIX):
            raise ValueError(f"invalid notification {name!r}: the name must start with {_NOTIFICATION_PREFIX!r}")

        def register(function: F) -> F:
            self._check_unused(name)
            self._check_new(name, handlers)
            if parameter_count == 2 and not inspect.iscoroutinefunction(function):
                raise TypeError(f"{name}: the function must be `async def`")
            params_type = _read_hints(function, name, parameter_count, is_async=False)[0]
            handlers[name] = NotificationFunction(params_type, function)
            return function

        return register

    def subscription(
        self, name: str
    ) -> Callable[
        [Callable[[Any, Exchange], Awaitable[ExtensionSubscription]]],
        Callable[[Any, Exchange], Awaitable[ExtensionSubscription]],
    ]:
        """Register an async function `(requested, exchange)` for a field of the filter of `subscriptions/listen`.

        The function checks the value that the client requests, and returns an `ExtensionSubscription`. The server
        acknowledges its accepted value, and then sends its notifications. Only clients of stateless protocol versions
        send subscription filters.

        Args:
            name: The JSON name of the field.
        """
        check_type("the name of the field", name, str, "a string")
        if name in SubscriptionFilter.__struct_encode_fields__:
            raise ValueError(f"{name!r} is a field of the protocol. Choose another name")

        def register(
            function: Callable[[Any, Exchange], Awaitable[ExtensionSubscription]],
        ) -> Callable[[Any, Exchange], Awaitable[ExtensionSubscription]]:
            self._check_unused(name)
            self._check_new(name, self._parts.subscriptions)
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{name}: the function must be `async def`")
            self._parts.subscriptions[name] = SubscriptionFunction(function, self._requires_client)
            return function

        return register

    def add_result_type(
        self, method: str, result_type: str, struct: type[Result], on_client: ResultHook | None = None
    ) -> None:
        """Add a result type to a protocol method. It is available only in stateless protocol versions.

        If the client declares the extension, middleware of the extension can return a `struct` for this method. The
        server adds the `resultType` to the response.

        Args:
            method: The method of the protocol, such as "tools/call".
            result_type: The `resultType` in the response, such as "task".
            struct: The type of the result.
            on_client: An async function `(result, client)` that returns the final result of the request. The client
                calls it when a server sends this result type. It gets an `ExtensionClient`.
        """
        row = METHODS.get(method)
        if row is None or row.result is None or row.sender == "server" or issubclass(row.params, PaginatedParams):
            raise ValueError(
                f"cannot add a result type to {method!r}. Choose a client request that does not return a list"
            )
        if result_type in _CORE_RESULT_TYPES or not result_type:
            raise ValueError(f"invalid result type {result_type!r}: it is empty, or the protocol already defines it")
        _check_hint(method, "struct", struct, Result)
        if on_client is not None and not inspect.iscoroutinefunction(on_client):
            raise TypeError("on_client must be an async function that takes the result and the client")
        if issubclass(struct, row.result | InputRequiredResult) or issubclass(row.result, struct):
            raise ValueError(f"cannot add the result type {result_type!r}: {method} already returns {struct.__name__}")
        self._check_unused(f"the result type {result_type!r} of {method}")
        for added in self._parts.result_types.values():
            if added.method == method and (added.name == result_type or added.struct is struct):
                raise ValueError(
                    f"{self._identifier} has already added the result type {added.name!r} ({added.struct.__name__}) to "
                    f"{method}"
                )
        self._parts.result_types[method, result_type] = AddedResultType(self, method, result_type, struct, on_client)

    def middleware(self, function: Middleware) -> Middleware:
        """Add middleware to the server: an `async def middleware(exchange, call_next)` that wraps every request.

        The middleware of the server itself wraps the middleware of extensions. It sees each request first, and each
        result last.
        """
        self._check_unused("middleware")
        self._parts.middleware.append(validate_middleware(function))
        return function

    def client_middleware(self, function: Middleware) -> Middleware:
        """Add middleware to the client: an `async def middleware(exchange, call_next)` that wraps every request.

        The middleware of the client itself wraps the middleware of extensions.
        """
        self._check_unused("middleware")
        self._parts.client_middleware.append(validate_middleware(function))
        return function

    def lifespan(self, function: ExtensionLifespan) -> ExtensionLifespan:
        """Register a function without parameters that returns an async context manager.

        The server opens the context manager after its own lifespan has started, and closes it before its own lifespan
        ends.
        """
        self._check_unused("a lifespan")
        if self._parts.lifespan is not None:
            raise ValueError(f"the extension {self._identifier} already has a lifespan")
        if not callable(function) or inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                f"the lifespan of {self._identifier} must be a function that returns an async context manager. "
                "Decorate it with contextlib.asynccontextmanager"
            )
        self._parts.lifespan = function
        return function

    def get_client_settings(self, exchange: Exchange) -> Mapping[str, Any] | None:
        """Return the client's settings for this extension. Return None if the client did not declare the extension.

        The result is also None if the client did not send the request itself. For example, a mounted server gets its
        requests from another server, and `ctx.read_resource` sends a request from a function.
        """
        if isinstance(exchange, IncomingExchange) and (exchange.is_forwarded or exchange.parent is not None):
            return None
        settings = (exchange.caller.client_capabilities.extensions or {}).get(self._identifier)
        return settings if isinstance(settings, dict) else None

    def _check_unused(self, addition: str) -> None:
        if self._is_used:
            raise RuntimeError(
                f"cannot add {addition} to {self._identifier}, because a server or a client already uses this "
                "extension. Add it before you create the server or the client"
            )

    def _check_new(self, name: str, handlers: Mapping[str, object]) -> None:
        if name in handlers:
            raise ValueError(f"the extension {self._identifier} already has {name!r}")


def get_parts(extension: Extension) -> ExtensionParts:
    """Return everything that was registered on an extension."""
    return extension._parts  # pyright: ignore[reportPrivateUsage]


def add_method(
    extension: Extension,
    row: Method,
    function: Callable[..., Awaitable[Any]] | None = None,
    *,
    requires_client: bool = False,
) -> ExtensionMethod[Any, Any]:
    """Add a request to an extension. Without a function, only clients can use the extension."""
    get_parts(extension).methods[row.name] = RequestFunction(row, function, requires_client)
    return ExtensionMethod(extension, row)


def get_row(method: ExtensionMethod[Any, Any]) -> Method:
    """Return the names, types and protocol versions of an extension's request."""
    return method._row  # pyright: ignore[reportPrivateUsage]


def check_new_extension(
    extension: Extension,
    user: str,
    declared: Collection[str],
    added_names: Collection[str],
    used_names: Collection[str],
    result_types: Mapping[tuple[str, str], AddedResultType],
) -> None:
    """Raise ValueError if an extension adds something that the server or client already has.

    `user` is "server" or "client". The other parameters are the identifiers that it declares, the names that the
    extension adds, the names that are in use, and the added result types.
    """
    identifier = extension.identifier
    if identifier in declared:
        raise ValueError(f"the {user} already declares the extension {identifier!r}")
    for name in added_names:
        if name in used_names:
            raise ValueError(f"the extension {identifier!r} adds {name!r}, which the {user} already has")
    for key, added in get_parts(extension).result_types.items():
        if key in result_types:
            raise ValueError(
                f"the extension {identifier!r} adds the result type {added.name!r} to {added.method}, but "
                f"{result_types[key].extension.identifier!r} has added this result type"
            )


def freeze_extension(extension: Extension) -> None:
    """From now on, refuse additions to this extension, because a server or a client uses it."""
    extension._is_used = True  # pyright: ignore[reportPrivateUsage]


def check_extensions(extensions: Any) -> list[Extension]:
    """Return the value of `extensions=` as a list. Raise an error if it is invalid, or if two identifiers are equal."""
    if isinstance(extensions, Extension):
        raise TypeError("extensions= must be a list. Write extensions=[...]")
    extension_list: list[Any] = list(extensions)
    identifiers: set[str] = set()
    for extension in extension_list:
        if not isinstance(extension, Extension):
            raise TypeError(f"extensions= must be a list of Extension objects, not {clip(repr(extension))}")
        if extension.identifier in identifiers:
            raise ValueError(f"extensions= has two extensions with the identifier {extension.identifier!r}")
        identifiers.add(extension.identifier)
    return extension_list


def _check_identifier(identifier: Any) -> str:
    check_type("the identifier", identifier, str, "a string")
    prefix, _, name = str(identifier).rpartition("/")
    if not prefix or not name or not is_valid_key(identifier):
        raise ValueError(
            f"invalid extension identifier {identifier!r}: it must have the form prefix/name, for example "
            "'com.example/hello'"
        )
    return identifier


def _check_settings(option: str, settings: Any) -> None:
    check_type(option, settings, Mapping, "a dict")
    _check_json(option, settings)


def _check_json(subject: str, value: Any) -> None:
    match value:
        case Mapping():
            members: Mapping[Any, Any] = value
            for name, member in members.items():
                if not isinstance(name, str):
                    raise TypeError(f"{subject} must have strings as keys, not {describe_value(name)}")
                _check_json(f"{clip(name)!r} in {subject}", member)
        case list() | tuple():
            items: Sequence[Any] = value
            for item in items:
                _check_json(subject, item)
        case float() if not math.isfinite(value):
            raise ValueError(f"{subject} must be a finite number, because JSON has no {value}")
        case None | str() | int() | float():
            return
        case _:
            raise TypeError(f"{subject} must be a JSON value, not {describe_value(value)}")


def _check_method_name(name: Any) -> None:
    # `name` is callable if the decorator is used without parentheses.
    if not isinstance(name, str):
        raise TypeError(f"a method must have a name, such as 'com.example/hello/say', not {clip(repr(name))}")
    if len(name) > _MAX_METHOD_CHARS or _METHOD_NAME.fullmatch(name) is None:
        raise ValueError(
            f"invalid method {clip(name)!r}: it must consist of letters, digits, '_', '.', '$' and '-', with '/' "
            "between its parts"
        )
    if name in METHODS or name == "initialized":
        raise ValueError(f"{name!r} is a method of the protocol. Choose another name")


def _read_hints(function: Any, name: str, parameter_count: int, *, is_async: bool = True) -> list[Any]:
    """Return the type of a function's first parameter and the annotation of its return value."""
    if is_async and not inspect.iscoroutinefunction(function):
        raise TypeError(f"{name}: the function must be `async def`")
    expected = "(params, exchange)" if parameter_count == 2 else "(params)"
    try:
        signature = inspect.signature(function)
        signature.bind(*[None] * parameter_count)
        hints = typing.get_type_hints(function)
    except NameError as exc:
        raise TypeError(f"{name}: the annotation {exc.name} is unknown. Define it at the top of the module") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name}: the function must take {expected}") from None
    parameter = next(iter(signature.parameters))
    return [_check_hint(name, f"parameter {parameter!r}", hints.get(parameter), Params), hints.get("return")]


def _check_hint(name: str, subject: str, hint: Any, base: type[Any]) -> Any:
    if not isinstance(hint, type) or not issubclass(hint, base):
        actual = "nothing" if hint is None else clip(getattr(hint, "__name__", repr(hint)))
        raise TypeError(f"{name}: the {subject} must be a subclass of {base.__name__}, not {actual}")
    return hint


def _check_name_parameter(name: str, params_type: type[Params], name_parameter: str) -> None:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(params_type)}
    if fields.get(name_parameter) is not str:
        raise ValueError(
            f"{name}: name_parameter= must be the JSON name of a parameter of type str, not {name_parameter!r}"
        )

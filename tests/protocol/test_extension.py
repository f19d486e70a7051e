"""Test that mistakes in the definition of an extension are reported when it is defined."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import CallToolResult, Client, Server
from dovetail.extensions import CacheableResult, Extension, ExtensionMethod, Params, Result
from dovetail.middleware import CallNext, Exchange
from dovetail.protocol.interfaces.extension import get_parts, get_row
from dovetail.wire.revisions import REVISIONS

HELLO, SAY = "com.example/hello", "com.example/hello/say"


class KeyParams(Params):
    item_key: str
    count: int = 0


class KeyResult(Result):
    text: str


async def say(params: KeyParams, exchange: Exchange) -> KeyResult:
    return KeyResult(text=params.item_key)


@pytest.mark.parametrize(
    "identifier", ["hello", "/hello", "com.example/", "com.example/a/b", "com..example/a", "", " /a"]
)
def test_an_identifier_needs_a_prefix_and_a_name(identifier: str) -> None:
    with pytest.raises(ValueError, match="identifier"):
        Extension(identifier)


@pytest.mark.parametrize("options", [{"settings": []}, {"client_settings": "a"}, {"requires_client": 1}])
def test_options_have_their_types(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Extension(HELLO, **options)


def test_an_identifier_is_a_string() -> None:
    with pytest.raises(TypeError):
        Extension(5)  # pyright: ignore[reportArgumentType]


def test_a_method_has_a_row_of_the_method_table() -> None:
    extension = Extension(HELLO, settings={"a": 1}, client_settings={"b": 2})
    method = extension.method(SAY, since="2025-06-18", until="2026-07-28", name_parameter="itemKey")(say)
    assert isinstance(method, ExtensionMethod)
    row = get_row(method)
    assert (method.name, method.extension) == (SAY, extension)
    assert get_parts(extension).methods[SAY].function is say
    assert (row.params, row.result, row.extension) == (KeyParams, KeyResult, HELLO)
    assert [revision for revision in REVISIONS if row.exists_in(revision)] == [
        "2025-06-18",
        "2025-11-25",
        "draft",
    ]
    assert (extension.identifier, extension.settings, extension.client_settings) == (HELLO, {"a": 1}, {"b": 2})
    assert HELLO in repr(extension)
    assert SAY in repr(method)


def test_a_bound_method_can_handle_a_request() -> None:
    class Greeter:
        async def say(self, params: KeyParams, exchange: Exchange) -> KeyResult:
            return KeyResult(text=params.item_key)

    assert get_row(Extension(HELLO).method(SAY)(Greeter().say)).params is KeyParams


@pytest.mark.parametrize("name", ["tools/call", "ping", "notifications/progress", "roots/list", "initialized"])
def test_a_method_of_the_protocol_cannot_be_replaced(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Extension(HELLO).method(name)


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a\nb", "/a", "a//b", "ü", "a/" * 200 + "a"])
def test_a_name_is_safe_in_a_header_and_in_json(name: str) -> None:
    with pytest.raises(ValueError, match="invalid method"):
        Extension(HELLO).method(name)


def test_a_decorator_needs_a_name() -> None:
    with pytest.raises(TypeError):
        Extension(HELLO).method(say)  # pyright: ignore[reportArgumentType]


def test_versions_must_exist() -> None:
    for options in ({"since": "2020-01-01"}, {"until": "never"}, {"until": "2025-06-18", "since": "2025-11-25"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Extension(HELLO).method(SAY, **options)


async def untyped(params, exchange):  # type: ignore[no-untyped-def]
    raise NotImplementedError


async def wrong_params(params: dict[str, Any], exchange: Exchange) -> KeyResult:
    raise NotImplementedError


async def wrong_result(params: KeyParams, exchange: Exchange) -> str:
    raise NotImplementedError


async def no_result(params: KeyParams, exchange: Exchange) -> None:
    raise NotImplementedError


async def one_parameter(params: KeyParams) -> KeyResult:
    raise NotImplementedError


async def unknown_annotation(params: "Missing", exchange: Exchange) -> KeyResult:  # type: ignore[name-defined] # noqa: F821
    raise NotImplementedError


def not_async(params: KeyParams, exchange: Exchange) -> KeyResult:
    raise NotImplementedError


@pytest.mark.parametrize(
    "function", [untyped, wrong_params, wrong_result, no_result, one_parameter, unknown_annotation, not_async, 5]
)
def test_a_function_needs_annotations(function: Any) -> None:
    with pytest.raises(TypeError, match=SAY):
        Extension(HELLO).method(SAY)(function)


@pytest.mark.parametrize("name_parameter", ["item_key", "count", "none"])
def test_a_name_parameter_is_a_text_by_its_name_in_json(name_parameter: str) -> None:
    with pytest.raises(ValueError, match="name_parameter"):
        Extension(HELLO).method(SAY, name_parameter=name_parameter)(say)


def test_a_cacheable_method_has_a_cacheable_result() -> None:
    class Cached(CacheableResult):
        text: str

    async def cached(params: KeyParams, exchange: Exchange) -> Cached:
        raise NotImplementedError

    assert get_row(Extension(HELLO).method(SAY, is_cacheable=True)(cached)).is_cacheable
    with pytest.raises(TypeError, match="CacheableResult"):
        Extension(HELLO).method(SAY, is_cacheable=True)(say)


async def heard(params: KeyParams, exchange: Exchange) -> None: ...


def received(params: KeyParams) -> None: ...


def test_notifications_need_a_prefix_and_annotations() -> None:
    extension = Extension(HELLO)
    for decorator in (extension.notification, extension.client_notification):
        with pytest.raises(ValueError, match="notifications/"):
            decorator("com.example/heard")
    for function in (received, untyped, one_parameter):
        with pytest.raises(TypeError):
            extension.notification("notifications/heard")(function)
    for function in (heard, wrong_params):
        with pytest.raises(TypeError):
            extension.client_notification("notifications/received")(function)
    assert extension.notification("notifications/heard")(heard) is heard
    assert extension.client_notification("notifications/received")(received) is received


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    yield


async def middleware(exchange: Exchange, call_next: CallNext) -> object:
    return await call_next(exchange)


ADDITIONS: list[Callable[[Extension], object]] = [
    lambda extension: extension.method(SAY)(say),
    lambda extension: extension.notification("notifications/heard")(heard),
    lambda extension: extension.client_notification("notifications/received")(received),
    lambda extension: extension.add_result_type("tools/call", "later", KeyResult),
    lambda extension: extension.lifespan(lifespan),
]


@pytest.mark.parametrize("add", ADDITIONS)
def test_nothing_is_defined_twice(add: Callable[[Extension], object]) -> None:
    extension = Extension(HELLO)
    add(extension)
    with pytest.raises(ValueError, match=HELLO):
        add(extension)


@pytest.mark.parametrize(
    "add",
    [
        *ADDITIONS,
        lambda extension: extension.middleware(middleware),
        lambda extension: extension.client_middleware(middleware),
    ],
)
@pytest.mark.parametrize(
    "use", [lambda it: Server("a", extensions=[it]), lambda it: Client(Server("a"), extensions=[it])]
)
def test_an_extension_in_use_cannot_change(add: Callable[[Extension], object], use: Callable[[Any], object]) -> None:
    extension = Extension(HELLO)
    use(extension)
    with pytest.raises(RuntimeError, match=HELLO):
        add(extension)


@pytest.mark.parametrize(
    ("method", "result_type"),
    [
        ("none/such", "later"),
        ("roots/list", "later"),
        ("notifications/progress", "later"),
        ("tools/call", "complete"),
        ("tools/call", "input_required"),
        ("tools/call", ""),
    ],
)
def test_a_result_type_is_new_and_belongs_to_a_request(method: str, result_type: str) -> None:
    with pytest.raises(ValueError, match="result type"):
        Extension(HELLO).add_result_type(method, result_type, KeyResult)


class LaterCallResult(CallToolResult):
    ticket: str = ""


@pytest.mark.parametrize("struct", [CallToolResult, LaterCallResult, Result])
def test_a_result_type_differs_from_the_results_of_its_method(struct: type[Result]) -> None:
    with pytest.raises(ValueError, match="later"):
        Extension(HELLO).add_result_type("tools/call", "later", struct)


def test_each_result_type_has_its_own_struct() -> None:
    extension = Extension(HELLO)
    extension.add_result_type("tools/call", "later", KeyResult)
    extension.add_result_type("resources/read", "later", KeyResult)
    with pytest.raises(ValueError, match="later"):
        extension.add_result_type("tools/call", "never", KeyResult)


def test_names_of_different_kinds_do_not_collide() -> None:
    extension = Extension(HELLO)
    extension.method("middleware")(say)
    extension.middleware(middleware)
    extension.notification("notifications/both")(heard)
    extension.client_notification("notifications/both")(received)


def test_a_result_type_has_a_struct_and_an_async_hook() -> None:
    with pytest.raises(TypeError):
        Extension(HELLO).add_result_type("tools/call", "later", dict)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        Extension(HELLO).add_result_type("tools/call", "later", KeyResult, lambda result, client: None)  # pyright: ignore[reportArgumentType]


def test_middleware_and_lifespan_are_checked() -> None:
    extension = Extension(HELLO)
    for add in (extension.middleware, extension.client_middleware):
        with pytest.raises(TypeError):
            add(lambda exchange: None)  # type: ignore[arg-type, misc] # pyright: ignore[reportArgumentType]
    for function in (say, 5, lifespan.__wrapped__):  # type: ignore[attr-defined] # pyright: ignore[reportFunctionMemberAccess]
        with pytest.raises(TypeError, match="lifespan"):
            extension.lifespan(function)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "use", [lambda value: Server("a", extensions=value), lambda value: Client(Server("a"), extensions=value)]
)
def test_extensions_are_a_list_without_repetitions(use: Callable[[Any], object]) -> None:
    extension = Extension(HELLO)
    for value in (extension, [5], ["com.example/hello"]):
        with pytest.raises(TypeError, match="extensions="):
            use(value)
    with pytest.raises(ValueError, match=HELLO):
        use([extension, Extension(HELLO)])


@pytest.mark.parametrize("option", ["settings", "client_settings"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"a": object()}, TypeError),
        ({"a": {1, 2}}, TypeError),
        ({"a": b"bytes"}, TypeError),
        ({"a": [{"b": object()}]}, TypeError),
        ({1: "a"}, TypeError),
        ({"a": {1: "b"}}, TypeError),
        ({"a": float("nan")}, ValueError),
    ],
)
def test_settings_must_be_json(option: str, value: Any, error: type[Exception]) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(error) as caught:
        Extension("com.example/hello", **options)
    assert f"{option}=" in str(caught.value)


def test_settings_can_be_any_json() -> None:
    settings: dict[str, Any] = {"a": [1, 2.5, "b", None, True, {"c": ("d",)}]}
    assert Extension("com.example/hello", settings=settings).settings == settings

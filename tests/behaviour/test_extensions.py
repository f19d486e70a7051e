"""Test that a server answers the methods and notifications of its extensions like those of the protocol."""

import asyncio
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import expect_error
from dovetail import Server, ServerLimits
from dovetail.errors import InvalidParams
from dovetail.extensions import Extension, Params, Result, WireStruct
from dovetail.middleware import CallNext, Exchange
from support.driver import STATELESS, Peer, connect

HELLO = "com.example/hello"
SAY = "com.example/hello/say"
DECLARED = {"extensions": {HELLO: {"volume": 3}}}


class Name(WireStruct):
    first_name: str


class HelloParams(Params):
    name: Name


class HelloResult(Result):
    greeting_text: str


class KeyParams(Params):
    item_key: str


class HeardParams(Params):
    listener_count: int


def hello(**options: Any) -> Extension:
    extension = Extension(HELLO, settings={"languages": ["en"]}, **options)

    @extension.method(SAY)
    async def say(params: HelloParams, exchange: Exchange) -> HelloResult:
        return HelloResult(greeting_text=f"Hello {params.name.first_name}")

    return extension


async def declared_extensions(peer: Peer) -> Any:
    """Return the extensions that the server declares."""
    result = peer.initialize_result if peer.revision != STATELESS else await peer.request("server/discover")
    return result["capabilities"].get("extensions")


@requirement("ext.methods")
async def test_a_server_declares_and_answers_its_extensions(revision: str, transport: str) -> None:
    async with connect(Server("greeter", extensions=[hello()]), transport, revision) as peer:
        assert await declared_extensions(peer) == {HELLO: {"languages": ["en"]}}
        result = await peer.request(SAY, {"name": {"firstName": "Ada"}})
        assert result["greetingText"] == "Hello Ada"
        error = await expect_error(peer.request(SAY, {"name": {"firstName": 5}}))
        assert (error.code, error.data) == (-32602, {"field": "name.firstName"})


@requirement("ext.versions")
async def test_a_method_exists_only_in_its_versions(revision: str, transport: str) -> None:
    extension = Extension(HELLO)

    @extension.method(SAY, since="2025-06-18", until=STATELESS)
    async def say(params: Params, exchange: Exchange) -> HelloResult:
        return HelloResult(greeting_text="Hello")

    async with connect(Server("greeter", extensions=[extension]), transport, revision) as peer:
        if revision in ("2025-06-18", "2025-11-25", "draft"):
            assert await declared_extensions(peer) == {HELLO: {}}
            assert (await peer.request(SAY))["greetingText"] == "Hello"
        else:
            assert await declared_extensions(peer) == ({HELLO: {}} if revision == STATELESS else None)
            assert (await expect_error(peer.request(SAY))).code == -32601


@requirement("ext.unknown")
async def test_a_method_of_an_extension_that_the_server_lacks_is_unknown(revision: str, transport: str) -> None:
    async with connect(Server("greeter"), transport, revision, capabilities=DECLARED) as peer:
        error = await expect_error(peer.request(SAY, {"name": {"firstName": "Ada"}}))
        assert error.code == -32601
        if transport == "http" and revision == STATELESS:
            assert error.status_code == 404


@requirement("ext.client-required")
async def test_a_client_must_declare_a_required_extension(revision: str, transport: str) -> None:
    app = Server("greeter", extensions=[hello(requires_client=True)])
    async with connect(app, transport, revision) as peer:
        error = await expect_error(peer.request(SAY, {"name": "wrong"}))
        assert error.data == {"requiredCapabilities": {"extensions": {HELLO: {}}}}
        assert error.code == (-32021 if revision == STATELESS else -32602)
        if transport == "http" and revision == STATELESS:
            assert error.status_code == 400
    async with connect(app, transport, revision, capabilities=DECLARED) as peer:
        assert (await peer.request(SAY, {"name": {"firstName": "Ada"}}))["greetingText"] == "Hello Ada"


@requirement("ext.each-request")
async def test_a_declaration_holds_for_one_request(revision: str, transport: str) -> None:
    app = Server("greeter", extensions=[hello(requires_client=True)])
    declaration = {"io.modelcontextprotocol/clientCapabilities": DECLARED}
    params = {"name": {"firstName": "Ada"}}
    async with connect(app, transport, revision) as peer:
        assert (await peer.request(SAY, params, meta=declaration))["greetingText"] == "Hello Ada"
        assert (await expect_error(peer.request(SAY, params))).code == -32021


@requirement("ext.client-required")
@pytest.mark.parametrize("value", [None, True, [], "yes"])
async def test_a_declaration_must_be_an_object(value: Any) -> None:
    app = Server("greeter", extensions=[hello(requires_client=True)])
    async with connect(app, capabilities={"extensions": {HELLO: value}}) as peer:
        assert (await expect_error(peer.request(SAY, {"name": {"firstName": "Ada"}}))).code == -32021


@requirement("ext.client-required")
async def test_a_function_can_read_the_settings_of_the_client(revision: str, transport: str) -> None:
    extension = Extension(HELLO)

    @extension.method(SAY)
    async def say(params: Params, exchange: Exchange) -> HelloResult:
        return HelloResult(greeting_text=repr(extension.get_client_settings(exchange)))

    app = Server("greeter", extensions=[extension])
    for capabilities, settings in ((DECLARED, {"volume": 3}), ({}, None)):
        async with connect(app, transport, revision, capabilities=capabilities) as peer:
            assert (await peer.request(SAY))["greetingText"] == repr(settings)


@requirement("ext.name-header")
async def test_a_name_parameter_is_compared_with_the_header(revision: str, transport: str) -> None:
    extension = Extension(HELLO)

    @extension.method(SAY, name_parameter="itemKey")
    async def say(params: KeyParams, exchange: Exchange) -> HelloResult:
        return HelloResult(greeting_text=params.item_key)

    async with connect(Server("greeter", extensions=[extension]), transport, revision) as peer:
        # Some clients do not send the header for methods of extensions.
        for headers in ({"mcp-name": "a"}, {}):
            result = await peer.request(SAY, {"itemKey": "a"}, headers=headers)
            assert result["greetingText"] == "a"
        error = await expect_error(peer.request(SAY, {"itemKey": "a"}, headers={"mcp-name": "b"}))
        assert (error.code, error.status_code) == (-32020, 400)


@requirement("ext.server-notifications")
async def test_a_method_can_send_notifications(revision: str, transport: str) -> None:
    extension = Extension(HELLO)

    @extension.method(SAY)
    async def say(params: Params, exchange: Exchange) -> HelloResult:
        await exchange.notify("notifications/com.example/heard", HeardParams(listener_count=2))
        return HelloResult(greeting_text="Hello")

    async with connect(Server("greeter", extensions=[extension]), transport, revision) as peer:
        await peer.request(SAY)
        assert await peer.next_notification("notifications/com.example/heard") == {"listenerCount": 2}


@requirement("ext.client-notifications")
async def test_notifications_of_the_client_reach_the_extension(revision: str, transport: str) -> None:
    extension = Extension(HELLO)
    counts: list[tuple[int, str]] = []
    is_received = asyncio.Event()

    @extension.notification("notifications/com.example/heard")
    async def heard(params: HeardParams, exchange: Exchange) -> None:
        counts.append((params.listener_count, exchange.caller.protocol_version))
        is_received.set()

    async with connect(Server("greeter", extensions=[extension]), transport, revision) as peer:
        await peer.notify("notifications/com.example/heard", {"listenerCount": "many"})  # ignored and logged
        await peer.notify("notifications/com.example/heard", {"listenerCount": 5})
        async with asyncio.timeout(10):
            await is_received.wait()
    assert counts == [(5, revision)]


@requirement("ext.like-any-request")
async def test_middleware_wraps_the_methods_of_extensions(revision: str, transport: str) -> None:
    """The middleware of the server is outside that of the extension."""
    extension = hello()
    steps: list[str] = []

    @extension.middleware
    async def inside(exchange: Exchange, call_next: CallNext) -> object:
        steps.append(f"inside {exchange.method}")
        return await call_next(exchange)

    async def outside(exchange: Exchange, call_next: CallNext) -> object:
        steps.append(f"outside {exchange.method}")
        if exchange.params.get("name") == "refused":
            raise InvalidParams("No.")
        return await call_next(exchange)

    app = Server("greeter", extensions=[extension], middleware=[outside])
    async with connect(app, transport, revision) as peer:
        steps.clear()
        await peer.request(SAY, {"name": {"firstName": "Ada"}})
        assert steps == [f"outside {SAY}", f"inside {SAY}"]
        steps.clear()
        await expect_error(peer.request(SAY, {"name": "refused"}))
        assert steps == [f"outside {SAY}"]


@requirement("ext.like-any-request")
async def test_limits_apply_to_the_methods_of_extensions(revision: str, transport: str) -> None:
    extension = Extension(HELLO)
    is_running, may_end = asyncio.Event(), asyncio.Event()

    @extension.method(SAY)
    async def say(params: Params, exchange: Exchange) -> HelloResult:
        is_running.set()
        await may_end.wait()
        return HelloResult(greeting_text="Hello")

    app = Server("greeter", extensions=[extension], limits=ServerLimits(max_calls=1))
    async with connect(app, transport, revision) as peer:
        pending = peer.start(SAY)
        async with asyncio.timeout(10):
            await is_running.wait()
        assert (await expect_error(peer.request(SAY))).code == 429
        may_end.set()
        assert (await pending)["greetingText"] == "Hello"


@requirement("ext.like-any-request")
async def test_deadlines_apply_to_the_methods_of_extensions(revision: str, transport: str) -> None:
    extension = Extension(HELLO)
    is_cancelled = asyncio.Event()

    @extension.method(SAY)
    async def say(params: Params, exchange: Exchange) -> HelloResult:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()
        return HelloResult(greeting_text="never")

    app = Server("greeter", extensions=[extension], limits=ServerLimits(call_timeout=0.05))
    async with connect(app, transport, revision) as peer:
        assert (await expect_error(peer.request(SAY))).code == -32603
        assert is_cancelled.is_set()


@requirement("ext.like-any-request")
async def test_a_failing_method_is_masked(revision: str, transport: str, caplog: pytest.LogCaptureFixture) -> None:
    extension = Extension(HELLO)

    @extension.method(SAY)
    async def say(params: Params, exchange: Exchange) -> HelloResult:
        if "wrong" in exchange.params:
            return Result()  # pyright: ignore[reportReturnType]
        raise RuntimeError("the secret")

    async with connect(Server("greeter", extensions=[extension]), transport, revision) as peer:
        for params in ({}, {"wrong": True}):
            error = await expect_error(peer.request(SAY, params))
            assert error.code == -32603
            assert "secret" not in error.message
    assert any(record.exc_info and "the secret" in str(record.exc_info[1]) for record in caplog.records)

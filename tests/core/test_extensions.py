"""Test an extension with a method, a notification and middleware."""

from typing import Any

import pytest

from core.library_server import HelloParams, hello, say_hello
from dovetail import Client, Server
from dovetail.errors import NotSupported, RemoteError


async def test_a_method_of_an_extension(client: Client) -> None:
    assert (await client.request(say_hello, HelloParams(first_name="Ada"))).greeting == "Hello, Ada!"
    assert client.server_capabilities.extensions == {"com.example/hello": {"languages": ["en"]}}
    with pytest.raises(RemoteError) as caught:
        await client.request("com.example/hello/say", {"firstName": 5})
    assert caught.value.code == -32602


async def test_a_notification_of_an_extension(target: Server | str, era: str) -> None:
    messages: list[Any] = []
    async with Client(
        target, protocol_version=era, extensions=[hello], notification_handler=lambda *message: messages.append(message)
    ) as client:
        await client.request(say_hello, HelloParams(first_name="Ada"))
        await client.ping()
    assert messages


async def test_a_server_without_the_extension() -> None:
    app = Server("s")
    async with Client(app, extensions=[hello]) as client:
        with pytest.raises(NotSupported):
            await client.request(say_hello, HelloParams(first_name="Ada"))
    await app.stop()

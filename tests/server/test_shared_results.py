"""Test large results in a cluster: a link works at every worker."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import LargeResultSettings, Server
from dovetail.auth import Principal
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.errors import NotFound, RemoteError
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.testing import connect
from dovetail.types import CallToolResult

KEYS = ["a key with enough bytes"]


class FailingBackend(MemoryBackend):
    """A back end that can be away."""

    is_away = False

    async def read(self, name: str) -> Any:
        if self.is_away:
            raise SharedStateUnavailable("away")
        return await super().read(name)

    async def write(self, *args: Any, **options: Any) -> Any:
        if self.is_away:
            raise SharedStateUnavailable("away")
        return await super().write(*args, **options)


def create_server(backend: MemoryBackend, *, is_mounted: bool, **settings: Any) -> Server:
    limits = LargeResultSettings(**{"max_text_chars": 100, "preview_chars": 10} | settings)
    options: dict[str, Any] = {"cluster": backend, "secret_keys": KEYS}
    inner = Server("inner", large_results=limits, **({} if is_mounted else options))

    @inner.tool
    def long(text: str) -> str:
        return text * 200

    if not is_mounted:
        return inner
    outer = Server("outer", **options)
    outer.mount(inner)
    return outer


@asynccontextmanager
async def run_workers(*, is_mounted: bool = False, **settings: Any) -> AsyncGenerator[tuple[Server, Server, Any]]:
    backend = FailingBackend()
    first = create_server(backend, is_mounted=is_mounted, **settings)
    second = create_server(MemoryBackend(backend), is_mounted=is_mounted, **settings)
    await first.start()
    await second.start()
    try:
        yield first, second, backend
    finally:
        await second.stop()
        await first.stop()


async def call(app: Server, text: str = "x", principal: Principal | None = None) -> CallToolResult:
    async with connect(app, principal=principal) as client:
        return await client.call_tool("long", {"text": text})


async def read(app: Server, uri: str, principal: Principal | None = None) -> str | None:
    async with connect(app, principal=principal) as client:
        return (await client.read_resource(uri)).contents[0].text


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_only_the_caller_can_read_its_result_at_another_worker(is_mounted: bool) -> None:
    ada, bob = Principal("ada", issuer="https://a.example", scopes="read"), Principal("bob")
    async with run_workers(is_mounted=is_mounted) as (first, second, _):
        link: Any = (await call(first, principal=ada)).content[1]
        assert await read(second, link.uri, ada) == "x" * 200
        for other in (bob, None):
            with pytest.raises(NotFound):
                await read(second, link.uri, other)


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_a_link_works_at_another_worker(is_mounted: bool) -> None:
    async with run_workers(is_mounted=is_mounted) as (first, second, _):
        link: Any = (await call(first)).content[1]
        assert await read(second, link.uri) == "x" * 200
        assert await read(first, link.uri) == "x" * 200


async def test_a_result_is_sent_in_full_if_it_cannot_be_stored() -> None:
    async with run_workers() as (first, _, backend):
        backend.is_away = True
        (block,) = (await call(first)).content
        assert block.text == "x" * 200


async def test_a_link_can_be_read_again_after_the_state_was_away() -> None:
    async with run_workers() as (first, _, backend):
        link: Any = (await call(first)).content[1]
        backend.is_away = True
        with pytest.raises(RemoteError):
            await read(first, link.uri)
        backend.is_away = False
        assert await read(first, link.uri) == "x" * 200


async def test_the_oldest_parts_of_a_full_store_are_deleted_everywhere() -> None:
    async with run_workers(max_stored_chars=500) as (first, second, _):
        links: list[Any] = [(await call(first, text)).content[1] for text in "abc"]
        with pytest.raises(NotFound):
            await read(second, links[0].uri)
        assert await read(second, links[2].uri) == "c" * 200

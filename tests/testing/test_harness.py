import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from dovetail import Client, Context, RemoteError, Server, testing
from dovetail.auth import (
    AuthorizationServer,
    BearerAuth,
    ClientCredentials,
    Principal,
    RegisteredClient,
    StaticTokenVerifier,
)
from dovetail.errors import Forbidden, InsufficientScope, Unauthorized
from support.calculator import app

TRANSPORTS = ["memory", "stdio", "http", "sse", "unix", "tcp"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
async def test_every_transport_in_every_revision(transport: Any, revision: str) -> None:
    if transport == "sse" and revision == "2026-07-28":
        return  # that transport had gone by then
    async with testing.connect(app, transport=transport, protocol_version=revision) as client:
        assert client.protocol_version == revision
        assert client.name == "calculator"
        assert await client.call("add", a=1, b=2) in (3, "3")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nothing_is_left(transport: Any) -> None:
    before = psutil.Process().num_fds()
    tasks = len(asyncio.all_tasks())
    for faults in (None, testing.Faults()):
        async with testing.connect(app, transport=transport, faults=faults) as client:
            await client.call("add", a=1, b=2)
    async with asyncio.timeout(5):
        while psutil.Process().num_fds() > before or len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not psutil.Process().children()


def test_without_await() -> None:
    with testing.connect_sync(app, transport="http", protocol_version="2025-11-25") as client:
        assert client.call("add", a=1, b=2) == 3


async def test_a_server_by_its_name() -> None:
    async with testing.connect("support.calculator:app") as client:
        assert await client.call("add", a=1, b=2) == 3


async def test_any_other_target_is_used_as_it_is() -> None:
    program = "from support.calculator import app; app.run()"
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"]
    async with testing.connect(command) as client:
        assert await client.call("add", a=1, b=2) == 3


async def test_an_address_for_someone_else() -> None:
    async with testing.serve(app, transport="http") as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        writer.write(b"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 4")
        writer.close()


async def test_a_server_with_its_authorization_server_at_a_known_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    origin = f"http://127.0.0.1:{port}"
    authority = AuthorizationServer(
        issuer=origin, clients=[RegisteredClient("nightly", client_secret="s3cret", scopes=["notes:read"])]
    )
    server = Server("notes", auth=authority.verifier())

    @server.tool(scopes=["notes:read"])
    def read(ctx: Context) -> str:
        return "" if ctx.principal is None else ctx.principal.subject

    @server.tool(scopes=["notes:write"])
    def write() -> None: ...

    login = ClientCredentials(client_id="nightly", client_secret="s3cret", issuer=origin)
    async with testing.serve(server, transport="http", port=port, fallback=authority) as url:
        assert url == f"{origin}/mcp"
        async with Client(url, auth=login) as client:
            assert await client.call("read") == "nightly"
            with pytest.raises(Forbidden):
                await client.call("write")


@pytest.mark.parametrize("options", [{"port": 9000}, {"fallback": app.asgi()}])
async def test_a_port_and_a_fallback_require_http(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="http"):
        async with testing.serve(app, transport="tcp", **options):
            pass


async def test_the_lifespan_ends_with_the_last_who_uses_it() -> None:
    lives: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        lives.append("in")
        yield
        lives.append("out")

    server = Server("alive", lifespan=lifespan)
    async with testing.connect(server, transport="http"):
        async with testing.connect(server, transport="tcp"):
            pass
        assert lives == ["in"]
    assert lives == ["in", "out"]


async def test_a_server_that_another_process_cannot_import_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden"):
        async with testing.connect(Server("hidden"), transport="stdio"):
            pass


async def test_a_transport_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"transport.*memory.*pigeon"):
        async with testing.connect(app, transport="pigeon"):  # pyright: ignore[reportArgumentType]
            pass


ADA = Principal("ada", scopes=["write"])


def guarded() -> Server:
    server = Server("guarded", auth=StaticTokenVerifier({"ada": ADA}))

    @server.tool(scopes=["write"])
    def who(ctx: Context) -> str:
        return "nobody" if ctx.principal is None else ctx.principal.subject

    return server


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("faults", [None, testing.Faults()])
async def test_a_caller_in_memory_who_is_somebody(revision: str, faults: Any) -> None:
    server = guarded()
    async with testing.connect(server, protocol_version=revision, faults=faults, principal=ADA) as client:
        assert client.name == "guarded"
        assert await client.call("who") == "ada"
    async with testing.connect(server, protocol_version=revision, principal="bob") as client:
        assert await client.list_tools() == []
        with pytest.raises(RemoteError, match="write") as caught:
            await client.call("who")
    assert caught.value.code == InsufficientScope.code


def test_somebody_without_await() -> None:
    with testing.connect_sync(guarded(), principal=ADA) as client:
        assert client.call("who") == "ada"


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_over_http_a_guarded_server_asks(transport: Any) -> None:
    async with testing.connect(guarded(), transport=transport, auth=BearerAuth("ada")) as client:
        assert await client.call("who") == "ada"
    with pytest.raises(Unauthorized):
        async with testing.connect(guarded(), transport=transport):
            pass
    with pytest.raises(ValueError, match="Bearer"):
        async with testing.connect(guarded(), transport=transport, principal=ADA):
            pass

"""Connect a client to a server for a test: over any transport, with any protocol version, with faults.

The transports are the real ones: uvicorn on a loopback socket, a process with its pipes, sockets in a folder of their
own. Nothing outlives the context.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias, get_args

import uvicorn

from dovetail.client.client import Client
from dovetail.client.sync_client import SyncClient, run_blocking
from dovetail.protocol.client_transport import ServerConnection
from dovetail.server.asgi_app import create_asgi_app, create_endpoint
from dovetail.server.server import Server, get_auth, get_dispatcher
from dovetail.testing.fault_proxy import insert_faults
from dovetail.testing.faults import Faults, get_plan
from dovetail.transports.http_server.uvicorn_server import bind_socket, create_uvicorn_config
from dovetail.transports.socket_server import serve_socket

Transport: TypeAlias = Literal["memory", "stdio", "http", "sse", "unix", "tcp"]

_STOP_TIMEOUT_S: Final = 2.0

# Finds the server again in a process of its own: by the name of its module, else by the file it is in.
_SERVER_SCRIPT: Final = """
import sys
name, path, variable, *sys.path[:] = sys.argv[1:]
import importlib, importlib.util
try:
    module = importlib.import_module(name)
    server = getattr(module, variable)
except (ImportError, AttributeError):
    spec = importlib.util.spec_from_file_location("dovetail_served", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["dovetail_served"] = module
    spec.loader.exec_module(module)
    server = getattr(module, variable)
server.run()
"""


@asynccontextmanager
async def connect(
    server: Any,
    *,
    transport: Transport = "memory",
    protocol_version: str | None = None,
    faults: Faults | None = None,
    principal: str | None = None,
    **options: Any,
) -> AsyncGenerator[Client]:
    """A client connected to a server while the context lasts; `options` are those of `Client`.

    server: a Server, "module:name" of one, or any target of a client, which is then used as it is.
    principal: who the caller is, in memory: a Principal(...) or a name. Over HTTP the server's `auth` asks for that.
    """
    async with (
        _serve_for_client(server, transport, faults, principal) as (target, defaults),
        Client(target, **_merge_options(defaults, protocol_version, options)) as client,
    ):
        yield client


@contextmanager
def connect_sync(
    server: Any,
    *,
    transport: Transport = "memory",
    protocol_version: str | None = None,
    faults: Faults | None = None,
    principal: str | None = None,
    **options: Any,
) -> Generator[SyncClient]:
    """As `connect`, for tests that do not await."""
    context = _serve_for_client(server, transport, faults, principal)
    target, defaults = run_blocking(_enter(context))
    try:
        with SyncClient(target, **_merge_options(defaults, protocol_version, options)) as client:
            yield client
    finally:
        run_blocking(_leave(context))


@asynccontextmanager
async def _serve_for_client(
    server: Any, transport: Transport, faults: Faults | None, principal: str | None
) -> AsyncGenerator[tuple[Any, dict[str, Any]]]:
    """Serve while the context lasts; the target for a client and the default options of that client."""
    resolved, defaults = resolve_server(server), dict[str, Any]()
    if transport == "sse":
        defaults["protocol_version"] = "handshake"
    if isinstance(resolved, Server):
        defaults["name"] = resolved.name
    target_server = server if principal is None else _with_principal(resolved, transport, principal)
    async with serve(target_server, transport=transport, faults=faults) as target:
        yield target, defaults


def _merge_options(defaults: dict[str, Any], protocol_version: str | None, options: dict[str, Any]) -> dict[str, Any]:
    return defaults | ({} if protocol_version is None else {"protocol_version": protocol_version}) | options


async def _enter(context: Any) -> Any:
    return await context.__aenter__()


async def _leave(context: Any) -> None:
    await context.__aexit__(None, None, None)


@asynccontextmanager
async def serve(server: Any, *, transport: Transport = "memory", faults: Faults | None = None) -> AsyncGenerator[Any]:
    """Serve while the context lasts; what a client is to connect to: a URL, a command, an address, the server."""
    if transport not in get_args(Transport):
        raise ValueError(f"transport must be one of {', '.join(get_args(Transport))}, not {transport!r}")
    resolved = resolve_server(server)
    async with AsyncExitStack() as stack:
        target, backend = resolved, None
        if isinstance(resolved, ServerWithPrincipal):
            await stack.enter_async_context(_run_lifespan(resolved.server))
        elif isinstance(resolved, Server):
            target, backend = await stack.enter_async_context(_start_server(resolved, transport))
        if faults is not None:
            target = await stack.enter_async_context(insert_faults(get_plan(faults), target, backend))
        yield target


def resolve_server(server: Any) -> Any:
    """The server that "module:name" names; anything else is what it is."""
    if isinstance(server, str) and ":" in server and "/" not in server and "\\" not in server:
        module, _, name = server.partition(":")
        return getattr(import_module(module), name)
    return server


class ServerWithPrincipal:
    """A server in memory whose caller is known to be somebody."""

    def __init__(self, server: Server, principal: str) -> None:
        self.server = server
        self.name = server.name
        self.start = server.start
        self.stop = server.stop
        self._principal = principal

    def open_connection(self, send: Callable[[bytes], None]) -> ServerConnection:
        """Open a connection on behalf of the principal."""
        return self.server.open_connection(send, principal=self._principal)


def _with_principal(server: Any, transport: str, principal: str) -> ServerWithPrincipal:
    if transport != "memory" or not isinstance(server, Server):
        raise ValueError(
            "principal= works only with a Server in memory. Over HTTP, pass auth=StaticTokenVerifier(...) to "
            "the server and auth=BearerAuth(...) to the client."
        )
    return ServerWithPrincipal(server, principal)


@asynccontextmanager
async def _start_server(server: Server, transport: Transport) -> AsyncGenerator[tuple[Any, Any]]:
    if transport == "stdio":
        yield _build_command(server), None
        return
    async with _run_lifespan(server):
        if transport == "memory":
            yield server, None
            return
        backend = HTTPBackend(server) if transport in ("http", "sse") else SocketBackend(server, transport)
        await backend.start()
        try:
            yield backend.address + ("/sse" if transport == "sse" else "/mcp" if transport == "http" else ""), backend
        finally:
            await backend.stop()
            backend.close()


@asynccontextmanager
async def _run_lifespan(server: Server) -> AsyncGenerator[None]:
    """A started server. It may be served several times at once; its lifespan ends with the last."""
    user = object()
    await server.start(user)
    try:
        yield
    finally:
        await server.stop(user)


class HTTPBackend:
    """A server behind uvicorn on a loopback port, in this loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._listener = bind_socket("127.0.0.1", 0)
        self._port: int = self._listener.getsockname()[1]
        self._uvicorn: uvicorn.Server | None = None

    @property
    def address(self) -> str:
        """The origin."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, at the same place as before."""
        if self._listener.fileno() < 0:
            self._listener = bind_socket("127.0.0.1", self._port)
        dispatcher = get_dispatcher(self._server)
        endpoint = create_endpoint(dispatcher, get_auth(self._server), {}, list_scopes=dispatcher.list_used_scopes)
        app = create_asgi_app(dispatcher, endpoint)
        config = create_uvicorn_config(app, dispatcher.limits)
        config.load()
        # Its own `serve` would wait for signals, which are the test runner's.
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.lifespan = config.lifespan_class(config)
        await self._uvicorn.startup([self._listener])

    async def stop(self) -> None:
        """End everything at once."""
        uvicorn_server, self._uvicorn = self._uvicorn, None
        if uvicorn_server is None:
            return
        for listener in uvicorn_server.servers:
            listener.close()
        self._listener.close()
        for connection in tuple(uvicorn_server.server_state.connections):
            connection.transport.abort()
        if uvicorn_server.server_state.tasks:
            await asyncio.wait(uvicorn_server.server_state.tasks, timeout=_STOP_TIMEOUT_S)
        await uvicorn_server.lifespan.shutdown()

    def close(self) -> None:
        """Nothing is left to close."""
        self._listener.close()


class SocketBackend:
    """A server on a Unix socket or a TCP port, in this loop."""

    def __init__(self, server: Server, transport: str) -> None:
        self._server = server
        self._folder = tempfile.TemporaryDirectory(prefix="dovetail-") if transport == "unix" else None
        self._path = None if self._folder is None else os.path.join(self._folder.name, "socket")
        self._port = 0
        self._exit_stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """Where it is."""
        return f"unix:{self._path}" if self._path is not None else f"tcp://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, at the same place as before."""
        options: dict[str, Any] = {"path": self._path} if self._path is not None else {"port": self._port}
        listener = await self._exit_stack.enter_async_context(serve_socket(get_dispatcher(self._server), **options))
        if self._path is None:
            self._port = listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End everything at once."""
        await self._exit_stack.aclose()

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            self._folder.cleanup()


def _build_command(server: Server) -> list[str]:
    """How to start the server in a process of its own."""
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is None:
            continue
        for name, value in tuple(vars(module).items()):
            if value is server:
                return [sys.executable, "-u", "-c", _SERVER_SCRIPT, module.__name__, path, name, *sys.path]
    raise ValueError(
        f"{server.name!r} cannot be found by another process: over stdio a server must be a variable of a module"
    )

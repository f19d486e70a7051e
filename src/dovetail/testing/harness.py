"""Connect a client to a server for a test, over any transport, with any protocol version, and with faults.

The transports are real: HTTP on a loopback socket, a process with pipes, sockets in a temporary directory. All
resources are closed when the context ends.
"""

import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias, Unpack, get_args

from dovetail.client.client import Client, ClientOptions
from dovetail.client.sync_client import SyncClient, run_blocking
from dovetail.client.targets import Target
from dovetail.protocol.interfaces.client_transport import ServerConnection
from dovetail.protocol.interfaces.http_types import ASGIApp
from dovetail.server.asgi_app import create_asgi_app, create_endpoint
from dovetail.server.server import Server, get_auth, get_dispatcher
from dovetail.testing.fault_proxy import insert_faults
from dovetail.testing.faults import Faults, get_plan
from dovetail.transports.http1.http_listener import HTTPServer, bind_socket
from dovetail.transports.socket_server import serve_socket

Transport: TypeAlias = Literal["memory", "stdio", "http", "sse", "unix", "tcp"]


# This script runs in another process. It imports the server from a module or a file.
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
    server: Server | Target,
    *,
    transport: Transport = "memory",
    faults: Faults | None = None,
    principal: str | None = None,
    **options: Unpack[ClientOptions],
) -> AsyncGenerator[Client]:
    """Yield a client that is connected to a server. This function takes the same options as `Client`.

    Args:
        server: A `Server`, the "module:name" of a server, or any other target that `Client` accepts.
        transport: The transport: "memory", "stdio", "http", "sse", "unix" or "tcp".
        faults: Faults on the connection.
        principal: The caller that the server sees, for "memory" only. Over HTTP, set `auth` of the server and the
            client.
    """
    async with (
        _serve_for_client(server, transport, faults, principal) as (target, defaults),
        # Pyright reports an error here, because it assumes that an unpacked TypedDict may have additional keys.
        Client(target, **_merge_options(defaults, options)) as client,  # pyright: ignore[reportArgumentType]
    ):
        yield client


@contextmanager
def connect_sync(
    server: Server | Target,
    *,
    transport: Transport = "memory",
    faults: Faults | None = None,
    principal: str | None = None,
    **options: Unpack[ClientOptions],
) -> Generator[SyncClient]:
    """Yield a `SyncClient` that is connected to a server. This function takes the same options as `Client`."""
    context = _serve_for_client(server, transport, faults, principal)
    target, defaults = run_blocking(_enter(context))
    try:
        with SyncClient(target, **_merge_options(defaults, options)) as client:
            yield client
    finally:
        run_blocking(_leave(context))


@asynccontextmanager
async def _serve_for_client(
    server: Any, transport: Transport, faults: Faults | None, principal: str | None
) -> AsyncGenerator[tuple[Target, ClientOptions]]:
    resolved, defaults = resolve_server(server), ClientOptions()
    if transport == "sse":
        defaults["protocol_version"] = "handshake"
    if isinstance(resolved, Server):
        defaults["name"] = resolved.name
    target_server = server if principal is None else _with_principal(resolved, transport, principal)
    async with serve(target_server, transport=transport, faults=faults) as target:
        yield target, defaults


def _merge_options(defaults: ClientOptions, options: ClientOptions) -> ClientOptions:
    merged: Any = {**defaults, **{name: value for name, value in options.items() if value is not None}}
    return merged


async def _enter(context: Any) -> Any:
    return await context.__aenter__()


async def _leave(context: Any) -> None:
    await context.__aexit__(None, None, None)


@asynccontextmanager
async def serve(
    server: Server | Target,
    *,
    transport: Transport = "memory",
    faults: Faults | None = None,
    port: int = 0,
    fallback: ASGIApp | None = None,
) -> AsyncGenerator[Target]:
    """Serve while the context is open, and yield a target for clients. The server is ready when the block starts.

    The target is a URL, a command, an address or the server itself.

    Args:
        server: A `Server`, the "module:name" of a server, or any other target that `Client` accepts.
        transport: The transport: "memory", "stdio", "http", "sse", "unix" or "tcp".
        faults: Faults on the connection.
        port: The port on 127.0.0.1 for "http" and "sse". Defaults to a free port.
        fallback: An ASGI application for all other paths, such as an `AuthorizationServer`, for "http" and "sse".
    """
    if transport not in get_args(Transport):
        raise ValueError(f"transport must be one of {', '.join(get_args(Transport))}, not {transport!r}")
    resolved = resolve_server(server)
    if (port or fallback is not None) and not (isinstance(resolved, Server) and transport in ("http", "sse")):
        raise ValueError('port= and fallback= require a Server and transport="http" or "sse"')
    async with AsyncExitStack() as stack:
        target, backend = resolved, None
        if isinstance(resolved, ServerWithPrincipal):
            await stack.enter_async_context(_run_lifespan(resolved.server))
        elif isinstance(resolved, Server):
            target, backend = await stack.enter_async_context(_start_server(resolved, transport, port, fallback))
        if faults is not None:
            target = await stack.enter_async_context(insert_faults(get_plan(faults), target, backend))
        yield target


def resolve_server(server: Any) -> Any:
    """Import the server of a "module:name" string. Return any other value unchanged."""
    if isinstance(server, str) and ":" in server and "/" not in server and "\\" not in server:
        module, _, name = server.partition(":")
        return getattr(import_module(module), name)
    return server


class ServerWithPrincipal:
    """An in-memory server that treats every caller as the same principal."""

    def __init__(self, server: Server, principal: str) -> None:
        self.server = server
        self.name = server.name
        self.start = server.start
        self.stop = server.stop
        self._principal = principal

    def open_connection(self, send: Callable[[bytes], None]) -> ServerConnection:
        """Open a connection as this principal."""
        return self.server.open_connection(send, principal=self._principal)


def _with_principal(server: Any, transport: str, principal: str) -> ServerWithPrincipal:
    if transport != "memory" or not isinstance(server, Server):
        raise ValueError(
            "principal= requires a Server in memory. Over HTTP, pass auth=StaticTokenVerifier(...) to "
            "the server and auth=BearerAuth(...) to the client."
        )
    return ServerWithPrincipal(server, principal)


@asynccontextmanager
async def _start_server(
    server: Server, transport: Transport, port: int, fallback: ASGIApp | None
) -> AsyncGenerator[tuple[Any, Any]]:
    if transport == "stdio":
        yield _build_command(server), None
        return
    async with _run_lifespan(server):
        if transport == "memory":
            yield server, None
            return
        backend = (
            HTTPBackend(server, port, fallback) if transport in ("http", "sse") else SocketBackend(server, transport)
        )
        await backend.start()
        try:
            yield backend.address + ("/sse" if transport == "sse" else "/mcp" if transport == "http" else ""), backend
        finally:
            await backend.stop()
            backend.close()


@asynccontextmanager
async def _run_lifespan(server: Server) -> AsyncGenerator[None]:
    """Start a server for the duration of the context. The server stops when its last open context ends."""
    user = object()
    await server.start(user)
    try:
        yield
    finally:
        await server.stop(user)


class HTTPBackend:
    """A server that runs over HTTP on a loopback port in this event loop."""

    def __init__(self, server: Server, port: int = 0, fallback: ASGIApp | None = None) -> None:
        self._server = server
        self._fallback = fallback
        self._listener = bind_socket("127.0.0.1", port)
        self._port: int = self._listener.getsockname()[1]
        self._http_server: HTTPServer | None = None

    @property
    def address(self) -> str:
        """Return the origin of the server's URL."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start listening. After a restart, the address is the same."""
        if self._listener.fileno() < 0:
            self._listener = bind_socket("127.0.0.1", self._port)
        dispatcher = get_dispatcher(self._server)
        endpoint = create_endpoint(dispatcher, get_auth(self._server), {}, list_scopes=dispatcher.list_used_scopes)
        app = create_asgi_app(dispatcher, endpoint, self._fallback)
        self._http_server = HTTPServer(app, dispatcher.limits)
        await self._http_server.start(self._listener)

    async def stop(self) -> None:
        """Stop the server and abort its connections."""
        http_server, self._http_server = self._http_server, None
        if http_server is not None:
            await http_server.abort()
            self._listener.close()

    def close(self) -> None:
        """Close the socket."""
        self._listener.close()


class SocketBackend:
    """A server that runs on a Unix socket or a TCP port in this event loop."""

    def __init__(self, server: Server, transport: str) -> None:
        self._server = server
        self._folder = tempfile.TemporaryDirectory(prefix="dovetail-") if transport == "unix" else None
        self._path = None if self._folder is None else os.path.join(self._folder.name, "socket")
        self._port = 0
        self._exit_stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"unix:{self._path}" if self._path is not None else f"tcp://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start listening. After a restart, the address is the same."""
        options: dict[str, Any] = {"path": self._path} if self._path is not None else {"port": self._port}
        listener = await self._exit_stack.enter_async_context(serve_socket(get_dispatcher(self._server), **options))
        if self._path is None:
            self._port = listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop the server and close its connections."""
        await self._exit_stack.aclose()

    def close(self) -> None:
        """Remove the directory of the socket."""
        if self._folder is not None:
            self._folder.cleanup()


def _build_command(server: Server) -> list[str]:
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is None:
            continue
        for name, value in tuple(vars(module).items()):
            if value is server:
                return [sys.executable, "-u", "-c", _SERVER_SCRIPT, module.__name__, path, name, *sys.path]
    raise ValueError(f"cannot run {server.name!r} over stdio, because it is not a global variable of a module")

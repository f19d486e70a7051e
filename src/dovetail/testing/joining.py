"""A client joined to a server for one test: over any transport, in any revision, with faults on the way if wanted.

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

from dovetail.client import blocking, sync
from dovetail.connect import Client
from dovetail.login.porter import porter_for
from dovetail.serve import Server
from dovetail.testing.between import between
from dovetail.testing.faults import Faults
from dovetail.transports.asgi import Endpoint
from dovetail.transports.sockets import listening
from dovetail.transports.tracing import Traced
from dovetail.transports.web import bound_socket, configure

Transport: TypeAlias = Literal["memory", "stdio", "http", "sse", "unix", "tcp"]

_PATIENCE: Final = 2.0

# Finds the server again in a process of its own: by the name of its module, else by the file it is in.
_PROGRAM: Final = """
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
    revision: str | None = None,
    faults: Faults | None = None,
    principal: str | None = None,
    **options: Any,
) -> AsyncGenerator[Client]:
    """A client connected to a server while the context lasts; `options` are those of `Client`.

    server: a Server, "module:name" of one, or any target of a client, which is then used as it is.
    principal: who the caller is, in memory: a Principal(...) or a name. Over HTTP the server's `auth` asks for that.
    """
    served = server if principal is None else _spoken_to(resolve(server), transport, principal)
    async with serve(served, transport=transport, faults=faults) as target:
        if revision is None and transport == "sse":
            options.setdefault("era", "handshake")
        if isinstance(found := resolve(server), Server):
            options.setdefault("name", found.name)
        async with Client(target, revision=revision, **options) as client:
            yield client


@contextmanager
def connect_sync(
    server: Any,
    *,
    transport: Transport = "memory",
    revision: str | None = None,
    faults: Faults | None = None,
    principal: str | None = None,
    **options: Any,
) -> Generator[sync.SyncClient]:
    """As `connect`, for tests that do not await."""
    joined = connect(server, transport=transport, revision=revision, faults=faults, principal=principal, **options)
    client = blocking.run(_enter(joined))
    try:
        yield sync.SyncClient(client)
    finally:
        blocking.run(_leave(joined))


async def _enter(context: Any) -> Any:
    return await context.__aenter__()


async def _leave(context: Any) -> None:
    await context.__aexit__(None, None, None)


@asynccontextmanager
async def serve(server: Any, *, transport: Transport = "memory", faults: Faults | None = None) -> AsyncGenerator[Any]:
    """Serve while the context lasts; what a client is to connect to: a URL, a command, an address, the server."""
    if transport not in get_args(Transport):
        raise ValueError(f"transport must be one of {', '.join(get_args(Transport))}, not {transport!r}")
    found = resolve(server)
    async with AsyncExitStack() as stack:
        target, backend = found, None
        if isinstance(found, SpokenTo):
            await stack.enter_async_context(_alive(found.server))
        elif isinstance(found, Server):
            target, backend = await stack.enter_async_context(_served(found, transport))
        if faults is not None:
            target = await stack.enter_async_context(between(faults, target, backend))
        yield target


def resolve(server: Any) -> Any:
    """The server that "module:name" names; anything else is what it is."""
    if isinstance(server, str) and ":" in server and "/" not in server and "\\" not in server:
        module, _, name = server.partition(":")
        return getattr(import_module(module), name)
    return server


class SpokenTo:
    """A server in memory whose caller is known to be somebody."""

    def __init__(self, server: Server, principal: str) -> None:
        self.server = server
        self.name = server.name
        self.start = server.start
        self.stop = server.stop
        self._principal = principal

    def link(self, write: Callable[[bytes], None]) -> Any:
        """The server's end of a connection."""
        return self.server.link(write, principal=self._principal)


def _spoken_to(server: Any, transport: str, principal: str) -> SpokenTo:
    if transport != "memory" or not isinstance(server, Server):
        raise ValueError(
            "principal= is for a Server in memory: over HTTP give the server auth=StaticTokens(...), and the client "
            "auth=Bearer(...)"
        )
    return SpokenTo(server, principal)


@asynccontextmanager
async def _served(server: Server, transport: Transport) -> AsyncGenerator[tuple[Any, Any]]:
    if transport == "stdio":
        yield _command(server), None
        return
    async with _alive(server):
        if transport == "memory":
            yield server, None
            return
        backend = Web(server) if transport in ("http", "sse") else Sockets(server, transport)
        await backend.start()
        try:
            yield backend.address + ("/sse" if transport == "sse" else "/mcp" if transport == "http" else ""), backend
        finally:
            await backend.stop()
            backend.close()


@asynccontextmanager
async def _alive(server: Server) -> AsyncGenerator[None]:
    """A started server. It may be served several times at once; its lifespan ends with the last."""
    user = object()
    await server.start(user)
    try:
        yield
    finally:
        await server.stop(user)


class Web:
    """A server behind uvicorn on a loopback port, in this loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._listener = bound_socket("127.0.0.1", 0)
        self._port: int = self._listener.getsockname()[1]
        self._web: uvicorn.Server | None = None

    @property
    def address(self) -> str:
        """The origin."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, at the same place as before."""
        if self._listener.fileno() < 0:
            self._listener = bound_socket("127.0.0.1", self._port)
        auth = self._server.auth
        guard = None if auth is None else porter_for(auth, "/mcp", None, (), self._server.needed_scopes)
        endpoint = Endpoint(self._server, guard=guard)
        traced = None if self._server.tap is None else Traced(endpoint, endpoint, self._server.tap)
        config = configure(traced or endpoint, self._server.limits)
        config.load()
        # Its own `serve` would wait for signals, which are the test runner's.
        self._web = uvicorn.Server(config)
        self._web.lifespan = config.lifespan_class(config)
        await self._web.startup([self._listener])

    async def stop(self) -> None:
        """End everything at once."""
        web, self._web = self._web, None
        if web is None:
            return
        for door in web.servers:
            door.close()
        self._listener.close()
        for connection in tuple(web.server_state.connections):
            connection.transport.abort()
        if web.server_state.tasks:
            await asyncio.wait(web.server_state.tasks, timeout=_PATIENCE)
        await web.lifespan.shutdown()

    def close(self) -> None:
        """Nothing is left to close."""
        self._listener.close()


class Sockets:
    """A server on a Unix socket or a TCP port, in this loop."""

    def __init__(self, server: Server, transport: str) -> None:
        self._server = server
        self._folder = tempfile.TemporaryDirectory(prefix="dovetail-") if transport == "unix" else None
        self._path = None if self._folder is None else os.path.join(self._folder.name, "socket")
        self._port = 0
        self._open = AsyncExitStack()

    @property
    def address(self) -> str:
        """Where it is."""
        return f"unix:{self._path}" if self._path is not None else f"tcp://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, at the same place as before."""
        place: dict[str, Any] = {"path": self._path} if self._path is not None else {"port": self._port}
        door = await self._open.enter_async_context(listening(self._server, **place))
        if self._path is None:
            self._port = door.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End everything at once."""
        await self._open.aclose()

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            self._folder.cleanup()


def _command(server: Server) -> list[str]:
    """How to start the server in a process of its own."""
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is None:
            continue
        for name, value in tuple(vars(module).items()):
            if value is server:
                return [sys.executable, "-u", "-c", _PROGRAM, module.__name__, path, name, *sys.path]
    raise ValueError(
        f"{server.name!r} cannot be found by another process: over stdio a server must be a variable of a module"
    )

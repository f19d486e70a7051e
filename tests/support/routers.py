"""Load balancers without sticky routing: a router that sends each request to a random worker, and nginx."""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from cluster.server_pool import Address, find_free_ports
from support.outside_programs import get_program
from support.processes import run_service

START_TIMEOUT_S = 10.0

_NGINX_CONFIGURATION = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream workers {{
        random;
{servers}
    }}
    server {{
        listen {host}:{port};
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 1h;
            proxy_next_upstream error;
        }}
    }}
}}
"""


class Router:
    """An HTTP proxy that sends each request to a random worker. It repeats nothing that a worker may have received."""

    def __init__(self, addresses: Sequence[Address], choose: random.Random) -> None:
        self.addresses = list(addresses)
        self.choose = choose
        self.request_count = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(_read_content_length(head))
        self.request_count += 1
        upstream_reader, upstream_writer = await self._connect()
        try:
            # One request for each connection, so that the next request goes to another worker.
            upstream_writer.write(head[:-2] + b"connection: close\r\n\r\n" + body)
            client_left = asyncio.ensure_future(reader.read(1))
            client_left.add_done_callback(lambda done: done.cancelled() or done.exception() or upstream_writer.close())
            try:
                while data := await upstream_reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            finally:
                client_left.cancel()
        finally:
            upstream_writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a random worker. If it does not listen, try another one."""
        addresses = self.choose.sample(self.addresses, len(self.addresses))
        for address in addresses:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(*address)
        raise ConnectionRefusedError


def _read_content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


@contextlib.asynccontextmanager
async def run_router(addresses: Sequence[Address], seed: int = 1) -> AsyncIterator[Router]:
    """Run a router in this event loop."""
    router = Router(addresses, random.Random(seed))
    await router.start()
    try:
        yield router
    finally:
        await router.close()


@contextlib.contextmanager
def run_nginx(folder: Path, addresses: Sequence[Address], host: str = "127.0.0.1") -> Iterator[str]:
    """Run nginx in front of workers, and yield its URL."""
    program = get_program("nginx")
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = find_free_ports(1)
    servers = "\n".join(f"        server {address}:{number} max_fails=0;" for address, number in addresses)
    configuration = folder / "nginx.conf"
    configuration.write_text(_NGINX_CONFIGURATION.format(folder=folder, servers=servers, host=host, port=port))
    command = [program, "-c", str(configuration), "-p", str(folder), "-e", str(folder / "error.log")]
    with run_service(command) as process:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _is_listening(host, port):
            assert process.poll() is None, (folder / "error.log").read_text()
            assert time.monotonic() < deadline, "nginx does not listen"
            time.sleep(0.01)
        yield f"http://{host}:{port}/mcp"


def _is_listening(host: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((host, port)) == 0

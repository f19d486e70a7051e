"""Test the files in `examples/deploy`: each file with a linter or a schema, and the server behind the real nginx."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cluster.server_pool import find_free_ports
from dovetail import Client
from support.outside_programs import get_program, needs
from support.processes import stop_service
from support.redis_servers import RedisServer

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
TIMEOUT_S = 60.0
TOKEN = "a-token-for-the-tests"
PASSWORD = "geheim"
KEY, NEW_KEY = "a secret key for the tests", "a newer secret key for them"


def run_tool(name: str, *words: str) -> str:
    """Run a program that was installed with the test requirements."""
    program = str(Path(sys.executable).with_name(name))
    environment = os.environ | {"NO_COLOR": "1"}
    ended = subprocess.run([program, *words], capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_dockerfile_follows_the_rules_of_hadolint() -> None:
    run_tool("hadolint", "--failure-threshold", "style", str(FOLDER / "Dockerfile"))


def test_the_container_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (\d+)", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert users
    assert users[-1] != "0"


def test_the_compose_file_matches_its_schema() -> None:
    run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(FOLDER / "compose.yaml"))


def test_the_manifests_match_the_schemas_of_kubernetes() -> None:
    output = run_tool("kubernetes-validate", "--strict", str(FOLDER / "kubernetes.yaml"))
    assert output.count("passed for resource") == (FOLDER / "kubernetes.yaml").read_text().count("\nkind: ")


def write_nginx_configuration(folder: Path, port: int, servers: list[int]) -> Path:
    """Write the configuration for this machine: other ports and addresses, and files in a folder of the test."""
    text = (FOLDER / "nginx.conf").read_text()
    addresses = "\n".join(f"server 127.0.0.1:{server} max_fails=0;" for server in servers)
    for old, new in (
        ("server tickets:8000 max_fails=0;", addresses),
        ("listen 8080;", f"listen 127.0.0.1:{port};"),
        ("worker_processes auto;", f"worker_processes 1; daemon off; pid {folder}/nginx.pid;"),
        (
            "http {",
            "http { access_log off; "
            + " ".join(
                f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            ),
        ),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = folder / "nginx.conf"
    file.write_text(text)
    return file


async def wait_for_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            assert process.poll() is None, f"{process.args} has ended"
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.02)


class Deployment:
    """nginx and two copies of the server, as in `compose.yaml`."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self._folder = folder
        self._redis_path = redis.path
        redis.execute("CONFIG", "SET", "requirepass", PASSWORD)
        self._nginx_port, *self._ports = find_free_ports(3)
        self.url = f"http://localhost:{self._nginx_port}/mcp"
        self.servers: list[subprocess.Popen[bytes]] = []
        self._nginx: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        for port in self._ports:
            self.servers.append(self._start_server(port, KEY))
        configuration = write_nginx_configuration(self._folder, self._nginx_port, self._ports)
        program = get_program("nginx")
        command = [program, "-c", str(configuration), "-p", str(self._folder), "-e", str(self._folder / "error.log")]
        self._nginx = subprocess.Popen(command)  # noqa: ASYNC220
        for port, process in zip((self._nginx_port, *self._ports), (self._nginx, *self.servers), strict=True):
            await wait_for_port(port, process)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for process in (self._nginx, *self.servers):
                if process is not None:
                    stack.callback(stop_service, process)

    def _start_server(self, port: int, keys: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "dovetail", "run", str(FOLDER / "server.py"), "--http", "--port", str(port)]
        environment = os.environ | {
            "DOVETAIL_CLUSTER": f"unix://:{PASSWORD}@{self._redis_path}",
            "DOVETAIL_SECRET_KEYS": keys,
            "TICKETS_TOKEN": TOKEN,
            "FORWARDED_ALLOW_IPS": "127.0.0.1",
        }
        return subprocess.Popen([*command, "--workers", "2", "--health", "--public-url", self.url], env=environment)

    async def restart(self, keys: str) -> None:
        """Restart one copy after the other, with other keys."""
        for index, port in enumerate(self._ports):
            await asyncio.to_thread(stop_service, self.servers[index])
            self.servers[index] = self._start_server(port, keys)
            await wait_for_port(port, self.servers[index])

    def open_client(self, protocol_version: str) -> Client:
        async def answer(*_: Any) -> Any:
            return {"value": "yes"}

        return Client(self.url, auth=TOKEN, protocol_version=protocol_version, elicitation_handler=answer)


@contextlib.asynccontextmanager
async def run_deployment(folder: Path) -> AsyncGenerator[Deployment]:
    with RedisServer(folder) as redis:
        deployment = Deployment(folder, redis)
        try:
            await deployment.start()
            yield deployment
        finally:
            await asyncio.to_thread(deployment.close)


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncGenerator[Deployment]:
    async with run_deployment(tmp_path) as deployment:
        yield deployment


async def test_a_deployment_that_fails_half_way_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> str:
        assert len(find_children()) == before + 3  # Redis and two copies of the server
        raise FileNotFoundError("nginx")

    def find_children() -> list[psutil.Process]:
        return psutil.Process().children()

    before = len(find_children())
    monkeypatch.setattr(sys.modules[__name__], "get_program", fail)
    with pytest.raises(FileNotFoundError):
        async with run_deployment(tmp_path):
            pass
    assert len(find_children()) == before


@needs("nginx")
async def test_clients_of_all_versions_are_served_through_nginx(deployment: Deployment) -> None:
    for version in ("2026-07-28", "2025-11-25", "2025-03-26"):
        async with deployment.open_client(version) as client:
            for ticket in range(5):
                assert await client.call("status", ticket=ticket) == f"ticket {ticket} is open"
            if version != "2025-03-26":
                for ticket in range(5):
                    assert await client.call("close", ticket=ticket) == f"ticket {ticket} is closed"


@needs("nginx")
async def test_one_copy_stops_and_no_call_is_lost(deployment: Deployment) -> None:
    count, begun = 0, asyncio.Event()
    async with deployment.open_client("2025-11-25") as handshake, deployment.open_client("2026-07-28") as stateless:

        async def call_often(client: Client) -> None:
            nonlocal count
            while deployment.servers[0].poll() is None or count < 20:
                assert await client.call("status", ticket=count) is not None
                count += 1
                if count == 10:
                    begun.set()

        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            for client in (handshake, stateless):
                group.create_task(call_often(client))
            await begun.wait()
            deployment.servers[0].terminate()
        assert deployment.servers[0].returncode == 0
        assert await handshake.call("close", ticket=1) == "ticket 1 is closed"


@needs("nginx")
async def test_health_checks_are_not_public(deployment: Deployment) -> None:
    host, _, port = deployment.url.removeprefix("http://").partition("/")[0].partition(":")
    for path in ("/ready", "/live"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"404"
        writer.close()


@needs("nginx")
async def test_secret_keys_are_replaced_without_losing_a_session(deployment: Deployment) -> None:
    """The drill of the guide: each step restarts one copy after the other."""
    headers = {
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {TOKEN}",
        "MCP-Protocol-Version": "2025-11-25",
    }
    client_info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    raw_client = httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S)
    async with raw_client as http, deployment.open_client("2025-11-25") as client:

        async def send(method: str, params: Any = None, **fields: Any) -> httpx.Response:
            message = {"jsonrpc": "2.0", "method": method, "params": params or {}, **fields}
            return await http.post(deployment.url, json=message)

        opened = await send("initialize", client_info, id=1)
        http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        assert (await send("notifications/initialized")).status_code == 202
        for keys in (f"{KEY},{NEW_KEY}", f"{NEW_KEY},{KEY}"):
            await deployment.restart(keys)
            for number in range(4):
                assert (await send("ping", id=number)).status_code == 200
            assert await client.call("close", ticket=1) == "ticket 1 is closed"
        await deployment.restart(NEW_KEY)
        assert (await send("ping", id=1)).status_code == 404  # The session belongs to the old key.
        assert await client.call("close", ticket=1) == "ticket 1 is closed"  # A client opens another session.

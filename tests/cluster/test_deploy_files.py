"""Test the files in `examples/deploy`: each file with a linter or a schema, and the server behind the real nginx."""

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest

from cluster.redis_servers import RedisServer
from cluster.routers import NGINX
from cluster.server_pool import find_free_ports
from dovetail import Client

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
TIMEOUT_S = 60.0
TOKEN = "a-token-for-the-tests"
PASSWORD = "geheim"


def run_tool(name: str, *words: str) -> str:
    """Run a program that was installed with the test requirements."""
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    assert program is not None, f"{name} is not installed"
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


@contextlib.contextmanager
def run_process(command: list[str], environment: dict[str, str]) -> Generator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(command, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


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
    """nginx, two copies of the server and Redis, as in `compose.yaml`."""

    def __init__(self, port: int, servers: "list[subprocess.Popen[bytes]]") -> None:
        self.url = f"http://localhost:{port}/mcp"
        self.servers = servers

    def open_client(self, protocol_version: str) -> Client:
        async def answer(*_: Any) -> Any:
            return {"value": "yes"}

        return Client(self.url, auth=TOKEN, protocol_version=protocol_version, elicitation_handler=answer)


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncGenerator[Deployment]:
    assert NGINX is not None, "nginx is not installed"
    redis = RedisServer(tmp_path)
    redis.execute("CONFIG", "SET", "requirepass", PASSWORD)
    nginx_port, *ports = find_free_ports(3)
    environment = os.environ | {
        "DOVETAIL_CLUSTER": f"unix://:{PASSWORD}@{redis.path}",
        "DOVETAIL_SECRET_KEYS": "a secret key for the tests",
        "TICKETS_TOKEN": TOKEN,
        "FORWARDED_ALLOW_IPS": "127.0.0.1",
    }
    with contextlib.ExitStack() as stack:
        stack.callback(redis.close)
        servers: list[subprocess.Popen[bytes]] = []
        for port in ports:
            command = [
                sys.executable,
                "-m",
                "dovetail",
                "run",
                str(FOLDER / "server.py"),
                "--http",
                "--port",
                f"{port}",
            ]
            command += ["--workers", "2", "--health", "--public-url", f"http://localhost:{nginx_port}/mcp"]
            servers.append(stack.enter_context(run_process(command, environment)))
        configuration = write_nginx_configuration(tmp_path, nginx_port, ports)
        command = [NGINX, "-c", str(configuration), "-p", str(tmp_path), "-e", str(tmp_path / "error.log")]
        nginx = stack.enter_context(run_process(command, environment))
        for port, process in zip((nginx_port, *ports), (nginx, *servers), strict=True):
            await wait_for_port(port, process)
        yield Deployment(nginx_port, servers)


async def test_clients_of_all_versions_are_served_through_nginx(deployment: Deployment) -> None:
    for version in ("2026-07-28", "2025-11-25", "2025-03-26"):
        async with deployment.open_client(version) as client:
            for ticket in range(5):
                assert await client.call("status", ticket=ticket) == f"ticket {ticket} is open"
            if version != "2025-03-26":
                for ticket in range(5):
                    assert await client.call("close", ticket=ticket) == f"ticket {ticket} is closed"


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


async def test_health_checks_are_not_public(deployment: Deployment) -> None:
    host, _, port = deployment.url.removeprefix("http://").partition("/")[0].partition(":")
    for path in ("/ready", "/live"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"404"
        writer.close()

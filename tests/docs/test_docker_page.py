"""The proxy configurations of the page on Docker are valid, and clients reach the server through them."""

import asyncio
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dovetail import Client, HTTPTarget
from dovetail.errors import ConnectError, TransportError, Unauthorized
from support.outside_programs import get_program, needs

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "docker.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {match["info"]: match["text"] for match in FENCE.finditer(PAGE)}
TOKEN = "only-for-this-page"
TIMEOUT_S = 60.0
_TRANSCRIPT_COUNT = 15


def _find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _write_nginx_files(folder: Path, server_port: int, proxy_port: int) -> list[str]:
    """Write the configuration of the page with other ports. Return the command that uses it."""
    config = BLOCKS["nginx"].replace("listen 8443 ssl", f"listen 127.0.0.1:{proxy_port} ssl")
    (folder / "nginx.conf").write_text(config.replace("127.0.0.1:8000", f"127.0.0.1:{server_port}"))
    return [get_program("nginx"), "-e", "stderr", "-p", str(folder), "-c", "nginx.conf", "-g", "daemon off;"]


def _write_caddyfile(folder: Path, server_port: int, proxy_port: int) -> list[str]:
    config = BLOCKS["text Caddyfile"].replace("127.0.0.1:8000", f"127.0.0.1:{server_port}")
    config = config.replace("localhost:8443", f"localhost:{proxy_port}").replace("{", "{\n    admin off", 1)
    (folder / "Caddyfile").write_text(config)
    return [get_program("caddy"), "run"]


def _write_certificate(folder: Path) -> None:
    """Create the certificate with the command of the page."""
    (command,) = (block for block in FENCE.findall(PAGE) if block[1].startswith("openssl"))
    subprocess.run(["sh", "-eu", "-c", command[1]], cwd=folder, check=True, capture_output=True, timeout=TIMEOUT_S)


def _write_haproxy_files(folder: Path, server_port: int, proxy_port: int) -> list[str]:
    pem = (folder / "tickets.pem").read_text() + (folder / "tickets.key").read_text()
    (folder / "haproxy.pem").write_text(pem)
    config = BLOCKS["text haproxy.cfg"].replace("bind :8443", f"bind 127.0.0.1:{proxy_port}")
    (folder / "haproxy.cfg").write_text(config.replace("127.0.0.1:8000", f"127.0.0.1:{server_port}"))
    return [get_program("haproxy"), "-f", "haproxy.cfg"]


WRITERS = {"nginx": _write_nginx_files, "caddy": _write_caddyfile, "haproxy": _write_haproxy_files}


@needs("nginx", "openssl")
def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    _write_certificate(tmp_path)
    command = _write_nginx_files(tmp_path, 8000, _find_free_port())
    check = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert check.returncode == 0, check.stderr


@needs("caddy")
def test_caddy_accepts_its_configuration(tmp_path: Path) -> None:
    config = tmp_path / "Caddyfile"
    config.write_text(BLOCKS["caddyfile"])
    command = [get_program("caddy"), "validate", "--adapter", "caddyfile", "--config", str(config)]
    environment = os.environ | {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    check = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert check.returncode == 0, check.stderr


@asynccontextmanager
async def _run_until_closed(*command: str, folder: Path) -> AsyncIterator[None]:
    environment = {"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/bin", "XDG_DATA_HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@needs("openssl", "curl")
@pytest.mark.parametrize("proxy", [pytest.param(name, marks=needs(name)) for name in WRITERS])
async def test_clients_reach_the_server_through_the_proxy(proxy: str, tmp_path: Path) -> None:
    server_port, proxy_port = _find_free_port(), _find_free_port()
    public_url = f"https://localhost:{proxy_port}/mcp"
    program = BLOCKS["python"].replace("port=8000", f"port={server_port}")
    (tmp_path / "server.py").write_text(program.replace("https://tickets.example/mcp", public_url))
    _write_certificate(tmp_path)
    proxy_command = WRITERS[proxy](tmp_path, server_port, proxy_port)
    certificate = tmp_path / "tickets.pem"
    async with (
        asyncio.timeout(TIMEOUT_S),
        _run_until_closed(sys.executable, "server.py", folder=tmp_path),
        _run_until_closed(*proxy_command, folder=tmp_path),
    ):
        while True:
            try:
                async with Client(HTTPTarget(public_url, verify=certificate), auth=TOKEN) as client:
                    assert await client.call("status", ticket=7) == "ticket 7 is open"
                break
            except TransportError:  # the server or the proxy is still starting
                await asyncio.sleep(0.1)
        with pytest.raises(Unauthorized):
            async with Client(HTTPTarget(public_url, verify=certificate)) as stranger:
                await stranger.call("status", ticket=7)
        with pytest.raises(ConnectError) as caught:
            async with Client(public_url):
                pass
        assert "SSL_CERT_FILE" in (caught.value.hint or "")
        (tmp_path / "headers.txt").write_text(BLOCKS["text headers.txt"])
        (tmp_path / "request.json").write_text(BLOCKS["json"])
        assert _select_protocol(proxy_port, certificate) == "h2"
        # The server rejects the first requests of the transcript before it has read their bodies. A proxy must
        # not send the next request on such a connection before the body is complete.
        transcript = BLOCKS["console"].replace("localhost:8443", f"localhost:{proxy_port}")
        for _ in range(_TRANSCRIPT_COUNT):
            await _check_transcript(transcript, tmp_path)
    if proxy == "nginx":
        assert re.search(r" 200 [\d.]+ tools/call close$", (tmp_path / "access.log").read_text(), re.MULTILINE)


def _select_protocol(port: int, certificate: Path) -> str | None:
    """Return the protocol that a proxy selects for a client that speaks HTTP/2."""
    context = ssl.create_default_context(cafile=certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", port)) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as secure,
    ):
        return secure.selected_alpn_protocol()


async def _check_transcript(transcript: str, folder: Path) -> None:
    """Run the commands of a transcript with one line of output each."""
    lines = transcript.replace("\\\n", "").splitlines()
    for command, expected in zip(lines[::2], lines[1::2], strict=True):
        process = await asyncio.create_subprocess_exec(
            "sh", "-eu", "-c", command.removeprefix("$ "), cwd=folder, stdout=subprocess.PIPE
        )
        printed, _ = await process.communicate()
        assert printed.decode().strip() == expected, command

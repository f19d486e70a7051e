"""nginx, Caddy and HAProxy in front of a server.

Each proxy adds the header X-Front with the method and target that it has read. It is configured to forward as much as
possible, so that the server decides. `IdleTimes` sets how long the proxy keeps idle connections.
"""

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from http_server.raw_connection import START_TIMEOUT_S, RunningServer
from support.outside_programs import get_program, needs
from support.processes import run_service

KINDS = ("nginx", "caddy", "haproxy")
# The same for parametrizations. A test with a proxy that is not installed is skipped.
EACH_PROXY = [pytest.param(kind, marks=needs(kind)) for kind in KINDS]

_NGINX = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    ignore_invalid_headers off;
    underscores_in_headers on;
    {front_idle}
    upstream server {{
        server 127.0.0.1:{backend};
        keepalive {connections};
        {back_idle}
    }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 16m;
        location / {{
            proxy_pass http://server;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_set_header X-Front "$request_method $request_uri";
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_next_upstream off;
        }}
    }}
}}
"""

_CADDY = """
{{
    admin off
    auto_https off
    grace_period 100ms
    log {{
        level ERROR
    }}
    {front_idle}
}}
http://127.0.0.1:{port}, http://localhost:{port} {{
    bind 127.0.0.1
    reverse_proxy /mcp 127.0.0.1:{backend} {{
        {buffering}
        {back_idle}
    }}
    reverse_proxy 127.0.0.1:{backend} {{
        header_up X-Front "{{http.request.method}} {{http.request.orig_uri}}"
    }}
}}
"""

_HAPROXY = """
global
    maxconn 4096
    nbthread 1
defaults
    mode http
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    {front_idle}
    http-reuse always
    option abortonclose
frontend front
    bind 127.0.0.1:{port}
    option accept-invalid-http-request
    http-request set-header X-Front "%[method] %[pathq]"
    default_backend back
backend back
    option accept-invalid-http-response
    server server 127.0.0.1:{backend} {back_idle}
"""


class IdleTimes(NamedTuple):
    """The seconds for which a proxy keeps idle connections to clients (front) and to the server (back)."""

    front: int
    back: int


_FRONT_IDLE = {
    "nginx": "keepalive_timeout {0}s {0}s;",  # nginx announces the second value in Keep-Alive.
    "caddy": "servers {{\n timeouts {{\n idle {0}s\n }}\n }}",
    "haproxy": "timeout http-keep-alive {0}s",
}
_BACK_IDLE = {
    "nginx": "keepalive_timeout {0}s;",
    "caddy": "transport http {{\n keepalive {0}s\n }}",
    "haproxy": "pool-purge-delay {0}s",
}


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _get_caddy_buffering(program: str, home: Path) -> str:
    """Return the option that makes Caddy read a request before it forwards the request.

    Without this option, Caddy closes the connection to the server if a response begins before Caddy has seen the end of
    the body, although the server has received the whole body. The client then gets an incomplete response.
    """
    environment = os.environ | {"HOME": str(home)}  # Caddy creates a folder there
    command = [program, "version"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    version = tuple(map(int, re.findall(r"\d+", output)[:3]))
    return "request_buffers 16MiB" if version >= (2, 6, 4) else "buffer_requests"


def _build_command(kind: str, folder: Path, port: int, backend: int, idle_times: IdleTimes | None) -> list[str]:
    program = get_program(kind)
    template = {"nginx": _NGINX, "caddy": _CADDY, "haproxy": _HAPROXY}[kind]
    configuration = folder / f"{kind}.conf"
    buffering = _get_caddy_buffering(program, folder) if kind == "caddy" else ""
    values: dict[str, object] = {"folder": folder, "port": port, "backend": backend, "buffering": buffering}
    values |= {"front_idle": "", "back_idle": "", "connections": 8}
    if idle_times is not None:
        front_idle, back_idle = _FRONT_IDLE[kind].format(idle_times.front), _BACK_IDLE[kind].format(idle_times.back)
        values |= {"front_idle": front_idle, "back_idle": back_idle, "connections": 256}
    configuration.write_text(template.format(**values))
    return {
        "nginx": [program, "-c", str(configuration), "-p", str(folder), "-e", "stderr"],
        "caddy": [program, "run", "--adapter", "caddyfile", "--config", str(configuration)],
        "haproxy": [program, "-q", "-f", str(configuration)],
    }[kind]


@contextlib.contextmanager
def run_proxy(kind: str, folder: Path, backend: int, idle_times: IdleTimes | None = None) -> Iterator[RunningServer]:
    """Run a proxy in front of a port."""
    port, log_path = _find_free_port(), folder / f"{kind}.log"
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    command = _build_command(kind, folder, port, backend, idle_times)
    with (
        log_path.open("wb") as log,
        run_service(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment) as process,
        contextlib.closing(RunningServer(process, log_path, port)) as proxy,
    ):
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _is_listening(port):
            assert process.poll() is None, proxy.log
            assert time.monotonic() < deadline, f"{kind} does not listen: {proxy.log}"
            time.sleep(0.01)
        yield proxy


def _is_listening(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex(("127.0.0.1", port)) == 0

"""Test `--log-level`, `--allowed-host`, `--ssl-certfile`, `--ssl-keyfile` and `--keep-alive`."""

import asyncio
import http.client
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cli.command_process import SAMPLE_SERVER, TIMEOUT_S, RunCommand, RunSeries
from dovetail import Client, HTTPTarget
from support.certificates import write_certificate
from support.processes import run_process

LOGGING_SERVER = """
import logging
from dovetail import Server

{setup}
logging.getLogger("mine").info("loaded")
app = Server("logging")
"""


@contextmanager
def serve(*arguments: object, environment: dict[str, str]) -> Iterator[str]:
    """Start a command that serves over HTTP or HTTPS, and return the URL."""
    command = [sys.executable, "-m", "dovetail", *map(str, arguments), "--http", "--port", "0"]
    with run_process(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = ""
        while line := process.stderr.readline():
            lines += line
            if found := re.search(r" is at (https?://\S+)", line):
                break
        else:
            raise RuntimeError(lines)
        try:
            yield found[1]
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT_S)


@pytest.mark.parametrize("command", ["run", "gateway"])
def test_keep_alive(command: str, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}', encoding="utf-8")
    target = tmp_path / "mcp.json" if command == "gateway" else SAMPLE_SERVER
    with serve(command, target, "--keep-alive", "620", environment=environment) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
        connection.request("GET", "/")
        assert connection.getresponse().headers["Keep-Alive"] == "timeout=620"
        connection.close()


@pytest.mark.parametrize("arguments", [("--keep-alive", "60"), ("--http", "--keep-alive", "0")])
def test_keep_alive_needs_http_and_a_positive_number(run: RunCommand, arguments: tuple[str, ...]) -> None:
    outcome = run("run", SAMPLE_SERVER, *arguments)
    assert outcome.code == 2
    assert "--keep-alive" in outcome.err


@pytest.mark.parametrize("command", ["run", "dev", "gateway"])
def test_https(command: str, environment: dict[str, str], tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}', encoding="utf-8")
    target = tmp_path / "mcp.json" if command == "gateway" else SAMPLE_SERVER
    options = ("--ssl-certfile", certificate, "--ssl-keyfile", key)

    async def get_name(url: str) -> str:
        async with Client(HTTPTarget(url, verify=str(certificate))) as client:
            return client.server_info.name

    with serve(command, target, *options, environment=environment) as url:
        assert url.startswith("https://127.0.0.1:")
        assert asyncio.run(get_name(url)) == ("gateway" if command == "gateway" else "served")


def test_host_names(environment: dict[str, str]) -> None:
    def get_status(url: str, host: str) -> int:
        request = urllib.request.Request(url, headers={"Host": host})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code

    options = ("--allowed-host", "one.internal", "--allowed-host", "two.internal")
    with serve("run", SAMPLE_SERVER, *options, environment=environment) as url:
        statuses = [get_status(url, host) for host in ("one.internal", "two.internal", "other.internal", "localhost")]
    assert [status == 421 for status in statuses] == [False, False, True, False]


def test_invalid_certificates_are_explained(run_here: RunCommand, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no key", encoding="utf-8")
    for options in (
        ("--http", "--ssl-certfile", certificate, "--ssl-keyfile", wrong),
        ("--http", "--ssl-certfile", certificate),
        ("--http", "--ssl-keyfile", key),
        ("--http", "--ssl-certfile", tmp_path / "missing.pem"),
        ("--ssl-certfile", certificate),
        ("--allowed-host", "x.internal"),
    ):
        result = run_here("run", SAMPLE_SERVER, *options)
        assert result.code == 2, result.err
        assert re.search("--http|--ssl-certfile|certificate", result.err)


def test_log_level(run_series: RunSeries, tmp_path: Path) -> None:
    server, configured = tmp_path / "server.py", tmp_path / "configured.py"
    server.write_text(LOGGING_SERVER.format(setup=""), encoding="utf-8")
    setup = "logging.basicConfig(format='own %(message)s')"
    configured.write_text(LOGGING_SERVER.format(setup=setup), encoding="utf-8")
    info, error, dev, own, invalid = run_series(
        ("run", server, "--log-level", "info"),
        ("run", server, "--log-level", "error"),
        ("dev", server, "--log-level", "INFO"),
        ("run", configured, "--log-level", "info"),
        ("run", server, "--log-level", "loud"),
    )
    assert "INFO mine: loaded" in info.check_success().err
    assert "loaded" not in error.check_success().err
    assert "loaded" in dev.check_success().err
    assert "own loaded" in own.check_success().err
    assert invalid.code == 2
    [variable] = run_series(("run", server), DOVETAIL_LOG_LEVEL="debug")
    assert "loaded" in variable.check_success().err

"""Test `--cluster` and the errors of servers that cannot join their cluster."""

from pathlib import Path

import pytest

from cli.command_process import RunCommand

KEY = "a key of sixteen bytes or more"
UNREACHABLE = "redis://:geheim@127.0.0.1:1/0"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    file = tmp_path / "server.py"
    file.write_text("from dovetail import Server\napp = Server('tickets')\n")
    return file


@pytest.mark.parametrize("workers", ["1", "3"])
def test_a_server_does_not_start_while_redis_is_away(
    run: RunCommand, server: Path, environment: dict[str, str], workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(environment, "DOVETAIL_SECRET_KEYS", KEY)
    ended = run("run", server, "--http", "--port", "0", "--workers", workers, "--cluster", UNREACHABLE)
    assert ended.code == 3
    assert ended.err.count("127.0.0.1:1") >= 1
    assert "Traceback" not in ended.err
    assert "geheim" not in ended.err


@pytest.mark.parametrize("command", ["run", "gateway"])
def test_redis_requires_secret_keys(run: RunCommand, server: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    target = server if command == "run" else tmp_path / "mcp.json"
    ended = run(command, target, "--http", "--port", "0", "--cluster", UNREACHABLE)
    assert ended.code == 2
    assert "DOVETAIL_SECRET_KEYS" in ended.err


@pytest.mark.parametrize("command", ["run", "gateway"])
def test_an_invalid_cluster_is_refused(run: RunCommand, server: Path, command: str) -> None:
    ended = run(command, server, "--http", "--cluster", "memcached://host")
    assert ended.code == 2
    assert "memcached" in ended.err
    assert "local" in ended.err


def test_a_cluster_needs_http(run: RunCommand, server: Path) -> None:
    ended = run("run", server, "--cluster", "local")
    assert ended.code == 2
    assert "--http" in ended.err


def test_the_cluster_of_a_file_is_not_replaced_silently(run: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "server.py"
    file.write_text("from dovetail import Server\napp = Server('tickets', cluster='local')\n")
    ended = run("run", file, "--http", "--port", "0", "--cluster", UNREACHABLE)
    assert ended.code == 2
    assert "--cluster" in ended.err


@pytest.mark.parametrize(("name", "value"), [("DOVETAIL_CLUSTER", "foo"), ("DOVETAIL_SECRET_KEYS", f"{KEY},short")])
def test_a_wrong_environment_variable_is_named(
    run: RunCommand,
    server: Path,
    environment: dict[str, str],
    name: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(environment, name, value)
    ended = run("run", server, "--http", "--port", "0")
    assert ended.code == 2
    assert name in ended.err
    assert KEY not in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("options", [("--port", "99999", "--workers", "2"), ("--cluster", "redis://:geheim@host:x")])
def test_an_invalid_port_is_refused(run: RunCommand, server: Path, options: tuple[str, ...]) -> None:
    ended = run("run", server, "--http", *options)
    assert ended.code == 2
    assert "port" in ended.err
    assert "geheim" not in ended.err

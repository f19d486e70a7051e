"""Test `dovetail run --check`, which finds problems of a server without serving it."""

from pathlib import Path

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return tmp_path / "server.py"


def test_a_valid_server(run: RunCommand, server: Path) -> None:
    server.write_text(
        "from dovetail import Server\nprint('loud')\napp = Server('checked')\n@app.resource('a://b')\ndef b() -> str:\n"
        "    'A text.'\n    return ''\n",
        encoding="utf-8",
    )
    result = run("run", server, "--check").check_success()
    assert result.out == "checked: 1 resource, 0 errors, 0 warnings\n"
    assert run("run", "-m", "server", "--check", cwd=server.parent).check_success().out == result.out
    assert run("run", SAMPLE_SERVER, "--check-lifespan", "--http", "--workers", "2").out.startswith("warning: ")


def test_problems_are_listed(run: RunCommand, server: Path) -> None:
    server.write_text(
        "from dovetail import Server\napp = Server('checked')\n@app.tool\ndef f(a: int) -> None: ...\n",
        encoding="utf-8",
    )
    warned = run("run", server, "--check").check_success()
    assert warned.out.startswith("warning: tool f: ")
    server.write_text(
        "from dovetail import Server\napp = Server('checked')\n@app.tool\ndef f(a: int) -> None: 'Do it\\u202e.'\n",
        encoding="utf-8",
    )
    failed = run("run", server, "--check")
    assert failed.code == 6
    assert "error: tool f: " in failed.out
    assert run("run", server, "--check", "--http", "--public-url", "ftp://x").out.count("error: options: ") == 1


@pytest.mark.parametrize("options", [("--host", "0.0.0.0"), ("--port", "99999")])
def test_http_options_that_run_refuses(options: tuple[str, ...], run: RunCommand) -> None:
    failed = run("run", SAMPLE_SERVER, "--check", "--http", *options)
    assert failed.code == 6
    assert failed.out.count("error: options: ") == 1


def test_the_lifespan_starts_only_if_asked_for(run: RunCommand, server: Path) -> None:
    server.write_text(
        "from contextlib import asynccontextmanager\nfrom dovetail import Server\n@asynccontextmanager\n"
        "async def lifespan():\n    raise ConnectionError('database is down')\n    yield\n"
        "app = Server('checked', lifespan=lifespan)\n",
        encoding="utf-8",
    )
    run("run", server, "--check").check_success()
    failed = run("run", server, "--check-lifespan")
    assert failed.code == 3
    assert "database is down" in failed.err


def test_a_failing_file_and_other_targets(run: RunCommand, server: Path) -> None:
    server.write_text("import dovetail\n1 / 0\n", encoding="utf-8")
    failed = run("run", server, "--check")
    assert failed.code == 3
    assert "ZeroDivisionError" in failed.err
    for target in (("https://x.example/mcp",), ("--", "true")):
        assert run("run", "--check", *target).code == 2

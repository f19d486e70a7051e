"""Test `dovetail run --check`, which finds problems of a server without serving it."""

from pathlib import Path

from cli.command_process import SAMPLE_SERVER, RunCommand, RunSeries
from support.certificates import write_certificate

VALID = """
from dovetail import Server
print('loud')
app = Server('checked')
@app.resource('a://b')
def b() -> str:
    'A text.'
    return ''
"""
TOOL = """
from dovetail import Server
app = Server('checked')
@app.tool
def f(a: int) -> None: {description}
"""
LIFESPAN = """
from contextlib import asynccontextmanager
from dovetail import Server
@asynccontextmanager
async def lifespan():
    raise ConnectionError('database is down')
    yield
app = Server('checked', lifespan=lifespan)
"""


def test_a_valid_server(run_series: RunSeries, tmp_path: Path) -> None:
    (tmp_path / "valid.py").write_text(VALID, encoding="utf-8")
    in_file, in_module, with_workers = run_series(
        ("run", "valid.py", "--check"),
        ("run", "-m", "valid", "--check"),
        ("run", SAMPLE_SERVER, "--check-lifespan", "--http", "--workers", "2"),
        cwd=tmp_path,
    )
    assert in_file.check_success().out == "checked: 1 resource, 0 errors, 0 warnings\n"
    assert in_module.check_success().out == in_file.out
    assert with_workers.out.startswith("warning: ")


def test_problems_are_listed(run_series: RunSeries, tmp_path: Path) -> None:
    (tmp_path / "vague.py").write_text(TOOL.format(description="..."), encoding="utf-8")
    (tmp_path / "hostile.py").write_text(TOOL.format(description="'Do it\\u202e.'"), encoding="utf-8")
    warned, failed, with_options = run_series(
        ("run", "vague.py", "--check"),
        ("run", "hostile.py", "--check"),
        ("run", "hostile.py", "--check", "--http", "--public-url", "ftp://x"),
        cwd=tmp_path,
    )
    assert warned.check_success().out.startswith("warning: tool f: ")
    assert failed.code == 6
    assert "error: tool f: " in failed.out
    assert with_options.out.count("error: options: ") == 1


def test_http_options_that_run_refuses(run_series: RunSeries) -> None:
    check = ("run", SAMPLE_SERVER, "--check", "--http")
    results = run_series((*check, "--host", "0.0.0.0"), (*check, "--port", "99999"))
    for failed in results:
        assert failed.code == 6
        assert failed.out.count("error: options: ") == 1
    # `run` has no option --auth. Authentication is an option of the server.
    assert " auth=" in results[0].out
    assert "--port" in results[1].out


def test_the_environment_and_the_certificate_are_checked_as_run_does(run: RunCommand, tmp_path: Path) -> None:
    check = ("run", SAMPLE_SERVER, "--check", "--http")
    failed = run(*check, FORWARDED_ALLOW_IPS="proxy.local")
    assert failed.code == 6
    assert [line for line in failed.out.splitlines() if line.startswith("error: options: FORWARDED_ALLOW_IPS")]
    certificate, key = write_certificate(tmp_path, hours=-1)
    warned = run(*check, "--ssl-certfile", certificate, "--ssl-keyfile", key)
    assert warned.out.count("warning: options: ") == 1
    assert "expired" in warned.out


def test_the_lifespan_starts_only_if_asked_for(run_series: RunSeries, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(LIFESPAN, encoding="utf-8")
    checked, failed = run_series(("run", server, "--check"), ("run", server, "--check-lifespan"))
    checked.check_success()
    assert failed.code == 3
    assert "database is down" in failed.err


def test_a_failing_file_and_other_targets(run_series: RunSeries, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text("import dovetail\n1 / 0\n", encoding="utf-8")
    failed, *refused = run_series(
        ("run", server, "--check"), ("run", "--check", "https://x.example/mcp"), ("run", "--check", "--", "true")
    )
    assert failed.code == 3
    assert "ZeroDivisionError" in failed.err
    assert [result.code for result in refused] == [2, 2]

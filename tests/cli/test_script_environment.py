"""Test that scripts with dependencies run in an environment of their own, with a real uv and without a network."""

import asyncio
import functools
import http.server
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.command_process import ROOT, TIMEOUT_S, RunCommand
from dovetail import Client, CommandTarget
from dovetail.cli.script_environment import EnvironmentSpec, describe_environment, find_uv, prepare_environment
from support.processes import run_process

UV = Path(sys.executable).with_name("uv")
pytestmark = pytest.mark.skipif(os.name == "nt" or not UV.is_file(), reason="uv is not installed next to Python")

SHOW = """
import os, sys

@app.tool
def show() -> dict:
    return {"prefix": sys.prefix, "package": httpx.__file__, "pid": os.getpid(), "edition": 1}
"""
PLAIN_SERVER = """
import tinydep
from dovetail import Server

app = Server("plain")

@app.tool
def show() -> dict:
    return {"value": tinydep.VALUE}
"""
# The tests do not need these libraries, and packing them takes seconds.
UNUSED_DISTRIBUTIONS = ("cryptography", "uvloop")


def list_requirements(root: str) -> set[str]:
    """Return the names of all installed distributions that a distribution requires."""
    names, to_visit = set[str](), [root]
    while to_visit:
        for requirement in importlib.metadata.requires(to_visit.pop()) or ():
            match = re.match(r"[\w.-]+", requirement)
            assert match is not None
            name = re.sub(r"[-_.]+", "-", match[0]).lower()
            is_installed = any(importlib.metadata.Distribution.discover(name=name))
            if "extra ==" not in requirement and name not in names and is_installed:
                names.add(name)
                to_visit.append(name)
    return names


def pack_distribution(name: str, folder: Path) -> None:
    """Pack an installed distribution as a wheel."""
    distribution = importlib.metadata.distribution(name)
    tag = re.search(r"^Tag: (\S+)", distribution.read_text("WHEEL") or "", re.MULTILINE)
    assert tag is not None
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{distribution.version}-{tag[1]}.whl", "w") as wheel:
        for file in distribution.files or ():
            is_wanted = name not in UNUSED_DISTRIBUTIONS or ".dist-info" in file.parts[0]
            if is_wanted and ".." not in file.parts and file.suffix != ".pyc":
                wheel.write(str(file.locate()), file.as_posix())


@pytest.fixture(scope="module")
def offline(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine without a network, with wheels of a small package and of what dovetail needs."""
    wheels = tmp_path_factory.mktemp("wheels")
    for name in list_requirements("dovetail-mcp") | list_requirements("httpx") | {"httpx"}:
        pack_distribution(name, wheels)
    with zipfile.ZipFile(wheels / "tinydep-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinydep.py", "VALUE = 42\n")
        wheel.writestr("tinydep-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinydep\nVersion: 1.0\n")
        wheel.writestr("tinydep-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tinydep-1.0.dist-info/RECORD", "")
    cache = tmp_path_factory.mktemp("cache")
    settings = {"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels), "UV_PYTHON_DOWNLOADS": "never"}
    folders = {"UV_CACHE_DIR": str(cache / "uv"), "XDG_CACHE_HOME": str(cache)}
    return environment | settings | folders | {"UV": str(UV)}


def find_script(page: str) -> str:
    """Return the block with script metadata on a page of the documentation."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    [script] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "# /// script" in block]
    return script


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documented server with script metadata, and one more tool."""
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(find_script("commands/run.md") + SHOW, encoding="utf-8")
    return path


async def show(*arguments: object, env: dict[str, str], cwd: Path | None = None) -> dict[str, object]:
    command = [sys.executable, "-m", "dovetail", *map(str, arguments)]
    async with Client(CommandTarget(command, env=env), cwd=cwd) as client:
        return await client.call("show")


def show_over_http(*arguments: object, env: dict[str, str]) -> tuple[int, dict[str, object]]:
    """Start `dovetail run --http`, and return the id of its process and the result of a call."""
    command = [sys.executable, "-m", "dovetail", "run", *map(str, arguments), "--http", "--port", "0"]
    with run_process(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        match = next(match for line in process.stderr if (match := re.search(r" is at (http://\S+)", line)))

        async def call() -> dict[str, object]:
            async with Client(match[1]) as client:
                return await client.call("show")

        shown = asyncio.run(call())
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    return process.pid, shown


def test_a_script_runs_with_its_dependencies(script: Path, offline: dict[str, str]) -> None:
    process_id, shown = show_over_http(f"{script}:app", env=offline)
    assert shown["prefix"] != sys.prefix
    assert str(shown["package"]).startswith(str(shown["prefix"]))
    # A signal reaches the server, and no other process stays, because the process is replaced.
    assert shown["pid"] == process_id
    parent_id, shown_by_worker = show_over_http(script, "--workers", "2", env=offline)
    assert shown_by_worker["pid"] != parent_id
    assert shown_by_worker["prefix"] == shown["prefix"]  # The environment is cached.


def test_packages_can_be_added(tmp_path: Path, offline: dict[str, str]) -> None:
    (tmp_path / "plain.py").write_text(PLAIN_SERVER, encoding="utf-8")
    shown = asyncio.run(show("run", "plain.py", "--with", "tinydep", env=offline, cwd=tmp_path))
    assert shown["value"] == 42
    assert asyncio.run(show("run", "-m", "plain", "--with", "tinydep", env=offline, cwd=tmp_path))["value"] == 42


def test_dev_restarts_in_the_environment(script: Path, offline: dict[str, str]) -> None:
    command = [sys.executable, "-m", "dovetail", "dev", "--quiet", str(script)]

    def edit() -> None:
        script.write_text(script.read_text().replace('"edition": 1', '"edition": 2'), encoding="utf-8")

    async def main() -> None:
        async with Client(CommandTarget(command, env=offline)) as client:
            assert (await client.call("show"))["edition"] == 1
            async with asyncio.timeout(TIMEOUT_S), client.listen(tools=True) as changes:
                edit()
                async for _ in changes:
                    if (await client.call("show"))["edition"] == 2:
                        break

    asyncio.run(main())


@pytest.fixture
def web_page(tmp_path: Path) -> Iterator[str]:
    """Serve a folder over HTTP, and return the URL of a page."""
    (tmp_path / "page").write_text("a page", encoding="utf-8")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/page"
        server.shutdown()


def test_an_installed_script_works_in_its_host(
    run_here: RunCommand, script: Path, offline: dict[str, str], tmp_path: Path, web_page: str
) -> None:
    at_home = offline | {"HOME": str(tmp_path)}
    config = tmp_path / ".cursor" / "mcp.json"
    run_here("install", script, "--to", "cursor", "--name", "more", "--with", "tinydep==1.0", **at_home).check_success()
    assert json.loads(config.read_text())["mcpServers"]["more"]["args"][-4:] == [
        "run",
        "--with",
        "tinydep==1.0",
        str(script),
    ]
    run_here("install", script, "--to", "cursor", **at_home).check_success()
    assert json.loads(config.read_text())["mcpServers"]["script"]["env"] == {"UV": str(UV)}
    at_home |= {"PATH": str(tmp_path)}
    assert run_here("call", "script", "fetch", f"url={web_page}", **at_home).check_success().out == "a page\n"


def test_a_missing_package_is_named(run: RunCommand, offline: dict[str, str], tmp_path: Path) -> None:
    missing = tmp_path / "missing.py"
    missing.write_text('# /// script\n# dependencies = ["no-such-dep"]\n# ///\n', encoding="utf-8")
    failed = run("run", missing, **offline)
    assert failed.code == 3
    assert "no-such-dep" in failed.err


def test_uv_is_required(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = EnvironmentSpec(target="server.py", packages=["tinydep"])
    for name in ("HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.delenv("UV", raising=False)
    with pytest.raises(click.UsageError, match="pip install uv"):
        find_uv(environment)
    (tmp_path / "uv").touch(mode=0o700)
    assert find_uv(environment) == str(tmp_path / "uv")


def test_environments_that_others_can_change_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path))
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments").chmod(0o777)
    with pytest.raises(click.UsageError, match="environments"):
        prepare_environment(EnvironmentSpec(target="server.py", packages=["tinydep"]))


def test_invalid_options_are_refused(run_here: RunCommand, tmp_path: Path) -> None:
    for arguments in (
        ("run", "https://x.example/mcp", "--with", "tinydep"),
        ("dev", "--with", "tinydep", "--", "node", "x.js"),
        ("run", tmp_path / "server.py", "--with", "--no-index"),
    ):
        refused = run_here(*arguments)
        assert (refused.code, "--with" in refused.err) == (2, True)


@pytest.fixture
def invalid_script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "invalid.py"
    path.write_text(request.param, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("invalid_script", "reason"),
    [
        ("# /// script\n# dependencies = [\n# ///\n", "TOML"),
        ("# /// script\n# dependencies = 'requests'\n# ///\n", "dependencies"),
        ("# /// script\n# dependencies = [1]\n# ///\n", "dependencies"),
        ("# /// script\n# requires-python = 3.11\n# ///\n", "requires-python"),
        ("# /// script\n# dependencies = []\n", "end"),
        ("# /// script\n#dependencies = []\n# ///\n", "'# '"),
        ("# /// script\n# ///\n\n# /// script\n# ///\n", "twice"),
    ],
    indirect=["invalid_script"],
)
def test_invalid_metadata_is_refused(invalid_script: Path, reason: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        describe_environment(invalid_script, None, (), None)
    assert reason in caught.value.message
    assert str(invalid_script) in caught.value.message


def test_the_metadata_in_the_migration_guide(tmp_path: Path) -> None:
    path = tmp_path / "server.py"
    path.write_text(find_script("guide/migrating.md"), encoding="utf-8")
    found = describe_environment(path, None, (), None)
    assert found is not None
    assert found.script == str(path)


def test_metadata_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        'import x\n# /// script\n# requires-python = ">=3.12"\n#\n# # ///\n# ///\n# more\n', encoding="utf-8"
    )
    found = describe_environment(path, None, (), None)
    assert found is not None
    assert (found.script, found.python) == (str(path), ">=3.12")
    chosen = describe_environment(path, None, ["a"], "3.13")
    assert chosen is not None
    assert (chosen.python, [*chosen.packages]) == ("3.13", ["a"])
    path.write_text("# /// tool\n# a = 1\n# ///\n", encoding="utf-8")
    assert describe_environment(path, None, (), None) is None
    assert describe_environment(tmp_path / "missing.py", None, (), None) is None
    assert describe_environment(None, "package.server", (), None) is None

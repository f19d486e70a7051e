"""Run the unit tests on several Python versions, or with the lowest dependency versions that pyproject.toml allows.

    python tests/support/matrix.py 3.11 3.12 -- PYTEST_ARGUMENTS
    python tests/support/matrix.py --lowest 3.11 -- PYTEST_ARGUMENTS

`make matrix` and `make lowest` call it. Each run gets a new environment in the checkout (.venv-3.12, .venv-lowest). A
Python version that is not on this machine is reported and never downloaded.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
LOCK = ROOT / "requirements" / "test.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowest", action="store_true", help="Use the lowest versions of the direct dependencies.")
    parser.add_argument("versions", nargs="+", help="Python versions, such as 3.12.")
    separator = sys.argv.index("--")
    arguments = parser.parse_args(sys.argv[1:separator])
    results = {version: run(version, arguments.lowest, sys.argv[separator + 1 :]) for version in arguments.versions}
    dependencies = "lowest" if arguments.lowest else "locked"
    print(f"\nUnit tests with the {dependencies} dependencies:")
    for version, result in results.items():
        print(f"  Python {version}: {result}")
    if "failed" in results.values() or "passed" not in results.values():
        sys.exit(1)


def run(version: str, lowest: bool, pytest_arguments: list[str]) -> str:
    interpreter = find_python(version)
    if interpreter is None:
        return "not found on this machine, not tested"
    print(f"\nPython {version}: {interpreter}", flush=True)
    environment = ROOT / (".venv-lowest" if lowest else f".venv-{version}")
    install(environment, interpreter, lowest)
    command = [environment / "bin" / "python", "-m", "pytest", *pytest_arguments]
    return "passed" if subprocess.run(command, cwd=ROOT, check=False).returncode == 0 else "failed"


def find_python(version: str) -> Path | None:
    """Return an interpreter of this version from the PATH, pyenv or uv."""
    for path in candidates(version):
        command = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0 and result.stdout.strip() == version:
            return path
    return None


def candidates(version: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(pyenv.glob(f"{version}.*/bin/python"))
    managed = subprocess.run([UV, "python", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    yield from sorted(Path(managed).glob(f"cpython-{version}.*/bin/python"))


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

"""Build the sdist and the wheel twice, compare the files, check their metadata, and try the wheel in a new environment.

    python tests/support/build_distributions.py FOLDER

`make dist` calls it. It builds copies that contain only the files in git, and builds the wheel from the sdist. The
package `packaging`, which other tests use, too, checks the metadata. So twine is not needed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[2]
HELLO = """from dovetail import Server

app = Server("hello")


@app.tool
def greet(name: str) -> str:
    return f"Hello {name}"
"""


def build(source: Path, folder: Path) -> list[Path]:
    """Build the sdist of a source folder, and the wheel from the unpacked sdist. Return both files."""
    _build("sdist", source, folder)
    [sdist] = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        _build("wheel", next(Path(unpacked).iterdir()), folder)
    [wheel] = folder.glob("*.whl")
    return [sdist, wheel]


def _build(target: str, source: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def copy_sources(folder: Path) -> None:
    """Copy the files in git to a folder. Without git, copy the unpacked sdist."""
    tracked = list_tracked_files()
    if tracked is None:
        ignored = shutil.ignore_patterns(".venv*", "node_modules", "dist", ".spec", "site", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, folder, ignore=ignored)
    else:
        for name in tracked:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def list_tracked_files() -> list[str] | None:
    """Return the names of the files in git, or None if this is not a checkout."""
    if not (ROOT / ".git").exists():
        return None
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


def change_times_and_modes(folder: Path) -> None:
    """Change what must not influence a build: the times of the files, and the rights of the group."""
    for path in folder.rglob("*"):
        path.chmod(path.stat().st_mode ^ 0o020)
        os.utime(path, (1_000_000_000, 1_000_000_000))


def read_metadata(path: Path) -> Metadata:
    """Return the metadata of an sdist or a wheel. Raise ExceptionGroup if a field is invalid."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            return Metadata.from_email(archive.read(name), validate=True)
    with tarfile.open(path) as archive:
        file = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        return Metadata.from_email(file.read(), validate=True)


def compute_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def try_wheel(wheel: Path) -> None:
    """Install the wheel with the locked requirements in a new environment, and call a server."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder, "environment")
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        python, program = str(environment / "bin" / "python"), Path(folder, "hello.py")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        lock = str(ROOT / "requirements" / "runtime.txt")
        subprocess.run([*pip, "install", "--require-hashes", "--requirement", lock], check=True)
        subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
        subprocess.run([*pip, "check"], check=True, stdout=subprocess.DEVNULL)
        program.write_text(HELLO, encoding="utf-8")
        dovetail = str(environment / "bin" / "dovetail")
        for arguments in (["--version"], ["call", str(program), "greet", "name=world"]):
            subprocess.run([dovetail, *arguments], cwd=folder, check=True)


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sources, results = [Path(folder, "first"), Path(folder, "second")], [Path(folder, "a"), Path(folder, "b")]
        for source in sources:
            copy_sources(source)
        change_times_and_modes(sources[1])
        pairs = [*zip(*map(build, sources, results), strict=True)]
        for first, second in pairs:
            metadata = read_metadata(first)
            if compute_hash(first) != compute_hash(second):
                sys.exit(f"two builds of {first.name} differ")
            print(f"{compute_hash(first)}  {first.name}  ({metadata.name} {metadata.version}, built twice)")
        try_wheel(pairs[1][0])
        target.mkdir(exist_ok=True)
        for first, _ in pairs:
            shutil.copy(first, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

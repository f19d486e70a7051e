"""Test that an installation of `dovetail-mcp` is small and declares all of its dependencies."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

LIMITS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text(encoding="utf-8"))["installation"]


def test_an_installation_stays_small(root: Path) -> None:
    installed = _closure("dovetail-mcp")
    sizes = {name: _size(found) for name, found in installed.items()}
    # The tests use an editable installation, which has no files of its own.
    package = [path for path in (root / "src" / "dovetail").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    sizes["dovetail-mcp"] = sum(path.stat().st_size for path in package)
    assert len(sizes) <= LIMITS["distributions"], sorted(sizes)
    assert sum(sizes.values()) <= LIMITS["bytes"], sizes


def test_pip_finds_an_extra_of_an_installed_package() -> None:
    """Test the command that error messages name. pip reads the installed metadata, so it does not need PyPI."""
    pytest.importorskip("pip", reason="pip is not installed in this environment")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", "dovetail-mcp[redis]"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_every_named_extra_exists(root: Path) -> None:
    extras = {*(distribution("dovetail-mcp").metadata.get_all("Provides-Extra") or [])}
    paths = [root / "README.md", *(path for name in ("docs", "examples", "src") for path in (root / name).rglob("*"))]
    named = {
        extra
        for path in paths
        if path.suffix in (".md", ".py")
        for extra in re.findall(r"(?:dovetail-mcp|\.)\[(\w+)\]['\"`]", path.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= extras


def _closure(name: str) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    pending = [name]
    while pending:
        current = pending.pop()
        if current in found:
            continue
        found[current] = distribution(current)
        wanted = [Requirement(line) for line in found[current].requires or []]
        pending += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def _size(installed: Distribution) -> int:
    return sum(file.size or 0 for file in installed.files or [] if file.suffix != ".pyc")

"""Test that the repository contains no absolute paths, private registries or credentials in URLs."""

import re
import subprocess
from pathlib import Path

import pytest

from support.outside_programs import get_program, needs

# Written in pieces so that this file does not accuse itself.
MACHINE_PATH = re.compile(r"(?<![\w.:/~$}-])/(?:" + "work|home|root|Users|opt" + r")/[\w.-]+")
TEMPORARY_PATH = re.compile(r"(?<![\w.:/~$}-])/tmp/(?!x\b|test\b|example)[\w.-]+")
REGISTRY = re.compile(
    r"files\." + r"pythonhosted\.org|pypi\." + r"org/simple|registry\." + r"npmjs\.org|index-" + r"url\b"
)
RESOLVED = re.compile(r'"reso' + r'lved": "https?:')
# On PyPI, `dovetail` is an unrelated project. Ours is `dovetail-mcp`.
INSTALLERS = (
    r"(?:pip3? install|pipx (?:install|run)|uv (?:add|pip install|tool install|tool run)|uvx|poetry add|pdm add)"
)
SEPARATOR = r"[\s\"',:\[(]+"
WRONG_NAME = re.compile(
    rf"{INSTALLERS}\b(?:{SEPARATOR}(?:-[\w-]+|args))*{SEPARATOR}" + r"dovetail(?![\w/.-])"
    r"|\b(?:version|distribution|metadata|requires)\([\"']" + r"dovetail[\"']"
)
SUFFIXES = {".png", ".jpg", ".ico", ".woff2", ".gz"}


@needs("git")
def test_no_machine_path_and_no_registry_host(root: Path) -> None:
    accused = [
        f"{path.relative_to(root)}:{number}: {found.group()}"
        for path in _tracked(root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for pattern in (MACHINE_PATH, TEMPORARY_PATH, REGISTRY, RESOLVED)
        if (found := pattern.search(line)) and "--no-emit-index" not in line
    ]
    assert not accused


@needs("git")
def test_no_file_installs_the_wrong_project(root: Path) -> None:
    wrong = [
        f"{path.relative_to(root)}: {found.group()}"
        for path in _tracked(root)
        for found in WRONG_NAME.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("pip install {}", True),
        ('pip install -U "{}[openai]"', True),
        ("uvx {} run hello.py", True),
        ('{{"command": "uvx", "args": ["{}", "gateway"]}}', True),
        ('("uvx", ["{}", "gateway"])', True),
        ("uv tool install --force '{}'", True),
        ("importlib.metadata.version('{}')", True),
        ("pip install {}-mcp", False),
        ('pip install "{}-mcp[openai]"', False),
        ("uvx --from {}-mcp {} run hello.py", False),
        ("pip install . && {} list", False),
    ],
)
def test_a_wrong_project_is_found(text: str, is_wrong: bool) -> None:
    assert (WRONG_NAME.search(text.format(*["dovetail"] * 2)) is not None) is is_wrong


def _tracked(root: Path) -> list[Path]:
    if not (root / ".git").exists():
        pytest.skip("git: this is not a checkout")
    command = [get_program("git"), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    paths = [root / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and path.suffix not in SUFFIXES]

"""Fixtures for the tests of the test suite itself."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunPytest = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Path:
    """Create a checkout with only the configuration of the tests."""
    (tmp_path / "tests" / "support").mkdir(parents=True)
    for name in (
        "conftest.py",
        "support/official_schemas.py",
        "support/extract_schemas.py",
        "support/outside_programs.py",
        "support/durations.py",
        "support/durations.json",
    ):
        shutil.copy(root / "tests" / name, tmp_path / "tests" / name)
    return tmp_path


@pytest.fixture
def run_pytest(project: Path) -> RunPytest:
    """Run pytest in the project, without the plugins that its tests do not need."""

    def run(*options: str, env: dict[str, str], **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist", *options, "tests"],
            cwd=project,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "MCP_SPEC_DIR": "", **env},
            capture_output=True,
            text=True,
            check=False,
            **more,
        )

    return run

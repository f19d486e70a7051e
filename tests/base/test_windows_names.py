"""Test what dovetail does without the names that only POSIX systems have, in child processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="platform: removes names that Windows does not have")

SUPPORT = Path(__file__).parents[1] / "support"
RUN_STEP = [sys.executable, str(SUPPORT / "windows_names.py"), str(SUPPORT / "windows_steps.py")]


@pytest.mark.parametrize(
    "step",
    [
        "import_everything",
        "store_files",
        "keep_host_state",
        "record_and_replay",
        "run_tasks",
        "call_over_http",
        "call_a_reloading_server",
        "call_over_stdio",
        "refuse_unix_features",
    ],
)
def test_it_works_without_names_of_posix(step: str, tmp_path: Path) -> None:
    command = [*RUN_STEP, step, str(tmp_path)]
    environment = os.environ | {"LOCALAPPDATA": str(tmp_path / "AppData")}
    process = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert process.returncode == 0, process.stderr

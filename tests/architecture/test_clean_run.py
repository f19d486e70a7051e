"""Test that a run which leaves processes or files fails, and names them."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: only Linux lets a process adopt orphans")

# Without the long wait for processes that end by themselves.
CLEAN_RUN = """
import sys
from support import clean_run
clean_run._GRACE_PERIOD_S = 0.2
sys.exit(clean_run.main([sys.executable, "-c", sys.argv[1]]))
"""
# The process is an orphan in another session, and its environment is empty.
LEAVE_PROCESS = """
import subprocess
subprocess.run(["/bin/sh", "-c", "setsid sleep 600 & echo $!"], env={"PATH": "/usr/bin:/bin"}, check=True)
"""
LEAVE_FILES = """
import pathlib, tempfile
tempfile.mkdtemp(prefix="litter-")
(pathlib.Path.home() / ".rc").touch()
"""


def run(root: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CLEAN_RUN, program]
    environment = os.environ | {"PYTHONPATH": str(root / "tests")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", [0, 3])
def test_a_clean_run_has_the_exit_code_of_the_command(root: Path, code: int) -> None:
    ended = run(root, f"raise SystemExit({code})")
    assert (ended.returncode, ended.stderr) == (code, "")


def test_a_process_that_stays_is_named_and_ended(root: Path) -> None:
    ended = run(root, LEAVE_PROCESS)
    process_id = int(ended.stdout)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [f"left behind: process {process_id}: sleep 600"]
    assert not psutil.pid_exists(process_id)


def test_files_that_stay_are_named_and_removed(root: Path) -> None:
    ended = run(root, LEAVE_FILES)
    assert ended.returncode == 1
    temporary, home = ended.stderr.splitlines()
    assert "litter-" in temporary
    assert home.endswith(": .rc")

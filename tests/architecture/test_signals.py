"""Test that programs started by tests have default signal handling, however pytest was started."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="platform: signals are not inherited")

PROGRAM = """
import signal, subprocess, sys

def test_default_handling():
    show = "import signal; print([signal.getsignal(number).name for number in (1, 3)], signal.getsignal(2).__name__)"
    shown = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout
    assert shown == "['SIG_DFL', 'SIG_DFL'] default_int_handler\\n"

def test_a_hangup_is_still_ignored():
    signal.raise_signal(signal.SIGHUP)
"""


def _ignore_signals() -> None:
    """Ignore what `nohup` and a shell without job control ignore for a background job."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "worker"])
def test_ignored_signals_are_not_passed_on(
    project: Path, run_pytest: Callable[..., subprocess.CompletedProcess[str]], options: tuple[str, ...]
) -> None:
    (project / "tests" / "test_it.py").write_text(PROGRAM, encoding="utf-8")
    run = run_pytest(*options, env={}, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_ignore_signals)
    assert "2 passed" in run.stdout, run.stdout

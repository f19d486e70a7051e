"""Test that under CI=true a skipped test fails, during a run and during collection."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = {
    "test_at_run.py": "import pytest\n\ndef test_it():\n    pytest.skip({reason!r})\n",
    "test_at_collection.py": "import pytest\n\npytest.skip({reason!r}, allow_module_level=True)\n",
    "test_marked.py": "import pytest\n\n@pytest.mark.skipif(True, reason={reason!r})\ndef test_it():\n    pass\n",
}
REFUSED = {"failed": 1, "error": 2}
SKIPPED = {"skipped": 3}


@pytest.mark.parametrize(
    ("ci", "reason", "expected"),
    [("true", "no peer", REFUSED), ("true", "platform: no job objects here", SKIPPED), ("", "no peer", SKIPPED)],
)
def test_a_skip_fails_in_ci(
    project: Path,
    run_pytest: Callable[..., subprocess.CompletedProcess[str]],
    ci: str,
    reason: str,
    expected: dict[str, int],
) -> None:
    for name, program in PROGRAMS.items():
        (project / "tests" / name).write_text(program.format(reason=reason), encoding="utf-8")
    run = run_pytest("--continue-on-collection-errors", env={"CI": ci})
    closing = run.stdout.splitlines()[-1]
    assert {
        word: int(number) for number, word in re.findall(r"(\d+) (failed|error|skipped|passed)", closing)
    } == expected
    assert expected is SKIPPED or run.stdout.count(f"CI=true does not allow: {reason}") >= len(PROGRAMS)

"""Test that importing dovetail and its server loads no transport, cryptography or optional library."""

import subprocess
import sys

import pytest

HEAVY = {"aiohttp", "uvicorn", "rich", "pydantic", "opentelemetry", "cryptography", "jsonschema_rs"}
PROGRAM = """
import sys
before = set(sys.modules)
import dovetail
{use}
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}))
"""


@pytest.mark.parametrize("use", ["", "dovetail.Server"], ids=["import", "server"])
def test_importing_loads_nothing_heavy(use: str) -> None:
    program = PROGRAM.format(use=use)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert "dovetail" in loaded
    assert not loaded & HEAVY


def test_naming_the_server_loads_no_transport() -> None:
    program = "import sys, dovetail; dovetail.Server('s'); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not [one for one in run.stdout.split() if one.startswith("dovetail.transports")]

"""Test that importing dovetail and its server loads no transport, cryptography or optional library.

A server without TLS does not import `ssl`. asyncio and uvloop do, see "Import" in docs/performance.md.
"""

import signal
import subprocess
import sys

import pytest

from support.processes import run_process

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


SERVER_PROGRAM = """
import builtins, sys
importers = set()
real_import = builtins.__import__
def record_import(name, globals=None, *rest, **named):
    if name.partition(".")[0] in ("ssl", "_ssl"):
        importers.add((globals or {}).get("__name__", ""))
    return real_import(name, globals, *rest, **named)
builtins.__import__ = record_import
import dovetail
app = dovetail.Server("s")
app.run(RUN)
print(*sorted(importers))
"""


@pytest.mark.parametrize("options", ["", "'http', port=0"], ids=["stdio", "http"])
def test_a_server_without_tls_does_not_import_ssl(options: str) -> None:
    command = [sys.executable, "-c", SERVER_PROGRAM.replace("RUN", options)]
    pipe = subprocess.PIPE
    with run_process(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        if options:
            assert "http://" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    importers = output.split()
    assert "asyncio.base_events" in importers  # The program sees imports.
    assert not [name for name in importers if name.startswith("dovetail")]

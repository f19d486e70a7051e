"""Start `library_server.py` in another process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(__file__).with_name("library_server.py")
# A client does not pass this variable to the server's process by itself.
ENV = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}


@contextmanager
def start_server(*arguments: str) -> Iterator[str]:
    """Start the program, and yield the address that it prints."""
    command = [sys.executable, str(PROGRAM), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split()[-1]
        finally:
            process.terminate()
            errors = process.communicate(timeout=10)[1]
    assert process.returncode == 0, errors

"""Run a target with options of `run` and `asgi`, which `harness.run_target` does not set."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import HERE, Target, close_connections, wait_for


@contextlib.contextmanager
def run_target_with(folder: Path, **transport: Any) -> Iterator[Target]:
    """Run a target over HTTP with these transport options."""
    path = folder / "log-doors.txt"
    command = [sys.executable, str(HERE / "target.py"), "http", json.dumps({"transport": transport})]
    with path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
    started = Target(process, path)
    try:
        # The port is open before it is printed.
        found = wait_for(lambda: re.search(r"https?://\S+:(\d+)/", started.log) or not started.alive, "the start")
        started.port = int(found[1]) if started.alive else 0
        yield started
    finally:
        process.kill()
        process.wait()
        close_connections(started)

"""Measure the command line: `dovetail --help` compared with an empty Python, and `dovetail call` compared with starting
and calling the server directly.

The two commands of a pair alternate, so that both see the same load on the machine. The output is the difference of the
medians.

python bench/commands.py [--rounds 15]
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

HELLO = Path(__file__).parents[1] / "examples" / "hello.py"
DOVETAIL = [sys.executable, "-m", "dovetail"]
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
LIMITS = {"help": 150.0, "call": 500.0}  # milliseconds

Times = tuple[float, float]  # milliseconds of wall time and of CPU time


def measure_children(work: Callable[[], None]) -> Times:
    """Return the wall time and the CPU time of the child processes that the function runs."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    work()
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1000, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def run(*command: str) -> None:
    """Run a command and wait for it."""
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def start_and_call_server() -> None:
    """Start a server, call a tool once and stop the server."""
    params = {"name": "greet", "arguments": {"name": "Ada"}, "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    with subprocess.Popen(
        [sys.executable, str(HELLO)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        assert b"Hello, Ada!" in server.stdout.readline()
        server.stdin.close()
        server.wait()


PAIRS: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "help": (lambda: run(*DOVETAIL, "--help"), lambda: run(sys.executable, "-c", "pass")),
    "call": (lambda: run(*DOVETAIL, "call", str(HELLO), "greet", "name=Ada"), start_and_call_server),
}


def main() -> int:
    """Measure and print. Return 1 if a limit is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    missed = 0
    for name, (ours, floor) in PAIRS.items():
        measure_children(ours), measure_children(floor)
        pairs = [(measure_children(ours), measure_children(floor)) for _ in range(rounds)]
        wall, cpu = (
            median(command[column] for command, _ in pairs) - median(base[column] for _, base in pairs)
            for column in (0, 1)
        )
        missed += wall > LIMITS[name]
        verdict = "good" if wall <= LIMITS[name] else "MISSED"
        sys.stdout.write(f"{name}: {wall:.0f} ms more ({cpu:.0f} of CPU), limit {LIMITS[name]:.0f}: {verdict}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Start several workers of one server as processes that a test can kill, pause and start again."""

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = Path(__file__).with_name("cluster_server.py")
START_TIMEOUT_S = 30.0
BYTECODE = Path(__file__).parents[2] / ".pytest_cache" / "bytecode"

PORTS = 12_000, 32_000
_used_ports: set[int] = set()
_ports_lock = threading.Lock()

Address = tuple[str, int]


class Machine(NamedTuple):
    """An address, and a command that starts programs on the machine with this address."""

    host: str
    command: tuple[str, ...] = ()


LOOPBACK = Machine("127.0.0.1")


class ServerProcess:
    """One worker. It keeps its address when it is started again."""

    def __init__(self, command: list[str], address: Address, log_path: Path, python_path: str | None = None) -> None:
        self.command = command
        self.python_path = python_path
        self.address = address
        self.log_path = log_path
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self._get_environment())

    def _get_environment(self) -> dict[str, str]:
        # Coverage of many processes would cost more time than the tests.
        skipped = ("COVERAGE", "COV_", "PYTHONDONTWRITEBYTECODE")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(skipped)}
        # Without bytecode, a worker needs a second more to start.
        environment["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
        if self.python_path is not None:
            environment["PYTHONPATH"] = self.python_path
        return environment

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_listening(self) -> bool:
        with socket.socket() as client:
            client.settimeout(1.0)
            return client.connect_ex(self.address) == 0

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_listening:
            assert self.process is not None
            assert self.process.poll() is None, f"the worker did not start:\n{self.log}"
            assert time.monotonic() < deadline, f"the worker does not listen:\n{self.log}"
            time.sleep(0.01)

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def pause(self) -> None:
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop the worker as an operator does, and return its exit code."""
        self.send_signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(START_TIMEOUT_S)

    def restart(self) -> None:
        self.start()
        self.wait_until_ready()

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")


class ServerPool:
    """The workers of one server, and the effects of its tools."""

    def __init__(self, workers: list[ServerProcess], effects_path: Path) -> None:
        self.workers = workers
        self._effects_path = effects_path

    @property
    def addresses(self) -> list[Address]:
        return [worker.address for worker in self.workers]

    def read_effects(self) -> Counter[tuple[str, str]]:
        """Return how often each tool ran for each token."""
        lines = self._effects_path.read_text().splitlines()
        return Counter((token, tool) for token, _, tool in map(str.split, lines))

    def read_processes(self, token: str | None = None) -> set[int]:
        """Return the processes that ran tools, for one token or for all."""
        effects = [line.split() for line in self._effects_path.read_text().splitlines()]
        return {int(process) for effect, process, _ in effects if token in (None, effect)}

    def read_errors(self) -> list[str]:
        """Return the errors in the logs of all workers, each with its traceback."""
        return [error for worker in self.workers for error in find_errors(worker.log)]


def find_errors(log: str) -> list[str]:
    """Return the records of a log that report an error. The other lines of a record are indented."""
    records: list[str] = []
    for line in log.splitlines():
        if records and line.startswith(" "):
            records[-1] += f"\n{line}"
        else:
            records.append(line)
    return [record for record in records if any(mark in record for mark in ("Traceback", "ERROR", "never retrieved"))]


@contextlib.contextmanager
def run_servers(
    folder: Path,
    count: int = 4,
    *,
    machines: Sequence[Machine] = (LOOPBACK,),
    **options: Any,
) -> Iterator[ServerPool]:
    """Run workers of one server. `cluster="local"` lets them share a folder, a URL names a Redis server.

    The workers are distributed among the machines. `python_path` names the sources of another release.
    """
    python_path = options.pop("python_path", None)
    clusters = options.pop("clusters", None)  # a URL for each worker
    clock_offsets = options.pop("clock_offsets", None)  # how many seconds the clock of each worker is ahead
    effects_path = folder / "effects.txt"
    effects_path.touch()
    if options.get("cluster") == "local":
        state_folder = folder / "state"
        state_folder.mkdir(mode=0o700, exist_ok=True)
        options["cluster"] = f"local:{state_folder}"
    options = {"effects": str(effects_path), "secret_keys": [secrets.token_urlsafe(32)]} | options
    workers: list[ServerProcess] = []
    for number, port in enumerate(find_free_ports(count)):
        machine = machines[number % len(machines)]
        cluster = {} if clusters is None else {"cluster": clusters[number]}
        if clock_offsets is not None and clock_offsets[number]:
            cluster["clock_offset"] = clock_offsets[number]
        arguments = json.dumps(options | cluster | {"host": machine.host, "port": port})
        command = [*machine.command, sys.executable, str(PROGRAM), arguments]
        workers.append(ServerProcess(command, (machine.host, port), folder / f"worker-{number}.log", python_path))
    pool = ServerPool(workers, effects_path)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until_ready()
        yield pool
    finally:
        for worker in workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.resume()
                worker.kill()


def find_free_ports(count: int) -> list[int]:
    """Return ports that are free on all addresses of this machine. Each call returns different ports.

    A port for outgoing connections could be taken before the server starts, so the ports are below their range.
    """
    ports: list[int] = []
    with _ports_lock:
        while len(ports) < count:
            port = random.SystemRandom().randrange(*PORTS)
            with contextlib.suppress(OSError), socket.create_server(("", port)):
                if port not in _used_ports:
                    _used_ports.add(port)
                    ports.append(port)
    return ports

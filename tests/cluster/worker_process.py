"""Start worker processes and send commands to them."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("worker_program.py")


class WorkerProcess:
    """A process with a back end. Methods of the back end are called by name."""

    def __init__(self, kind: str, address: str, heartbeat_ttl: float = 5.0) -> None:
        command = [sys.executable, str(PROGRAM), kind, address, str(heartbeat_ttl)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._worker: str | None = None

    @property
    def worker(self) -> str:
        """Return the name of the worker, after it has started."""
        if self._worker is None:
            self._worker = self._receive()
        return self._worker

    def send(self, method: str, *args: Any, **options: Any) -> None:
        assert self.worker
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([method, args, options]) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        return self._receive()

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        self.send(method, *args, **options)
        return self._receive()

    def _receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the worker ended with code {self.process.wait()}"
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.resume()
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

"""Test worker processes: spawned and forked workers, replacement, restarts, and errors at the start."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dovetail import Server
from dovetail.server import runners
from support.processes import run_process

pytestmark = pytest.mark.skipif(os.name == "nt", reason="several workers need Unix")

TIMEOUT_S = 60.0
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}

PROGRAM = """
import asyncio, os, pathlib, sys, threading
from dovetail import Server, ServerLimits

app = Server("working", limits=ServerLimits(drain_timeout=5.0, shutdown_timeout=8.0))
VERSION = pathlib.Path(__file__).with_name("version.txt")
version = VERSION.read_text()
if version == "broken":
    raise RuntimeError("cannot start")


@app.tool
async def describe() -> str:
    return f"{os.getpid()} {version}"


@app.tool
async def wait(seconds: float) -> str:
    sys.stderr.write("waiting\\n")
    await asyncio.sleep(seconds)
    return f"{os.getpid()} {version}"


if __name__ == "__main__":
    if "threads" in sys.argv:
        threading.Thread(target=threading.Event().wait, name="helper-thread", daemon=True).start()
    app.run("http", port=0, workers=2)
"""


class Running:
    """A server with several workers."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stderr is not None
        self.lines = [process.stderr.readline()]
        url = re.search(r"http://127.0.0.1:(\d+)/", self.lines[0])
        assert url is not None, self.lines[0] + process.stderr.read()
        self.port = int(url.group(1))
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
        self._thread.join(TIMEOUT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()

    def wait_for_line(self, text: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in line for line in self.lines), TIMEOUT_S), self.lines
            return next(line for line in self.lines if text in line)

    def list_workers(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.process.pid).children()}

    def wait_for_workers(self, matches: Callable[[set[int]], bool]) -> set[int]:
        pause = threading.Event()
        for _ in range(int(TIMEOUT_S * 50)):
            if matches(workers := self.list_workers()):
                return workers
            pause.wait(0.02)
        raise TimeoutError(self.list_workers())

    def wait_until_serving(self, count: int = 2) -> set[int]:
        """Wait until this number of processes has answered, and return their IDs."""
        serving = set[int]()
        pause = threading.Event()
        for _ in range(int(TIMEOUT_S * 50)):
            serving.add(int(self.call().split()[0]))
            if len(serving) == count:
                return serving
            pause.wait(0.002)
        raise TimeoutError(serving)

    def call(
        self, name: str = "describe", connection: http.client.HTTPConnection | None = None, **arguments: Any
    ) -> str:
        params = {"name": name, "arguments": arguments, "_meta": META}
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": name,
        }
        opened = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        opened.request("POST", "/mcp", body, headers)
        response = opened.getresponse()
        data = response.read()
        if connection is None:
            opened.close()
        assert response.status == 200, (response.status, data)
        return json.loads(data)["result"]["content"][0]["text"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "version.txt").write_text("1")
    file = tmp_path / "server.py"
    file.write_text(PROGRAM)
    return file


@contextlib.contextmanager
def start(command: list[str]) -> Generator[Running]:
    with (
        run_process([sys.executable, *command], stderr=subprocess.PIPE, text=True) as process,
        contextlib.closing(Running(process)) as server,
    ):
        yield server


def spawn(program: Path, workers: str = "2") -> "contextlib.AbstractContextManager[Running]":
    return start(["-m", "dovetail", "run", str(program), "--http", "--port", "0", "--workers", workers])


def fork(program: Path) -> "contextlib.AbstractContextManager[Running]":
    return start([str(program)])


@pytest.mark.parametrize("start_workers", [spawn, fork])
def test_several_processes_serve_one_port_and_stop_together(start_workers: Any, program: Path) -> None:
    with start_workers(program) as server:
        workers = server.wait_for_workers(lambda found: len(found) == 2)
        assert server.wait_until_serving() == workers
        server.process.terminate()
        assert server.process.wait(TIMEOUT_S) == 0
        assert not any(map(psutil.pid_exists, workers))


def test_spawned_workers_start_from_a_process_that_does_not_import_the_program(program: Path) -> None:
    program.write_text("import os\nprint('imported', os.getppid(), flush=True)\n" + PROGRAM)
    command = ["-m", "dovetail", "run", str(program), "--http", "--port", "0", "--workers", "2"]
    pipe = subprocess.PIPE
    with run_process([sys.executable, *command], stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        rest = process.communicate(timeout=TIMEOUT_S)[0]
    imported = [line.split()[1] for line in (*lines, *rest.splitlines()) if line.startswith("imported")]
    assert imported == [str(process.pid)] * 2


def test_auto_starts_one_worker_for_each_core(program: Path) -> None:
    with spawn(program, "auto") as server:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        server.wait_for_workers(lambda found: len(found) == cores)


@pytest.mark.parametrize("start_workers", [spawn, fork])
def test_a_killed_worker_is_replaced(start_workers: Any, program: Path) -> None:
    with start_workers(program) as server:
        before = server.wait_until_serving()
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        after = server.wait_for_workers(lambda found: len(found) == 2 and victim not in found)
        (successor,) = after - before
        line = server.wait_for_line("SIGKILL")
        assert str(victim) in line
        assert str(successor) in line


def test_a_restart_replaces_all_workers_and_loses_no_call(program: Path) -> None:
    with spawn(program) as server:
        before = server.wait_until_serving()
        ended, answers, errors = threading.Event(), list[str](), list[BaseException]()

        def call_often() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
            while not ended.is_set():
                try:
                    answers.append(server.call(connection=connection))
                except BaseException as exc:
                    errors.append(exc)
                    return
            connection.close()

        def call_slowly() -> None:
            answers.append(server.call("wait", seconds=2.0))

        threads = [threading.Thread(target=function) for function in (call_often, call_often, call_slowly)]
        for thread in threads:
            thread.start()
        server.wait_for_line("waiting")
        (program.parent / "version.txt").write_text("2")
        server.process.send_signal(signal.SIGHUP)
        after = server.wait_for_workers(lambda found: len(found) == 2 and not found & before)
        assert server.call() in {f"{worker} 2" for worker in after}
        server.wait_for_line("restarted 2 workers")
        ended.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert not errors
        assert len(answers) > 3


def test_a_restart_with_a_broken_program_keeps_the_old_workers(program: Path) -> None:
    with spawn(program) as server:
        before = server.wait_until_serving()
        (program.parent / "version.txt").write_text("broken")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("abandoned")
        assert server.wait_for_workers(lambda found: len(found) == 2) == before
        assert server.call().endswith(" 1")


def test_a_program_that_cannot_start_reports_its_error_once(program: Path) -> None:
    (program.parent / "version.txt").write_text("broken")
    command = [sys.executable, "-m", "dovetail", "run", str(program), "--http", "--port", "0", "--workers", "4"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 3
    assert ended.stderr.count("RuntimeError: cannot start") == 1


def test_a_process_with_threads_is_not_forked(program: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(program), "threads"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError")
    assert "helper-thread" in last
    assert "dovetail run" in last


def test_a_repeated_sigterm_of_a_service_manager_does_not_cut_calls(program: Path) -> None:
    with fork(program) as server:
        workers = server.wait_until_serving()
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(server.call("wait", seconds=1.5)))
        thread.start()
        server.wait_for_line("waiting")
        for pid in (*workers, server.process.pid, *workers):  # systemd signals all processes of a unit.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        thread.join(TIMEOUT_S)
        assert len(answers) == 1
        assert server.process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_signal_ends_running_calls_with_the_same_code(program: Path, workers: str) -> None:
    with spawn(program, workers) as server:
        server.wait_until_serving(int(workers))
        thread = threading.Thread(target=_call_in_vain, args=(server,))
        thread.start()
        server.wait_for_line("waiting")
        server.process.send_signal(signal.SIGINT)
        server.wait_for_line("is stopping")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(TIMEOUT_S) == 75
        thread.join(TIMEOUT_S)


def _call_in_vain(server: Running) -> None:
    with contextlib.suppress(http.client.HTTPException, OSError):
        server.call("wait", seconds=30)


def test_paused_workers_do_not_delay_the_stop_one_after_the_other(program: Path) -> None:
    program.write_text(
        PROGRAM.replace("drain_timeout=5.0, shutdown_timeout=8.0", "drain_timeout=0.5, shutdown_timeout=1.0")
    )
    with spawn(program, "3") as server:
        workers = server.wait_until_serving(3)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        begun = time.monotonic()
        server.process.terminate()
        server.process.wait(TIMEOUT_S)
        assert time.monotonic() - begun < 5.0  # 2 seconds for all. One after the other, they would need 6 seconds.
        assert not any(map(psutil.pid_exists, workers))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8), ("", 8)],
)
def test_auto_respects_the_cpu_limit_of_a_container(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(runners, "_CPU_LIMIT_FILE", str(tmp_path / "cpu.max"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert runners.count_workers("auto") == expected


@pytest.mark.parametrize("workers", [0, -1, "many", 1.5, True])
def test_an_invalid_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="workers"):
        Server("any").run("http", port=0, workers=workers)


@pytest.mark.parametrize("workers", ["0", "many"])
def test_an_invalid_number_of_workers_on_the_command_line_is_refused(workers: str) -> None:
    command = [sys.executable, "-m", "dovetail", "run", "server.py", "--http", "--workers", workers]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 2
    assert workers in ended.stderr

"""Test that tasks survive servers that are killed at random moments: while tasks are created, run, ask and end.

Clients create tasks and answer their questions while the server is killed and started again. At the end, every task
whose ID a client has received exists and is final, and no function was started more often than allowed. A worker that
was only paused must notice that its tasks are lost.
"""

import asyncio
import contextlib
import http.client
import itertools
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from dovetail.tasks.task_record import TaskRecord, is_final

SCRIPT = Path(__file__).with_name("crashing_task_server.py")
CLIENTS = 6
TOOLS = ("run_once", "retry", "become_task", "ask")
MAX_STARTS = {"run_once": 1, "retry": 3, "become_task": 1, "ask": 1}
LAST = "last"  # marks the tasks after the last kill
STATUSES = {"working", "input_required", "completed", "failed", "cancelled"}
FINAL_TIMEOUT_S = 60.0
MAX_LIFE_S = 0.3  # A server is killed at a random moment in this time.
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {"form": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}


class CrashingServer:
    """A server process that can be killed. Its socket belongs to the test and stays open."""

    def __init__(self, folder: Path) -> None:
        self.store_path = folder / "tasks.sqlite"
        self.steps_path = folder / "steps"
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        fd = self._listener.fileno()
        self._process_count = 0
        command = [sys.executable, str(SCRIPT), str(fd), str(self.store_path), str(self.steps_path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[fd]
        )

    def start(self) -> None:
        """Start a process that serves the socket, beside those that run."""
        self._send("start")
        self._process_count += 1

    def kill(self) -> None:
        """Kill the oldest process."""
        self._send("kill")
        self._process_count -= 1

    def pause(self) -> None:
        """Stop the oldest process, so that it does nothing until `resume`."""
        self._send("pause")

    def resume(self) -> None:
        self._send("resume")

    def close(self) -> None:
        while self._process_count:
            self.kill()
        self._process.communicate(timeout=30)
        self._listener.close()

    def read_steps(self) -> list[tuple[str, ...]]:
        """Return the steps that the tools have written: the name, the key and the attempt."""
        return [tuple(row.split()) for row in self.steps_path.read_text().splitlines()]

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


class TaskClient:
    """Creates tasks one after the other, and follows each of them to its end."""

    def __init__(self, port: int, number: int, stop: threading.Event, answered: threading.Event) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}  # the last state of each task, by ID
        self.problems: list[str] = []
        self._port = port
        self._number = number
        self._stop = stop
        self._answered = answered  # is set after each response of the server
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(FINAL_TIMEOUT_S + 10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        numbers = itertools.count()
        try:
            while not self._stop.is_set():
                number = next(numbers)
                tool = TOOLS[(number + self._number) % len(TOOLS)]
                self._run_task(tool, f"{tool}-{self._number}-{number}")
            for tool in TOOLS:  # Now the server is not killed any more.
                key = f"{tool}-{self._number}-{LAST}"
                self._run_task(tool, key)
        except Exception as exc:
            self.problems.append(repr(exc))

    def _run_task(self, tool: str, key: str) -> None:
        try:
            created = self._request("tools/call", {"name": tool, "arguments": {"key": key}}, name=tool)
        except (OSError, http.client.HTTPException):
            return  # The client does not know whether the task exists.
        if created.get("result", {}).get("resultType") != "task":
            # The call has ended in the foreground, or the server has no room.
            return
        id = created["result"]["taskId"]
        self.tasks[id] = {"key": key}
        deadline = time.monotonic() + FINAL_TIMEOUT_S
        while time.monotonic() < deadline:
            response = self._retry("tasks/get", {"taskId": id}, id)
            state = response.get("result")
            if state is None or state.get("status") not in STATUSES:
                self.problems.append(f"{key}: {response}")
                return
            self.tasks[id] = {"key": key, **state}
            if is_final(state["status"]):
                return
            if state["status"] == "input_required":
                answers = {
                    key: {"action": "accept", "content": _answer(request)}
                    for key, request in state["inputRequests"].items()
                }
                self._retry("tasks/update", {"taskId": id, "inputResponses": answers}, id)
            time.sleep(0.005)
        self.problems.append(f"{key}: not final after {FINAL_TIMEOUT_S} s: {self.tasks[id]}")

    def _retry(self, method: str, params: dict[str, Any], name: str) -> dict[str, Any]:
        deadline = time.monotonic() + FINAL_TIMEOUT_S
        while True:
            try:
                return self._request(method, params, name=name)
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _request(self, method: str, params: dict[str, Any], name: str) -> dict[str, Any]:
        response = send_request(self._port, method, params, name)
        self._answered.set()
        return response


def send_request(port: int, method: str, params: dict[str, Any], name: str) -> dict[str, Any]:
    """Send a request over a new connection, and return the response."""
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
        "mcp-name": name,
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=FINAL_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("POST", "/mcp", body, headers)
        response = connection.getresponse()
        data = response.read().decode()
    if response.getheader("content-type", "").startswith("text/event-stream"):
        messages = [json.loads(row[5:]) for row in data.splitlines() if row.startswith("data:")]
        ends = [message for message in messages if "id" in message and "method" not in message]
        if not ends:
            raise http.client.IncompleteRead(data.encode())
        return ends[-1]
    return json.loads(data)


def _answer(request: dict[str, Any]) -> dict[str, bool]:
    return dict.fromkeys(request["params"]["requestedSchema"]["properties"], True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CrashingServer]:
    server = CrashingServer(tmp_path)
    server.start()
    yield server
    server.close()


def read_records(path: Path) -> list[TaskRecord]:
    async def read() -> list[TaskRecord]:
        store = SQLiteTaskStore(path)
        records = [await store.get(id) for id in await store.list_ids(limit=100_000)]
        await store.close()
        return [record for record in records if record is not None]

    return asyncio.run(read())


def wait_for_final_records(path: Path) -> list[TaskRecord]:
    """Wait until the tasks whose IDs no client knows have ended, too, except those that wait for an answer."""
    deadline = time.monotonic() + FINAL_TIMEOUT_S
    while True:
        records = read_records(path)
        if all(is_final(record.status) or record.status == "input_required" for record in records):
            return records
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run_crashes(server: CrashingServer, kills: int) -> tuple[list[TaskRecord], Counter[tuple[str, str]]]:
    """Kill the server while clients use it, and check all tasks. Return the records, and how often each step ran."""
    stop, answered = threading.Event(), threading.Event()
    clients = [TaskClient(server.port, number, stop, answered) for number in range(CLIENTS)]
    for _ in range(kills):
        # A busy machine needs longer to start the server, so the random time begins with its first response.
        assert answered.wait(FINAL_TIMEOUT_S)
        time.sleep(random.uniform(0, MAX_LIFE_S))
        server.kill()
        answered.clear()
        server.start()
    stop.set()
    for client in clients:
        client.join()
    assert [problem for client in clients for problem in client.problems] == []
    records = {record.id: record for record in wait_for_final_records(server.store_path)}
    known = {id: state for client in clients for id, state in client.tasks.items()}
    steps = Counter(server.read_steps())
    totals = Counter[tuple[str, str]]()
    for (step, key, _), count in steps.items():
        totals[step, key] += count

    for id, state in known.items():
        # What the client has seen is what is stored.
        record, key = records[id], state["key"]
        assert record.status == state["status"]
        assert record.status == "completed" or not key.endswith(LAST)
        if record.status == "completed":
            assert record.result is not None
            assert record.result["content"][0]["text"] == key
            assert totals["end", key] >= 1
    for record in records.values():
        assert record.attempt <= record.max_retries + 1
    for (step, key), count in totals.items():
        tool = key.partition("-")[0]
        # `ask` may be replayed after its answer. The other tools repeat a step only if they may be started again.
        allowed = 2 if (step, tool) == ("start", "ask") else MAX_STARTS[tool]
        assert count <= allowed, (key, steps)
    for (_, key, _), count in steps.items():
        # No attempt of a tool runs twice.
        assert count <= (2 if key.startswith("ask") else 1), (key, steps)
    return [*records.values()], totals


@pytest.mark.timeout(180)
def test_no_task_is_lost_or_started_again_when_the_server_is_killed(server: CrashingServer) -> None:
    run_crashes(server, 20)


@pytest.mark.soak
def test_no_task_is_lost_or_started_again_after_many_kills(server: CrashingServer) -> None:
    records, steps = run_crashes(server, 200)
    # The kills have hit tasks in every phase.
    assert any(record.status == "failed" for record in records)
    assert any(record.attempt > 1 and record.status == "completed" for record in records)
    assert any(step == "start" and count > 1 for (step, key), count in steps.items() if key.startswith("ask"))


@pytest.mark.parametrize(("tool", "status"), [("hang", "failed"), ("hang_and_retry", "completed")])
def test_a_worker_that_was_paused_too_long_stops_its_task(server: CrashingServer, tool: str, status: str) -> None:
    created = send_request(server.port, "tools/call", {"name": tool, "arguments": {"key": "k"}}, tool)
    id = created["result"]["taskId"]
    wait_until(lambda: ("start", "k", "1") in server.read_steps())
    server.pause()
    server.start()
    state: dict[str, Any] = {}

    def has_ended() -> bool:
        state.update(send_request(server.port, "tasks/get", {"taskId": id}, id)["result"])
        return is_final(state["status"])

    wait_until(has_ended)
    server.resume()
    wait_until(lambda: ("cancelled", "k", "1") in server.read_steps())
    assert has_ended()
    assert state["status"] == status
    assert ("end", "k", "1") not in server.read_steps()
    if status == "completed":
        assert state["result"]["content"][0]["text"] == "attempt 2"
    assert len([step for step in server.read_steps() if step[0] == "start"]) == (1 if status == "failed" else 2)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + FINAL_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

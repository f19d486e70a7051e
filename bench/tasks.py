"""Measure tasks: the SQLite store, and servers over HTTP, in an empty store and beside many tasks.

The target for `create` in the store is one millisecond. `create` is durable, so it waits for the disk. `disk` is a
plain insert with the same durability in the same moment. It shows how busy the disk is.

The servers run in turn, so that they see the same load. `result` is the time from a call to the response that contains
its result, with requests for the task in between. fastmcp keeps its tasks in memory, or in Redis if redis-server is
installed.

python bench/tasks.py [--tasks 10000] [--rounds 300] [--sealed] [--only store|servers]
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from dovetail.tasks.task_record import TaskCaller, TaskRecord, create_task_id
from dovetail.tasks.task_rules import answer_requests, ask_client, complete_task, request_cancel
from dovetail.tasks.task_store import change_task
from dovetail.wire.input_required import InputRequest

CREATE_LIMIT_MS = 1.0
SERVERS = Path(__file__).parent / "servers"
TIMEOUT_S = 60.0
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {"form": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}
QUESTION = {"q1": InputRequest(method="elicitation/create", params={"mode": "form", "message": "Continue?"})}
ANSWER = {"q1": {"action": "accept", "content": {"confirm": True}}}


def create_record() -> TaskRecord:
    """Return the record of a new task with small arguments."""
    now = time.time()
    return TaskRecord(
        id=create_task_id(),
        server="bench",
        owner=None,
        caller=TaskCaller(protocol_version="bench"),
        tool="report",
        tool_digest="0" * 16,
        arguments={"month": "2026-11", "sections": ["sales", "stock", "staff"], "title": "x" * 200},
        created_at=now,
        updated_at=now,
        expires_at=now + 3600,
        retention=3600,
    )


def open_plain_database(folder: str) -> sqlite3.Connection:
    """Return a database with one table and the durability of a task store."""
    database = sqlite3.connect(Path(folder) / "plain.sqlite", isolation_level=None)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE plain (value BLOB)"):
        database.execute(statement)
    return database


async def measure(store: SQLiteTaskStore, database: sqlite3.Connection, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each operation in each round. One round is the life of one task."""
    times: dict[str, list[float]] = {}

    async def insert() -> None:
        database.execute("INSERT INTO plain VALUES (?)", (b"x" * 600,))

    async def measure_one(name: str, run: Callable[[], Awaitable[object]]) -> None:
        started = time.perf_counter()
        await run()
        times.setdefault(name, []).append((time.perf_counter() - started) * 1000)

    for _ in range(rounds):
        record, now = create_record(), time.time()
        await measure_one("disk", insert)
        await measure_one("create", lambda record=record: store.create(record))
        await measure_one("get", lambda record=record: store.get(record.id))
        await measure_one("due", lambda now=now: store.list_due("bench", now + 60, 100))
        await measure_one("claim", lambda record=record, now=now: store.claim(record.id, "holder", now + 60, 30))
        await measure_one("renew", lambda record=record, now=now: store.renew({record.id: "holder"}, now, 30))
        await change_task(store, record.id, lambda record, now=now: ask_client(record, QUESTION, now)[0])
        edits = {
            "update": lambda record, now=now: answer_requests(record, ANSWER, now),
            "cancel": lambda record, now=now: request_cancel(record, now),
            "finish": lambda record, now=now: complete_task(record, {"content": []}, now),
        }
        for name, edit in edits.items():
            await measure_one(name, lambda record=record, edit=edit: change_task(store, record.id, edit))
    return times


async def run_store(tasks: int, rounds: int, secret_keys: list[str]) -> None:
    """Measure a store, add tasks to it and measure it again. Print both medians."""
    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteTaskStore(Path(folder) / "tasks.sqlite", secret_keys=secret_keys)
        database = open_plain_database(folder)
        await measure(store, database, 20)
        few = await measure(store, database, rounds)
        started = time.perf_counter()
        await asyncio.gather(*(store.create(create_record()) for _ in range(tasks)))
        per_task_ms = (time.perf_counter() - started) * 1000 / max(tasks, 1)
        many = await measure(store, database, rounds)
        started = time.perf_counter()
        expired = await store.expire(time.time() + 1e6)
        expiry_ms = (time.perf_counter() - started) * 1000
        database.close()
        await store.close()
    rows = [f"{'operation':10} {'empty ms':>9} {f'{tasks} tasks':>12} {'p95':>7}"]
    for name, values in many.items():
        rows.append(f"{name:10} {median(few[name]):9.3f} {median(values):12.3f} {quantiles(values, n=20)[-1]:7.3f}")
    rows.append(f"create, {tasks} at once: {per_task_ms:.3f} ms each. expire {expired} tasks: {expiry_ms:.0f} ms")
    create_ms, disk_ms = median(few["create"]), median(few["disk"])
    verdict = "ok" if create_ms <= CREATE_LIMIT_MS else "too slow"
    rows.append(f"create: {create_ms:.3f} ms (a plain insert: {disk_ms:.3f} ms), limit {CREATE_LIMIT_MS} ms: {verdict}")
    sys.stdout.write("\n".join(rows) + "\n")


class TaskServer:
    """A server process, and one connection to it."""

    def __init__(self, name: str, script: str, store: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.name = name
        self.times: dict[str, list[float]] = {}
        command = [sys.executable, str(SERVERS / script), str(port), store]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._connection.connect()
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)
            else:
                return

    def close(self) -> None:
        """Stop the process."""
        self._connection.close()
        self._process.terminate()
        self._process.wait(TIMEOUT_S)

    def disconnect(self) -> None:
        """Close the connection, because a server does not keep an idle one. The next request opens it again."""
        self._connection.close()

    def measure_memory(self) -> float:
        """Return the memory of the process in MiB."""
        return psutil.Process(self._process.pid).memory_info().rss / 2**20

    def request(self, method: str, header: str, /, **params: Any) -> dict[str, Any]:
        """Send a request and return its result."""
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": VERSION,
            "mcp-method": method,
            "mcp-name": header,
        }
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}})
        self._connection.request("POST", "/mcp", body, headers)
        response = json.loads(self._connection.getresponse().read())
        if "result" not in response:
            raise RuntimeError(f"{self.name}: {response}")
        return response["result"]

    def measure(self, kind: str, method: str, header: str, /, **params: Any) -> dict[str, Any]:
        """Send a request, and record its time in milliseconds."""
        started = time.perf_counter()
        result = self.request(method, header, **params)
        self.times.setdefault(kind, []).append((time.perf_counter() - started) * 1000)
        return result

    def wait_for(self, id: str, status: str) -> dict[str, Any]:
        """Send requests until a task has this status."""
        deadline = time.monotonic() + TIMEOUT_S
        while (task := self.request("tasks/get", id, taskId=id))["status"] != status:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: {task}")
        return task

    def run_plain_and_task(self) -> None:
        """Measure a plain call, and the life of a task that ends at once."""
        arguments = {"month": "2026-11"}
        self.measure("plain call", "tools/call", "plain", name="plain", arguments=arguments)
        started = time.perf_counter()
        id = self.measure("create", "tools/call", "report", name="report", arguments=arguments)["taskId"]
        self.wait_for(id, "completed")
        self.times.setdefault("result", []).append((time.perf_counter() - started) * 1000)
        self.measure("get", "tasks/get", id, taskId=id)

    def run_answer_and_cancel(self) -> None:
        """Measure the answer to a question, and the end of a task that waits."""
        id = self.request("tools/call", "ask", name="ask", arguments={})["taskId"]
        key = next(iter(self.wait_for(id, "input_required")["inputRequests"]))
        answers = {key: {"action": "accept", "content": {"value": True}}}
        self.measure("update", "tasks/update", id, taskId=id, inputResponses=answers)
        id = self.request("tools/call", "wait", name="wait", arguments={})["taskId"]
        self.measure("cancel", "tasks/cancel", id, taskId=id)

    def run_all(self) -> None:
        """Measure all kinds of requests."""
        self.run_plain_and_task()
        self.run_answer_and_cancel()

    def take_times(self) -> dict[str, float]:
        """Return the median of each kind of request, and start again."""
        medians = {kind: median(times) for kind, times in self.times.items()}
        self.times.clear()
        return medians


@contextlib.contextmanager
def start_servers(folder: Path) -> Generator[list[TaskServer]]:
    """Start a server for each implementation and store."""
    with contextlib.ExitStack() as stack:
        stores = [
            ("dovetail, SQLite", "tasks_dovetail.py", str(folder / "server.sqlite")),
            ("dovetail, memory", "tasks_dovetail.py", ":memory:"),
            ("fastmcp, memory", "tasks_fastmcp.py", "memory://"),
        ]
        if shutil.which("redis-server") is not None:
            path = folder / "redis"
            command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
            redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            stack.callback(redis.wait)
            stack.callback(redis.terminate)
            stores.append(("fastmcp, Redis", "tasks_fastmcp.py", f"unix://{path}"))
        servers: list[TaskServer] = []
        for store in stores:
            servers.append(TaskServer(*store))
            stack.callback(servers[-1].close)
        yield servers


def run_servers(tasks: int, rounds: int) -> None:
    """Compare servers over HTTP, and ours with one that has many tasks."""
    with tempfile.TemporaryDirectory() as folder, start_servers(Path(folder)) as servers:
        measure_in_turn(servers, 20, TaskServer.run_plain_and_task)
        medians = measure_in_turn(servers, rounds, TaskServer.run_plain_and_task)
        print_table("over HTTP, ms", medians)
        few = servers[0]
        many = TaskServer(f"{tasks} tasks", "tasks_dovetail.py", str(Path(folder) / "many.sqlite"))
        try:
            for _ in range(tasks):
                many.request("tools/call", "report", name="report", arguments={"month": "2026-11"})
            memory = {server.name: server.measure_memory() for server in (few, many)}
            medians = measure_in_turn([few, many], rounds, TaskServer.run_all)
            print_table("", {name: times | {"memory, MiB": memory[name]} for name, times in medians.items()})
        finally:
            many.close()


def measure_in_turn(
    servers: list[TaskServer], rounds: int, run: Callable[[TaskServer], None]
) -> dict[str, dict[str, float]]:
    """Return the median of each kind of request, by server. The servers alternate, so that they see the same load."""
    for server in servers:
        server.disconnect()
    for _ in range(rounds):
        for server in servers:
            run(server)
    return {server.name: server.take_times() for server in servers}


def print_table(title: str, columns: dict[str, dict[str, float]]) -> None:
    """Print one column of medians per server."""
    rows = [f"{title:18}" + "".join(f"{name:>18}" for name in columns)]
    kinds = next(iter(columns.values()))
    rows += [f"{kind:18}" + "".join(f"{medians[kind]:18.3f}" for medians in columns.values()) for kind in kinds]
    sys.stdout.write("\n".join(rows) + "\n\n")


def main() -> None:
    """Read the options and run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000, help="number of tasks in the store")
    parser.add_argument("--rounds", type=int, default=300, help="number of tasks to measure")
    parser.add_argument("--sealed", action="store_true", help="encrypt the records of the store")
    parser.add_argument("--only", choices=["store", "servers"], help="run one part")
    options = parser.parse_args()
    if options.only != "servers":
        secret_keys = ["a secret key of a benchmark"] if options.sealed else []
        asyncio.run(run_store(options.tasks, options.rounds, secret_keys))
        sys.stdout.write("\n")
    if options.only != "store":
        run_servers(options.tasks, options.rounds)


if __name__ == "__main__":
    main()

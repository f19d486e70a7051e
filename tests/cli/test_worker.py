"""Test the errors of `dovetail worker`, and `dovetail tasks` with a Redis server."""

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dovetail.cli.main import cli
from dovetail.extensions import RedisTaskStore
from dovetail.tasks.task_rules import complete_task
from dovetail.tasks.task_store import change_task
from support.redis_servers import RedisServer
from support.task_records import make_record

PROGRAM = """
from dovetail import Server
from dovetail.extensions import TaskOptions
app = Server("reports"{options})
@app.tool({task})
async def report() -> str:
    return "done"
"""


@pytest.fixture
def redis_server(tmp_path: Path) -> Generator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


def invoke(*args: Any) -> tuple[int, str, str]:
    """Run a command in this process."""
    result = CliRunner().invoke(cli, [*map(str, args)], standalone_mode=False)
    if isinstance(result.exception, click.ClickException):
        return 2, result.stdout, result.exception.format_message()
    if isinstance(result.exception, click.exceptions.Exit):
        return result.exception.exit_code, result.stdout, result.stderr
    assert result.exception is None, result.exception
    return result.return_value or 0, result.stdout, result.stderr


def write_program(folder: Path, options: str, task: str = "task=True") -> Path:
    file = folder / "server.py"
    file.write_text(PROGRAM.format(options=options, task=task), encoding="utf-8")
    return file


@pytest.mark.parametrize("args", [(), ("reports",), ("http://127.0.0.1",), ("a.py", "-m", "b"), ("missing.py",)])
def test_a_worker_needs_a_python_file(args: tuple[str, ...]) -> None:
    code, out, error = invoke("worker", *args)
    assert (code, out) == (2, "")
    assert error


def test_a_server_without_tasks_is_refused(tmp_path: Path) -> None:
    code, _, error = invoke("worker", write_program(tmp_path, "", ""))
    assert (code, "'reports'" in error) == (2, True)


def test_tasks_in_memory_are_refused(tmp_path: Path) -> None:
    code, _, error = invoke("worker", write_program(tmp_path, ', tasks=TaskOptions(store=":memory:")'))
    assert (code, "TaskOptions(store=...)" in error) == (2, True)


def test_an_unreachable_redis_is_reported_without_the_password(tmp_path: Path) -> None:
    url = f"unix://user:secret@{tmp_path}/missing.sock"
    code, _, error = invoke("worker", write_program(tmp_path, f", tasks=TaskOptions(store={url!r})"))
    assert (code, f"{tmp_path}/missing.sock" in error, "secret" in error) == (3, True, False)


def test_the_tasks_in_redis_are_listed_and_cancelled(tmp_path: Path, redis_server: RedisServer) -> None:
    async def create() -> list[str]:
        store = RedisTaskStore(redis_server.url)
        records = [make_record(server="reports"), make_record(server="reports")]
        for record in records:
            await store.create(record)
        await change_task(store, records[0].id, lambda record: complete_task(record, {}, record.updated_at))
        await store.close()
        return [record.id for record in records]

    completed, working = asyncio.run(create())
    code, out, _ = invoke("tasks", "list", "--store", redis_server.url, "--json")
    assert code == 0
    assert {task["id"]: task["status"] for task in json.loads(out)["tasks"]} == {
        completed: "completed",
        working: "working",
    }
    server = write_program(tmp_path, f", tasks=TaskOptions(store={redis_server.url!r})")
    code, out, _ = invoke("tasks", "cancel", server, working[:12], "--json")
    assert (code, [task["status"] for task in json.loads(out)["tasks"]]) == (0, ["cancelled"])


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1/x"])
def test_an_invalid_url_of_a_store_is_refused(url: str) -> None:
    code, _, error = invoke("tasks", "list", "--store", url)
    assert (code, "Redis" in error) == (2, True)


def test_a_redis_that_is_away_is_reported(tmp_path: Path) -> None:
    code, _, error = invoke("tasks", "list", "--store", f"unix://{tmp_path}/missing.sock")
    assert (code, "missing.sock" in error) == (2, True)


def test_encrypted_tasks_in_redis_need_the_file_of_the_server(tmp_path: Path, redis_server: RedisServer) -> None:
    record = make_record(server="reports")

    async def create() -> None:
        store = RedisTaskStore(redis_server.url, secret_keys=["a secret key of this test"])
        await store.create(record)
        await store.close()

    asyncio.run(create())
    code, _, error = invoke("tasks", "list", "--store", redis_server.url)
    assert (code, "Python file" in error) == (2, True)
    options = f', tasks=TaskOptions(store={redis_server.url!r}), secret_keys=["a secret key of this test"]'
    code, out, _ = invoke("tasks", "list", write_program(tmp_path, options), "--json")
    assert (code, [task["id"] for task in json.loads(out)["tasks"]]) == (0, [record.id])

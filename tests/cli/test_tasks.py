"""Test `dovetail tasks`, which reads and changes the task store of a server."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cli.terminal import open_terminal
from dovetail.cli.main import cli
from dovetail.errors import InternalError
from dovetail.storage import make_private_dir
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore, get_default_path
from dovetail.tasks.task_record import TaskLease, TaskRecord
from dovetail.tasks.task_rules import ask_client, complete_task, fail_task, report_progress
from dovetail.tasks.task_store import change_task
from dovetail.wire.input_required import InputRequest
from support.processes import run_process
from support.task_records import make_record

KEY = "the secret key of a test server"
QUESTION = InputRequest(method="elicitation/create", params={"message": "Really?"})
SERVER = f"""
from dovetail import Server
app = Server("sealed", secret_keys=[{KEY!r}])
@app.tool(task=True)
async def report() -> str:
    return "done"
"""

Edit = Callable[[TaskRecord], TaskRecord]


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty data directory."""
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def invoke(*args: Any) -> tuple[int, str, str]:
    """Run `dovetail tasks` in this process."""
    result = CliRunner().invoke(cli, ["tasks", *map(str, args)], standalone_mode=False)
    if isinstance(result.exception, click.ClickException):
        return 2, result.stdout, result.exception.format_message()
    assert result.exception is None, result.exception
    return result.return_value, result.stdout, result.stderr


def create_tasks(*records: TaskRecord, path: Path | None = None, **options: Any) -> Path:
    """Store records, and return the file."""
    path = path or get_default_path(records[0].server)
    make_private_dir(path.parent)

    async def create() -> None:
        store = SQLiteTaskStore(path, **options)
        for record in records:
            await store.create(record)
        await store.close()

    asyncio.run(create())
    return path


def edit_task(path: Path, id: str, edit: Edit) -> TaskRecord | None:
    async def change() -> TaskRecord | None:
        store = SQLiteTaskStore(path)
        record = await change_task(store, id, edit)
        await store.close()
        return record

    return asyncio.run(change())


def get_task(path: Path, id: str) -> TaskRecord:
    record = edit_task(path, id, lambda record: record)
    assert record is not None
    return record


# list


def test_list_shows_the_tasks_of_all_servers_with_short_ids() -> None:
    now = time.time()
    first, second = make_record(server="a", now=now - 10), make_record(server="a", now=now, tool="import")
    other = make_record(server="b c", status_message="half", progress=1.0, progress_total=2.0)
    create_tasks(first, second)
    create_tasks(other)
    code, out, _ = invoke("list")
    rows = out.splitlines()
    assert code == 0
    assert rows[0].split() == ["server", "task", "tool", "status", "progress", "updated", "message"]
    assert [row.split()[1:4] for row in rows[1:3]] == [
        [second.id[:12], "import", "working"],
        [first.id[:12], "report", "working"],
    ]
    assert rows[3].startswith("b c")
    assert "1 of 2" in rows[3]
    assert rows[3].endswith("half")


def test_list_reads_one_server_or_one_file(tmp_path: Path) -> None:
    create_tasks(make_record(server="a", id="a1"))
    create_tasks(make_record(server="b", id="b1"))
    path = create_tasks(make_record(id="c1"), path=tmp_path / "elsewhere.sqlite")
    for args, id in ((("a",), "a1"), (("b",), "b1"), (("--store", path), "c1")):
        code, out, _ = invoke("list", *args, "--json")
        assert (code, [task["id"] for task in json.loads(out)["tasks"]]) == (0, [id])


def test_list_filters_by_status_and_limits_the_number() -> None:
    create_tasks(*(make_record(server="a", id=f"t{number}", now=1e9 + number) for number in range(3)))
    edit_task(get_default_path("a"), "t1", lambda record: complete_task(record, {}, 2e9))

    def list_ids(*args: Any) -> list[str]:
        return [task["id"] for task in json.loads(invoke("list", "a", "--json", *args)[1])["tasks"]]

    assert list_ids("--limit", 2) == ["t2", "t1"]
    assert list_ids("--status", "completed") == ["t1"]
    assert list_ids("--status", "working", "--status", "failed") == ["t2", "t0"]


def test_list_without_any_task_is_empty(data_dir: Path) -> None:
    assert invoke("list")[:2] == (0, "no tasks\n")
    assert not data_dir.exists()


def test_an_unknown_server_is_an_error_and_creates_no_file(data_dir: Path) -> None:
    create_tasks(make_record(server="reports"))
    code, _, err = invoke("list", "report")
    assert code == 2
    assert "reports" in err
    assert [path.name for path in (data_dir / "tasks").glob("*.sqlite")] == ["reports.sqlite"]


def test_a_url_is_not_the_name_of_a_server() -> None:
    code, _, err = invoke("list", "https://example.com/mcp")
    assert code == 2
    assert "https://example.com/mcp" in err


def test_show_watch_and_cancel_need_a_server() -> None:
    for name in ("show", "watch", "cancel"):
        assert invoke(name)[0] == 2


@pytest.mark.parametrize("name", ["list", "show", "watch", "cancel"])
def test_a_file_that_is_not_a_task_store_is_refused_and_not_changed(name: str, tmp_path: Path) -> None:
    text, database_file = tmp_path / "notes.txt", tmp_path / "other.sqlite"
    text.write_text("notes " * 1000)
    with sqlite3.connect(database_file) as database:
        database.execute("CREATE TABLE tasks (title TEXT)")
    database.close()
    before = database_file.read_bytes()
    args = ["x"] if name != "list" else []
    for file in (text, database_file, tmp_path / "missing.sqlite", tmp_path):
        assert invoke(name, "--store", file, *args)[0] == 2
    assert database_file.read_bytes() == before
    assert not (tmp_path / "missing.sqlite").exists()


# show


def test_show_finds_a_task_by_the_start_of_its_id() -> None:
    create_tasks(*(make_record(server="a", id=id) for id in ("abc1", "abc2", "abd")))
    assert json.loads(invoke("show", "a", "abc1", "--json")[1])["id"] == "abc1"
    assert json.loads(invoke("show", "a", "abd", "--json")[1])["id"] == "abd"
    assert json.loads(invoke("show", "a", "abd"[:3], "--json")[1])["id"] == "abd"
    assert invoke("show", "a", "ab")[0] == 2
    assert invoke("show", "a", "x")[0] == 2
    assert invoke("show", "a", "")[0] == 2
    assert invoke("show", "a", "abd", "abc1")[0] == 2


def test_an_id_that_is_the_start_of_another_one_is_found() -> None:
    create_tasks(make_record(server="a", id="abc"), make_record(server="a", id="abcd"))
    assert json.loads(invoke("show", "a", "abc", "--json")[1])["id"] == "abc"


@pytest.mark.parametrize("as_json", [False, True])
def test_values_are_shown_only_on_request_and_with_masked_secrets(as_json: bool) -> None:
    record = make_record(
        server="a",
        arguments={"city": "Oslo", "password": "hunter2"},
        status_message="uses password=hunter2",
    )
    path = create_tasks(record)
    edit_task(path, record.id, lambda record: ask_client(record, {"q": QUESTION}, time.time())[0])
    options = ["--json"] if as_json else []
    _, hidden, _ = invoke("show", "a", record.id, *options)
    assert "Oslo" not in hidden
    assert "Really?" not in hidden
    assert "elicitation/create" in hidden
    _, shown, _ = invoke("show", "a", record.id, "--values", *options)
    assert "Oslo" in shown
    assert "Really?" in shown
    assert "hunter2" not in hidden + shown


def test_show_reports_the_error_and_the_result() -> None:
    failed, done = make_record(server="a"), make_record(server="a")
    path = create_tasks(failed, done)
    edit_task(path, failed.id, lambda record: fail_task(record, InternalError("it broke"), time.time()))
    edit_task(path, done.id, lambda record: complete_task(record, {"content": [{"text": "42"}]}, time.time()))
    description = json.loads(invoke("show", "a", failed.id, "--json")[1])
    assert (description["status"], description["error"]) == ("failed", {"code": -32603, "message": "it broke"})
    assert "it broke" in invoke("show", "a", failed.id)[1]
    assert "result" not in json.loads(invoke("show", "a", done.id, "--json")[1])
    result = json.loads(invoke("show", "a", done.id, "--json", "--values")[1])["result"]
    assert result == {"content": [{"text": "42"}]}


def test_a_tool_that_reported_an_error_is_marked() -> None:
    record = make_record(server="a")
    path = create_tasks(record)
    edit_task(path, record.id, lambda record: complete_task(record, {"content": [], "isError": True}, time.time()))
    (task,) = json.loads(invoke("list", "--json")[1])["tasks"]
    assert (task["status"], task["is_error"]) == ("completed", True)
    for args in (("list",), ("show", "a", record.id)):
        assert "completed (error)" in invoke(*args)[1]


def test_text_of_a_task_cannot_control_the_terminal() -> None:
    create_tasks(make_record(server="a", id="x1", status_message="\x1b[2Jfake\nrow", tool="\x1b]0;title\x07"))
    for args in (("list",), ("show", "a", "x1")):
        _, out, _ = invoke(*args)
        assert "\x1b" not in out
        assert not any(row.startswith("row") for row in out.splitlines())


# watch


def test_watch_prints_each_change_until_the_task_ends() -> None:
    record = make_record(server="a")
    path = create_tasks(record)
    command = [sys.executable, "-m", "dovetail", "tasks", "watch", "a", record.id[:8], "--json"]
    with run_process(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["status"] == "working"
        edit_task(path, record.id, lambda record: report_progress(record, time.time(), message="half", progress=1))
        change = json.loads(process.stdout.readline())
        assert (change["id"], change["status_message"], change["progress"]) == (record.id, "half", 1)
        edit_task(path, record.id, lambda record: complete_task(record, {}, time.time()))
        assert json.loads(process.stdout.readline())["status"] == "completed"
        assert process.stdout.read() == ""
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda record: complete_task(record, {"content": []}, 2e9), 0),
        (lambda record: complete_task(record, {"content": [], "isError": True}, 2e9), 5),
        (lambda record: fail_task(record, InternalError("it broke"), 2e9), 5),
    ],
)
def test_the_exit_code_of_watch_is_the_outcome_of_the_task(end: Edit, code: int) -> None:
    record = make_record(server="a")
    path = create_tasks(record)
    ended = edit_task(path, record.id, end)
    assert ended is not None
    result = invoke("watch", "a", record.id)
    assert result[0] == code
    assert result[1].split()[:3] == [record.id[:12], "report", ended.status]


def test_watch_draws_a_table_on_a_terminal(data_dir: Path, environment: dict[str, str]) -> None:
    record = make_record(server="a")
    path = create_tasks(record)
    with open_terminal(environment | {"DOVETAIL_HOME": str(data_dir)}, "tasks", "watch", "a") as session:
        session.wait_for("working")
        edit_task(path, record.id, lambda record: report_progress(record, time.time(), message="half"))
        session.wait_for("half")
        assert "\x1b[2A\x1b[J" in session.output
        new_record = make_record(server="a", tool="another")
        create_tasks(new_record)
        session.wait_for("another")
        session.type("\x03")
        session.read_rest()
        assert session.process.wait() == 130


# cancel


def test_cancel_ends_a_task_that_no_worker_has() -> None:
    records = [make_record(server="a") for _ in range(2)]
    path = create_tasks(*records)
    code, out, _ = invoke("cancel", "a", *(record.id[:10] for record in records))
    assert (code, [row.partition(": ")[2] for row in out.splitlines()]) == (0, ["cancelled", "cancelled"])
    assert [get_task(path, record.id).status for record in records] == ["cancelled", "cancelled"]


def test_cancel_asks_the_worker_that_runs_the_task() -> None:
    record = make_record(server="a", phase="running", lease=TaskLease(holder="w", expires_at=time.time() + 60))
    path = create_tasks(record)
    code, out, _ = invoke("cancel", "a", record.id, "--json")
    (task,) = json.loads(out)["tasks"]
    assert (code, task["status"], task["is_cancel_requested"], task["is_running"]) == (0, "working", True, True)
    assert get_task(path, record.id).is_cancel_requested


def test_cancel_does_not_change_a_task_that_has_ended() -> None:
    record = make_record(server="a")
    path = create_tasks(record)
    ended = edit_task(path, record.id, lambda record: complete_task(record, {}, time.time()))
    assert invoke("cancel", "a", record.id)[:2] == (0, f"{record.id[:12]}: already completed\n")
    assert get_task(path, record.id) == ended


def test_cancel_reports_that_a_task_was_cancelled_before() -> None:
    record = make_record(server="a")
    create_tasks(record)
    outputs = [invoke("cancel", "a", record.id)[1] for _ in range(2)]
    assert outputs == [f"{record.id[:12]}: cancelled\n", f"{record.id[:12]}: already cancelled\n"]


def test_cancel_changes_nothing_if_one_id_is_unknown() -> None:
    record = make_record(server="a")
    path = create_tasks(record)
    assert invoke("cancel", "a", record.id, "unknown")[0] == 2
    assert get_task(path, record.id).status == "working"


# Encrypted stores


def test_encrypted_tasks_are_readable_with_the_file_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    record = make_record(server="sealed", arguments={"city": "Oslo"})
    path = create_tasks(record, secret_keys=[KEY])
    for args in (["sealed"], ["--store", path]):
        assert invoke("list", *args)[:2] == (2, "")
        assert invoke("show", *args, record.id)[0] == 2
        assert invoke("cancel", *args, record.id)[0] == 2
    for args in (
        [tmp_path / "server.py"],
        [f"{tmp_path / 'server.py'}:app"],
        ["--store", path, tmp_path / "server.py"],
    ):
        code, out, _ = invoke("show", *args, record.id[:9], "--values")
        assert code == 0
        assert "Oslo" in out
    assert invoke("cancel", tmp_path / "server.py", record.id)[1].endswith(": cancelled\n")


def test_other_keys_than_those_of_the_tasks_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    create_tasks(make_record(server="sealed"), secret_keys=["another key of a test server"])
    code, out, err = invoke("list", tmp_path / "server.py")
    assert (code, out) == (2, "")
    assert "Python file" not in err


def test_other_stores_are_listed_beside_an_encrypted_one() -> None:
    create_tasks(make_record(server="sealed"), secret_keys=[KEY])
    record = make_record(server="open")
    create_tasks(record)
    code, out, err = invoke("list", "--json")
    assert code == 2
    assert [task["id"] for task in json.loads(out)["tasks"]] == [record.id]
    assert len(json.loads(out)["problems"]) == 1
    assert "encrypted" in err

"""Run every transcript of `dovetail` commands on the pages and compare the output.

A transcript is a `console` block with only `dovetail` commands. It runs in a folder with the server of the README,
three examples, a policy and a configuration. "…" in a line means any rest of the line, and alone on a line any lines
that follow. `# exits with N` after a command is its exit status.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import COMMAND_SUMMARIES
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from dovetail.tasks.task_record import TaskCaller, TaskError, TaskRecord
from dovetail.tasks.task_rules import WORKER_LOST

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "docs" / "commands"
PAGES = [*sorted(COMMANDS.glob("*.md")), ROOT / "docs" / "guide" / "migrating.md"]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"\$ (?P<command>.*?)(?:  # exits with (?P<code>\d+))?")
ANY = "…"
BIN = Path(sys.executable).parent
POLICY = """
[[rules]]
action = "deny"
tool = "*.delete_*"
reason = "no deletions by agents"
[[rules]]
action = "allow"
tool = "github.create_issue"
"""

FASTMCP_SERVER = """\
from fastmcp import Context, FastMCP

mcp = FastMCP("shop")


@mcp.tool
async def pack(item: str, ctx: Context) -> str:
    await ctx.report_progress(1, 2)
    return f"{item} packed over {ctx.transport}"


mcp.run(transport="sse", port=9000)
"""

TASKS: list[dict[str, Any]] = [
    {
        "id": "1b9c4e8d2f703a5e6b8d9c0f1e2a4b7d5c3f8e9a0b1c2d4e",
        "tool": "weekly",
        "arguments": {"week": 46, "api_key": "sk-1"},
        "status": "completed",
        "result": {"content": [{"type": "text", "text": "3 orders"}]},
    },
    {
        "id": "5e7d21b3f6a0c4d8e91b7a3f5062d8c4e7b19f03a6d52c80",
        "tool": "weekly",
        "attempt": 1,
        "status": "failed",
        "status_message": WORKER_LOST,
        "error": TaskError(code=-32603, message=WORKER_LOST),
    },
    {
        "id": "8c1f0a72d94e6b3fd05c8a1e7294f6d3b8e05a17c92f4d68",
        "tool": "yearly",
        "progress": 3.0,
        "progress_total": 12.0,
        "status_message": "reading March",
    },
]


def transcripts(page: Path) -> Iterator[list[tuple[str, int, list[str]]]]:
    """The commands of each block, with the exit status and the output they must have."""
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        rows = block["text"].splitlines()
        if block["info"] != "console" or not all(row.startswith("$ dovetail") for row in rows if row.startswith("$")):
            continue
        found: list[tuple[str, int, list[str]]] = []
        for row in rows:
            if named := LINE.fullmatch(row):
                found.append((named["command"], int(named["code"] or 0), []))
            else:
                found[-1][2].append(row)
        yield found


SHOWN = [page for page in PAGES if any(transcripts(page))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    hello = next(block["text"] for block in FENCE.finditer(page) if block["info"] == "python")
    (tmp_path / "hello.py").write_text(hello, encoding="utf-8")
    for name in ("weather.py", "booking.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path / name)
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "old_shop.py").write_text(FASTMCP_SERVER, encoding="utf-8")
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    entry = {"command": sys.executable, "args": [str(tmp_path / "weather.py")]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"weather": entry}}), encoding="utf-8")
    create_tasks(tmp_path / "home" / ".local" / "share" / "dovetail" / "tasks" / "reports.sqlite")
    return tmp_path


def create_tasks(path: Path) -> None:
    """Create the task store of a server named reports."""
    path.parent.mkdir(parents=True)
    common = {"server": "reports", "caller": TaskCaller(protocol_version="2026-07-28"), "tool_digest": "d"}

    async def create() -> None:
        store = SQLiteTaskStore(path)
        for number, fields in enumerate(TASKS):
            created_at = 1_794_000_000.0 + number
            times = {"created_at": created_at, "updated_at": created_at, "expires_at": created_at + 3600}
            await store.create(TaskRecord(**common | times | fields))
        await store.close()

    asyncio.run(create())


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_a_transcript_is_what_is_printed(page: Path, folder: Path) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DOVETAIL_"))}
    own |= {"HOME": str(folder / "home"), "COLUMNS": "100", "PATH": f"{BIN}{os.pathsep}{own['PATH']}"}
    for transcript in transcripts(page):
        for command, code, expected in transcript:
            done = subprocess.run(
                shlex.split(command), cwd=folder, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
            )  # fmt: skip
            printed = done.stdout.splitlines()
            assert done.returncode == code, f"{command}\n{done.stdout}"
            assert _same(expected, printed), f"{command}\nexpected:\n{expected}\nprinted:\n{printed}"


def _same(expected: list[str], printed: list[str]) -> bool:
    for at, row in enumerate(expected):
        if row == ANY:
            return True
        if at >= len(printed) or not re.fullmatch(".*".join(map(re.escape, row.split(ANY))), printed[at]):
            return False
    return len(expected) == len(printed)


def test_a_wrong_transcript_is_noticed() -> None:
    assert _same(["a", "b …", ANY], ["a", "b 1", "c", "d"])
    assert _same(["… b"], ["a b"])
    assert not _same(["a"], ["b"])
    assert not _same(["a"], ["a", "b"])
    assert not _same(["a", "b"], ["a"])


def test_every_command_has_a_page_and_every_page_a_command() -> None:
    assert {page.stem for page in COMMANDS.glob("*.md")} == {*COMMAND_SUMMARIES, "README"}


def test_most_pages_show_something_that_runs() -> None:
    silent = {page.stem for page in COMMANDS.glob("*.md")} - {page.stem for page in SHOWN}
    # What does not end, and what needs more than this.
    assert silent == {"dev", "listen", "conformance", "shell-completion", "gateway", "chat", "worker", "cluster"}

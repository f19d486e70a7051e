"""Test that `dovetail doctor` and `dovetail lint` report problems with a fix and exit with 6."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand

GOOD = '''
from dovetail import Server
app = Server("good", instructions="Adds.")
@app.tool
def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: One.
        b: Other.
    """
    return a + b
'''
NOISY = GOOD + "import sys, os\nos.write(1, b'hello\\n')\n"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.py"
    path.write_text(GOOD, encoding="utf-8")
    return path


def test_a_healthy_server(run: RunCommand, good: Path) -> None:
    said = run("doctor", good).check_success().out
    steps = ["command", "start", "server", "protocol", "lists", "schemas", "cost", "speed"]
    assert [line.split()[1].rstrip(":") for line in said.splitlines()] == steps
    report = run("doctor", good, "--json").check_success().json
    assert report["is_healthy"] is True
    assert [step["name"] for step in report["checks"]] == steps
    assert not failed(report)
    assert run("lint", good, "--strict").check_success()


@pytest.mark.parametrize("is_mounted", [False, True])
def test_tools_that_require_scopes_are_checked_in_a_file(is_mounted: bool, run: RunCommand, good: Path) -> None:
    program = GOOD.replace("@app.tool\n", '@app.tool(scopes=["numbers:add"])\n').replace("b: Other.", "")
    good.write_text(
        program + ("inner, app = app, Server('outer')\napp.mount(inner)\n" if is_mounted else ""), encoding="utf-8"
    )
    assert [tool["name"] for tool in run("list", good, "--json").check_success().json["tools"]] == ["add"]
    lists = next(check for check in run("doctor", good, "--json").json["checks"] if check["name"] == "lists")
    assert lists["status"] == "ok"
    report = run("lint", good, "--strict", "--json")
    assert (report.code, [tool["name"] for tool in report.json["tools"]]) == (6, ["add"])
    assert run("call", good, "add", "a=1", "b=2").code == 7  # The caller still has no scopes.


def failed(report: Any) -> list[str]:
    """The steps that failed, by name."""
    return [step["name"] for step in report["checks"] if step["status"] == "fail"]


def test_what_is_wrong_is_named(run: RunCommand) -> None:
    assert run("doctor", SAMPLE_SERVER).code == 6
    said = run("doctor", SAMPLE_SERVER, "--json")
    assert said.code == 6
    assert failed(said.json) == ["schemas"]
    found = run("lint", SAMPLE_SERVER)
    assert found.code == 6
    assert re.search(r"^hostile: .*\\x1b]52", found.out, re.MULTILINE)
    report = run("lint", SAMPLE_SERVER, "--profile", "openai-strict", "--json")
    assert report.code == 6
    assert "openai-strict" in {issue["rule"] for tool in report.json["tools"] for issue in tool["issues"]}
    assert report.json["tokens"] == sum(tool["tokens"] for tool in report.json["tools"])


@pytest.mark.parametrize(
    ("words", "step", "text"),
    [
        (["--", "no-such-program-anywhere"], "command", "no-such-program-anywhere"),
        (["http://127.0.0.1:1/mcp"], "start", "127.0.0.1:1"),
        (["--", sys.executable, "-c", "import sys; sys.exit('gone wrong')"], "start", "gone wrong"),
    ],
)
def test_what_does_not_start(run: RunCommand, words: list[str], step: str, text: str) -> None:
    assert failed(run("doctor", "--json", *words).json) == [step]
    said = run("doctor", *words)
    assert said.code == 3
    assert text in said.out
    assert said.out.count("try: ") == 1
    assert "=..." not in said.out


def test_noise_on_stdout(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")
    said = run("doctor", tmp_path / "noisy.py", "--json")
    assert said.code == 6
    assert failed(said.json) == ["stdout"]
    assert "stdout" in run("doctor", tmp_path / "noisy.py").out


@pytest.mark.interop
def test_a_server_of_others(run: RunCommand, clock: list[str]) -> None:
    said = run("doctor", "--json", "--", *clock).check_success().json
    assert not failed(said)
    assert "mcp-time" in str([step for step in said["checks"] if step["name"] == "server"])


def test_no_name_of_a_server_looks_like_a_step(run: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "forged.py"
    path.write_text(
        "from dovetail import Server\napp = Server('a\\nok  schemas: fine', version='1\\nok  x: y')\n", "utf-8"
    )
    for command in ("doctor", "info"):
        said = run(command, path).out
        assert "a\\nok  schemas: fine" in said
        assert not any(line.startswith(("ok  schemas: fine", "ok  x")) for line in said.splitlines())


def test_an_entry_without_command_and_address(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"far": {"url": "ftp://x/"}}}', encoding="utf-8")
    said = run("doctor", f"{tmp_path}/mcp.json:far")
    assert said.code in (2, 3)
    assert "Traceback" not in said.err


def test_a_long_description_is_only_a_warning(run: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text(
        "from dovetail import Server\n"
        "app = Server('long', instructions='x')\n"
        f"@app.tool(description={'x' * 1100!r})\n"
        "def add(a: int) -> int:\n"
        "    return a\n"
    )
    checks = {check["message"]: check for check in run("doctor", file, "--json").check_success().json["checks"]}
    (found,) = (check for message, check in checks.items() if "1,024" in message)
    assert (found["name"], found["status"]) == ("descriptions", "warn")
    assert {check["status"] for check in checks.values() if check["name"] == "schemas"} == {"ok"}


def test_a_server_with_only_an_extension_is_healthy(run: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "hello.py"
    path.write_text(
        """
from dovetail import Server
from dovetail.extensions import Extension, Params, Result
from dovetail.middleware import Exchange
hello = Extension("com.example/hello")
@hello.method("com.example/hello/say")
async def say(params: Params, exchange: Exchange) -> Result:
    return Result()
app = Server("hello", instructions="Greets.", extensions=[hello])
""",
        encoding="utf-8",
    )
    checks = {check["name"]: check for check in run("doctor", path, "--json").check_success().json["checks"]}
    assert checks["lists"]["status"] == "ok"
    assert "hint" not in checks["lists"]
    assert checks["extensions"]["message"] == "com.example/hello"


def test_an_empty_server_without_extensions_is_a_warning(run: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("from dovetail import Server\napp = Server('empty')\n", encoding="utf-8")
    checks = {check["name"]: check for check in run("doctor", path, "--json").json["checks"]}
    assert checks["lists"]["status"] == "warn"
    assert "extensions" not in checks


def test_skills_are_counted(run: RunCommand, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "office.py"
    path.write_text(
        """
from dovetail import Server
app = Server("office", instructions="Works.")
@app.skill(description="Write letters.")
def letters() -> str:
    return "# Letters"
""",
        encoding="utf-8",
    )
    checks = {check["name"]: check for check in run("doctor", path, "--json").check_success().json["checks"]}
    assert "1 skill" in checks["lists"]["message"]

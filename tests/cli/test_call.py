"""Test how `dovetail call` prints results, and how it starts tasks and waits for them."""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand, ServerProcess
from dovetail import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from dovetail.cli.commands.call import format_result
from dovetail.tasks.task_handle import TaskReference

TASK_SERVER = Path(__file__).with_name("task_server.py")


def test_every_kind_of_content() -> None:
    pixels = base64.b64encode(b"x" * 30).decode()
    result = CallToolResult(
        content=[
            TextContent(text="words"),
            ImageContent(data=pixels, mime_type="image/png"),
            AudioContent(data=pixels, mime_type="audio/wav"),
            ResourceLink(uri="notes://one", name="one"),
            EmbeddedResource(resource=ResourceContents(uri="notes://two", text="inside")),
            EmbeddedResource(resource=ResourceContents(uri="notes://three", blob=pixels, mime_type="image/png")),
        ]
    )
    assert format_result(result).splitlines() == [
        "words",
        "[image, image/png, 30 bytes]",
        "[audio, audio/wav, 30 bytes]",
        "[link to notes://one]",
        "inside",
        "[image/png at notes://three]",
    ]


def test_a_value_without_text() -> None:
    assert format_result(CallToolResult(content=[], structured_content={"a": 1})) == '{\n  "a": 1\n}'
    assert format_result(CallToolResult(content=[])) == ""


def test_images_are_written(run: RunCommand, tmp_path: Path) -> None:
    said = run("call", SAMPLE_SERVER, "drawn", "pages=2", "-o", tmp_path / "page.png").check_success()
    assert (tmp_path / "page.png").read_bytes() == b"\x89P\x00"
    assert (tmp_path / "page-2.png").read_bytes() == b"\x89P\x01"
    assert str(tmp_path / "page-2.png") in said.err
    assert run("call", SAMPLE_SERVER, "drawn", "-o", tmp_path / "page.png").code == 2
    assert said.out
    written = run("call", SAMPLE_SERVER, "add", "a=1", "-o", tmp_path / "page.png", "--force").check_success()
    assert (tmp_path / "page.png").read_bytes() == b"2"
    assert written.out == ""
    assert str(tmp_path / "page.png") in written.err


def test_a_failure_with_a_masked_message_suggests_verbose_output(run: RunCommand, url: str) -> None:
    said = run("call", SAMPLE_SERVER, "fail")
    assert said.code == 5
    assert "-v" in said.err.split()
    shown = run("call", SAMPLE_SERVER, "fail", "-v").err
    assert "ValueError: inside" in shown
    assert "-v" not in (shown + run("call", url, "fail").err).split()


PLAIN = """
from dovetail import Server
app = Server("s")
@app.tool
def red() -> str:
    return "\\x1b[31mred\\x1b[0m\\n"
app.add_resource(lambda: "\\x1b[1mbold", "t://x", name="x")
"""


def test_a_pipe_gets_what_the_server_said(run: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    path.write_text(PLAIN, encoding="utf-8")
    assert run("call", path, "red").out == "\x1b[31mred\x1b[0m\n"
    assert run("read", path, "t://x").out == "\x1b[1mbold"


# Tasks


@pytest.fixture(scope="module")
def tasks_url(environment: dict[str, str]) -> Iterator[str]:
    """The URL of a server whose tools run as tasks."""
    with ServerProcess([sys.executable, str(TASK_SERVER)], environment) as url:
        yield url


def test_a_call_waits_for_its_task_and_answers_questions(run: RunCommand, tasks_url: str) -> None:
    assert run("call", tasks_url, "order", "--answer", "value=3").check_success().out == "3 ordered\n"


def test_a_detached_call_gives_its_result_to_another_process(run: RunCommand, tasks_url: str, tmp_path: Path) -> None:
    started = run("call", tasks_url, "wait_for", f"file={tmp_path / 'f'}", "--detach").check_success()
    reference = started.out.strip()
    (tmp_path / "f").write_text("there")
    assert run("call", tasks_url, "--attach", "-", stdin=f"{reference}\n").check_success().out == "there\n"
    again = run("call", tasks_url, "--attach", reference, "--json").check_success().json
    assert again["content"] == [{"type": "text", "text": "there"}]
    run("call", tasks_url, "--attach", reference, "-o", tmp_path / "out").check_success()
    assert (tmp_path / "out").read_text() == "there"


def test_a_detached_call_prints_json(run: RunCommand, tasks_url: str, tmp_path: Path) -> None:
    started = run("call", tasks_url, "wait_for", f"file={tmp_path}/f", "--detach", "--json").check_success().json
    (tmp_path / "f").touch()
    assert started["status"] == "working"
    assert run("call", tasks_url, "--attach", started["reference"]).check_success().out == "\n"


def test_the_question_of_a_task_is_answered_when_it_is_attached(run: RunCommand, tasks_url: str) -> None:
    reference = run("call", tasks_url, "order", "--detach").check_success().out.strip()
    assert run("call", tasks_url, "--attach", reference, "--answer", "value=3").check_success().out == "3 ordered\n"


def test_the_error_of_a_tool_is_the_result_of_its_task(run: RunCommand, tasks_url: str) -> None:
    reference = run("call", tasks_url, "fail", "--detach").check_success().out.strip()
    attached = run("call", tasks_url, "--attach", reference)
    assert (attached.code, attached.err) == (5, "closed\n")


def test_a_detached_call_that_ends_without_a_task_prints_its_result(run: RunCommand, tasks_url: str) -> None:
    assert run("call", tasks_url, "answer_soon", "--detach").check_success().out == "soon\n"


def test_detach_needs_a_server_that_outlives_the_command_and_has_tasks(run: RunCommand, url: str) -> None:
    assert run("call", TASK_SERVER, "fail", "--detach").code == 2
    assert run("call", url, "add", "a=1", "--detach").code == 2


def test_detach_with_a_handshake_version_names_the_version(run: RunCommand, tasks_url: str) -> None:
    refused = run("call", tasks_url, "fail", "--detach", "--protocol-version", "2025-11-25")
    assert refused.code == 2
    assert "2025-11-25" in refused.err


def test_an_unknown_reference_is_an_error(run: RunCommand, tasks_url: str) -> None:
    lost, other = (TaskReference(server=name, tool="fail", id="0" * 48).encode() for name in ("tasks", "another"))
    refused = run("call", tasks_url, "--attach", other)
    assert refused.code == 2
    assert "another" in refused.err
    for args in ((lost,), ("nonsense",), (lost, "fail"), (lost, "--detach")):
        assert run("call", tasks_url, "--attach", *args).code == 2

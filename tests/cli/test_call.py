"""Test how `dovetail call` prints results."""

import base64
from pathlib import Path

from cli.command_process import SAMPLE_SERVER, RunCommand
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
    assert run("call", SAMPLE_SERVER, "add", "a=1", "-o", tmp_path / "page.png", "--force").check_success()
    assert (tmp_path / "page.png").read_bytes() == b"2"


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

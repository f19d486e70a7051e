"""Test images, audio, files and tables as results."""

import base64
import datetime
import io
import json
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pytest
from matplotlib.figure import Figure
from PIL import Image as Picture

from dovetail import Annotations, Audio, File, Image, ImageContent, Server
from dovetail.server.results import compile_output, to_prompt_messages, to_resource_contents
from server.direct_client import Client

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8
WAV = b"RIFF\x04\0\0\0WAVE"


def content(value: Any, annotation: Any = Any) -> list[dict[str, Any]]:
    from dovetail.wire.codec import to_plain

    return to_plain(compile_output(annotation).to_result(value))["content"]


def picture(form: str | None, mode: str = "RGB") -> Any:
    made = Picture.new(mode, (2, 2))
    if form is None:
        return made
    file = io.BytesIO()
    made.save(file, form)
    return Picture.open(file)


def figure() -> Any:
    made = Figure()
    made.add_subplot().plot([1, 2])
    return made


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (PNG, "image/png"),
        (bytearray(b"\xff\xd8\xff"), "image/jpeg"),
        (Image(b"GIF89a"), "image/gif"),
        (Image(b"?", mime_type="image/x-own"), "image/x-own"),
        (picture(None), "image/png"),
        (picture("JPEG"), "image/jpeg"),
        (picture("BMP"), "image/png"),
        (picture(None, "CMYK"), "image/png"),
        (picture("JPEG", "CMYK"), "image/jpeg"),
        (figure(), "image/png"),
        (figure().axes[0], "image/png"),
    ],
)
def test_pictures(value: Any, kind: str) -> None:
    (block,) = content(value)
    assert (block["type"], block["mimeType"]) == ("image", kind)
    if not isinstance(value, bytes | bytearray | Image):
        assert Picture.open(io.BytesIO(base64.b64decode(block["data"]))).get_format_mimetype() == kind


def test_audio_and_its_annotations() -> None:
    (block,) = content(Audio(WAV, annotations=Annotations(priority=1.0), meta={"x.example/a": 1}))
    assert block == {
        "type": "audio",
        "data": encoded(WAV),
        "mimeType": "audio/wav",
        "annotations": {"priority": 1.0},
        "_meta": {"x.example/a": 1},
    }


def test_files_are_text_if_they_can_be_and_never_tell_where_they_lay(tmp_path: Path) -> None:
    note, odd, data = tmp_path / "ä b.md", tmp_path / "odd.txt", tmp_path / "x.bin"
    note.write_text("# Hi", encoding="utf-8")
    odd.write_bytes(b"\xff\xfe")
    data.write_bytes(b"\0")
    assert content(note)[0]["resource"] == {
        "uri": "file:///%C3%A4%20b.md",
        "mimeType": "text/markdown",
        "text": "# Hi",
    }
    assert content(File(str(odd)))[0]["resource"] == {
        "uri": "file:///odd.txt",
        "mimeType": "text/plain",
        "blob": "//4=",
    }
    assert content(data)[0]["resource"]["mimeType"] == "application/octet-stream"
    assert content(File(b"{}", name="a/b.json", uri="x://y"))[0]["resource"]["uri"] == "x://y"
    assert content(b"%PDF-1.7")[0]["resource"]["mimeType"] == "application/pdf"


def test_a_path_to_a_picture_is_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(PNG)
    for value in (path, Image(path), Image(str(path))):
        assert content(value, Path) == [{"type": "image", "data": encoded(PNG), "mimeType": "image/png"}]


def test_an_unrecognized_format_needs_a_mime_type() -> None:
    for kind in (Image, Audio):
        with pytest.raises(ValueError, match="mime_type="):
            kind(b"?")
    with pytest.raises(ValueError, match="mime_type="):
        Audio(PNG)


def test_mixes_keep_their_order_and_values_among_them_become_text() -> None:
    blocks = content(["Here:", Image(PNG), {"a": 1}, 3, PNG, figure()])
    assert [block["type"] for block in blocks] == ["text", "image", "text", "text", "image", "image"]
    assert [block.get("text") for block in blocks[2:4]] == ['{"a":1}', "3"]


def test_lists_of_paths_or_bytes_alone_are_values() -> None:
    output = compile_output(list[Path], wrap_results=False)
    assert output.schema == {"type": "array", "items": {"type": "string"}}
    assert output.to_result([Path("a")]).structured_content == ["a"]  # pyright: ignore[reportAttributeAccessIssue]
    assert content([Path("a")]) == [{"type": "text", "text": '["a"]'}]


@pytest.mark.parametrize(
    "annotation", [Image, Audio | None, list[Image], list[str | File], bytes, Path, type(figure())]
)
def test_media_have_no_schema(annotation: Any) -> None:
    assert compile_output(annotation).schema is None


ROWS = {"a": [1, 2], "b": [None, "x"], "d": [datetime.date(2026, 1, 2), None]}


@pytest.mark.parametrize("library", [pandas, polars], ids=["pandas", "polars"])
def test_a_frame_is_its_records(library: Any) -> None:
    frame = library.DataFrame(ROWS)
    for annotation in (Any, type(frame)):
        output = compile_output(annotation, wrap_results=False)
        assert output.schema is None
        result: Any = output.to_result(frame)
        first, second = result.structured_content
        assert first["d"].startswith("2026-01-02")
        assert {**first, "d": ""} == {"a": 1, "b": None, "d": ""}
        assert second == {"a": 2, "b": "x", "d": None}
        assert json.loads(result.content[0].text) == [first, second]
    nested: Any = compile_output(Any).to_result({"table": frame})
    assert nested.structured_content == {"table": [first, second]}


def test_arrays_and_series_are_lists_and_what_is_missing_is_null() -> None:
    values = {
        "array": numpy.arange(4).reshape(2, 2),
        "number": numpy.float64(1.5),
        "pandas": pandas.Series([1.5, None]),
        "index": pandas.Index(["a"]),
        "polars": polars.Series(["a", None]),
    }
    result: Any = compile_output(Any).to_result(values)
    assert result.structured_content == {
        "array": [[0, 1], [2, 3]],
        "number": 1.5,
        "pandas": [1.5, None],
        "index": ["a"],
        "polars": ["a", None],
    }


def test_resources_and_prompts_take_them_too(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("hi", encoding="utf-8")
    assert to_resource_contents(path, "x://a", None)[0].text == "hi"
    assert to_resource_contents(Image(PNG), "x://a", None)[0].blob == encoded(PNG)
    assert to_resource_contents(PNG, "x://a", None)[0].mime_type is None
    assert to_prompt_messages(["Look:", Image(PNG)])[1].content == ImageContent(
        data=encoded(PNG), mime_type="image/png"
    )  # pyright: ignore[reportIndexIssue]


async def test_a_file_that_is_gone_is_the_tools_fault(tmp_path: Path) -> None:
    app = Server("x")
    app.add_tool(lambda: tmp_path / "gone", name="gone")
    assert (await Client(app).call("gone"))["isError"]


def test_a_moment_of_pandas_is_written_as_any_other() -> None:
    moment = pandas.Timestamp("2026-01-02T03:04:05")
    assert json.loads(content({"when": moment})[0]["text"]) == {"when": "2026-01-02T03:04:05"}

"""Pictures, sounds, files and tables as results."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest

from dovetail import Annotations, Audio, File, Image, ImageContent, Server
from dovetail.server.content import compile_output, prompt_messages, resource_contents
from server.calling import Client

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8
WAV = b"RIFF\x04\0\0\0WAVE"


def content(value: Any, annotation: Any = Any) -> list[dict[str, Any]]:
    from dovetail.wire.codec import plain

    return plain(compile_output(annotation).shape(value))["content"]


def library(module: str, name: str, **members: Any) -> Any:
    """An object as a library that is not installed here would make it."""
    return type(name, (), {"__module__": module, **members})()


def picture(form: str | None, mode: str = "RGB") -> Any:
    def save(self: Any, buffer: io.BytesIO, format: str) -> None:
        assert mode != "CMYK" or format != "PNG", "PNG knows no such colours"
        buffer.write({"PNG": PNG, "JPEG": b"\xff\xd8\xff"}[format])

    convert = lambda self, mode: picture(None, mode)  # noqa: E731
    return library("PIL.Image", "Image", format=form, mode=mode, save=save, convert=convert)


def figure() -> Any:
    def savefig(self: Any, buffer: io.BytesIO, *, format: str, bbox_inches: str) -> None:
        assert (format, bbox_inches) == ("png", "tight")
        buffer.write(PNG)

    return library("matplotlib.figure", "Figure", savefig=savefig)


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
        (library("matplotlib.axes._axes", "Axes", figure=figure()), "image/png"),
    ],
)
def test_pictures(value: Any, kind: str) -> None:
    (block,) = content(value)
    assert (block["type"], block["mimeType"]) == ("image", kind)


def test_sounds_and_what_is_said_about_them() -> None:
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


def test_what_shows_no_kind_has_to_be_told() -> None:
    for kind in (Image, Audio):
        with pytest.raises(ValueError, match="say mime_type="):
            kind(b"?")
    with pytest.raises(ValueError, match="say mime_type="):
        Audio(PNG)


def test_mixes_keep_their_order_and_values_among_them_become_text() -> None:
    blocks = content(["Here:", Image(PNG), {"a": 1}, 3, PNG, figure()])
    assert [block["type"] for block in blocks] == ["text", "image", "text", "text", "image", "image"]
    assert [block.get("text") for block in blocks[2:4]] == ['{"a":1}', "3"]


def test_lists_of_paths_or_bytes_alone_are_values() -> None:
    output = compile_output(list[Path])
    assert output.schema == {"type": "array", "items": {"type": "string"}}
    assert output.shape([Path("a")]).structured_content == ["a"]  # pyright: ignore[reportAttributeAccessIssue]
    assert content([Path("a")]) == [{"type": "text", "text": '["a"]'}]


@pytest.mark.parametrize(
    "annotation", [Image, Audio | None, list[Image], list[str | File], bytes, Path, type(figure())]
)
def test_media_have_no_schema(annotation: Any) -> None:
    assert compile_output(annotation).schema is None


def frames() -> list[Any]:
    rows = '[{"a":1,"b":null}]'
    pandas = library(
        "pandas.core.frame", "DataFrame", iloc=None, to_json=lambda self, orient, date_format: rows
    )  # fmt: skip
    polars = library("polars.dataframe.frame", "DataFrame", write_json=lambda self: rows)
    return [pandas, polars]


@pytest.mark.parametrize("frame", frames(), ids=["pandas", "polars"])
def test_a_frame_is_its_records(frame: Any) -> None:
    for annotation in (Any, type(frame)):
        output = compile_output(annotation)
        assert output.schema is None
        result: Any = output.shape(frame)
        assert result.structured_content == [{"a": 1, "b": None}]
        assert result.content[0].text == '[{"a":1,"b":null}]'
    nested: Any = compile_output(Any).shape({"table": frame})
    assert nested.structured_content == {"table": [{"a": 1, "b": None}]}


def test_arrays_and_series_are_lists() -> None:
    array = library("numpy", "ndarray", tolist=lambda self: [1, 2])
    series = library("polars.series.series", "Series", to_list=lambda self: ["a"])
    result: Any = compile_output(Any).shape({"x": array, "y": series})
    assert result.structured_content == {"x": [1, 2], "y": ["a"]}


def test_resources_and_prompts_take_them_too(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("hi", encoding="utf-8")
    assert resource_contents(path, "x://a", None)[0].text == "hi"
    assert resource_contents(Image(PNG), "x://a", None)[0].blob == encoded(PNG)
    assert resource_contents(PNG, "x://a", None)[0].mime_type is None
    assert prompt_messages(["Look:", Image(PNG)])[1].content == ImageContent(data=encoded(PNG), mime_type="image/png")  # pyright: ignore[reportIndexIssue]


async def test_a_file_that_is_gone_is_the_tools_fault(tmp_path: Path) -> None:
    app = Server("x")
    app.add_tool(lambda: tmp_path / "gone", name="gone")
    assert (await Client(app).call("gone"))["isError"]


def test_a_moment_of_pandas_is_written_as_any_other() -> None:
    moment = library("pandas._libs.tslibs.timestamps", "Timestamp", isoformat=lambda self: "2026-01-02T03:04:05")
    assert json.loads(content({"when": moment})[0]["text"]) == {"when": "2026-01-02T03:04:05"}

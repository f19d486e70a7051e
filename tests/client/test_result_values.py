"""Test converting a result to the value the caller wants."""

from typing import Any

import msgspec
import pytest

from dovetail.client.result_values import convert_value, extract_contents, extract_value
from dovetail.errors import InvalidResult, ToolError
from dovetail.wire.content import ImageContent, ResourceContents, TextContent
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.tools import CallToolResult


class Seat(msgspec.Struct):
    row: int


def result(*texts: str, **more: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=one) for one in texts], **more)


def test_structured_content_comes_first() -> None:
    assert extract_value(result("x", structured_content={"a": 1}), is_wrapped=True) == {"a": 1}
    assert extract_value(result("x", structured_content={"result": 5}), is_wrapped=True) == 5
    assert extract_value(result("x", structured_content={"result": 5}), is_wrapped=False) == {"result": 5}
    assert extract_value(result("x", structured_content={"result": 5, "a": 1}), is_wrapped=True) == {
        "result": 5,
        "a": 1,
    }
    assert extract_value(result("x", structured_content=None), is_wrapped=True) is None
    assert extract_value(result("x", structured_content=[]), is_wrapped=True) == []


def test_else_text_else_blocks() -> None:
    assert extract_value(result("x"), is_wrapped=True) == "x"
    assert extract_value(result("x", "y"), is_wrapped=True) == "x\ny"
    assert extract_value(result(), is_wrapped=True) is None
    mixed = CallToolResult(content=[TextContent(text="x"), ImageContent(data="AA==", mime_type="image/png")])
    assert extract_value(mixed, is_wrapped=True) == mixed.content


def test_a_failure_is_raised_in_the_tools_words() -> None:
    failed = result("no", "luck", is_error=True, structured_content={"a": 1})
    with pytest.raises(ToolError, match="no\nluck") as caught:
        extract_value(failed, is_wrapped=True)
    assert caught.value.result is failed
    with pytest.raises(ToolError):
        extract_value(result(is_error=True), is_wrapped=True)


def test_into_a_type() -> None:
    assert convert_value(result(structured_content={"row": 5}), Seat, is_wrapped=True) == Seat(5)
    assert convert_value(result('{"row": 5}'), Seat, is_wrapped=True) == Seat(5)
    assert convert_value(result("5"), int, is_wrapped=True) == 5
    assert convert_value(result("5"), str, is_wrapped=True) == "5"
    for wrong in (result("five"), result(structured_content={"row": "x"}), result(structured_content="5")):
        with pytest.raises(InvalidResult, match=r"Seat|int"):
            convert_value(wrong, Seat if wrong.content == [] else int, is_wrapped=True)


def test_contents() -> None:
    def read(*contents: ResourceContents) -> Any:
        return extract_contents(ReadResourceResult(contents=list(contents)))

    text, blob = ResourceContents(uri="a", text="x"), ResourceContents(uri="a", blob="AAE=")
    assert read(text) == "x"
    assert read(blob) == b"\x00\x01"
    assert read(text, blob) == ["x", b"\x00\x01"]
    assert read(ResourceContents(uri="a", text="x", blob="AAE=")) == b"\x00\x01"
    assert read() == []
    with pytest.raises(InvalidResult, match="base64"):
        read(ResourceContents(uri="a\x1b", blob="%%"))

"""From a result to the value a caller wants."""

from typing import Any

import msgspec
import pytest

from dovetail.client.values import contents_of, value_as, value_of
from dovetail.errors import ResultError, ToolError
from dovetail.wire.content import ImageContent, ResourceContents, TextContent
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.tools import CallToolResult


class Seat(msgspec.Struct):
    row: int


def result(*texts: str, **more: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=one) for one in texts], **more)


def test_structured_content_comes_first() -> None:
    assert value_of(result("x", structured_content={"a": 1}), wraps=True) == {"a": 1}
    assert value_of(result("x", structured_content={"result": 5}), wraps=True) == 5
    assert value_of(result("x", structured_content={"result": 5}), wraps=False) == {"result": 5}
    assert value_of(result("x", structured_content={"result": 5, "a": 1}), wraps=True) == {"result": 5, "a": 1}
    assert value_of(result("x", structured_content=None), wraps=True) is None
    assert value_of(result("x", structured_content=[]), wraps=True) == []


def test_else_text_else_blocks() -> None:
    assert value_of(result("x"), wraps=True) == "x"
    assert value_of(result("x", "y"), wraps=True) == "x\ny"
    assert value_of(result(), wraps=True) is None
    mixed = CallToolResult(content=[TextContent(text="x"), ImageContent(data="AA==", mime_type="image/png")])
    assert value_of(mixed, wraps=True) == mixed.content


def test_a_failure_is_raised_in_the_tools_words() -> None:
    failed = result("no", "luck", is_error=True, structured_content={"a": 1})
    with pytest.raises(ToolError, match="no\nluck") as caught:
        value_of(failed, wraps=True)
    assert caught.value.result is failed
    with pytest.raises(ToolError):
        value_of(result(is_error=True), wraps=True)


def test_into_a_type() -> None:
    assert value_as(result(structured_content={"row": 5}), Seat, wraps=True) == Seat(5)
    assert value_as(result('{"row": 5}'), Seat, wraps=True) == Seat(5)
    assert value_as(result("5"), int, wraps=True) == 5
    assert value_as(result("5"), str, wraps=True) == "5"
    for wrong in (result("five"), result(structured_content={"row": "x"}), result(structured_content="5")):
        with pytest.raises(ResultError, match=r"Seat|int"):
            value_as(wrong, Seat if wrong.content == [] else int, wraps=True)


def test_contents() -> None:
    def read(*contents: ResourceContents) -> Any:
        return contents_of(ReadResourceResult(contents=list(contents)))

    text, blob = ResourceContents(uri="a", text="x"), ResourceContents(uri="a", blob="AAE=")
    assert read(text) == "x"
    assert read(blob) == b"\x00\x01"
    assert read(text, blob) == ["x", b"\x00\x01"]
    assert read() == []
    with pytest.raises(ResultError, match="base64"):
        read(ResourceContents(uri="a\x1b", blob="%%"))

"""Test the properties of results: `text` and `data`."""

from typing import Any

import pytest

from dovetail import CallToolResult, ImageContent, ResourceContents, TextContent
from dovetail.types import ReadResourceResult
from dovetail.wire.base import UNSET
from dovetail.wire.codec import encode

IMAGE = ImageContent(data="aGk=", mime_type="image/png")


def tool_result(*texts: str, structured: Any = UNSET, meta: dict[str, Any] | None = None) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text) for text in texts], structured_content=structured, meta=meta)


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (tool_result("hello"), "hello"),
        (tool_result("a", "b"), "a\nb"),
        (tool_result(), None),
        (tool_result("null", structured=None), None),
        (tool_result('{"a":1}', structured={"a": 1}), {"a": 1}),
        (tool_result("3", structured={"result": 3}), 3),
        (tool_result('{"result":3}', structured={"result": 3}), {"result": 3}),
        (tool_result("x", structured={"result": 3}, meta={"fastmcp": {"wrap_result": True}}), 3),
        (CallToolResult(content=[IMAGE]), [IMAGE]),
    ],
)
def test_data_is_the_value_of_the_tool(result: CallToolResult, value: Any) -> None:
    assert result.data == value


def test_text_joins_all_text_blocks() -> None:
    assert CallToolResult(content=[TextContent(text="a"), IMAGE, TextContent(text="b")]).text == "a\nb"
    assert CallToolResult(content=[IMAGE]).text == ""
    parts = [ResourceContents(uri="a:b", text="a"), ResourceContents(uri="a:c", blob="aGk=")]
    assert ReadResourceResult(contents=parts).text == "a"


def test_the_properties_are_not_sent() -> None:
    assert encode(tool_result("hello")) == b'{"content":[{"type":"text","text":"hello"}]}'

from typing import Any

import msgspec
import pytest

from dovetail.wire.base import UNSET
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolParams, CallToolResult, ListToolsResult, Tool, ToolAnnotations


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, {"a": None}])
def test_any_structured_value_is_sent_and_received(value: Any) -> None:
    result = CallToolResult(content=[], structured_content=value)
    encoded = msgspec.json.encode(result)
    assert msgspec.json.decode(encoded) == {"content": [], "structuredContent": value}
    assert msgspec.json.decode(encoded, type=CallToolResult) == result


def test_no_structured_value_is_not_null() -> None:
    assert msgspec.json.encode(CallToolResult(content=[])) == b'{"content":[]}'
    assert msgspec.json.decode(b'{"content":[]}', type=CallToolResult).structured_content is UNSET


def test_a_result_without_content_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="content"):
        msgspec.json.decode(b'{"isError":true}', type=CallToolResult)


def test_a_failure_of_the_tool() -> None:
    failed = CallToolResult(content=[TextContent(text="no")], is_error=True)
    assert msgspec.json.encode(failed) == b'{"content":[{"type":"text","text":"no"}],"isError":true}'


def test_an_empty_list_of_tools_is_sent() -> None:
    assert msgspec.json.encode(ListToolsResult(tools=[])) == b'{"tools":[]}'


@pytest.mark.parametrize("said", [True, False])
def test_a_hint_said_is_a_hint_sent(said: bool) -> None:
    hints = {"readOnlyHint": said, "destructiveHint": said, "idempotentHint": said, "openWorldHint": said}
    assert msgspec.json.decode(msgspec.json.encode(msgspec.convert(hints, ToolAnnotations))) == hints


def test_a_schema_passes_untouched() -> None:
    schema = {"type": "object", "properties": {"a_b": {"$ref": "#/$defs/X", "default": None}}, "required": []}
    sent = msgspec.json.encode(Tool(name="t", input_schema=schema))
    assert msgspec.json.decode(sent) == {"name": "t", "inputSchema": schema}
    assert msgspec.json.decode(sent, type=Tool).input_schema == schema


@pytest.mark.parametrize("arguments", [b"[]", b'"x"', b"1"])
def test_arguments_are_an_object(arguments: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="arguments"):
        msgspec.json.decode(b'{"name":"t","arguments":%s}' % arguments, type=CallToolParams)


def test_no_arguments_and_empty_arguments_differ() -> None:
    assert msgspec.json.encode(CallToolParams(name="t")) == b'{"name":"t"}'
    assert msgspec.json.encode(CallToolParams(name="t", arguments={})) == b'{"name":"t","arguments":{}}'

import typing
from typing import Any

import msgspec
import pytest

from dovetail.wire.content import (
    Annotations,
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    SamplingContent,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)

BLOCKS: list[tuple[bytes, Any]] = [
    (b'{"type":"text","text":""}', TextContent(text="")),
    (b'{"type":"image","data":"AA==","mimeType":"image/png"}', ImageContent(data="AA==", mime_type="image/png")),
    (b'{"type":"audio","data":"AA==","mimeType":"audio/wav"}', AudioContent(data="AA==", mime_type="audio/wav")),
    (b'{"type":"resource_link","uri":"a://b","name":"b"}', ResourceLink(uri="a://b", name="b")),
    (
        b'{"type":"resource","resource":{"uri":"a://b","text":""}}',
        EmbeddedResource(resource=ResourceContents(uri="a://b", text="")),
    ),
]
TOOL_BLOCKS: list[tuple[bytes, Any]] = [
    (b'{"type":"tool_use","id":"1","name":"t","input":{}}', ToolUseContent(id="1", name="t", input={})),
    (b'{"type":"tool_result","toolUseId":"1","content":[]}', ToolResultContent(tool_use_id="1", content=[])),
]


@pytest.mark.parametrize(("text", "block"), BLOCKS)
def test_content_blocks_are_distinguished_by_type(text: bytes, block: Any) -> None:
    assert msgspec.json.decode(text, type=ContentBlock) == block
    assert msgspec.json.encode(block) == text


@pytest.mark.parametrize(("text", "block"), BLOCKS[:3] + TOOL_BLOCKS)
def test_sampling_blocks_are_distinguished_by_type(text: bytes, block: Any) -> None:
    assert msgspec.json.decode(text, type=SamplingContent) == block
    assert msgspec.json.encode(block) == text


@pytest.mark.parametrize("block", typing.get_args(ContentBlock) + typing.get_args(SamplingContent))
def test_the_type_in_python_is_the_type_on_the_wire(block: Any) -> None:
    assert block.type == block.__struct_config__.tag


@pytest.mark.parametrize("text", [b"{}", b'{"text":"x"}', b'{"type":"video","text":"x"}', b'{"type":1}', b"[]", b'"x"'])
def test_a_block_of_no_known_type_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=ContentBlock)


@pytest.mark.parametrize(("text", "_"), TOOL_BLOCKS)
def test_tool_blocks_are_no_content_of_tools_and_prompts(text: bytes, _: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=ContentBlock)


def test_resource_contents_need_text_or_blob() -> None:
    with pytest.raises(ValueError, match="`text` or `blob`"):
        ResourceContents(uri="a://b")
    with pytest.raises(msgspec.ValidationError, match=r"`text` or `blob`.*\$\.resource"):
        msgspec.json.decode(b'{"type":"resource","resource":{"uri":"a://b"}}', type=ContentBlock)


@pytest.mark.parametrize("member", ["text", "blob"])
def test_empty_contents_are_still_contents(member: str) -> None:
    text = msgspec.json.encode({"uri": "a://b", member: ""})
    assert msgspec.json.encode(msgspec.json.decode(text, type=ResourceContents)) == text


def test_a_null_result_of_a_tool_is_sent() -> None:
    null = ToolResultContent(tool_use_id="1", content=[], structured_content=None, is_error=True)
    assert msgspec.json.encode(null) == (
        b'{"type":"tool_result","toolUseId":"1","content":[],"structuredContent":null,"isError":true}'
    )


def test_annotations() -> None:
    text = b'{"audience":["user","assistant"],"priority":0.5,"lastModified":"2025-01-12T15:00:58Z"}'
    assert msgspec.json.encode(msgspec.json.decode(text, type=Annotations)) == text
    assert msgspec.json.decode(b'{"priority":1}', type=Annotations).priority == 1
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"audience":["system"]}', type=Annotations)

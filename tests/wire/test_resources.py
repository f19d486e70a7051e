import msgspec
import pytest

from dovetail.wire.content import ResourceContents
from dovetail.wire.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
)


def test_empty_lists_are_sent() -> None:
    assert msgspec.json.encode(ListResourcesResult(resources=[])) == b'{"resources":[]}'
    assert msgspec.json.encode(ListResourceTemplatesResult(resource_templates=[])) == b'{"resourceTemplates":[]}'
    assert msgspec.json.encode(ReadResourceResult(contents=[])) == b'{"contents":[]}'


def test_one_uri_may_hold_text_and_blobs() -> None:
    parts = [ResourceContents(uri="a://b", text="x"), ResourceContents(uri="a://b/c", blob="AA==")]
    encoded = msgspec.json.encode(ReadResourceResult(contents=parts))
    assert encoded == b'{"contents":[{"uri":"a://b","text":"x"},{"uri":"a://b/c","blob":"AA=="}]}'
    assert msgspec.json.decode(encoded, type=ReadResourceResult).contents == parts


def test_an_empty_resource_has_a_size() -> None:
    assert msgspec.json.encode(Resource(uri="a://b", name="b", size=0)) == b'{"uri":"a://b","name":"b","size":0}'


@pytest.mark.parametrize("text", [b"{}", b'{"uri":null}', b'{"uri":1}'])
def test_reading_needs_a_uri(text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="uri"):
        msgspec.json.decode(text, type=ReadResourceParams)

"""What people are shown of a result."""

import base64

from dovetail import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from dovetail.cli.call import shown


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
    assert shown(result).splitlines() == [
        "words",
        "[image, image/png, 30 bytes]",
        "[audio, audio/wav, 30 bytes]",
        "[link to notes://one]",
        "inside",
        "[image/png at notes://three]",
    ]


def test_a_value_without_text() -> None:
    assert shown(CallToolResult(content=[], structured_content={"a": 1})) == '{\n  "a": 1\n}'
    assert shown(CallToolResult(content=[])) == ""

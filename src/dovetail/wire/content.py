"""The content blocks of tools, prompts and models, with their annotations and icons.

The `type` member distinguishes the blocks, both on the wire and in Python.
"""

from typing import Any, ClassVar, Literal, TypeAlias

from dovetail.wire.base import UNSET, WireStruct, field

# The author of a message.
Role: TypeAlias = Literal["user", "assistant"]


class Annotations(WireStruct):
    """Metadata about content, such as its audience, priority and time of the last change."""

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None  # added in protocol version 2025-06


class Icon(WireStruct):
    """An image for a user interface. Added in protocol version 2025-11."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


class TextContent(WireStruct, tag_field="type", tag="text"):
    """A content block with plain text."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


class ImageContent(WireStruct, tag_field="type", tag="image"):
    """A content block with an image. `data` is in base64."""

    type: ClassVar[Literal["image"]] = "image"
    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


class AudioContent(WireStruct, tag_field="type", tag="audio"):
    """A content block with audio. `data` is in base64. Added in protocol version 2025-03."""

    type: ClassVar[Literal["audio"]] = "audio"
    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


class ResourceLink(WireStruct, tag_field="type", tag="resource_link"):
    """A link to a resource whose contents are not included. Added in protocol version 2025-06."""

    type: ClassVar[Literal["resource_link"]] = "resource_link"
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None  # added in protocol version 2025-11
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)


class ResourceContents(WireStruct):
    """The contents of a resource, as `text` or as `blob` in base64. If a server sends both, `blob` is used."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06

    def __post_init__(self) -> None:
        if self.text is None and self.blob is None:
            raise ValueError("resource contents must have `text` or `blob`")


class EmbeddedResource(WireStruct, tag_field="type", tag="resource"):
    """A content block with a resource and its contents."""

    type: ClassVar[Literal["resource"]] = "resource"
    resource: ResourceContents
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


# A part of a tool result or of a prompt message.
ContentBlock: TypeAlias = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


class ToolUseContent(WireStruct, tag_field="type", tag="tool_use"):
    """A model's request to call a tool. Used only in sampling. Added in protocol version 2025-11."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]
    meta: dict[str, Any] | None = field(name="_meta", default=None)


class ToolResultContent(WireStruct, tag_field="type", tag="tool_result"):
    """The result of a tool that a model called. Used only in sampling. Added in protocol version 2025-11."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False
    meta: dict[str, Any] | None = field(name="_meta", default=None)


# A part of a sampling message.
SamplingContent: TypeAlias = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent

"""Content blocks of tools, prompts and models, with their annotations and icons.

Refuses to know where a block came from. The `type` member tells the blocks apart, on the wire and in Python.
"""

from typing import Any, ClassVar, Literal, TypeAlias

from dovetail.wire.base import UNSET, WireStruct, field

Role: TypeAlias = Literal["user", "assistant"]


class Annotations(WireStruct):
    """For whom content is meant, how much it matters, and how old it is."""

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None  # since 2025-06


class Icon(WireStruct):
    """A picture for a user interface; since 2025-11."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


class TextContent(WireStruct, tag_field="type", tag="text"):
    """Plain text."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06


class ImageContent(WireStruct, tag_field="type", tag="image"):
    """An image; `data` is base64."""

    type: ClassVar[Literal["image"]] = "image"
    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06


class AudioContent(WireStruct, tag_field="type", tag="audio"):
    """A sound; `data` is base64. Since 2025-03."""

    type: ClassVar[Literal["audio"]] = "audio"
    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06


class ResourceLink(WireStruct, tag_field="type", tag="resource_link"):
    """A resource named but not included; since 2025-06."""

    type: ClassVar[Literal["resource_link"]] = "resource_link"
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None  # since 2025-11
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)


class ResourceContents(WireStruct):
    """What a resource holds: `text`, or `blob` in base64."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06

    def __post_init__(self) -> None:
        if self.text is None and self.blob is None:
            raise ValueError("resource contents need `text` or `blob`")


class EmbeddedResource(WireStruct, tag_field="type", tag="resource"):
    """A resource included whole."""

    type: ClassVar[Literal["resource"]] = "resource"
    resource: ResourceContents
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06


ContentBlock: TypeAlias = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


class ToolUseContent(WireStruct, tag_field="type", tag="tool_use"):
    """A model wants a tool called; since 2025-11, in sampling only."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]
    meta: dict[str, Any] | None = field(name="_meta", default=None)


class ToolResultContent(WireStruct, tag_field="type", tag="tool_result"):
    """What the tool a model asked for answered; since 2025-11, in sampling only."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False
    meta: dict[str, Any] | None = field(name="_meta", default=None)


SamplingContent: TypeAlias = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent

"""The types of resources/list, resources/templates/list and resources/read.

This module treats a URI as plain text. It does not parse or expand URIs.
"""

from typing import Any

from dovetail.wire.base import CacheableResult, Params, WireStruct, field
from dovetail.wire.content import Annotations, Icon, ResourceContents


class Resource(WireStruct):
    """The definition of a resource."""

    uri: str
    name: str
    title: str | None = None  # added in protocol version 2025-06
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None  # added in protocol version 2025-11
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


class ResourceTemplate(WireStruct):
    """The definition of a resource template, which describes all resources with the same URI template."""

    uri_template: str
    name: str
    title: str | None = None  # added in protocol version 2025-06
    description: str | None = None
    mime_type: str | None = None
    icons: list[Icon] | None = None  # added in protocol version 2025-11
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


class ListResourcesResult(CacheableResult):
    """The result of resources/list, with one page of resources."""

    resources: list[Resource]
    next_cursor: str | None = None


class ListResourceTemplatesResult(CacheableResult):
    """The result of resources/templates/list, with one page of resource templates."""

    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None


class ReadResourceParams(Params):
    """The parameters of resources/read, with the URI and answers to earlier input requests."""

    uri: str
    input_responses: dict[str, Any] | None = None  # added in protocol version 2026-07
    request_state: str | None = None  # added in protocol version 2026-07


class ReadResourceResult(CacheableResult):
    """The result of resources/read, with the contents of a resource in one or more parts."""

    contents: list[ResourceContents]

    @property
    def text(self) -> str:
        """The text of all parts, separated by newlines. Parts with binary data are left out."""
        return "\n".join(part.text for part in self.contents if part.text is not None)

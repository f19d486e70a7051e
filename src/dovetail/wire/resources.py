"""resources/list, resources/templates/list and resources/read.

A URI is text here: nobody parses, resolves or expands it in this module.
"""

from typing import Any

from dovetail.wire.base import CacheableResult, Params, WireStruct, field
from dovetail.wire.content import Annotations, Icon, ResourceContents


class Resource(WireStruct):
    """Something a client can read."""

    uri: str
    name: str
    title: str | None = None  # since 2025-06
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None  # since 2025-11
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06


class ResourceTemplate(WireStruct):
    """A family of resources, named by a URI template."""

    uri_template: str
    name: str
    title: str | None = None  # since 2025-06
    description: str | None = None
    mime_type: str | None = None
    icons: list[Icon] | None = None  # since 2025-11
    annotations: Annotations | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06


class ListResourcesResult(CacheableResult):
    """One page of resources."""

    resources: list[Resource]
    next_cursor: str | None = None


class ListResourceTemplatesResult(CacheableResult):
    """One page of resource templates."""

    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None


class ReadResourceParams(Params):
    """Which resource, and the answers to what it asked before."""

    uri: str
    input_responses: dict[str, Any] | None = None  # since 2026-07
    request_state: str | None = None  # since 2026-07


class ReadResourceResult(CacheableResult):
    """What the resource holds; one URI may hold several parts."""

    contents: list[ResourceContents]

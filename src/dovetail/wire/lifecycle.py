"""initialize and server/discover: names and capabilities of both sides.

A capability that is None was not declared; an empty one was. Members nobody named here are not kept.
"""

from typing import Any

from dovetail.wire.base import CacheableResult, Params, Result, WireStruct
from dovetail.wire.content import Icon


class Implementation(WireStruct):
    """The name and version of a program, as it tells them itself."""

    name: str
    version: str
    title: str | None = None  # since 2025-06
    description: str | None = None  # since 2025-11
    website_url: str | None = None  # since 2025-11
    icons: list[Icon] | None = None  # since 2025-11


class RootsCapability(WireStruct):
    """The client can list roots."""

    list_changed: bool = False  # until 2026-07


class SamplingCapability(WireStruct):
    """The client can ask a model."""

    context: dict[str, Any] | None = None  # since 2025-11
    tools: dict[str, Any] | None = None  # since 2025-11


class ElicitationCapability(WireStruct):
    """The client can ask a person; neither mode named means form."""

    form: dict[str, Any] | None = None  # since 2025-11
    url: dict[str, Any] | None = None  # since 2025-11


class ClientCapabilities(WireStruct):
    """What a client can do for a server."""

    experimental: dict[str, Any] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None  # since 2025-06
    extensions: dict[str, Any] | None = None  # since 2026-07
    tasks: dict[str, Any] | None = None  # 2025-11 only


class ListChangedCapability(WireStruct):
    """The server has tools, or prompts, and may tell when the list changes."""

    list_changed: bool = False


class ResourcesCapability(WireStruct):
    """The server has resources, and may tell when one or the list changes."""

    subscribe: bool = False
    list_changed: bool = False


class ServerCapabilities(WireStruct):
    """What a server can do for a client."""

    experimental: dict[str, Any] | None = None
    logging: dict[str, Any] | None = None
    completions: dict[str, Any] | None = None  # since 2025-03
    prompts: ListChangedCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ListChangedCapability | None = None
    extensions: dict[str, Any] | None = None  # since 2026-07
    tasks: dict[str, Any] | None = None  # 2025-11 only


class InitializeParams(Params):
    """A client introduces itself; until 2026-07."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result):
    """A server introduces itself and settles the revision; until 2026-07."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class DiscoverResult(CacheableResult):
    """What a server speaks and can do; since 2026-07."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None

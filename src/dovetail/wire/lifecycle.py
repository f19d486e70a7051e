"""The types of initialize and server/discover, with the names and capabilities of client and server.

None means that the program did not declare a capability. An empty object declares the capability. Unknown members are
dropped.
"""

from typing import Any, Final

from dovetail.wire.base import CacheableResult, Params, Result, WireStruct
from dovetail.wire.content import Icon

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"  # the identifier of the tasks extension


class Implementation(WireStruct):
    """The name and version of a program, as the program reports them."""

    name: str
    version: str
    title: str | None = None  # added in protocol version 2025-06
    description: str | None = None  # added in protocol version 2025-11
    website_url: str | None = None  # added in protocol version 2025-11
    icons: list[Icon] | None = None  # added in protocol version 2025-11


class RootsCapability(WireStruct):
    """The capability of a client to list roots."""

    list_changed: bool = False  # only in protocol versions before 2026-07


class SamplingCapability(WireStruct):
    """The capability of a client to call a language model."""

    context: dict[str, Any] | None = None  # added in protocol version 2025-11
    tools: dict[str, Any] | None = None  # added in protocol version 2025-11


class ElicitationCapability(WireStruct):
    """The capability of a client to ask its user. If no mode is set, the client supports only forms."""

    form: dict[str, Any] | None = None  # added in protocol version 2025-11
    url: dict[str, Any] | None = None  # added in protocol version 2025-11


class ClientCapabilities(WireStruct):
    """The capabilities of a client."""

    experimental: dict[str, Any] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None  # added in protocol version 2025-06
    extensions: dict[str, Any] | None = None  # added in protocol version 2026-07
    tasks: dict[str, Any] | None = None  # only in protocol version 2025-11


class ListChangedCapability(WireStruct):
    """The capability of a server to offer tools or prompts. `list_changed` means that the server reports changes."""

    list_changed: bool = False


class ResourcesCapability(WireStruct):
    """The capability of a server to offer resources. `subscribe` and `list_changed` mean that the server reports
    changes.
    """

    subscribe: bool = False
    list_changed: bool = False


class ServerCapabilities(WireStruct):
    """The capabilities of a server."""

    experimental: dict[str, Any] | None = None
    logging: dict[str, Any] | None = None
    completions: dict[str, Any] | None = None  # added in protocol version 2025-03
    prompts: ListChangedCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ListChangedCapability | None = None
    extensions: dict[str, Any] | None = None  # added in protocol version 2026-07
    tasks: dict[str, Any] | None = None  # only in protocol version 2025-11


class InitializeParams(Params):
    """The parameters of initialize, with the client's protocol version, name and capabilities.

    Only in protocol versions before 2026-07.
    """

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result):
    """The result of initialize, with the negotiated protocol version and the server's name and capabilities.

    Only in protocol versions before 2026-07.
    """

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class DiscoverResult(CacheableResult):
    """The result of server/discover, with the server's protocol versions, name and capabilities.

    Added in protocol version 2026-07.
    """

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None

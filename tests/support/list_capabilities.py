"""Capabilities for servers that declare lists before anything is registered."""

from dovetail.types import ListChangedCapability, ResourcesCapability, ServerCapabilities

ALL_LISTS = ServerCapabilities(
    tools=ListChangedCapability(), prompts=ListChangedCapability(), resources=ResourcesCapability()
)
ONLY_TOOLS = ServerCapabilities(tools=ListChangedCapability())
ONLY_RESOURCES = ServerCapabilities(resources=ResourcesCapability())


def declare_lists(*names: str) -> ServerCapabilities:
    return ServerCapabilities(**{name: getattr(ALL_LISTS, name) for name in names})

"""dovetail: the Model Context Protocol for Python. The public names and nothing else, each loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.errors import Busy as Busy
    from dovetail.errors import Declined as Declined
    from dovetail.errors import Denied as Denied
    from dovetail.errors import Dismissed as Dismissed
    from dovetail.errors import InvalidParams as InvalidParams
    from dovetail.errors import MCPError as MCPError
    from dovetail.errors import MissingCapability as MissingCapability
    from dovetail.errors import PeerError as PeerError
    from dovetail.errors import ProtocolError as ProtocolError
    from dovetail.errors import ResourceNotFound as ResourceNotFound
    from dovetail.errors import ToolError as ToolError
    from dovetail.protocol.limits import Limits as Limits
    from dovetail.serve import Server as Server
    from dovetail.server.asking import Elicit as Elicit
    from dovetail.server.asking import ElicitUrl as ElicitUrl
    from dovetail.server.asking import InputRequired as InputRequired
    from dovetail.server.asking import Roots as Roots
    from dovetail.server.asking import Sample as Sample
    from dovetail.server.context import Context as Context
    from dovetail.server.inject import Depends as Depends
    from dovetail.server.marks import prompt as prompt
    from dovetail.server.marks import resource as resource
    from dovetail.server.marks import tool as tool
    from dovetail.server.media import Audio as Audio
    from dovetail.server.media import File as File
    from dovetail.server.media import Image as Image
    from dovetail.server.offload import Offload as Offload
    from dovetail.server.options import Lifetime as Lifetime
    from dovetail.server.streaming import Progress as Progress
    from dovetail.wire.completion import Completion as Completion
    from dovetail.wire.content import Annotations as Annotations
    from dovetail.wire.content import AudioContent as AudioContent
    from dovetail.wire.content import EmbeddedResource as EmbeddedResource
    from dovetail.wire.content import Icon as Icon
    from dovetail.wire.content import ImageContent as ImageContent
    from dovetail.wire.content import ResourceContents as ResourceContents
    from dovetail.wire.content import ResourceLink as ResourceLink
    from dovetail.wire.content import TextContent as TextContent
    from dovetail.wire.prompts import PromptMessage as PromptMessage
    from dovetail.wire.tools import CallToolResult as CallToolResult
    from dovetail.wire.tools import ToolAnnotations as ToolAnnotations

_HOMES = {
    "Annotations": "dovetail.wire.content",
    "Audio": "dovetail.server.media",
    "AudioContent": "dovetail.wire.content",
    "Busy": "dovetail.errors",
    "CallToolResult": "dovetail.wire.tools",
    "Completion": "dovetail.wire.completion",
    "Context": "dovetail.server.context",
    "Declined": "dovetail.errors",
    "Denied": "dovetail.errors",
    "Depends": "dovetail.server.inject",
    "Dismissed": "dovetail.errors",
    "Elicit": "dovetail.server.asking",
    "ElicitUrl": "dovetail.server.asking",
    "EmbeddedResource": "dovetail.wire.content",
    "File": "dovetail.server.media",
    "Icon": "dovetail.wire.content",
    "Image": "dovetail.server.media",
    "ImageContent": "dovetail.wire.content",
    "InputRequired": "dovetail.server.asking",
    "InvalidParams": "dovetail.errors",
    "Lifetime": "dovetail.server.options",
    "Limits": "dovetail.protocol.limits",
    "MCPError": "dovetail.errors",
    "MissingCapability": "dovetail.errors",
    "Offload": "dovetail.server.offload",
    "PeerError": "dovetail.errors",
    "Progress": "dovetail.server.streaming",
    "PromptMessage": "dovetail.wire.prompts",
    "ProtocolError": "dovetail.errors",
    "ResourceContents": "dovetail.wire.content",
    "ResourceLink": "dovetail.wire.content",
    "ResourceNotFound": "dovetail.errors",
    "Roots": "dovetail.server.asking",
    "Sample": "dovetail.server.asking",
    "Server": "dovetail.serve",
    "TextContent": "dovetail.wire.content",
    "ToolAnnotations": "dovetail.wire.tools",
    "ToolError": "dovetail.errors",
    "prompt": "dovetail.server.marks",
    "resource": "dovetail.server.marks",
    "tool": "dovetail.server.marks",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""dovetail: a toolkit for the Model Context Protocol. Each public name is imported when it is first used."""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader
from dovetail.version import VERSION as _VERSION

if TYPE_CHECKING:
    from dovetail.client.client import Client as Client
    from dovetail.client.input_rounds import RequestAwaitingInput as RequestAwaitingInput
    from dovetail.client.subscription import ChangeEvent as ChangeEvent
    from dovetail.client.subscription import Subscription as Subscription
    from dovetail.client.sync_client import SyncClient as SyncClient
    from dovetail.client.targets import CommandTarget as CommandTarget
    from dovetail.client.targets import CustomTarget as CustomTarget
    from dovetail.client.targets import HTTPTarget as HTTPTarget
    from dovetail.errors import AuthError as AuthError
    from dovetail.errors import ElicitationCancelled as ElicitationCancelled
    from dovetail.errors import ElicitationDeclined as ElicitationDeclined
    from dovetail.errors import MCPError as MCPError
    from dovetail.errors import PolicyError as PolicyError
    from dovetail.errors import ProtocolError as ProtocolError
    from dovetail.errors import RemoteError as RemoteError
    from dovetail.errors import ToolError as ToolError
    from dovetail.errors import TransportError as TransportError
    from dovetail.host.host import Host as Host
    from dovetail.host.policy.policy import Policy as Policy
    from dovetail.host.policy.policy import rule as rule
    from dovetail.mounts.transforms import ArgTransform as ArgTransform
    from dovetail.mounts.transforms import Transform as Transform
    from dovetail.protocol.interfaces.routes import RouteRequest as RouteRequest
    from dovetail.protocol.interfaces.routes import RouteResponse as RouteResponse
    from dovetail.protocol.limits import ClientLimits as ClientLimits
    from dovetail.protocol.limits import ServerLimits as ServerLimits
    from dovetail.protocol.limits import Timeouts as Timeouts
    from dovetail.server.context import Context as Context
    from dovetail.server.context import current_principal as current_principal
    from dovetail.server.context import get_context as get_context
    from dovetail.server.dependencies import Depends as Depends
    from dovetail.server.input_requests import Elicit as Elicit
    from dovetail.server.input_requests import ElicitURL as ElicitURL
    from dovetail.server.input_requests import InputRequired as InputRequired
    from dovetail.server.input_requests import ListRoots as ListRoots
    from dovetail.server.input_requests import Sample as Sample
    from dovetail.server.invocation import ProgressUpdate as ProgressUpdate
    from dovetail.server.items.decorators import prompt as prompt
    from dovetail.server.items.decorators import resource as resource
    from dovetail.server.items.decorators import tool as tool
    from dovetail.server.items.item_options import CacheHint as CacheHint
    from dovetail.server.large_results import LargeResultSettings as LargeResultSettings
    from dovetail.server.media import Audio as Audio
    from dovetail.server.media import File as File
    from dovetail.server.media import Image as Image
    from dovetail.server.server import Server as Server
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
    from dovetail.wire.revisions import PROTOCOL_VERSIONS as PROTOCOL_VERSIONS
    from dovetail.wire.tools import CallToolResult as CallToolResult
    from dovetail.wire.tools import ToolAnnotations as ToolAnnotations

__version__ = _VERSION

_MODULE_BY_NAME = {
    "Annotations": "dovetail.wire.content",
    "ArgTransform": "dovetail.mounts.transforms",
    "Audio": "dovetail.server.media",
    "AudioContent": "dovetail.wire.content",
    "AuthError": "dovetail.errors",
    "CacheHint": "dovetail.server.items.item_options",
    "CallToolResult": "dovetail.wire.tools",
    "ChangeEvent": "dovetail.client.subscription",
    "Client": "dovetail.client.client",
    "ClientLimits": "dovetail.protocol.limits",
    "CommandTarget": "dovetail.client.targets",
    "Completion": "dovetail.wire.completion",
    "Context": "dovetail.server.context",
    "CustomTarget": "dovetail.client.targets",
    "Depends": "dovetail.server.dependencies",
    "Elicit": "dovetail.server.input_requests",
    "ElicitURL": "dovetail.server.input_requests",
    "ElicitationCancelled": "dovetail.errors",
    "ElicitationDeclined": "dovetail.errors",
    "EmbeddedResource": "dovetail.wire.content",
    "File": "dovetail.server.media",
    "HTTPTarget": "dovetail.client.targets",
    "Host": "dovetail.host.host",
    "Icon": "dovetail.wire.content",
    "Image": "dovetail.server.media",
    "ImageContent": "dovetail.wire.content",
    "InputRequired": "dovetail.server.input_requests",
    "LargeResultSettings": "dovetail.server.large_results",
    "ListRoots": "dovetail.server.input_requests",
    "MCPError": "dovetail.errors",
    "PROTOCOL_VERSIONS": "dovetail.wire.revisions",
    "RequestAwaitingInput": "dovetail.client.input_rounds",
    "Policy": "dovetail.host.policy.policy",
    "PolicyError": "dovetail.errors",
    "ProgressUpdate": "dovetail.server.invocation",
    "PromptMessage": "dovetail.wire.prompts",
    "ProtocolError": "dovetail.errors",
    "RemoteError": "dovetail.errors",
    "ResourceContents": "dovetail.wire.content",
    "ResourceLink": "dovetail.wire.content",
    "RouteRequest": "dovetail.protocol.interfaces.routes",
    "RouteResponse": "dovetail.protocol.interfaces.routes",
    "Sample": "dovetail.server.input_requests",
    "Server": "dovetail.server.server",
    "ServerLimits": "dovetail.protocol.limits",
    "Subscription": "dovetail.client.subscription",
    "SyncClient": "dovetail.client.sync_client",
    "TextContent": "dovetail.wire.content",
    "Timeouts": "dovetail.protocol.limits",
    "ToolAnnotations": "dovetail.wire.tools",
    "ToolError": "dovetail.errors",
    "Transform": "dovetail.mounts.transforms",
    "TransportError": "dovetail.errors",
    "current_principal": "dovetail.server.context",
    "get_context": "dovetail.server.context",
    "prompt": "dovetail.server.items.decorators",
    "resource": "dovetail.server.items.decorators",
    "rule": "dovetail.host.policy.policy",
    "tool": "dovetail.server.items.decorators",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)

"""Types of the protocol, and other types that public functions take or return.

Each type is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.client.client import ClientOptions as ClientOptions
    from dovetail.client.deadlines import ProgressHandler as ProgressHandler
    from dovetail.client.handlers import ElicitationHandler as ElicitationHandler
    from dovetail.client.handlers import LogHandler as LogHandler
    from dovetail.client.handlers import NotificationHandler as NotificationHandler
    from dovetail.client.handlers import RootsProvider as RootsProvider
    from dovetail.client.handlers import SamplingHandler as SamplingHandler
    from dovetail.client.targets import Target as Target
    from dovetail.openapi.document import OpenAPIOperation as OpenAPIOperation
    from dovetail.protocol.interfaces.client_transport import CustomConnection as CustomConnection
    from dovetail.protocol.interfaces.http_types import ASGIApp as ASGIApp
    from dovetail.protocol.interfaces.http_types import AsyncHTTPClient as AsyncHTTPClient
    from dovetail.protocol.interfaces.http_types import HTTPRequest as HTTPRequest
    from dovetail.protocol.interfaces.http_types import HTTPResponse as HTTPResponse
    from dovetail.protocol.interfaces.state_store import StateStore as StateStore
    from dovetail.protocol.stats import ClientStats as ClientStats
    from dovetail.protocol.stats import HostStats as HostStats
    from dovetail.protocol.stats import ServerStats as ServerStats
    from dovetail.schemas.provider_rules import SchemaProfile as SchemaProfile
    from dovetail.server.call_state import CallState as CallState
    from dovetail.server.dispatch.lifespan import Lifespan as Lifespan
    from dovetail.server.items.item_options import PromptOptions as PromptOptions
    from dovetail.server.items.item_options import ResourceOptions as ResourceOptions
    from dovetail.server.items.item_options import SkillOptions as SkillOptions
    from dovetail.server.items.item_options import ToolOptions as ToolOptions
    from dovetail.server.items.lint import LintIssue as LintIssue
    from dovetail.server.items.lint import LintReport as LintReport
    from dovetail.server.server_options import ASGIOptions as ASGIOptions
    from dovetail.server.server_options import HTTPServerOptions as HTTPServerOptions
    from dovetail.server.server_options import ServerOptions as ServerOptions
    from dovetail.server.server_options import Transport as Transport
    from dovetail.wire.base import JSONValue as JSONValue
    from dovetail.wire.completion import Completion as Completion
    from dovetail.wire.content import Annotations as Annotations
    from dovetail.wire.content import AudioContent as AudioContent
    from dovetail.wire.content import ContentBlock as ContentBlock
    from dovetail.wire.content import EmbeddedResource as EmbeddedResource
    from dovetail.wire.content import Icon as Icon
    from dovetail.wire.content import ImageContent as ImageContent
    from dovetail.wire.content import ResourceContents as ResourceContents
    from dovetail.wire.content import ResourceLink as ResourceLink
    from dovetail.wire.content import Role as Role
    from dovetail.wire.content import SamplingContent as SamplingContent
    from dovetail.wire.content import TextContent as TextContent
    from dovetail.wire.content import ToolResultContent as ToolResultContent
    from dovetail.wire.content import ToolUseContent as ToolUseContent
    from dovetail.wire.elicitation import ElicitRequestParams as ElicitRequestParams
    from dovetail.wire.elicitation import ElicitResult as ElicitResult
    from dovetail.wire.input_required import InputRequest as InputRequest
    from dovetail.wire.lifecycle import ClientCapabilities as ClientCapabilities
    from dovetail.wire.lifecycle import DiscoverResult as DiscoverResult
    from dovetail.wire.lifecycle import ElicitationCapability as ElicitationCapability
    from dovetail.wire.lifecycle import Implementation as Implementation
    from dovetail.wire.lifecycle import ListChangedCapability as ListChangedCapability
    from dovetail.wire.lifecycle import ResourcesCapability as ResourcesCapability
    from dovetail.wire.lifecycle import RootsCapability as RootsCapability
    from dovetail.wire.lifecycle import SamplingCapability as SamplingCapability
    from dovetail.wire.lifecycle import ServerCapabilities as ServerCapabilities
    from dovetail.wire.logs import LoggingLevel as LoggingLevel
    from dovetail.wire.logs import LoggingMessageNotificationParams as LoggingMessageNotificationParams
    from dovetail.wire.prompts import GetPromptResult as GetPromptResult
    from dovetail.wire.prompts import ListPromptsResult as ListPromptsResult
    from dovetail.wire.prompts import Prompt as Prompt
    from dovetail.wire.prompts import PromptArgument as PromptArgument
    from dovetail.wire.prompts import PromptMessage as PromptMessage
    from dovetail.wire.resources import ListResourcesResult as ListResourcesResult
    from dovetail.wire.resources import ListResourceTemplatesResult as ListResourceTemplatesResult
    from dovetail.wire.resources import ReadResourceResult as ReadResourceResult
    from dovetail.wire.resources import Resource as Resource
    from dovetail.wire.resources import ResourceTemplate as ResourceTemplate
    from dovetail.wire.roots import Root as Root
    from dovetail.wire.sampling import CreateMessageRequestParams as CreateMessageRequestParams
    from dovetail.wire.sampling import CreateMessageResult as CreateMessageResult
    from dovetail.wire.sampling import ModelHint as ModelHint
    from dovetail.wire.sampling import ModelPreferences as ModelPreferences
    from dovetail.wire.sampling import SamplingMessage as SamplingMessage
    from dovetail.wire.sampling import ToolChoice as ToolChoice
    from dovetail.wire.tools import CallToolResult as CallToolResult
    from dovetail.wire.tools import ListToolsResult as ListToolsResult
    from dovetail.wire.tools import Tool as Tool
    from dovetail.wire.tools import ToolAnnotations as ToolAnnotations

_MODULE_BY_NAME = {
    "ASGIApp": "dovetail.protocol.interfaces.http_types",
    "ASGIOptions": "dovetail.server.server_options",
    "Annotations": "dovetail.wire.content",
    "AsyncHTTPClient": "dovetail.protocol.interfaces.http_types",
    "AudioContent": "dovetail.wire.content",
    "CallToolResult": "dovetail.wire.tools",
    "ClientCapabilities": "dovetail.wire.lifecycle",
    "ClientOptions": "dovetail.client.client",
    "CallState": "dovetail.server.call_state",
    "ClientStats": "dovetail.protocol.stats",
    "Completion": "dovetail.wire.completion",
    "ContentBlock": "dovetail.wire.content",
    "CreateMessageRequestParams": "dovetail.wire.sampling",
    "CreateMessageResult": "dovetail.wire.sampling",
    "CustomConnection": "dovetail.protocol.interfaces.client_transport",
    "DiscoverResult": "dovetail.wire.lifecycle",
    "ElicitRequestParams": "dovetail.wire.elicitation",
    "ElicitResult": "dovetail.wire.elicitation",
    "ElicitationCapability": "dovetail.wire.lifecycle",
    "ElicitationHandler": "dovetail.client.handlers",
    "EmbeddedResource": "dovetail.wire.content",
    "GetPromptResult": "dovetail.wire.prompts",
    "HTTPRequest": "dovetail.protocol.interfaces.http_types",
    "HTTPResponse": "dovetail.protocol.interfaces.http_types",
    "HTTPServerOptions": "dovetail.server.server_options",
    "HostStats": "dovetail.protocol.stats",
    "Icon": "dovetail.wire.content",
    "ImageContent": "dovetail.wire.content",
    "Implementation": "dovetail.wire.lifecycle",
    "InputRequest": "dovetail.wire.input_required",
    "JSONValue": "dovetail.wire.base",
    "Lifespan": "dovetail.server.dispatch.lifespan",
    "LintIssue": "dovetail.server.items.lint",
    "LintReport": "dovetail.server.items.lint",
    "ListChangedCapability": "dovetail.wire.lifecycle",
    "ListPromptsResult": "dovetail.wire.prompts",
    "ListResourceTemplatesResult": "dovetail.wire.resources",
    "ListResourcesResult": "dovetail.wire.resources",
    "ListToolsResult": "dovetail.wire.tools",
    "LogHandler": "dovetail.client.handlers",
    "LoggingLevel": "dovetail.wire.logs",
    "LoggingMessageNotificationParams": "dovetail.wire.logs",
    "ModelHint": "dovetail.wire.sampling",
    "ModelPreferences": "dovetail.wire.sampling",
    "NotificationHandler": "dovetail.client.handlers",
    "ProgressHandler": "dovetail.client.deadlines",
    "OpenAPIOperation": "dovetail.openapi.document",
    "Prompt": "dovetail.wire.prompts",
    "PromptArgument": "dovetail.wire.prompts",
    "PromptMessage": "dovetail.wire.prompts",
    "PromptOptions": "dovetail.server.items.item_options",
    "ReadResourceResult": "dovetail.wire.resources",
    "Resource": "dovetail.wire.resources",
    "ResourceContents": "dovetail.wire.content",
    "ResourceLink": "dovetail.wire.content",
    "ResourceOptions": "dovetail.server.items.item_options",
    "ResourceTemplate": "dovetail.wire.resources",
    "ResourcesCapability": "dovetail.wire.lifecycle",
    "Role": "dovetail.wire.content",
    "Root": "dovetail.wire.roots",
    "RootsCapability": "dovetail.wire.lifecycle",
    "RootsProvider": "dovetail.client.handlers",
    "SamplingCapability": "dovetail.wire.lifecycle",
    "SamplingContent": "dovetail.wire.content",
    "SamplingHandler": "dovetail.client.handlers",
    "SamplingMessage": "dovetail.wire.sampling",
    "SchemaProfile": "dovetail.schemas.provider_rules",
    "ServerCapabilities": "dovetail.wire.lifecycle",
    "ServerOptions": "dovetail.server.server_options",
    "ServerStats": "dovetail.protocol.stats",
    "StateStore": "dovetail.protocol.interfaces.state_store",
    "Target": "dovetail.client.targets",
    "TextContent": "dovetail.wire.content",
    "Tool": "dovetail.wire.tools",
    "ToolAnnotations": "dovetail.wire.tools",
    "ToolChoice": "dovetail.wire.sampling",
    "SkillOptions": "dovetail.server.items.item_options",
    "ToolOptions": "dovetail.server.items.item_options",
    "ToolResultContent": "dovetail.wire.content",
    "ToolUseContent": "dovetail.wire.content",
    "Transport": "dovetail.server.server_options",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)

"""dovetail: the Model Context Protocol for Python. The public names and nothing else, each loaded when first used."""

from typing import TYPE_CHECKING

from dovetail.exports import create_lazy_loader as _on_demand

if TYPE_CHECKING:
    from dovetail.auth.guard import Guard as Guard
    from dovetail.auth.server.clients import known_client as known_client
    from dovetail.auth.server.upstream import Provider as Provider
    from dovetail.auth.server.upstream import Upstream as Upstream
    from dovetail.auth.settings import Bearer as Bearer
    from dovetail.auth.settings import ClientCredentials as ClientCredentials
    from dovetail.auth.settings import DeviceLogin as DeviceLogin
    from dovetail.auth.settings import EnterpriseLogin as EnterpriseLogin
    from dovetail.auth.settings import OAuth as OAuth
    from dovetail.auth.settings import WorkloadIdentity as WorkloadIdentity
    from dovetail.auth.verify import IntrospectionVerifier as IntrospectionVerifier
    from dovetail.auth.verify import JwtVerifier as JwtVerifier
    from dovetail.auth.verify import StaticTokens as StaticTokens
    from dovetail.client.listening import Change as Change
    from dovetail.client.rounds import Pending as Pending
    from dovetail.connect import Client as Client
    from dovetail.connect import SyncClient as SyncClient
    from dovetail.errors import AnswerError as AnswerError
    from dovetail.errors import AuthError as AuthError
    from dovetail.errors import Busy as Busy
    from dovetail.errors import CannotConnect as CannotConnect
    from dovetail.errors import CannotStart as CannotStart
    from dovetail.errors import Declined as Declined
    from dovetail.errors import Denied as Denied
    from dovetail.errors import Disconnected as Disconnected
    from dovetail.errors import Dismissed as Dismissed
    from dovetail.errors import Forbidden as Forbidden
    from dovetail.errors import HttpError as HttpError
    from dovetail.errors import InsufficientScope as InsufficientScope
    from dovetail.errors import Interrupted as Interrupted
    from dovetail.errors import InvalidParams as InvalidParams
    from dovetail.errors import LoginFailed as LoginFailed
    from dovetail.errors import MCPError as MCPError
    from dovetail.errors import MissingCapability as MissingCapability
    from dovetail.errors import ModelError as ModelError
    from dovetail.errors import NeedsLogin as NeedsLogin
    from dovetail.errors import NoCommonRevision as NoCommonRevision
    from dovetail.errors import NotFound as NotFound
    from dovetail.errors import NotMCP as NotMCP
    from dovetail.errors import NotOffered as NotOffered
    from dovetail.errors import PeerError as PeerError
    from dovetail.errors import PolicyError as PolicyError
    from dovetail.errors import ProtocolError as ProtocolError
    from dovetail.errors import RateLimited as RateLimited
    from dovetail.errors import RequestTimeout as RequestTimeout
    from dovetail.errors import ResourceNotFound as ResourceNotFound
    from dovetail.errors import ResultError as ResultError
    from dovetail.errors import ToolError as ToolError
    from dovetail.errors import TransportError as TransportError
    from dovetail.errors import Unauthorized as Unauthorized
    from dovetail.host.agent import Agent as Agent
    from dovetail.host.conditions import arg as arg
    from dovetail.host.consent import Allow as Allow
    from dovetail.host.consent import CallbackConsent as CallbackConsent
    from dovetail.host.consent import ConsentRequest as ConsentRequest
    from dovetail.host.consent import Deny as Deny
    from dovetail.host.consent import DenyAll as DenyAll
    from dovetail.host.consent import Edit as Edit
    from dovetail.host.consent import Later as Later
    from dovetail.host.consent import TerminalConsent as TerminalConsent
    from dovetail.host.host import Host as Host
    from dovetail.host.inbox import DurableConsent as DurableConsent
    from dovetail.host.policy import Policy as Policy
    from dovetail.host.policy import rule as rule
    from dovetail.login.authority import AuthorizationServer as AuthorizationServer
    from dovetail.protocol.limits import ClientLimits as ClientLimits
    from dovetail.protocol.limits import Limits as Limits
    from dovetail.protocol.limits import Timeouts as Timeouts
    from dovetail.protocol.principal import Principal as Principal
    from dovetail.protocol.stats import ClientStats as ClientStats
    from dovetail.protocol.stats import HostStats as HostStats
    from dovetail.protocol.stats import ServerStats as ServerStats
    from dovetail.protocol.web import WebReply as WebReply
    from dovetail.protocol.web import WebRequest as WebRequest
    from dovetail.serve import Server as Server
    from dovetail.server.asking import Elicit as Elicit
    from dovetail.server.asking import ElicitUrl as ElicitUrl
    from dovetail.server.asking import InputRequired as InputRequired
    from dovetail.server.asking import Roots as Roots
    from dovetail.server.asking import Sample as Sample
    from dovetail.server.context import Context as Context
    from dovetail.server.inject import Depends as Depends
    from dovetail.server.lint import Finding as Finding
    from dovetail.server.lint import ToolReport as ToolReport
    from dovetail.server.marks import prompt as prompt
    from dovetail.server.marks import resource as resource
    from dovetail.server.marks import tool as tool
    from dovetail.server.media import Audio as Audio
    from dovetail.server.media import File as File
    from dovetail.server.media import Image as Image
    from dovetail.server.offload import Offload as Offload
    from dovetail.server.options import Lifetime as Lifetime
    from dovetail.server.streaming import Progress as Progress
    from dovetail.server.transforms import Argument as Argument
    from dovetail.server.transforms import Transform as Transform
    from dovetail.wire.completion import Completion as Completion
    from dovetail.wire.content import Annotations as Annotations
    from dovetail.wire.content import AudioContent as AudioContent
    from dovetail.wire.content import EmbeddedResource as EmbeddedResource
    from dovetail.wire.content import Icon as Icon
    from dovetail.wire.content import ImageContent as ImageContent
    from dovetail.wire.content import ResourceContents as ResourceContents
    from dovetail.wire.content import ResourceLink as ResourceLink
    from dovetail.wire.content import TextContent as TextContent
    from dovetail.wire.elicitation import ElicitParams as ElicitParams
    from dovetail.wire.elicitation import ElicitResult as ElicitResult
    from dovetail.wire.lifecycle import ClientCapabilities as ClientCapabilities
    from dovetail.wire.lifecycle import Implementation as Implementation
    from dovetail.wire.logs import LoggingMessageParams as LoggingMessageParams
    from dovetail.wire.prompts import GetPromptResult as GetPromptResult
    from dovetail.wire.prompts import Prompt as Prompt
    from dovetail.wire.prompts import PromptMessage as PromptMessage
    from dovetail.wire.resources import ReadResourceResult as ReadResourceResult
    from dovetail.wire.resources import Resource as Resource
    from dovetail.wire.resources import ResourceTemplate as ResourceTemplate
    from dovetail.wire.roots import Root as Root
    from dovetail.wire.sampling import CreateMessageParams as CreateMessageParams
    from dovetail.wire.sampling import CreateMessageResult as CreateMessageResult
    from dovetail.wire.tools import CallToolResult as CallToolResult
    from dovetail.wire.tools import Tool as Tool
    from dovetail.wire.tools import ToolAnnotations as ToolAnnotations

_HOMES = {
    "Agent": "dovetail.host.agent",
    "Allow": "dovetail.host.consent",
    "Annotations": "dovetail.wire.content",
    "AnswerError": "dovetail.errors",
    "Argument": "dovetail.server.transforms",
    "Audio": "dovetail.server.media",
    "AudioContent": "dovetail.wire.content",
    "AuthError": "dovetail.errors",
    "AuthorizationServer": "dovetail.login.authority",
    "Bearer": "dovetail.auth.settings",
    "Busy": "dovetail.errors",
    "CallToolResult": "dovetail.wire.tools",
    "CallbackConsent": "dovetail.host.consent",
    "CannotConnect": "dovetail.errors",
    "CannotStart": "dovetail.errors",
    "Change": "dovetail.client.listening",
    "Client": "dovetail.connect",
    "ClientCapabilities": "dovetail.wire.lifecycle",
    "ClientCredentials": "dovetail.auth.settings",
    "ClientLimits": "dovetail.protocol.limits",
    "ClientStats": "dovetail.protocol.stats",
    "Completion": "dovetail.wire.completion",
    "ConsentRequest": "dovetail.host.consent",
    "Context": "dovetail.server.context",
    "CreateMessageParams": "dovetail.wire.sampling",
    "CreateMessageResult": "dovetail.wire.sampling",
    "Declined": "dovetail.errors",
    "Denied": "dovetail.errors",
    "Deny": "dovetail.host.consent",
    "DenyAll": "dovetail.host.consent",
    "Depends": "dovetail.server.inject",
    "DeviceLogin": "dovetail.auth.settings",
    "Disconnected": "dovetail.errors",
    "Dismissed": "dovetail.errors",
    "DurableConsent": "dovetail.host.inbox",
    "Edit": "dovetail.host.consent",
    "Elicit": "dovetail.server.asking",
    "ElicitParams": "dovetail.wire.elicitation",
    "ElicitResult": "dovetail.wire.elicitation",
    "ElicitUrl": "dovetail.server.asking",
    "EmbeddedResource": "dovetail.wire.content",
    "EnterpriseLogin": "dovetail.auth.settings",
    "File": "dovetail.server.media",
    "Finding": "dovetail.server.lint",
    "Forbidden": "dovetail.errors",
    "GetPromptResult": "dovetail.wire.prompts",
    "Guard": "dovetail.auth.guard",
    "Host": "dovetail.host.host",
    "HostStats": "dovetail.protocol.stats",
    "HttpError": "dovetail.errors",
    "Icon": "dovetail.wire.content",
    "Image": "dovetail.server.media",
    "ImageContent": "dovetail.wire.content",
    "Implementation": "dovetail.wire.lifecycle",
    "InputRequired": "dovetail.server.asking",
    "InsufficientScope": "dovetail.errors",
    "Interrupted": "dovetail.errors",
    "IntrospectionVerifier": "dovetail.auth.verify",
    "InvalidParams": "dovetail.errors",
    "JwtVerifier": "dovetail.auth.verify",
    "Later": "dovetail.host.consent",
    "Lifetime": "dovetail.server.options",
    "Limits": "dovetail.protocol.limits",
    "LoggingMessageParams": "dovetail.wire.logs",
    "LoginFailed": "dovetail.errors",
    "MCPError": "dovetail.errors",
    "MissingCapability": "dovetail.errors",
    "ModelError": "dovetail.errors",
    "NeedsLogin": "dovetail.errors",
    "NoCommonRevision": "dovetail.errors",
    "NotFound": "dovetail.errors",
    "NotMCP": "dovetail.errors",
    "NotOffered": "dovetail.errors",
    "OAuth": "dovetail.auth.settings",
    "Offload": "dovetail.server.offload",
    "PeerError": "dovetail.errors",
    "Pending": "dovetail.client.rounds",
    "Policy": "dovetail.host.policy",
    "PolicyError": "dovetail.errors",
    "Principal": "dovetail.protocol.principal",
    "Progress": "dovetail.server.streaming",
    "Prompt": "dovetail.wire.prompts",
    "PromptMessage": "dovetail.wire.prompts",
    "ProtocolError": "dovetail.errors",
    "Provider": "dovetail.auth.server.upstream",
    "RateLimited": "dovetail.errors",
    "ReadResourceResult": "dovetail.wire.resources",
    "RequestTimeout": "dovetail.errors",
    "Resource": "dovetail.wire.resources",
    "ResourceContents": "dovetail.wire.content",
    "ResourceLink": "dovetail.wire.content",
    "ResourceNotFound": "dovetail.errors",
    "ResourceTemplate": "dovetail.wire.resources",
    "ResultError": "dovetail.errors",
    "Root": "dovetail.wire.roots",
    "Roots": "dovetail.server.asking",
    "Sample": "dovetail.server.asking",
    "Server": "dovetail.serve",
    "ServerStats": "dovetail.protocol.stats",
    "StaticTokens": "dovetail.auth.verify",
    "SyncClient": "dovetail.connect",
    "TerminalConsent": "dovetail.host.consent",
    "TextContent": "dovetail.wire.content",
    "Timeouts": "dovetail.protocol.limits",
    "Tool": "dovetail.wire.tools",
    "ToolAnnotations": "dovetail.wire.tools",
    "ToolError": "dovetail.errors",
    "ToolReport": "dovetail.server.lint",
    "Transform": "dovetail.server.transforms",
    "TransportError": "dovetail.errors",
    "Unauthorized": "dovetail.errors",
    "Upstream": "dovetail.auth.server.upstream",
    "WebReply": "dovetail.protocol.web",
    "WebRequest": "dovetail.protocol.web",
    "WorkloadIdentity": "dovetail.auth.settings",
    "arg": "dovetail.host.conditions",
    "known_client": "dovetail.auth.server.clients",
    "prompt": "dovetail.server.marks",
    "resource": "dovetail.server.marks",
    "rule": "dovetail.host.policy",
    "tool": "dovetail.server.marks",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _on_demand(__name__, _HOMES)

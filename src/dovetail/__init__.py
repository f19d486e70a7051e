"""dovetail: the Model Context Protocol for Python. The public names and nothing else, each loaded when first used."""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _on_demand

if TYPE_CHECKING:
    from dovetail.agent.agent import Agent as Agent
    from dovetail.auth.authorization_server_app import AuthorizationServer as AuthorizationServer
    from dovetail.client.input_rounds import Pending as Pending
    from dovetail.client.subscription import Change as Change
    from dovetail.client.targets import Client as Client
    from dovetail.client.targets import SyncClient as SyncClient
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
    from dovetail.host.consent.consent import Allow as Allow
    from dovetail.host.consent.consent import CallbackConsent as CallbackConsent
    from dovetail.host.consent.consent import ConsentRequest as ConsentRequest
    from dovetail.host.consent.consent import Deny as Deny
    from dovetail.host.consent.consent import DenyAll as DenyAll
    from dovetail.host.consent.consent import Edit as Edit
    from dovetail.host.consent.consent import Later as Later
    from dovetail.host.consent.inbox import DurableConsent as DurableConsent
    from dovetail.host.consent.terminal_consent import TerminalConsent as TerminalConsent
    from dovetail.host.host import Host as Host
    from dovetail.host.policy.conditions import arg as arg
    from dovetail.host.policy.policy import Policy as Policy
    from dovetail.host.policy.policy import rule as rule
    from dovetail.oauth.authorization_server.clients import known_client as known_client
    from dovetail.oauth.authorization_server.identity_provider import Provider as Provider
    from dovetail.oauth.authorization_server.identity_provider import Upstream as Upstream
    from dovetail.oauth.guard.guard import Guard as Guard
    from dovetail.oauth.guard.verifiers import IntrospectionVerifier as IntrospectionVerifier
    from dovetail.oauth.guard.verifiers import JwtVerifier as JwtVerifier
    from dovetail.oauth.guard.verifiers import StaticTokens as StaticTokens
    from dovetail.oauth.login.login_settings import Bearer as Bearer
    from dovetail.oauth.login.login_settings import ClientCredentials as ClientCredentials
    from dovetail.oauth.login.login_settings import DeviceLogin as DeviceLogin
    from dovetail.oauth.login.login_settings import EnterpriseLogin as EnterpriseLogin
    from dovetail.oauth.login.login_settings import OAuth as OAuth
    from dovetail.oauth.login.login_settings import WorkloadIdentity as WorkloadIdentity
    from dovetail.protocol.http_types import WebReply as WebReply
    from dovetail.protocol.http_types import WebRequest as WebRequest
    from dovetail.protocol.limits import ClientLimits as ClientLimits
    from dovetail.protocol.limits import Limits as Limits
    from dovetail.protocol.limits import Timeouts as Timeouts
    from dovetail.protocol.principal import Principal as Principal
    from dovetail.protocol.stats import ClientStats as ClientStats
    from dovetail.protocol.stats import HostStats as HostStats
    from dovetail.protocol.stats import ServerStats as ServerStats
    from dovetail.server.context import Context as Context
    from dovetail.server.decorators import prompt as prompt
    from dovetail.server.decorators import resource as resource
    from dovetail.server.decorators import tool as tool
    from dovetail.server.dependencies import Depends as Depends
    from dovetail.server.input_requests import Elicit as Elicit
    from dovetail.server.input_requests import ElicitUrl as ElicitUrl
    from dovetail.server.input_requests import InputRequired as InputRequired
    from dovetail.server.input_requests import Roots as Roots
    from dovetail.server.input_requests import Sample as Sample
    from dovetail.server.invocation import Progress as Progress
    from dovetail.server.item_options import Lifetime as Lifetime
    from dovetail.server.large_results import Offload as Offload
    from dovetail.server.lint import Finding as Finding
    from dovetail.server.lint import ToolReport as ToolReport
    from dovetail.server.media import Audio as Audio
    from dovetail.server.media import File as File
    from dovetail.server.media import Image as Image
    from dovetail.server.mounts.transforms import Argument as Argument
    from dovetail.server.mounts.transforms import Transform as Transform
    from dovetail.server.runners import Server as Server
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
    "Agent": "dovetail.agent.agent",
    "Allow": "dovetail.host.consent.consent",
    "Annotations": "dovetail.wire.content",
    "AnswerError": "dovetail.errors",
    "Argument": "dovetail.server.mounts.transforms",
    "Audio": "dovetail.server.media",
    "AudioContent": "dovetail.wire.content",
    "AuthError": "dovetail.errors",
    "AuthorizationServer": "dovetail.auth.authorization_server_app",
    "Bearer": "dovetail.oauth.login.login_settings",
    "Busy": "dovetail.errors",
    "CallToolResult": "dovetail.wire.tools",
    "CallbackConsent": "dovetail.host.consent.consent",
    "CannotConnect": "dovetail.errors",
    "CannotStart": "dovetail.errors",
    "Change": "dovetail.client.subscription",
    "Client": "dovetail.client.targets",
    "ClientCapabilities": "dovetail.wire.lifecycle",
    "ClientCredentials": "dovetail.oauth.login.login_settings",
    "ClientLimits": "dovetail.protocol.limits",
    "ClientStats": "dovetail.protocol.stats",
    "Completion": "dovetail.wire.completion",
    "ConsentRequest": "dovetail.host.consent.consent",
    "Context": "dovetail.server.context",
    "CreateMessageParams": "dovetail.wire.sampling",
    "CreateMessageResult": "dovetail.wire.sampling",
    "Declined": "dovetail.errors",
    "Denied": "dovetail.errors",
    "Deny": "dovetail.host.consent.consent",
    "DenyAll": "dovetail.host.consent.consent",
    "Depends": "dovetail.server.dependencies",
    "DeviceLogin": "dovetail.oauth.login.login_settings",
    "Disconnected": "dovetail.errors",
    "Dismissed": "dovetail.errors",
    "DurableConsent": "dovetail.host.consent.inbox",
    "Edit": "dovetail.host.consent.consent",
    "Elicit": "dovetail.server.input_requests",
    "ElicitParams": "dovetail.wire.elicitation",
    "ElicitResult": "dovetail.wire.elicitation",
    "ElicitUrl": "dovetail.server.input_requests",
    "EmbeddedResource": "dovetail.wire.content",
    "EnterpriseLogin": "dovetail.oauth.login.login_settings",
    "File": "dovetail.server.media",
    "Finding": "dovetail.server.lint",
    "Forbidden": "dovetail.errors",
    "GetPromptResult": "dovetail.wire.prompts",
    "Guard": "dovetail.oauth.guard.guard",
    "Host": "dovetail.host.host",
    "HostStats": "dovetail.protocol.stats",
    "HttpError": "dovetail.errors",
    "Icon": "dovetail.wire.content",
    "Image": "dovetail.server.media",
    "ImageContent": "dovetail.wire.content",
    "Implementation": "dovetail.wire.lifecycle",
    "InputRequired": "dovetail.server.input_requests",
    "InsufficientScope": "dovetail.errors",
    "Interrupted": "dovetail.errors",
    "IntrospectionVerifier": "dovetail.oauth.guard.verifiers",
    "InvalidParams": "dovetail.errors",
    "JwtVerifier": "dovetail.oauth.guard.verifiers",
    "Later": "dovetail.host.consent.consent",
    "Lifetime": "dovetail.server.item_options",
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
    "OAuth": "dovetail.oauth.login.login_settings",
    "Offload": "dovetail.server.large_results",
    "PeerError": "dovetail.errors",
    "Pending": "dovetail.client.input_rounds",
    "Policy": "dovetail.host.policy.policy",
    "PolicyError": "dovetail.errors",
    "Principal": "dovetail.protocol.principal",
    "Progress": "dovetail.server.invocation",
    "Prompt": "dovetail.wire.prompts",
    "PromptMessage": "dovetail.wire.prompts",
    "ProtocolError": "dovetail.errors",
    "Provider": "dovetail.oauth.authorization_server.identity_provider",
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
    "Roots": "dovetail.server.input_requests",
    "Sample": "dovetail.server.input_requests",
    "Server": "dovetail.server.runners",
    "ServerStats": "dovetail.protocol.stats",
    "StaticTokens": "dovetail.oauth.guard.verifiers",
    "SyncClient": "dovetail.client.targets",
    "TerminalConsent": "dovetail.host.consent.terminal_consent",
    "TextContent": "dovetail.wire.content",
    "Timeouts": "dovetail.protocol.limits",
    "Tool": "dovetail.wire.tools",
    "ToolAnnotations": "dovetail.wire.tools",
    "ToolError": "dovetail.errors",
    "ToolReport": "dovetail.server.lint",
    "Transform": "dovetail.server.mounts.transforms",
    "TransportError": "dovetail.errors",
    "Unauthorized": "dovetail.errors",
    "Upstream": "dovetail.oauth.authorization_server.identity_provider",
    "WebReply": "dovetail.protocol.http_types",
    "WebRequest": "dovetail.protocol.http_types",
    "WorkloadIdentity": "dovetail.oauth.login.login_settings",
    "arg": "dovetail.host.policy.conditions",
    "known_client": "dovetail.oauth.authorization_server.clients",
    "prompt": "dovetail.server.decorators",
    "resource": "dovetail.server.decorators",
    "rule": "dovetail.host.policy.policy",
    "tool": "dovetail.server.decorators",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _on_demand(__name__, _HOMES)

"""Tables of the names in mcp and fastmcp, with their equivalents in dovetail.

The hints for attributes of servers, contexts and clients are in `dovetail.peer_names`.
"""

from collections.abc import Mapping
from typing import Final

from dovetail.peer_names import CLIENT_HINTS, CONTEXT_HINTS, SERVER_HINTS

PEER_PACKAGES: Final = ("mcp", "mcp_types", "fastmcp")

HIGH_LEVEL_SERVERS: Final = ("FastMCP", "MCPServer")
TYPE_MODULES: Final = ("mcp", "mcp.types", "mcp_types")
LOW_LEVEL_SERVER_MODULES: Final = ("mcp.server", "mcp.server.lowlevel", "mcp.server.lowlevel.server")

# This table maps the name of a class or function in a peer to its name in dovetail. The keys have no module, because
# a peer exports the same class from several modules.
NAMES: Final[Mapping[str, str]] = {
    "AcceptedElicitation": "",
    "AccessToken": "dovetail.auth.Principal",
    "Annotations": "dovetail.Annotations",
    "AssistantMessage": "dovetail.PromptMessage",
    "Audio": "dovetail.Audio",
    "AudioContent": "dovetail.AudioContent",
    "BlobResourceContents": "dovetail.ResourceContents",
    "CallNext": "dovetail.middleware.CallNext",
    "CallToolResult": "dovetail.CallToolResult",
    "CancelledElicitation": "",
    "Client": "dovetail.Client",
    "Completion": "dovetail.Completion",
    "Context": "dovetail.Context",
    "CreateMessageResult": "dovetail.types.CreateMessageResult",
    "DeclinedElicitation": "",
    "Depends": "dovetail.Depends",
    "EmbeddedResource": "dovetail.EmbeddedResource",
    "FastMCP": "dovetail.Server",
    "FastMCPError": "dovetail.MCPError",
    "File": "dovetail.File",
    "GetPromptResult": "dovetail.types.GetPromptResult",
    "HandlerResult": "typing.Any",
    "Icon": "dovetail.Icon",
    "Image": "dovetail.Image",
    "ImageContent": "dovetail.ImageContent",
    "MCPError": "dovetail.MCPError",
    "MCPServer": "dovetail.Server",
    "McpError": "dovetail.MCPError",
    "MiddlewareContext": "dovetail.middleware.Exchange",
    "ModelHint": "dovetail.types.ModelHint",
    "ModelPreferences": "dovetail.types.ModelPreferences",
    "NotFoundError": "dovetail.errors.InvalidParams",
    "Prompt": "dovetail.types.Prompt",
    "PromptArgument": "dovetail.types.PromptArgument",
    "PromptError": "dovetail.ProtocolError",
    "PromptMessage": "dovetail.PromptMessage",
    "PromptResult": "dovetail.types.GetPromptResult",
    "ReadResourceResult": "dovetail.types.ReadResourceResult",
    "Resource": "dovetail.types.Resource",
    "ResourceContents": "dovetail.ResourceContents",
    "ResourceError": "dovetail.ProtocolError",
    "ResourceLink": "dovetail.ResourceLink",
    "ResourceTemplate": "dovetail.types.ResourceTemplate",
    "Root": "dovetail.types.Root",
    "SamplingMessage": "dovetail.types.SamplingMessage",
    "ServerMiddleware": "dovetail.middleware.Middleware",
    "ServerRequestContext": "dovetail.middleware.Exchange",
    "StdioServerParameters": "dovetail.CommandTarget",
    "TextContent": "dovetail.TextContent",
    "TextResourceContents": "dovetail.ResourceContents",
    "Tool": "dovetail.types.Tool",
    "ToolAnnotations": "dovetail.ToolAnnotations",
    "ToolError": "dovetail.ToolError",
    "ToolResult": "dovetail.CallToolResult",
    "UserMessage": "dovetail.PromptMessage",
    "ValidationError": "dovetail.errors.InvalidParams",
    "get_access_token": "dovetail.current_principal",
    "get_context": "dovetail.get_context",
}

# These protocol types have the same name in `mcp.types` and `dovetail.types`.
TYPE_NAMES: Final = frozenset(
    (
        "Annotations",
        "AudioContent",
        "CallToolResult",
        "ClientCapabilities",
        "Completion",
        "ContentBlock",
        "CreateMessageRequestParams",
        "CreateMessageResult",
        "DiscoverResult",
        "ElicitRequestParams",
        "ElicitResult",
        "ElicitationCapability",
        "EmbeddedResource",
        "GetPromptResult",
        "Icon",
        "ImageContent",
        "Implementation",
        "InputRequest",
        "ListPromptsResult",
        "ListResourceTemplatesResult",
        "ListResourcesResult",
        "ListToolsResult",
        "LoggingLevel",
        "LoggingMessageNotificationParams",
        "ModelHint",
        "ModelPreferences",
        "Prompt",
        "PromptArgument",
        "PromptMessage",
        "ReadResourceResult",
        "Resource",
        "ResourceContents",
        "ResourceLink",
        "ResourceTemplate",
        "ResourcesCapability",
        "Role",
        "Root",
        "RootsCapability",
        "SamplingCapability",
        "SamplingContent",
        "SamplingMessage",
        "ServerCapabilities",
        "TextContent",
        "Tool",
        "ToolAnnotations",
        "ToolChoice",
        "ToolResultContent",
        "ToolUseContent",
    )
)

# The meaning of these names depends on their module. An empty string means that dovetail has no direct equivalent.
NAMES_BY_MODULE: Final[Mapping[str, str]] = {
    "fastmcp.prompts.Message": "dovetail.PromptMessage",
    "fastmcp.prompts.Prompt": "",
    "fastmcp.prompts.prompt.Message": "dovetail.PromptMessage",
    "fastmcp.prompts.prompt.PromptMessage": "dovetail.PromptMessage",
    "fastmcp.resources.Resource": "",
    "fastmcp.resources.ResourceTemplate": "",
    "fastmcp.tools.Tool": "",
    "fastmcp.tools.tool.Tool": "",
    "mcp.server.auth.provider.AccessToken": "",
    "mcp.server.fastmcp.prompts.base.Message": "dovetail.PromptMessage",
    "mcp.server.fastmcp.prompts.base.Prompt": "",
    "mcp.server.fastmcp.resources.Resource": "",
    "mcp.server.fastmcp.tools.Tool": "",
    "mcp.server.mcpserver.Message": "dovetail.PromptMessage",
    "mcp.server.mcpserver.prompts.base.Message": "dovetail.PromptMessage",
    "mcp.server.mcpserver.resources.Resource": "",
    "mcp.server.mcpserver.tools.Tool": "",
}

ERROR_CLASS_BY_CODE: Final[Mapping[str, str]] = {
    "INTERNAL_ERROR": "dovetail.errors.InternalError",
    "INVALID_PARAMS": "dovetail.errors.InvalidParams",
    "INVALID_REQUEST": "dovetail.errors.InvalidRequest",
    "METHOD_NOT_FOUND": "dovetail.ProtocolError",
    "PARSE_ERROR": "dovetail.errors.ParseError",
    "-32600": "dovetail.errors.InvalidRequest",
    "-32602": "dovetail.errors.InvalidParams",
    "-32603": "dovetail.errors.InternalError",
    "-32700": "dovetail.errors.ParseError",
}
ERROR_CODES: Final[Mapping[str, str]] = {
    "INTERNAL_ERROR": "-32603",
    "INVALID_PARAMS": "-32602",
    "INVALID_REQUEST": "-32600",
    "METHOD_NOT_FOUND": "-32601",
    "PARSE_ERROR": "-32700",
}

# mcp 1 spells these fields in camelCase, like the protocol. mcp 2 and dovetail spell them in snake_case.
FIELD_NAMES: Final[Mapping[str, str]] = {
    "costPriority": "cost_priority",
    "destructiveHint": "destructive_hint",
    "hasMore": "has_more",
    "idempotentHint": "idempotent_hint",
    "inputSchema": "input_schema",
    "intelligencePriority": "intelligence_priority",
    "isError": "is_error",
    "lastModified": "last_modified",
    "maxTokens": "max_tokens",
    "mimeType": "mime_type",
    "modelPreferences": "model_preferences",
    "nextCursor": "next_cursor",
    "openWorldHint": "open_world_hint",
    "outputSchema": "output_schema",
    "protocolVersion": "protocol_version",
    "readOnlyHint": "read_only_hint",
    "serverInfo": "server_info",
    "speedPriority": "speed_priority",
    "stopReason": "stop_reason",
    "stopSequences": "stop_sequences",
    "structuredContent": "structured_content",
    "systemPrompt": "system_prompt",
    "uriTemplate": "uri_template",
    "websiteUrl": "website_url",
    "_meta": "meta",
}

# This table has a rule for each option of the server classes. A rule that ends with "=" is the new name of the option.
# An empty rule removes the option without a finding. Any other rule is the advice of a finding.
SERVER_OPTIONS: Final[Mapping[str, str]] = {
    "auth": "pass a verifier of dovetail.auth, or a Guard. See the guide to authorization",
    "auth_server_provider": "use dovetail.auth.AuthorizationServer. See the guide to authorization",
    "cache_expiration_seconds": "",
    "client_log_level": "",
    "debug": "",
    "dependencies": "",
    "dereference_schemas": "",
    "description": "description=",
    "exclude_tags": "call app.disable(tags=[...])",
    "experimental_capabilities": "pass capabilities=ServerCapabilities(experimental=...)",
    "extensions": "use extensions of dovetail.extensions",
    "icons": "icons=",
    "include_tags": "call app.mount(server, tags=[...]) to offer only these tags",
    "instructions": "instructions=",
    "lifespan": "lifespan=",
    "list_page_size": "page_size=",
    "log_level": "",
    "mask_error_details": "",
    "message_path": "",
    "middleware": "middleware=",
    "mount_path": "",
    "name": "name=",
    "on_duplicate": "",
    "on_duplicate_prompts": "",
    "on_duplicate_resources": "",
    "on_duplicate_tools": "",
    "providers": "use app.mount(server), or app.include(module)",
    "request_state_security": "pass secret_keys=[...]",
    "resource_prefix_format": "",
    "resource_security": "",
    "resources": "call app.add_resource(function, uri) for each resource",
    "session_state_store": "pass state=, a file or a StateStore",
    "strict_input_validation": "",
    "subscriptions": "",
    "tasks": "",
    "title": "title=",
    "token_verifier": "pass a verifier of dovetail.auth as auth=. See the guide to authorization",
    "tool_serializer": "return text from the tool",
    "tool_transformations": "pass transforms= to app.mount(server)",
    "tools": "call app.add_tool(function) for each tool",
    "transforms": "pass transforms= to app.mount(server)",
    "transport_security": "pass allowed_hosts= and allowed_origins= to app.run or app.asgi",
    "version": "version=",
    "warn_on_duplicate_prompts": "",
    "warn_on_duplicate_resources": "",
    "warn_on_duplicate_tools": "",
    "website_url": "website_url=",
}
# The names of the positional parameters of each server class, in order.
SERVER_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "FastMCP": ("name", "instructions"),
    "MCPServer": ("name", "title", "description", "instructions", "website_url", "icons", "version"),
    "Server": ("name", "version", "instructions"),
}
# In dovetail, these constructor options are options of `run` and `asgi`.
HTTP_OPTIONS_OF_SERVER: Final = (
    "host",
    "port",
    "json_response",
    "sse_path",
    "stateless_http",
    "streamable_http_path",
)
HTTP_OPTIONS: Final[Mapping[str, str]] = {
    "allowed_hosts": "allowed_hosts=",
    "allowed_origins": "allowed_origins=",
    "event_store": "",
    "host": "host=",
    "host_origin_protection": "pass allowed_hosts= and allowed_origins= instead",
    "json_response": "response_mode=",
    "log_level": "",
    "message_path": "",
    "middleware": "wrap app.asgi() with the ASGI middleware",
    "mount_path": "",
    "path": "path=",
    "port": "port=",
    "retry_interval": "",
    "session_idle_timeout": "",
    "show_banner": "",
    "sockets": "use app.asgi() with an ASGI server",
    "sse_path": "",
    "stateless": "sessions=",
    "stateless_http": "sessions=",
    "streamable_http_path": "path=",
    "transport_security": "pass allowed_hosts= and allowed_origins= instead",
    "uvicorn_config": "use app.asgi() with uvicorn",
}
HTTP_TRANSPORTS: Final = ("http", "sse", "streamable-http")

# Decorators in dovetail do not have these options.
ITEM_OPTIONS: Final[Mapping[str, str]] = {
    "app": "dovetail has no components for user interfaces",
    "auth": "use scopes=[...] or visible_to=function",
    "exclude_args": "annotate the parameter with Annotated[T, Depends(function)]",
    "name_or_fn": "name=",
    "security": "",
    "serializer": "return text from the tool",
    "structured_output": "",
}

READY_MIDDLEWARE: Final[Mapping[str, str]] = {
    "DetailedTimingMiddleware": "LogRequests()",
    "LoggingMiddleware": "LogRequests()",
    "StructuredLoggingMiddleware": "LogRequests(json=True)",
    "TimingMiddleware": "LogRequests()",
}

# Advice for names without an equivalent. Each key is the start of a qualified name. The first match applies.
HINTS_BY_MODULE: Final[tuple[tuple[str, str], ...]] = (
    ("mcp.types.Completion", "register a function with @app.completion(prompt_or_template, argument)"),
    ("mcp_types.Completion", "register a function with @app.completion(prompt_or_template, argument)"),
    ("mcp.types.PromptReference", "register a function with @app.completion(prompt, argument)"),
    ("mcp_types.PromptReference", "register a function with @app.completion(prompt, argument)"),
    ("mcp.types.ResourceTemplateReference", "register a function with @app.completion(template, argument)"),
    ("mcp_types.ResourceTemplateReference", "register a function with @app.completion(template, argument)"),
    ("mcp.shared.exceptions.UrlElicitation", "raise dovetail.errors.URLElicitationRequired"),
    ("fastmcp.server.auth.providers.jwt.StaticTokenVerifier", "use dovetail.auth.StaticTokenVerifier({token: name})"),
    ("fastmcp.server.auth.StaticTokenVerifier", "use dovetail.auth.StaticTokenVerifier({token: name})"),
    ("fastmcp.server.auth.providers.jwt", "use dovetail.auth.JWTVerifier(issuer, audience=...)"),
    (
        "fastmcp.server.auth.providers",
        "use AuthorizationServer and UpstreamProvider of dovetail.auth. See the guide to authorization",
    ),
    ("fastmcp.server.auth.require_scopes", "pass scopes=[...] to the tool, resource or prompt"),
    ("fastmcp.server.auth.authorization", "pass scopes=[...] or visible_to= to the tool, resource or prompt"),
    ("fastmcp.server.auth", "use a verifier of dovetail.auth. See the guide to authorization"),
    ("mcp.server.auth", "use a verifier of dovetail.auth. See the guide to authorization"),
    ("mcp.shared.auth", "use dovetail.auth. See the guide to authorization"),
    ("mcp.client.auth", 'use Client(url, auth="oauth")'),
    ("fastmcp.client.auth", 'use Client(url, auth="oauth")'),
    ("fastmcp.client.transports", "pass the URL, the command or the script to Client(...)"),
    ("mcp.client", "use Client(target) with a URL, a command or a script"),
    ("mcp.ClientSession", "use Client(target) with a URL, a command or a script"),
    ("fastmcp.server.middleware", "use the middleware of dovetail.middleware, or an async function"),
    ("fastmcp.server.openapi", "pass include= to Server.from_openapi to select operations"),
    ("fastmcp.server.providers.openapi", "pass include= to Server.from_openapi to select operations"),
    ("fastmcp.server.providers", "use app.mount(server), app.include(module) or app.add_skills(folder)"),
    ("fastmcp.server.transforms.search", "pass search=True to Server(...)"),
    ("fastmcp.server.transforms.ResourcesAsTools", "pass resource_tools=True to Server(...)"),
    ("fastmcp.server.transforms.PromptsAsTools", "pass prompt_tools=True to Server(...)"),
    ("fastmcp.server.transforms", "pass transforms= to app.mount(server)"),
    ("fastmcp.tools.tool_transform", "pass transforms= to app.mount(server)"),
    ("fastmcp.server.tasks", "use @app.tool(task=True)"),
    ("fastmcp.server.dependencies", "use get_context() and the attributes of the context"),
    ("fastmcp.apps", "dovetail has no components for user interfaces"),
    ("fastmcp.experimental", "there is no equivalent"),
    ("fastmcp.contrib", "there is no equivalent"),
    ("mcp.server.streamable_http_manager", "use app.asgi()"),
    ("mcp.server.streamable_http", "use app.asgi()"),
    ("mcp.server.sse", "use app.asgi(), which also serves HTTP+SSE"),
    ("mcp.server.transport_security", "pass allowed_hosts= and allowed_origins= to app.run or app.asgi"),
    ("mcp.shared.memory", "use Client(app), which connects in memory"),
)
NO_EQUIVALENT: Final = "there is no equivalent. Rewrite this part by hand"


def resolve_name(qualified_name: str) -> str | None:
    """Return the full name of the equivalent in dovetail, or None if there is no equivalent."""
    if qualified_name in NAMES_BY_MODULE:
        return NAMES_BY_MODULE[qualified_name] or None
    module, _, name = qualified_name.rpartition(".")
    if name == "Server" and module in LOW_LEVEL_SERVER_MODULES:
        return "dovetail.Server"
    if name not in NAMES and module in TYPE_MODULES and name in TYPE_NAMES:
        return f"dovetail.types.{name}"
    return NAMES.get(name) or None


def get_hint(qualified_name: str) -> str:
    """Return the advice for a name without an equivalent."""
    return next((hint for prefix, hint in HINTS_BY_MODULE if qualified_name.startswith(prefix)), NO_EQUIVALENT)


def get_attribute_hint(kind: str, name: str) -> str | None:
    """Return the advice for an attribute of a server, context or client, or None."""
    hints = {"server": SERVER_HINTS, "context": CONTEXT_HINTS, "client": CLIENT_HINTS}[kind]
    return hints.get(name)

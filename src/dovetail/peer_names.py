"""Hints for names that users know from the libraries mcp and fastmcp, which dovetail names differently."""

from collections.abc import Mapping
from typing import Final

from dovetail.error_context import suggest_match

SERVER_HINTS: Final[Mapping[str, str]] = {
    "add_extension": "pass extensions=[...] to Server(...)",
    "add_middleware": "use app.middleware(function), or Server(middleware=[...])",
    "add_provider": "use app.mount(server)",
    "add_resource_template": "use app.add_resource(function, uri) with a template such as city://{name}",
    "add_template": "use app.add_resource(function, uri) with a template such as city://{name}",
    "add_transform": "pass transforms={...} to app.mount(server)",
    "as_proxy": "use app.mount(Client(url))",
    "completion_handler": "use @app.completion",
    "custom_route": "use @app.route(path, methods=[...])",
    "from_fastapi": "use Server.from_asgi(app)",
    "get_prompts": "list the prompts with Client(app)",
    "get_resources": "list the resources with Client(app)",
    "get_tools": "list the tools with Client(app)",
    "http_app": "use app.asgi()",
    "import_server": "use app.mount(server, prefix)",
    "list_prompts": "list the prompts with Client(app)",
    "list_resources": "list the resources with Client(app)",
    "list_tools": "list the tools with Client(app)",
    "run_async": 'use await app.serve("http")',
    "run_http_async": 'use await app.serve("http")',
    "run_sse_async": 'use await app.serve("http"), which also serves HTTP+SSE',
    "run_stdio_async": "use await app.serve()",
    "run_streamable_http_async": 'use await app.serve("http")',
    "session_manager": "use app.start() and app.stop()",
    "set_logging_level": "remove it, because the server handles log levels itself",
    "settings": 'pass the options to Server(...) and app.run("http", host=..., port=...)',
    "sse_app": "use app.asgi(), which also serves HTTP+SSE",
    "streamable_http_app": "use app.asgi()",
    "subscribe_resource": "remove it, and call app.notify_resource_updated(uri) when a resource changes",
    "unsubscribe_resource": "remove it, because the server handles subscriptions itself",
}

CONTEXT_HINTS: Final[Mapping[str, str]] = {
    "client_id": "use ctx.principal",
    "client_supports_extension": "use ctx.client_capabilities.extensions",
    "delete_state": "use await ctx.session_state.delete(key) or ctx.user_state",
    "disable_components": "use visible_to= of the tool, resource or prompt",
    "enable_components": "use visible_to= of the tool, resource or prompt",
    "fastmcp": "use the variable of your server",
    "get_state": "use await ctx.session_state.get(key), ctx.user_state, or ctx.extra for one call",
    "lifespan_context": "use ctx.lifespan",
    "mcp_server": "use the variable of your server",
    "report_progress": "use await ctx.progress(progress, total, message)",
    "request_context": "use ctx.lifespan, ctx.meta, ctx.request_id and the other attributes of the context",
    "reset_visibility": "use visible_to= of the tool, resource or prompt",
    "send_notification": "use await ctx.notify(method, params), or app.notify_tools_changed() and the like",
    "session": "use ctx.elicit, ctx.sample, ctx.list_roots and the other methods of the context",
    "set_state": "use await ctx.session_state.set(key, value), ctx.user_state, or ctx.extra for one call",
    "transport": "use ctx.headers, which is empty unless the transport is HTTP",
}

CLIENT_HINTS: Final[Mapping[str, str]] = {
    "call_tool_mcp": "use client.call_tool(name, arguments)",
    "get_prompt_mcp": "use client.get_prompt(name, arguments)",
    "initialize": "use client.connect(), or async with",
    "initialize_result": "use client.server_info and client.server_capabilities",
    "list_tools_mcp": "use client.list_tools()",
    "read_resource_mcp": "use client.read_resource(uri)",
    "send_ping": "use client.ping()",
    "send_request": "use client.request(method, params)",
    "set_logging_callback": "pass log_handler= to Client(...)",
}


def create_attribute_error(owner: object, name: str, hints: Mapping[str, str]) -> AttributeError:
    """Create the error for an attribute that does not exist, with a hint at the right name."""
    advice = ""
    if name in hints:
        advice = f". Instead, {hints[name]}"
    elif not name.startswith("_"):
        advice = suggest_match(name, [known for known in dir(type(owner)) if not known.startswith("_")])
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{advice}", name=name, obj=owner)

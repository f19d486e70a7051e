"""A server of the official SDK's high level API. style=fast runs it on uvloop and httptools instead of its defaults.

It logs only warnings, and uvicorn's access log is off. Both make it faster.
"""

from typing import Any

from mcp.server.mcpserver import MCPServer
from workload import LARGE, URI, ServerOptions, open_socket

options = ServerOptions()
app = MCPServer("bench", log_level="WARNING")


@app.tool(structured_output=False)
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@app.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool(structured_output=False)
def echo_sync(text: str) -> str:
    """Give the text back, from a plain function."""
    return text


@app.resource(URI, mime_type="text/plain")
async def contents() -> str:
    """A long text."""
    return options.contents


async def extra(text: str, count: int = 1, strict: bool = False) -> str:
    """One of many tools."""
    return text


for number in range(options.tools):
    app.add_tool(extra, name=f"extra_{number}")


def serve_http() -> None:
    """Serve on a free port."""
    import uvicorn

    limits: dict[str, Any] = {"max_request_body_size": LARGE} if options.large else {}
    web = app.streamable_http_app(json_response=options.responses == "json", **limits)
    fast = options.style == "fast"
    config = uvicorn.Config(
        web,
        loop="uvloop" if fast else "asyncio",
        http="httptools" if fast else "h11",
        log_level="warning",
        access_log=False,
    )
    uvicorn.Server(config).run([open_socket()])


if options.transport == "stdio":
    app.run()
else:
    serve_http()

"""The official SDK's high level server. style=fast: on uvloop and httptools, else on what it brings along itself.

The log is set to warnings and uvicorn's access log is off, which is to its advantage.
"""

from typing import Any

from mcp.server.mcpserver import MCPServer
from workload import LARGE, URI, ServerOptions, open_socket

order = ServerOptions()
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
    return order.contents


async def extra(text: str, count: int = 1, strict: bool = False) -> str:
    """One of many tools."""
    return text


for number in range(order.tools):
    app.add_tool(extra, name=f"extra_{number}")


def serve_http() -> None:
    """On a free port."""
    import uvicorn

    limits: dict[str, Any] = {"max_request_body_size": LARGE} if order.large else {}
    web = app.streamable_http_app(json_response=order.responses == "json", **limits)
    fast = order.style == "fast"
    config = uvicorn.Config(
        web,
        loop="uvloop" if fast else "asyncio",
        http="httptools" if fast else "h11",
        log_level="warning",
        access_log=False,
    )
    uvicorn.Server(config).run([open_socket()])


if order.transport == "stdio":
    app.run()
else:
    serve_http()

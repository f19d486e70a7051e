"""A FastMCP server on its default asyncio and h11, without banner and access log."""

import asyncio

from fastmcp import FastMCP
from workload import URI, ServerOptions, open_socket

options = ServerOptions()
app = FastMCP("bench")


@app.tool(output_schema=None)
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@app.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool(output_schema=None)
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
    app.tool(extra, name=f"extra_{number}")


def serve_http() -> None:
    """Serve on a free port."""
    settings = {"loop": "asyncio", "http": "h11", "access_log": False}
    asyncio.run(
        app.run_http_async(
            show_banner=False,
            log_level="WARNING",
            path="/mcp",
            json_response=options.responses == "json",
            uvicorn_config=settings,
            sockets=[open_socket()],
        )
    )


if options.transport == "stdio":
    asyncio.run(app.run_stdio_async(show_banner=False, log_level="WARNING"))
else:
    serve_http()

"""Call a server with FastMCP's client."""

from typing import Any

import call_loop
import workload
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

app = FastMCP("bench")


@app.tool(output_schema=None)
async def echo(text: str) -> str:
    """Give the text back."""
    return text


async def main(options: call_loop.CallerOptions) -> None:
    """Connect and call."""
    target: Any = app
    if options.transport == "http":
        target = StreamableHttpTransport(options.target[0])
    elif options.transport == "stdio":
        target = StdioTransport(options.target[0], options.target[1:], keep_alive=False)
    async with Client(target, mode="legacy" if options.is_handshake else "auto") as client:

        async def call(text: str) -> str:
            return (await client.call_tool("echo", {"text": text})).content[0].text

        async def read() -> str:
            return (await client.read_resource(workload.URI))[0].text

        await call_loop.run_calls(options, call, read)


call_loop.run(main)

"""Call a server with the client of the official SDK."""

from typing import Any

import call_loop
import workload
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver import MCPServer

app = MCPServer("bench", log_level="WARNING")


@app.tool(structured_output=False)
async def echo(text: str) -> str:
    """Give the text back."""
    return text


async def main(options: call_loop.CallerOptions) -> None:
    """Connect and call."""
    target: Any = app
    if options.transport == "http":
        target = options.target[0]
    elif options.transport == "stdio":
        target = StdioServerParameters(command=options.target[0], args=options.target[1:])
    async with Client(target, mode="legacy" if options.is_handshake else "auto") as client:

        async def call(text: str) -> str:
            return (await client.call_tool("echo", {"text": text})).content[0].text

        async def read() -> str:
            return (await client.read_resource(workload.URI)).contents[0].text

        await call_loop.run_calls(options, call, read)


call_loop.run(main)

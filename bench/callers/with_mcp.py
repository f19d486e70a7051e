"""The official SDK's client."""

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


async def main(job: call_loop.Job) -> None:
    """Connect and call."""
    target: Any = app
    if job.transport == "http":
        target = job.target[0]
    elif job.transport == "stdio":
        target = StdioServerParameters(command=job.target[0], args=job.target[1:])
    async with Client(target, mode="legacy" if job.is_handshake else "auto") as client:

        async def call(text: str) -> str:
            return (await client.call_tool("echo", {"text": text})).content[0].text

        async def read() -> str:
            return (await client.read_resource(workload.URI)).contents[0].text

        await call_loop.drive(job, call, read)


call_loop.run(main)

"""FastMCP's client."""

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


async def main(job: call_loop.Job) -> None:
    """Connect and call."""
    target: Any = app
    if job.transport == "http":
        target = StreamableHttpTransport(job.target[0])
    elif job.transport == "stdio":
        target = StdioTransport(job.target[0], job.target[1:], keep_alive=False)
    async with Client(target, mode="legacy" if job.is_handshake else "auto") as client:

        async def call(text: str) -> str:
            return (await client.call_tool("echo", {"text": text})).content[0].text

        async def read() -> str:
            return (await client.read_resource(workload.URI))[0].text

        await call_loop.drive(job, call, read)


call_loop.run(main)

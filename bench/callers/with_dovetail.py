"""Call a server with dovetail's client."""

from typing import Any

import call_loop
import workload

from dovetail import Client, CommandTarget, Server

app = Server("bench")


@app.tool
async def echo(text: str) -> str:
    """Give the text back."""
    return text


async def main(options: call_loop.CallerOptions) -> None:
    """Connect and call."""
    target: Any = app
    if options.transport == "http":
        target = options.target[0]
    elif options.transport == "stdio":
        target = CommandTarget(options.target, inherit_env="all")
    async with Client(target, protocol_version="handshake" if options.is_handshake else "stateless") as client:

        async def call(text: str) -> str:
            return (await client.call_tool("echo", {"text": text})).content[0].text  # type: ignore[union-attr]

        async def read() -> str:
            return (await client.read_resource(workload.URI)).contents[0].text or ""

        await call_loop.run_calls(options, call, read)


call_loop.run(main)

"""Run FastMCP's proxy in front of one server: `gateway_fastmcp.py URL|COMMAND...`."""

import asyncio
import sys

from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
from workload import open_socket

target = sys.argv[1:]
app = create_proxy(target[0] if target[0].startswith("http") else StdioTransport(target[0], target[1:]))
asyncio.run(
    app.run_http_async(
        show_banner=False,
        log_level="WARNING",
        path="/mcp",
        json_response=True,
        uvicorn_config={"loop": "asyncio", "http": "h11", "access_log": False},
        sockets=[open_socket()],
    )
)

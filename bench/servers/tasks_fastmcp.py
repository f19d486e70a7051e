"""The server of `bench/tasks.py` with fastmcp. The arguments are the port and the URL of its Docket backend."""

import sys

from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension

mcp: FastMCP[None] = FastMCP("bench")
mcp.add_extension(TasksExtension(url=sys.argv[2]))


@mcp.tool
async def plain(month: str) -> str:
    """Return at once, without a task."""
    return month


@mcp.tool(task=True)
async def report(month: str) -> str:
    """Return at once, as a task."""
    return month


mcp.run("http", port=int(sys.argv[1]), path="/mcp", show_banner=False, log_level="critical", stateless_http=True)

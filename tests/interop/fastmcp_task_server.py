"""A FastMCP server with tasks, as its users write it: `fastmcp_task_server.py stdio`, or `http` and a port."""

import asyncio
import sys

import mcp_types as types
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Progress
from fastmcp.exceptions import ToolError
from fastmcp_tasks import TasksExtension

app = FastMCP("fast tasks", version="1.0.0")
app.add_extension(TasksExtension(url="memory://"))


@app.tool
def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.tool(task=True)
async def double(number: int, progress: Progress = Progress()) -> int:  # noqa: B008
    await progress.set_message("doubling")
    await asyncio.sleep(0.3)
    return 2 * number


@app.tool(task=True)
async def fail() -> str:
    raise ToolError("broken")


@app.tool(task=True)
async def hang() -> str:
    await asyncio.sleep(600)
    return "late"


@app.tool(task=True)
async def confirm(ctx: Context) -> str | types.InputRequiredResult:
    if not ctx.input_responses:
        schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
        params = types.ElicitRequestFormParams(message="Sure?", requested_schema=schema)
        return types.InputRequiredResult(input_requests={"sure": types.ElicitRequest(params=params)})
    return f"confirmed: {ctx.input_responses['sure'].content['sure']}"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        app.run(show_banner=False)
    else:
        app.run(transport="http", port=int(sys.argv[2]), show_banner=False, log_level="error")

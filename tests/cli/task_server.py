"""A server over HTTP whose tools run as tasks, for the tests of `dovetail call --detach`."""

import time
from pathlib import Path

from dovetail import Context, Server, ToolError
from dovetail.extensions import TaskConfig, TaskOptions

app = Server("tasks", tasks=TaskOptions(store=":memory:", poll_interval=0.05))


@app.tool(task=True)
def wait_for(file: str) -> str:
    """Wait until a file exists."""
    while not Path(file).exists():
        time.sleep(0.01)
    return Path(file).read_text(encoding="utf-8")


@app.tool(task=True)
async def order(ctx: Context) -> str:
    """Ask a question."""
    return f"{await ctx.elicit('How many?', int)} ordered"


@app.tool(task=True)
async def fail() -> str:
    """Report an error."""
    raise ToolError("closed")


@app.tool(task=TaskConfig(after=60.0))
async def answer_soon() -> str:
    """Answer before the call becomes a task."""
    return "soon"


if __name__ == "__main__":
    app.run("http", port=0)

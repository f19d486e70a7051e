"""A dovetail server as the guide shows it, with all defaults."""

from workload import LARGE, URI, ServerOptions

from dovetail import Server, ServerLimits

options = ServerOptions()
large_limits = ServerLimits(max_body_bytes=LARGE, max_message_bytes=LARGE, max_result_bytes=LARGE)
app = Server(
    "bench",
    limits=large_limits if options.large else None,
)


@app.tool
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@app.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool
def echo_sync(text: str) -> str:
    """Give the text back, from a plain function."""
    return text


@app.tool(run_in_thread=False)
def echo_inline(text: str) -> str:
    """Give the text back, from a plain function that is quick."""
    return text


@app.tool
async def announce(text: str) -> str:
    """Notify every listener that the tools have changed, and give the text back."""
    app.notify_tools_changed()
    return text


@app.resource(URI, mime_type="text/plain")
async def contents() -> str:
    """A long text."""
    return options.contents


async def extra(text: str, count: int = 1, strict: bool = False) -> str:
    """One of many tools."""
    return text


for number in range(options.tools):
    app.add_tool(extra, name=f"extra_{number}")
if options.filtered:
    app.add_tool(extra, name="locked", scopes=["hidden"])

if options.transport == "stdio":
    app.run()
else:
    mode = "sse" if options.responses == "sse" else "auto"
    app.run("http", port=0, response_mode=mode, workers=options.workers)

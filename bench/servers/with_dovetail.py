"""dovetail, as its guide tells users to write and run a server; nothing is switched off."""

from workload import LARGE, URI, ServerOptions

from dovetail import Server, ServerLimits

order = ServerOptions()
app = Server(
    "bench",
    limits=ServerLimits(max_body_bytes=LARGE, max_message_bytes=LARGE, max_result_bytes=LARGE) if order.large else None,
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


@app.resource(URI, mime_type="text/plain")
async def contents() -> str:
    """A long text."""
    return order.contents


async def extra(text: str, count: int = 1, strict: bool = False) -> str:
    """One of many tools."""
    return text


for number in range(order.tools):
    app.add_tool(extra, name=f"extra_{number}")
if order.filtered:
    app.add_tool(extra, name="locked", scopes=["nobody"])

if order.transport == "stdio":
    app.run()
else:
    app.run("http", port=0, response_mode="sse" if order.responses == "sse" else "auto")

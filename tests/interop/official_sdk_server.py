"""A server of the official SDK: `official_sdk_server.py stdio`, or `http` or `sse` and a port."""

import asyncio
import sys
from collections import defaultdict
from typing import Annotated, Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp_types import Completion, CreateMessageResult, ListRootsResult, SamplingMessage, TextContent
from pydantic import BaseModel, Field

CITIES = ("Oslo", "Osaka", "Ostrava", "Zürich")
PNG = b"\x89PNG\r\n\x1a\n"
NEWEST = "2026-07-28"

app = MCPServer("official", title="Official", version="1.2.3", instructions="Try anything.", log_level="WARNING")
stopped: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


# Return values


@app.tool()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


class Forecast(BaseModel):
    """The weather of some days."""

    city: str
    celsius: list[float]


@app.tool()
def forecast(city: str, days: int = 2) -> Forecast:
    """Tell the weather."""
    return Forecast(city=city, celsius=[20.5] * days)


@app.tool()
def primes(below: int) -> list[int]:
    """List the primes below a number."""
    return [number for number in range(2, below) if all(number % other for other in range(2, number))]


class Verdict(BaseModel):
    """An object whose only field has the name of the field in which servers wrap other values."""

    result: str


@app.tool()
def judge() -> Verdict:
    """Return an object."""
    return Verdict(result="fine")


@app.tool()
def picture() -> Image:
    """Show a picture."""
    return Image(data=PNG, format="png")


@app.tool()
def fail() -> str:
    """Fail with a reason the model should read."""
    raise ToolError("The kettle is empty.")


@app.tool()
def locate(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})], ctx: Context) -> str:
    """Tell where the call came from, by its header too where there are headers."""
    return f"{region} {(ctx.headers or {}).get('mcp-param-region')}"


# Messages during a call


@app.tool()
async def climb(steps: int, ctx: Context) -> str:
    """Report every step."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    return "at the top"


@app.tool()
async def hang(label: str, ctx: Context) -> str:
    """Never end."""
    await ctx.report_progress(1, message="hanging")
    try:
        await asyncio.Event().wait()
    finally:
        stopped[label].set()
    return "never"


@app.tool()
async def await_stopped(label: str) -> str:
    """Wait until a call of `hang` was stopped."""
    async with asyncio.timeout(20):
        await stopped[label].wait()
    return f"{label} was stopped"


@app.tool()
async def speak(ctx: Context) -> str:
    """Log a message."""
    await ctx.info("speaking")  # pyright: ignore[reportDeprecated]
    return "spoken"


@app.tool()
async def touch(name: str, ctx: Context) -> str:
    """Say that the profile of a city changed, and the list of tools too."""
    uri = f"city://{name}/profile"
    if ctx.protocol_version == NEWEST:
        await ctx.notify_resource_updated(uri)
        await ctx.notify_tools_changed()
    else:
        await ctx.session.send_resource_updated(uri)
        await ctx.session.send_tool_list_changed()
    return uri


# Input requests


class Seat(BaseModel):
    """Where to sit."""

    row: int
    window: bool = True


def ask_seat() -> Elicit[Seat]:
    return Elicit("Which seat?", Seat)


def ask_model() -> Sample:
    words = TextContent(type="text", text="What is the answer?")
    return Sample([SamplingMessage(role="user", content=words)], max_tokens=50, system_prompt="Be brief.")


def ask_roots() -> ListRoots:
    return ListRoots()


@app.tool()
async def book(flight: str, seat: Annotated[Seat, Resolve(ask_seat)]) -> str:
    """Book a flight."""
    return f"{flight} in row {seat.row}, {'by the window' if seat.window else 'by the aisle'}"


@app.tool()
async def wonder(answer: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Ask a model."""
    assert isinstance(answer.content, TextContent)
    return f"It says {answer.content.text}"


@app.tool()
async def look_around(roots: Annotated[ListRootsResult, Resolve(ask_roots)]) -> str:
    """Ask where to work."""
    return " ".join(str(root.uri) for root in roots.roots)


# Resources, prompts, completion


@app.resource("note://welcome", mime_type="text/plain")
def welcome() -> str:
    """A note."""
    return "Welcome!"


@app.resource("note://logo", mime_type="image/png")
def logo() -> bytes:
    """A picture."""
    return PNG


@app.resource("city://{name}/profile")
def profile(name: str) -> str:
    """A city in a line."""
    return f"{name} is a city."


@app.prompt()
def packing(city: str) -> str:
    """What to pack."""
    return f"What should I pack for {city}?"


@app.completion()
async def complete(ref: Any, argument: Any, context: Any) -> Completion:
    return Completion(values=[city for city in CITIES if city.startswith(argument.value)])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["http", port]:
            app.run("streamable-http", port=int(port))
        case ["sse", port]:
            app.run("sse", port=int(port))
        case _:
            app.run("stdio")

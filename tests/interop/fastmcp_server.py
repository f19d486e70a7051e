"""A FastMCP server, as its users write it: `fastmcp_server.py stdio`, or `http` or `sse` and a port."""

import asyncio
import sys
from collections import defaultdict
from typing import Annotated, Any

import mcp_types as types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.elicitation import AcceptedElicitation
from fastmcp.utilities.types import Image
from pydantic import BaseModel, Field

CITIES = ("Oslo", "Osaka", "Ostrava", "Zürich")
PNG = b"\x89PNG\r\n\x1a\n"
NEWEST = "2026-07-28"

app = FastMCP("fast", version="1.2.3", instructions="Try anything.")
stopped: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


# Return values


@app.tool
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


class Forecast(BaseModel):
    """The weather of some days."""

    city: str
    celsius: list[float]


@app.tool
def forecast(city: str, days: int = 2) -> Forecast:
    """Tell the weather."""
    return Forecast(city=city, celsius=[20.5] * days)


@app.tool
def primes(below: int) -> list[int]:
    """List the primes below a number."""
    return [number for number in range(2, below) if all(number % other for other in range(2, number))]


class Verdict(BaseModel):
    """An object whose only field has the name of the field in which servers wrap other values."""

    result: str


@app.tool
def judge() -> Verdict:
    """Return an object."""
    return Verdict(result="fine")


@app.tool
def picture() -> Image:
    """Show a picture."""
    return Image(data=PNG, format="png")


@app.tool
def fail() -> str:
    """Fail with a reason the model should read."""
    raise ToolError("The kettle is empty.")


@app.tool
def locate(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Tell where the call came from, by its header too where there are headers."""
    from fastmcp.server.dependencies import get_http_headers

    return f"{region} {get_http_headers().get('mcp-param-region')}"


# Messages during a call


@app.tool
async def climb(steps: int, ctx: Context) -> str:
    """Report every step."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    return "at the top"


@app.tool
async def hang(label: str, ctx: Context) -> str:
    """Never end."""
    await ctx.report_progress(1, message="hanging")
    try:
        await asyncio.Event().wait()
    finally:
        stopped[label].set()
    return "never"


@app.tool
async def await_stopped(label: str) -> str:
    """Wait until a call of `hang` was stopped."""
    async with asyncio.timeout(20):
        await stopped[label].wait()
    return f"{label} was stopped"


@app.tool
async def speak(ctx: Context) -> str:
    """Log a message."""
    await ctx.info("speaking")
    return "spoken"


@app.tool
async def touch(name: str, ctx: Context) -> str:
    """Say that the list of tools changed, where this library can."""
    await ctx.send_notification(types.ToolListChangedNotification())
    return name


# Input requests: sent to a session, or returned in the result of a stateless request


class Seat(BaseModel):
    """Where to sit."""

    row: int
    window: bool = True


def stands_alone(ctx: Context) -> bool:
    return ctx.request_context is not None and ctx.request_context.protocol_version == NEWEST


def booked(flight: str, seat: Seat) -> str:
    return f"{flight} in row {seat.row}, {'by the window' if seat.window else 'by the aisle'}"


@app.tool
async def book(flight: str, ctx: Context) -> str | types.InputRequiredResult:
    """Book a flight."""
    if not stands_alone(ctx):
        answer = await ctx.elicit("Which seat?", Seat)
        if not isinstance(answer, AcceptedElicitation):
            raise ToolError(f"The user said {answer.action}.")
        return booked(flight, answer.data)
    if ctx.input_responses is None:
        form: dict[str, Any] = {
            "type": "object",
            "properties": {"row": {"type": "integer"}, "window": {"type": "boolean", "default": True}},
            "required": ["row"],
        }
        params = types.ElicitRequestFormParams(message="Which seat?", requested_schema=form)
        return types.InputRequiredResult(
            input_requests={"seat": types.ElicitRequest(params=params)}, request_state="round one"
        )
    response = ctx.input_responses["seat"]
    assert ctx.request_state == "round one"
    assert isinstance(response, types.ElicitResult)
    if response.action != "accept":
        raise ToolError(f"The user said {response.action}.")
    return booked(flight, Seat.model_validate(response.content))


@app.tool
async def wonder(ctx: Context) -> str | types.InputRequiredResult:
    """Ask a model."""
    words = types.TextContent(type="text", text="What is the answer?")
    asked = [types.SamplingMessage(role="user", content=words)]
    answer: Any
    if not stands_alone(ctx):
        answer = await ctx.session.create_message(asked, max_tokens=50, system_prompt="Be brief.")
    elif ctx.input_responses is None:
        params = types.CreateMessageRequestParams(messages=asked, max_tokens=50, system_prompt="Be brief.")
        return types.InputRequiredResult(input_requests={"model": types.CreateMessageRequest(params=params)})
    else:
        answer = ctx.input_responses["model"]
    return f"It says {answer.content.text}"


@app.tool
async def look_around(ctx: Context) -> str | types.InputRequiredResult:
    """Ask where to work."""
    answer: Any
    if not stands_alone(ctx):
        answer = await ctx.session.list_roots()
    elif ctx.input_responses is None:
        return types.InputRequiredResult(input_requests={"roots": types.ListRootsRequest()})
    else:
        answer = ctx.input_responses["roots"]
    return " ".join(str(root.uri) for root in answer.roots)


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


@app.prompt
def packing(city: str) -> str:
    """What to pack."""
    return f"What should I pack for {city}?"


@app.completion
def complete(ref: Any, argument: Any, context: Any) -> list[str]:
    return [city for city in CITIES if city.startswith(argument.value)]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["http" | "sse" as transport, port]:
            app.run(transport, port=int(port), show_banner=False, log_level="WARNING")
        case _:
            app.run("stdio", show_banner=False, log_level="WARNING")

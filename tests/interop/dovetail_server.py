"""A server with every feature, for other implementations to call. It is written as any author would write it."""

import argparse
import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

from msgspec import Meta

from dovetail import (
    Annotations,
    AudioContent,
    CallToolResult,
    Context,
    Elicit,
    ElicitationCancelled,
    ElicitationDeclined,
    EmbeddedResource,
    Icon,
    ImageContent,
    ListRoots,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    Sample,
    Server,
    TextContent,
    ToolAnnotations,
    ToolError,
)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
CITIES = ("Oslo", "Osaka", "Ostrava", "Zürich")
PATIENCE = 20.0
RESTRICTED = {"protocol_versions": [os.environ["ONLY_REVISION"]]} if "ONLY_REVISION" in os.environ else {}

app = Server(
    "everything",
    version="1.2.3",
    title="Everything",
    description="One of everything.",
    website_url="https://example.com/everything",
    icons=[Icon(src="https://example.com/icon.png", mime_type="image/png", sizes=["48x48"])],
    instructions="Try anything.",
    page_size=10,
    **RESTRICTED,
)


# Tools: return values


@app.tool
def greet(name: Annotated[str, Meta(description="Who is greeted, in any script.")]) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


@app.tool(
    title="Addition",
    annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True),
    icons=[Icon(src="https://example.com/plus.svg", mime_type="image/svg+xml")],
    meta={"example.com/cost": 1},
)
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@dataclass
class Day:
    """The weather of one day."""

    day: int
    sky: Literal["clear", "cloudy"]
    celsius: float | None = None


@dataclass
class Forecast:
    """The weather of several days."""

    city: str
    days: list[Day]


@app.tool
def forecast(city: str, days: Annotated[int, Meta(ge=1, le=10)] = 2) -> Forecast:
    """Tell the weather."""
    return Forecast(city, [Day(number, "clear", 20.5) for number in range(days)])


@app.tool
def primes(below: int) -> list[int]:
    """List the primes below a number."""
    return [one for one in range(2, below) if all(one % other for other in range(2, one))]


@app.tool
def maybe(number: int | None) -> int | None:
    """Return the number, or nothing."""
    return number


@app.tool
def tomorrow() -> date:
    """Return a date."""
    return date(2026, 7, 29)


@app.tool
def picture() -> ImageContent:
    """Show a picture."""
    return ImageContent(data=PNG, mime_type="image/png", annotations=Annotations(audience=["user"], priority=0.5))


@app.tool
def sound() -> AudioContent:
    """Play a sound."""
    return AudioContent(data=WAV, mime_type="audio/wav")


@app.tool
def report() -> EmbeddedResource:
    """Hand over a report."""
    return EmbeddedResource(
        resource=ResourceContents(uri="report://today", mime_type="text/markdown", text="# All is well")
    )


@app.tool
def pointer() -> ResourceLink:
    """Point to a resource."""
    return ResourceLink(uri="note://welcome", name="welcome", title="A welcome", mime_type="text/plain", size=8)


@app.tool
def mixture() -> list[str | ImageContent | ResourceLink]:
    """Return several blocks."""
    return ["A picture:", picture(), pointer()]


@app.tool
def nothing() -> None:
    """Return nothing."""


@app.tool
def stamped() -> CallToolResult:
    """Return a whole result, with a `_meta` of its own."""
    return CallToolResult(
        content=[TextContent(text="stamped")], structured_content={"ok": True}, meta={"example.com/stamp": "blue"}
    )


@app.tool
def fail() -> str:
    """Fail with a reason the model should read."""
    raise ToolError("The kettle is empty.")


@app.tool
def crash() -> str:
    """Fail with a reason nobody outside should read."""
    raise RuntimeError("the password is swordfish")


@app.tool
def region(where: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})]) -> str:
    """Take an argument that proxies can see."""
    return f"In {where}."


ANY = {"anyOf": [{"type": name} for name in ("null", "boolean", "number", "string", "array", "object")]}


@app.tool(input_schema={"type": "object", "properties": {"value": ANY}, "required": ["value"]})
def mirror(arguments: dict[str, Any]) -> CallToolResult:
    """Return any JSON value as it came."""
    return CallToolResult(content=[], structured_content={"value": arguments["value"]})


# Tools: messages during a call


@app.tool
async def climb(steps: int, ctx: Context) -> str:
    """Report each step."""
    for step in range(1, steps + 1):
        await ctx.progress(step, total=steps, message=f"step {step}")
    return "At the top."


@app.tool
async def narrate(ctx: Context) -> str:
    """Log at three levels."""
    await ctx.debug("a detail")
    await ctx.info({"event": "a fact"})
    await ctx.warning("a worry", logger="nerves")
    return "Told."


@app.tool
def caller(ctx: Context) -> dict[str, Any]:
    """Tell who calls, how, and with which `_meta` of their own."""
    own = {name: value for name, value in ctx.meta.items() if name.startswith("example.com/")}
    return {"client": ctx.client_info and ctx.client_info.name, "revision": ctx.protocol_version, "meta": own}


stopped: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


@app.tool
async def hang(label: str, ctx: Context) -> str:
    """Work until stopped."""
    await ctx.progress(1, message="hanging")
    try:
        await asyncio.Event().wait()
    finally:
        stopped[label].set()
    return "Never."


@app.tool
async def await_stopped(label: str) -> str:
    """Wait until the call of this label was stopped."""
    async with asyncio.timeout(PATIENCE):
        await stopped[label].wait()
    return f"{label} was stopped"


@app.tool
async def pause(ctx: Context) -> str:
    """Let go of the connection in the middle."""
    await ctx.progress(1)
    await ctx.close_sse_stream(retry_ms=50)
    await ctx.progress(2)
    return "Back again."


# Tools: requests to the client


@dataclass
class Booking:
    """Where to sit."""

    seat: Literal["aisle", "window"]
    meals: Annotated[int, Meta(ge=0, le=3)]
    quiet: bool = True
    name: str = "nobody"


@app.tool
async def book(flight: str, ctx: Context) -> Booking:
    """Ask where to sit."""
    return await ctx.elicit(f"Where do you want to sit on {flight}?", Booking)


@app.tool
async def persist(ctx: Context) -> str:
    """Ask, and accept a no."""
    try:
        sure = await ctx.elicit("Are you sure?", bool)
    except ElicitationDeclined:
        return "You declined."
    except ElicitationCancelled:
        return "You went away."
    return f"You said {sure}."


@app.tool
async def pay(ctx: Context) -> str:
    """Send the user to a page."""
    await ctx.elicit_url("Please pay.", "https://example.com/pay")
    return "On the way."


@app.tool
async def rhyme(word: str, ctx: Context) -> str:
    """Have the client's model find a rhyme."""
    answer = await ctx.sample(f"What rhymes with {word}?", max_tokens=20, system_prompt="Be brief.", temperature=0.5)
    return f"{answer.model}: {_text(answer.content)}"


@app.tool
async def folders(ctx: Context) -> list[str]:
    """List the roots."""
    return [root.uri for root in await ctx.list_roots()]


@app.tool
async def survey(ctx: Context) -> str:
    """Ask everything at once."""
    answers = await ctx.request_inputs(
        mood=Elicit("How are you?", str), poem=Sample("Write a poem.", max_tokens=5), at=ListRoots()
    )
    return f"{answers['mood']}; {_text(answers['poem'].content)}; {len(answers['at'])}"


charged: dict[str, int] = defaultdict(int)


@app.tool
async def order(label: str, ctx: Context) -> dict[str, int]:
    """Charge between two questions, and never twice."""

    def charge() -> int:
        charged[label] += 1
        return charged[label]

    first = await ctx.elicit("How many?", int)
    await ctx.once("charge", charge)
    second = await ctx.elicit("How many more?", int)
    return {"items": first + second, "charges": charged[label]}


# Tools: changes


@app.tool
def learn(name: str) -> str:
    """Offer one more tool, resource and prompt."""

    def trick() -> str:
        """A trick."""
        return f"{name} performed."

    app.add_tool(trick, name=name)
    app.add_resource(trick, f"trick://{name}")
    app.add_prompt(trick, name=name)
    return "Learned."


@app.tool
def forget(name: str) -> str:
    """Take it back."""
    app.remove_tool(name)
    app.remove_resource(f"trick://{name}")
    app.remove_prompt(name)
    return "Forgotten."


@app.tool
def touch(name: str) -> str:
    """Say that a city's profile changed."""
    app.notify_resource_updated(f"city://{name}/profile")
    return "Touched."


# Resources


@app.resource(
    "note://welcome", title="A welcome", mime_type="text/plain", size=8, annotations=Annotations(priority=1.0)
)
def welcome() -> str:
    """Welcomes you."""
    return "Welcome!"


@app.resource("pixel://one", mime_type="application/octet-stream")
def pixel() -> bytes:
    """Four bytes."""
    return b"\x00\xff\x10\x80"


@app.resource("city://{name}/profile", title="Profile", mime_type="application/json")
def profile(name: str) -> dict[str, str]:
    """What is known of a city."""
    return {"city": name}


@app.completion("city://{name}/profile", "name")
def complete_city(value: str) -> list[str]:
    """Known cities."""
    return [city for city in CITIES if city.startswith(value)]


@app.resource("vault://{box}")
async def vault(box: str, ctx: Context) -> str:
    """Asks before it opens."""
    word = await ctx.elicit("The password?", str)
    return f"{box} opened with {word}"


# Prompts


@app.prompt
def hello() -> str:
    """Say hello."""
    return "Say hello."


@app.prompt(title="Packing list")
def packing_list(
    city: Annotated[str, Meta(description="Where to.")],
    season: Annotated[Literal["spring", "summer", "winter"], Meta(description="When.")],
    street: Annotated[str, Meta(description="Where exactly.")] = "",
) -> list[PromptMessage]:
    """What to pack."""
    return [
        PromptMessage(role="user", content=TextContent(text=f"What do I need in {city} in {season}?")),
        PromptMessage(role="assistant", content=TextContent(text=f"For {street or 'any street'}: a hat.")),
    ]


@app.completion("packing_list", "city")
def complete_packing_city(value: str) -> list[str]:
    """Known cities."""
    return complete_city(value)


@app.completion("packing_list", "street")
def complete_street(value: str, arguments: dict[str, str]) -> list[str]:
    """Streets of the city already chosen."""
    return [f"{value} in {arguments.get('city', 'nowhere')}"]


@app.prompt("grüße")
def greetings() -> list[str | ImageContent | EmbeddedResource]:
    """Carries a picture and a report."""
    return ["Describe these.", picture(), report()]


@app.prompt
async def personal(ctx: Context) -> str:
    """Asks before it is written."""
    return f"Write to {await ctx.elicit('Whom to?', str)}."


def _text(content: Any) -> str:
    blocks = content if isinstance(content, list) else [content]
    return "".join(block.text for block in blocks if isinstance(block, TextContent))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve one item of every kind.")
    parser.add_argument("transport", choices=["stdio", "http"])
    options = parser.parse_args()
    if options.transport == "http":
        app.run("http", port=0)
    else:
        app.run()

"""The server the commands are tried on: a little of everything, and names no terminal should be shown as they are."""

import sys
from typing import Literal

from dovetail import Context, Image, Server, ToolError

HOSTILE = "\x1b]52;c;cHduZWQ=\x07\u202egpj.exe\u200b\nsecond\x9b31m"

app = Server("served", instructions="For tests.\x1b[2J")
notes = {"today": "milk"}


@app.tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


@app.tool
def echo(value: str, times: int = 1, loud: bool = False, tags: list[str] | None = None) -> str:
    """Say it again."""
    said = " ".join([value] * times) + "".join(f" #{tag}" for tag in tags or ())
    return said.upper() if loud else said


@app.tool
def refuse() -> str:
    """Fail, in words with an escape in them."""
    raise ToolError("no\x1b[31m way\u202e")


@app.tool
async def book(flight: str, ctx: Context) -> str:
    """Ask for a seat."""
    seat = await ctx.elicit("Which row\x1b[2J?", int)
    return f"{flight} in row {seat}"


@app.tool
async def paint(ctx: Context) -> str:
    """Ask for a colour."""
    return f"painted {await ctx.elicit('Which colour?', Literal['red', 'blue'])}"


@app.tool
def drawn(pages: int = 1) -> list[Image]:
    """Draw."""
    return [Image(bytes([0x89, 0x50, number]), mime_type="image/png") for number in range(pages)]


@app.tool
def fail() -> str:
    """Fail, in words nobody is to hear."""
    raise ValueError("inside")


@app.tool
async def visit(ctx: Context) -> str:
    """Ask for a visit."""
    await ctx.elicit_url("Please pay\x1b[2J.", "https://pay.example/42")
    return "paid"


@app.tool
async def count(to: int, ctx: Context) -> str:
    """Count, with progress."""
    for number in range(to):
        await ctx.progress(number + 1, total=to, message=f"at {number + 1}\x1b[2J")
    return f"counted to {to}"


@app.tool
def write(name: str, text: str) -> str:
    """Write a note."""
    notes[name] = text
    app.notify_resource_updated(f"notes://{name}")
    return "written"


@app.tool
def say(words: str) -> str:
    """Say something on stderr."""
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()
    return "said"


@app.tool("hostile", description=HOSTILE)
def hostile() -> str:
    return HOSTILE


@app.resource("notes://{name}")
def note(name: str) -> str:
    """A note."""
    return notes[name]


@app.resource("notes://all")
def all_notes() -> str:
    """All of them."""
    return " ".join(notes)


@app.resource("format://note", mime_type="text/markdown; charset=utf-8")
def note_format() -> str:
    """How to write a note."""
    return "- a point"


@app.resource("bytes://some", mime_type="application/octet-stream")
def some() -> bytes:
    """Bytes."""
    return b"\x00\xff\x1b"


@app.prompt
def packing(city: str) -> str:
    """What to pack."""
    return f"What to pack for {city}?\x1b[2J"


@app.completion("packing", "city")
def cities(typed: str) -> list[str]:
    return [one for one in ("Oslo", "Osaka", "Rome") if one.startswith(typed)]


if __name__ == "__main__":
    app.run(*sys.argv[1:], **({"port": 0} if sys.argv[1:] else {}))

"""The server that the reliability tests attack: a separate process, written as an author would write it.

`target.py <transport> <options as JSON>`. Its tools fail, wait and return large results on request. The tests measure
it from outside, except for the few numbers of `vitals`.
"""

import asyncio
import gc
import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from faults import FAULTS

from dovetail import Context, Server, ServerLimits, ToolError
from dovetail.errors import ResourceNotFound
from dovetail.server.server import get_dispatcher

TRANSPORT, OPTIONS = sys.argv[1], json.loads(sys.argv[2])


async def bearer(headers: Mapping[bytes, bytes]) -> str | None:
    """Accept the name that each caller sends. The tests check what follows from it."""
    return headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ") or None


app = Server(
    "target",
    version="1.0",
    limits=ServerLimits(**OPTIONS.get("limits", {})),
    auth=bearer if OPTIONS.get("principals") else None,
    **OPTIONS.get("server", {}),
)

events: dict[str, asyncio.Event] = {}
seen: Counter[str] = Counter()


def event(name: str) -> asyncio.Event:
    return events.setdefault(name, asyncio.Event())


@app.tool
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@app.tool
def shout(text: str) -> str:
    """Give the text back from a thread."""
    return text


@app.tool
async def take(text: str) -> int:
    """The length of a text, which is all that is done with it."""
    return len(text)


@app.tool
async def wait(key: str, text: str = "") -> str:
    """Wait until somebody releases the key; `started` and `count` tell others about it."""
    seen[f"started {key}"] += 1
    event(f"started {key}").set()
    try:
        await event(f"released {key}").wait()
    except asyncio.CancelledError:
        seen[f"cancelled {key}"] += 1
        event(f"cancelled {key}").set()
        raise
    seen[f"finished {key}"] += 1
    return text


@app.tool
async def release(key: str) -> None:
    """Let everyone who waits for the key go on."""
    event(f"released {key}").set()


@app.tool
async def until(what: str, key: str, count: int = 1) -> int:
    """Return when a number of waiters have started, finished or been cancelled."""
    while seen[f"{what} {key}"] < count:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return seen[f"{what} {key}"]


@app.tool
async def count(what: str, key: str) -> int:
    """How many waiters have started, finished or been cancelled so far."""
    return seen[f"{what} {key}"]


@app.tool
async def block(seconds: float) -> str:
    """Hold up the event loop, as no tool should."""
    sys.stderr.write("in the tool\n")
    time.sleep(seconds)  # noqa: ASYNC251
    return "done"


@app.tool
def doze(seconds: float) -> str:
    """Hold up a thread."""
    sys.stderr.write("in the tool\n")
    time.sleep(seconds)
    return "done"


@app.tool
async def blob(size: int) -> str:
    """A text of a size."""
    return "x" * size


@app.tool
async def chatter(ctx: Context, count: int, size: int = 10, mark: str = "") -> str:
    """Say something many times before the result."""
    for number in range(count):
        await ctx.log("error", f"{mark}{number}:" + "y" * size)
    return f"{mark}end"


@app.tool
async def leave(ctx: Context, key: str, mark: str) -> str:
    """Let the client go, and finish when the key is released."""
    await ctx.log("error", f"{mark}first")
    await ctx.close_sse_stream(10)
    seen[f"started {key}"] += 1
    await event(f"released {key}").wait()
    await ctx.log("error", f"{mark}second")
    return f"{mark}end"


@app.tool
async def ask(ctx: Context, question: str) -> str:
    """Ask the user for one text."""
    return f"answer {await ctx.elicit(question, str)}"


@app.tool
async def fault(kind: str) -> Any:
    """Fail in one of many ways."""
    return FAULTS[kind]()


@app.tool
def sync_fault(kind: str) -> Any:
    """Fail in one of many ways, in a thread."""
    return FAULTS[kind]()


@app.tool
async def late_fault(kind: str) -> Any:
    """Fail in one of many ways after having waited."""
    await asyncio.sleep(0)
    return FAULTS[kind]()


@app.resource("bad://{kind}")
async def bad_resource(kind: str) -> Any:
    """Fail in one of many ways."""
    return FAULTS[kind]()


@app.prompt
async def bad_prompt(kind: str) -> Any:
    """Fail in one of many ways."""
    return FAULTS[kind]()


@app.completion("bad_prompt", "kind")
async def bad_completion(value: str) -> Any:
    return FAULTS[value]()


@app.tool
async def complain(text: str) -> None:
    """Fail with the caller's words."""
    raise ValueError(text)


@app.tool
async def refuse(text: str) -> None:
    """Fail with the caller's words, on purpose."""
    raise ToolError(text)


@app.tool
async def whoami(ctx: Context) -> str:
    """The principal."""
    return str(ctx.principal)


@app.tool
async def change(what: Literal["tools", "resources", "prompts"] = "tools", times: int = 1) -> None:
    """Say that a list is another now."""
    for _ in range(times):
        getattr(app, f"notify_{what}_changed")()
        await asyncio.sleep(0)  # Equal changes without a pause would be one notification.


@app.tool
async def touch(uri: str, times: int = 1) -> None:
    """Say that a resource has new contents."""
    for _ in range(times):
        app.notify_resource_updated(uri)
        await asyncio.sleep(0)  # Equal changes without a pause would be one notification.


@app.tool
async def vitals() -> dict[str, int]:
    """What only the process itself can count."""
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "listeners": len(get_dispatcher(app).registry.subscriptions),
    }


REGION_SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "level": {"type": "integer", "x-mcp-header": "Level"},
        "dry": {"type": "boolean", "x-mcp-header": "Dry"},
        "inner": {"type": "object", "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}},
    },
}


@app.tool(input_schema=REGION_SCHEMA)
async def region(arguments: dict[str, Any]) -> str:
    """A tool whose arguments are mirrored in headers."""
    return json.dumps(arguments, sort_keys=True)


for name, schema in OPTIONS.get("schemas", {}).items():

    async def judged(arguments: dict[str, Any]) -> str:
        """Take what the schema takes."""
        return "fits"

    app.add_tool(judged, name=name, input_schema=schema)


for number in range(OPTIONS.get("more_tools", 0)):

    async def spare() -> None:
        """Nothing."""

    app.add_tool(spare, name=f"spare{number}")


@app.resource("note://fixed")
def fixed() -> str:
    """A resource."""
    return "fixed"


@app.resource("note://{name}/text")
def note(name: str) -> str:
    """A family of resources."""
    return f"note {name}"


@app.resource("docs://{+path}")
def document(path: str) -> str:
    """A file below one folder. The template refuses what climbs; resolving the path refuses links that lead out."""
    root = Path(OPTIONS["root"]).resolve()
    found = (root / path).resolve()
    if not found.is_relative_to(root) or not found.is_file():
        raise ResourceNotFound(f"docs://{path}")
    return found.read_text(encoding="utf-8")


@app.prompt
def greeting(name: str, tone: Literal["warm", "cold"] = "warm") -> str:
    """A prompt."""
    return f"Greet {name} in a {tone} tone."


@app.completion("greeting", "name")
def names(value: str) -> list[str]:
    return [one for one in ("ada", "grace") if one.startswith(value)]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    transport = dict(OPTIONS.get("transport", {}))
    if TRANSPORT == "http":
        transport.setdefault("port", 0)
    app.run(TRANSPORT, **transport)

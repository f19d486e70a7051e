"""Run long calls as tasks, which survive restarts and ask the user. Start it with `python examples/tasks.py`.

Call `build_report` with a host, or with `dovetail call examples/tasks.py build_report month=May`. Clients that support
tasks get an ID at once and the result later. All other clients wait, and see the progress.
"""

import asyncio

from dovetail import Context, Server
from dovetail.extensions import TaskConfig

app = Server("reports")


async def write_chapter(month: str, number: int) -> str:
    """Do some slow work."""
    await asyncio.sleep(0.2)
    return f"Chapter {number} of {month}"


@app.tool(task=True)
async def build_report(month: str, ctx: Context) -> str:
    """Build the report of a month."""
    chapters: list[str] = []
    for number in (1, 2, 3):
        await ctx.progress(number, 3, f"writing chapter {number}")
        # If the function runs again after an answer, it does not write the chapter again.
        chapters.append(await ctx.once(f"chapter {number}", lambda number=number: write_chapter(month, number), str))
    if not await ctx.elicit("Add a summary?", bool):
        return "\n".join(chapters)
    return "\n".join([*chapters, "Summary"])


@app.tool(task=TaskConfig(after=2.0, ttl=600), read_only=True)
async def search(query: str, ctx: Context) -> str:
    """Search all reports. A search of less than two seconds returns its result at once."""
    await ctx.progress(0, 1, f"searching for {query}")
    await asyncio.sleep(0.1)
    return f"No report mentions {query}."


if __name__ == "__main__":
    app.run()

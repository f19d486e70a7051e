"""Several processes on one port: any of them may serve any request, also the second round of a question.

What makes that possible is a secret they share: the state of a call travels with the client, sealed. Run it with
`WORKERS_SECRET=... python examples/workers.py`.
"""

import argparse
import os
import secrets
from typing import Annotated

from dovetail import Context, Server

# Made before the workers are started, so they all have it; with several machines it has to come from outside.
SECRET = os.environ.get("WORKERS_SECRET") or secrets.token_urlsafe(32)

app = Server("workers", version="1.0.0", secret_keys=[SECRET])


@app.tool
async def rename(path: Annotated[str, "What to rename"], ctx: Context) -> str:
    """Ask for a new name; the answer may reach another process than the question left."""
    asked_by = await ctx.once("asked by", os.getpid)
    name = await ctx.elicit(f"New name for {path}?", str)
    return f"{path} is now {name} (asked by process {asked_by}, answered in {os.getpid()})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    app.run("http", port=options.port, workers=options.workers, sessions=False)

"""Several processes on one port. Any of them can serve any request, also the second round of a question.

The state of a call travels with the client, encrypted with a secret that all processes share. Run it with
`WORKERS_SECRET=... python examples/workers.py`.
"""

import argparse
import os
import secrets
from typing import Annotated

from dovetail import Context, Server

# All workers get the same secret, because it is created before they start. With several machines, set the variable.
SECRET = os.environ.get("WORKERS_SECRET") or secrets.token_urlsafe(32)

app = Server("workers", version="1.0.0", secret_keys=[SECRET])


@app.tool
async def rename(path: Annotated[str, "What to rename"], ctx: Context) -> str:
    """Ask for a new name. Another process than the one that asked may get the answer."""
    asked_by = await ctx.once("asked by", os.getpid)
    name = await ctx.elicit(f"New name for {path}?", str)
    return f"{path} is now {name} (asked by process {asked_by}, answered in {os.getpid()})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    app.run("http", port=options.port, workers=options.workers, sessions=False)

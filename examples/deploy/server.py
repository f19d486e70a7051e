"""A server for several machines. `compose.yaml` and `kubernetes.yaml` in this folder run three copies of it.

Nothing in this file depends on the number of workers or machines. The environment variables DOVETAIL_CLUSTER and
DOVETAIL_SECRET_KEYS connect them.
"""

import os
from typing import Literal

from dovetail import Context, Server
from dovetail.auth import Principal, StaticTokenVerifier

tokens = {os.environ.get("TICKETS_TOKEN", "only-for-this-example"): Principal("ada")}
app = Server("tickets", version="1.0.0", auth=StaticTokenVerifier(tokens))


@app.tool
def status(ticket: int) -> str:
    """Return the status of a ticket."""
    return f"ticket {ticket} is open"


@app.tool
async def close(ticket: int, ctx: Context) -> str:
    """Close a ticket after the user has confirmed it. The answer may reach another machine."""
    answer = await ctx.elicit(f"Close ticket {ticket}?", Literal["yes", "no"])
    return f"ticket {ticket} is {'closed' if answer == 'yes' else 'still open'}"

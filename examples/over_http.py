"""A server over HTTP. Run `python examples/over_http.py` and connect any client to http://127.0.0.1:8000/mcp.

Callers authenticate with a token. A tool finds their name in its context.
"""

import argparse
from collections.abc import Mapping

from dovetail import Context, Server, ServerLimits
from dovetail.errors import Unauthorized

TOKENS = {b"Bearer let-me-in": "ada"}


async def authenticate(headers: Mapping[bytes, bytes]) -> str:
    """Return the principal of a token."""
    principal = TOKENS.get(headers.get(b"authorization", b""))
    if principal is None:
        raise Unauthorized("A token is needed")
    return principal


app = Server(
    "over-http",
    version="1.0.0",
    auth=authenticate,
    limits=ServerLimits(max_body_bytes=256 * 1024, call_timeout=30.0),
)


@app.tool
async def whoami(ctx: Context) -> str:
    """Show the authenticated caller."""
    return f"You are {ctx.principal}, speaking {ctx.protocol_version}."


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    app.run("http", port=parser.parse_args().port, health=True)

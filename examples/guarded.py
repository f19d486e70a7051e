"""A server that requires a login, with its authorization server: `python examples/guarded.py`.

Then log in with `dovetail auth login http://127.0.0.1:8000/mcp`, which opens a consent page, and run `dovetail call
http://127.0.0.1:8000/mcp whoami`. `write` requires another scope, and the client asks you for it.
"""

import argparse

from dovetail import Context, Server
from dovetail.auth import AuthorizationServer, Guard


def make(here: str) -> tuple[Server, AuthorizationServer]:
    """Create both servers for this address."""
    authority = AuthorizationServer(issuer=here, resources=f"{here}/mcp", scopes_supported="notes:read notes:write")
    app = Server("guarded", auth=Guard(authority.verifier(), required_scopes=["notes:read"], list_restricted=True))
    notes: dict[str, list[str]] = {}

    @app.tool
    def whoami(ctx: Context) -> str:
        """Show the authenticated caller."""
        assert ctx.principal is not None
        return f"{ctx.principal.subject}, who may {', '.join(sorted(ctx.principal.scopes))}"

    @app.tool(scopes=["notes:write"])
    def write(text: str, ctx: Context) -> str:
        """Save a note. Each caller has separate notes."""
        notes.setdefault(str(ctx.principal), []).append(text)
        return f"{len(notes[str(ctx.principal)])} kept"

    return app, authority


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    app, authority = make(f"http://127.0.0.1:{port}")
    app.run("http", port=port, fallback=authority)

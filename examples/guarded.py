"""A server that wants a login, and the authorization server beside it: `python examples/guarded.py`.

Then `dovetail auth login http://127.0.0.1:8000/mcp` opens the page on which you agree, and `dovetail call
http://127.0.0.1:8000/mcp whoami` is served. `write` takes a scope of its own, which the client asks you for.
"""

import argparse

from dovetail import Context, Server
from dovetail.auth import AuthorizationServer, Guard


def make(here: str) -> tuple[Server, AuthorizationServer]:
    """The two of them, at this address."""
    authority = AuthorizationServer(issuer=here, resources=f"{here}/mcp", scopes_supported="notes:read notes:write")
    app = Server("guarded", auth=Guard(authority.verifier(), required_scopes=["notes:read"], list_restricted=True))
    notes: dict[str, list[str]] = {}

    @app.tool
    def whoami(ctx: Context) -> str:
        """Who the caller proved to be."""
        assert ctx.principal is not None
        return f"{ctx.principal.subject}, who may {', '.join(sorted(ctx.principal.scopes))}"

    @app.tool(scopes=["notes:write"])
    def write(text: str, ctx: Context) -> str:
        """Keep a note; everyone has their own."""
        notes.setdefault(str(ctx.principal), []).append(text)
        return f"{len(notes[str(ctx.principal)])} kept"

    return app, authority


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    app, authority = make(f"http://127.0.0.1:{port}")
    app.run("http", port=port, fallback=authority)

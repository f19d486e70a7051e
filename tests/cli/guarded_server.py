"""A guarded server that is its own authorization server: `python guarded_server.py`."""

import socket
import sys

import uvicorn

from dovetail import Context, Server
from dovetail.auth import AuthorizationServer, Guard


def main() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    here = f"http://127.0.0.1:{listener.getsockname()[1]}"
    authority = AuthorizationServer(
        issuer=here, resources=[f"{here}/mcp"], scopes_supported=("notes:read", "notes:write")
    )
    app = Server("guarded", auth=Guard(authority.verifier(), scopes_supported=[]))  # a login asks for no scope

    @app.tool
    def whoami(ctx: Context) -> str:
        """Who asks."""
        return str(ctx.principal)

    @app.tool(scopes=["notes:write"])
    def write(text: str = "") -> str:
        """Write a note."""
        return "written"

    sys.stderr.write(f"guarded is at {here}/mcp\n")
    sys.stderr.flush()
    application = authority.wrap(app.asgi())
    uvicorn.Server(uvicorn.Config(application, log_level="critical", ws="none")).run([listener])


if __name__ == "__main__":
    main()

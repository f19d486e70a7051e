"""`dovetail run`: serve a server."""

from typing import Any

import click

from dovetail.cli.targets import load_server


@click.command("run")
@click.argument("target", required=False)
@click.option("-m", "--module", help="A module that holds the server.")
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--sse", is_flag=True, help="Serve over HTTP, for clients of 2024 too, at /sse.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=8000, show_default=True)
@click.option("--path", default="/mcp", show_default=True, help="Where on the host.")
@click.option("--workers", type=int, default=1, show_default=True, help="Processes; more than one has no sessions.")
@click.option("--anonymous", is_flag=True, help="Serve everyone who reaches the host.")
def command(
    target: str | None,
    module: str | None,
    http: bool,
    sse: bool,
    host: str,
    port: int,
    path: str,
    workers: int,
    anonymous: bool,
) -> int:
    """Serve a server: over stdio, or with --http.

    \b
    dovetail run server.py
    dovetail run server.py:app --http --port 8000
    dovetail run -m package.server
    """
    if (target is None) == (module is None):
        raise click.UsageError("give a file, or -m and a module")
    app = load_server(target, module)
    if not (http or sse):
        app.run()
        return 0
    more: dict[str, Any] = {} if workers == 1 else {"workers": workers, "sessions": False}
    try:
        app.run("http", host=host, port=port, path=path, anonymous=anonymous, **more)
    except (ValueError, OSError) as exc:
        raise click.UsageError(str(exc)) from None
    return 0

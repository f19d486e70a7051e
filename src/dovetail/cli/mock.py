"""`dovetail mock`: a recording served as if it were the server."""

from typing import Any

import click

from dovetail.cli.recordings import read_recording


@click.command("mock")
@click.argument("recording", type=click.Path(exists=True, dir_okay=False))
@click.option("--loose", is_flag=True, help="Answer the same tool with other arguments too.")
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=8000, show_default=True, help="0 takes a free one.")
def command(recording: str, loose: bool, http: bool, host: str, port: int) -> int:
    """Serve a recording as if it were the server, to clients of every revision.

    What was asked then is answered as it was then; several answers to the same question come in their order. Wherever a
    TARGET is asked for, the name of a recording stands for this.

    \b
    dovetail mock server.jsonl
    dovetail call server.jsonl forecast city=Oslo
    """
    app = mocked(read_recording(recording), recording, loose=loose)
    try:
        if http:
            app.run("http", host=host, port=port)
        else:
            app.run()
    except (ValueError, OSError) as exc:
        raise click.UsageError(str(exc)) from None
    return 0


def mocked(parts: list[Any], name: str, *, loose: bool = False) -> Any:
    """A server made of a recording."""
    from dovetail.connect import Client, Way
    from dovetail.protocol.playback import Playback
    from dovetail.serve import Server
    from dovetail.transports.memory import Memory

    try:
        played = Playback(parts, loose=loose)
    except ValueError as exc:
        raise click.UsageError(f"{name}: {exc}") from None
    app = Server(
        str(played.server.get("name") or name),
        version=str(played.server.get("version") or "0.0.0"),
        instructions=played.instructions,
    )
    way = Way(name, None, lambda: Memory(played.link))
    app.mount(Client(way, revision=played.revision, cache=False, check_results=False))
    return app

"""`dovetail mock`: serve a recording as a mock server."""

from typing import Any

import click

from dovetail.cli.target_argument import read_recording


@click.command("mock")
@click.argument("recording", type=click.Path(exists=True, dir_okay=False))
@click.option("--any-arguments", is_flag=True, help="Match calls by tool name only.")
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8000, show_default=True, help="Port to listen on. 0 picks a free port.")
def command(recording: str, any_arguments: bool, http: bool, host: str, port: int) -> int:
    """Serve a recording as a mock server.

    Answers each recorded request with its recorded response, to clients of any protocol version. Repeated requests get
    their responses in order. You can also use a recording as the TARGET of other commands.

    \b
    dovetail mock server.jsonl
    dovetail call server.jsonl forecast city=Oslo
    """
    app = create_mock_server(read_recording(recording), recording, any_arguments=any_arguments)
    try:
        if http:
            app.run("http", host=host, port=port)
        else:
            app.run()
    except (ValueError, OSError) as exc:
        raise click.UsageError(str(exc)) from None
    return 0


def create_mock_server(frames: list[Any], name: str, *, any_arguments: bool = False) -> Any:
    """Create a server that answers from a recording."""
    from dovetail.client.client import Client
    from dovetail.recording.playback import Playback
    from dovetail.server.server import Server

    try:
        playback = Playback(frames, any_arguments=any_arguments)
    except ValueError as exc:
        raise click.UsageError(f"{name}: {exc}") from None
    app = Server(
        str(playback.server_info.get("name") or name),
        version=str(playback.server_info.get("version") or "0.0.0"),
        instructions=playback.instructions,
    )
    app.mount(Client(playback, name=name, protocol_version=playback.revision, cache=False, validate_results=False))
    return app

"""`dovetail mock`: a recording served as if it were the server."""

from typing import Any

import click

from dovetail.cli.target_argument import read_recording


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
    app = create_mock_server(read_recording(recording), recording, any_arguments=loose)
    try:
        if http:
            app.run("http", host=host, port=port)
        else:
            app.run()
    except (ValueError, OSError) as exc:
        raise click.UsageError(str(exc)) from None
    return 0


def create_mock_server(frames: list[Any], name: str, *, any_arguments: bool = False) -> Any:
    """A server made of a recording."""
    from dovetail.client.targets import Client
    from dovetail.recording.playback import Playback
    from dovetail.server.runners import Server

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

"""`dovetail mock`: serve a recording as a mock server."""

from typing import TYPE_CHECKING, Any

import click

from dovetail.cli.error_report import describe_listen_error
from dovetail.cli.target_argument import read_recording

if TYPE_CHECKING:
    from dovetail.client.client import Client
    from dovetail.protocol.interfaces.extension import Extension
    from dovetail.recording.playback import RecordedExtension


@click.command("mock")
@click.argument("recording", type=click.Path(exists=True, dir_okay=False))
@click.option("--any-arguments", is_flag=True, help="Match calls by tool name only.")
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8000, show_default=True, help="Port to listen on. 0 picks a free port.")
def command(recording: str, any_arguments: bool, http: bool, host: str, port: int) -> int:
    """Serve a recording as a mock server.

    Answers each recorded request with its recorded response, to clients of any protocol version. Repeated requests get
    their responses in order. The recorded methods of extensions, such as skills, are served, too. You can also use a
    recording as the TARGET of other commands.

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
        raise click.UsageError(describe_listen_error(exc)) from None
    return 0


def create_mock_server(frames: list[Any], name: str, *, any_arguments: bool = False) -> Any:
    """Create a server that answers from a recording."""
    from dovetail.client.client import Client
    from dovetail.recording.playback import Playback
    from dovetail.server.server import Server

    try:
        playback = Playback(frames, any_arguments=any_arguments)
        client = Client(playback, name=name, protocol_version=playback.revision, cache=False, validate_results=False)
        extensions = [_create_extension(client, recorded) for recorded in playback.list_extensions()]
    except (TypeError, ValueError) as exc:
        raise click.UsageError(f"{name}: {exc}") from None
    app = Server(
        str(playback.server_info.get("name") or name),
        version=str(playback.server_info.get("version") or "0.0.0"),
        instructions=playback.instructions,
        extensions=extensions,
    )
    app.mount(client)
    return app


def _create_extension(client: "Client", recorded: "RecordedExtension") -> "Extension":
    """Create an extension that answers requests from a recording."""
    from dovetail.errors import ProtocolError, RemoteError
    from dovetail.extensions import Extension, Params, Result
    from dovetail.wire.codec import encode

    extension = Extension(recorded.identifier, settings=recorded.settings)

    async def handle(params: Params, exchange: Any) -> Result:
        raise AssertionError("the middleware must answer this request before it reaches a handler")

    for method in recorded.methods:
        extension.method(method)(handle)

    @extension.middleware
    async def answer(exchange: Any, call_next: Any) -> Any:
        if exchange.method not in recorded.methods:
            return await call_next(exchange)
        try:
            response: Any = await client.request(exchange.method, exchange.params)
        except RemoteError as exc:
            error = ProtocolError(exc.message, exc.data)
            error.code = exc.code
            raise error from None
        # Remove the fields that the server adds to each result, depending on the client's protocol version.
        return encode({name: value for name, value in response.items() if name not in ("_meta", "resultType")})

    return extension

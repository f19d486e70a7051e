"""The joint between servers and transports: `Server` with its doors, `run` and `asgi`.

The framework knows no transport and the transports know no framework; they meet here. A transport is loaded by the door
that needs it.
"""

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack, overload

from dovetail.server import server as framework
from dovetail.server.item_options import check_type
from dovetail.server.server_options import ASGIOptions, HTTPServerOptions, ServerOptions, Transport

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.protocol.http_types import ASGIApp, AsyncHTTPClient, HTTPRequest, HTTPResponse
    from dovetail.server.loop_watchdog import LoopWatchdog
    from dovetail.server.openapi.document import OpenAPIOperation
    from dovetail.server.openapi.operation_call import HeaderFactory
    from dovetail.transports.duplex_server import DuplexServer

log = logging.getLogger("dovetail")

RECORDING_VARIABLE = "DOVETAIL_RECORDING"  # the recording file of every server and client

_EOF_GRACE_S = 1.0  # for calls still running when the client has closed its end
_EXIT_GRACE_S = 0.7
_SIGNAL_GRACE_S = 1.7
_SECOND_SIGNAL_GRACE_S = 0.8
_STUCK_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits
_RESPAWN_DELAY_S = 0.5
_STARTUP_FAILED_EXIT_CODE = 3  # as uvicorn says it


class Server(framework.Server):
    """A server: register tools, resources and prompts on it, then `run` it or mount its `asgi` application."""

    def checked_auth(self, auth: Any) -> Any:
        """Return the value of `auth=`.

        Raises:
            TypeError: it is neither a guard, nor a verifier, nor an authenticator.
        """
        if auth is not None and not is_authenticator(auth):
            from dovetail.oauth.guard.guard import get_credential_checker

            get_credential_checker(auth)
        return auth

    @overload
    def run(self, transport: Literal["stdio"] = "stdio", *, reload: bool = False) -> None: ...
    @overload
    def run(
        self, transport: Literal["http"], *, reload: bool = False, **options: Unpack[HTTPServerOptions]
    ) -> None: ...
    @overload
    def run(
        self, transport: Literal["unix"], *, path: "str | Path", allow_anonymous: bool = False, reload: bool = False
    ) -> None: ...
    @overload
    def run(
        self,
        transport: Literal["tcp"],
        *,
        host: str = "127.0.0.1",
        port: int,
        allow_anonymous: bool = False,
        reload: bool = False,
    ) -> None: ...
    def run(self, transport: Transport = "stdio", *, reload: bool = False, **options: Any) -> None:
        """Serve until a signal stops the process, or the client closes its end ("stdio").

        "http" takes the options of `HTTPServerOptions`, "unix" takes `path`, "tcp" takes `host` and `port`. With
        `reload`, the program restarts when one of its files changes. Use that only in development.
        """
        runners: dict[str, Callable[..., None]] = {
            "stdio": run_stdio,
            "http": run_http,
            "unix": run_unix,
            "tcp": run_tcp,
        }
        _check_options("run", transport, options)
        _check_no_loop(transport)
        if not (reload and _run_reloader(transport, options)):
            runners[transport](self, **options)

    @overload
    async def serve(self, transport: Literal["stdio"] = "stdio") -> None: ...
    @overload
    async def serve(self, transport: Literal["http"], **options: Unpack[HTTPServerOptions]) -> None: ...
    @overload
    async def serve(self, transport: Literal["unix"], *, path: "str | Path", allow_anonymous: bool = False) -> None: ...
    @overload
    async def serve(
        self, transport: Literal["tcp"], *, host: str = "127.0.0.1", port: int, allow_anonymous: bool = False
    ) -> None: ...
    async def serve(self, transport: Transport = "stdio", **options: Any) -> None:
        """Serve in the running event loop. Takes the options of `run`, except `workers` and `reload`.

        Returns when a signal comes or the client closes its end ("stdio"). Cancel it to stop it.
        """
        runners: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
            "stdio": serve_stdio,
            "http": serve_http,
            "unix": serve_unix,
            "tcp": serve_tcp,
        }
        _check_options("serve", transport, options)
        await runners[transport](self, **options)

    def asgi(self, **options: Unpack[ASGIOptions]) -> "ASGIApp":
        """Return the server as an ASGI application, to mount in another application or to run with any ASGI server."""
        from dovetail.transports.http_server.endpoint import Endpoint

        _check_names("asgi()", options, ASGIOptions.__annotations__)
        endpoint_options: dict[str, Any] = {name: value for name, value in options.items() if name != "fallback"}
        if is_authenticator(self.auth):
            endpoint_options["authenticate"] = self.auth
        elif self.auth is not None:
            from dovetail.auth.asgi_guard import create_asgi_guard

            endpoint_options["guard"] = create_asgi_guard(
                self.auth,
                options.get("path", "/mcp"),
                options.get("public_url"),
                options.get("allowed_hosts", ()),
                self.needed_scopes,
            )
        endpoint = Endpoint(self, on_start=self.start, on_stop=self.stop, **endpoint_options)
        self._endpoints.add(endpoint)
        app: Any = endpoint
        fallback = options.get("fallback")
        if fallback is not None:
            from dovetail.transports.http_server.asgi import FallbackRouter

            app = FallbackRouter(endpoint, fallback)
        if self.tap is not None:
            from dovetail.recording.trace import RecordedEndpoint

            app = RecordedEndpoint(endpoint, app, self.tap)
        return app

    @property
    def tap(self) -> Any:
        """Who is told of every message: the trace, if one is wanted by `trace=` or by DOVETAIL_RECORDING."""
        path = self.trace or os.environ.get(RECORDING_VARIABLE)
        if path and self._open_recorder is None:
            from dovetail.recording.trace import RecordingWriter

            self._open_recorder = RecordingWriter(path, self.name).record
        return self._open_recorder

    @classmethod
    def from_openapi(
        cls,
        document: Mapping[str, Any] | str | bytes,
        client: "Callable[[HTTPRequest], Awaitable[HTTPResponse]] | AsyncHTTPClient | None" = None,
        *,
        name: str | None = None,
        base_url: str | None = None,
        headers: "Mapping[str, str] | HeaderFactory | None" = None,
        include: "str | Callable[[OpenAPIOperation], bool] | None" = None,
        tool_names: Mapping[str, str] | None = None,
        validate_output: bool = True,
        max_response_bytes: int = 4 * 1024 * 1024,
        **options: Unpack[ServerOptions],
    ) -> Self:
        """Create a server whose tools are the operations of a web service.

        document: an OpenAPI 3 document, as a dict or as JSON.
        client: an httpx client, or an async function that takes an `HTTPRequest` and returns an `HTTPResponse`.
        base_url: URL of the service. Defaults to the client's `base_url`, then to the URL in the document.
        headers: sent with every request. Pass a mapping, or a function that takes the Context and returns one.
        include: a regular expression for "GET /path", or a function that takes the operation and returns a bool.
        tool_names: new tool names, by operation.
        validate_output: pass False for services that do not follow their document. Tools then have no output schema.
        """
        from dovetail.server.openapi.importer import add_operations
        from dovetail.server.openapi.senders import create_sender, get_base_url

        info = document.get("info") if isinstance(document, Mapping) else None
        title = (info or {}).get("title")
        server = cls(name or title or "service", **options)
        add_operations(
            server,
            document,
            create_sender(client, max_response_bytes),
            service_url=base_url,
            client_base_url=get_base_url(client),
            headers=headers or {},
            include=include,
            tool_names=tool_names,
            validate_output=validate_output,
            max_response_bytes=max_response_bytes,
        )
        return server

    @classmethod
    def from_asgi(
        cls,
        app: "ASGIApp",
        document: Mapping[str, Any] | str | bytes | None = None,
        *,
        name: str | None = None,
        base_url: str = "http://localhost",
        headers: "Mapping[str, str] | HeaderFactory | None" = None,
        include: "str | Callable[[OpenAPIOperation], bool] | None" = None,
        tool_names: Mapping[str, str] | None = None,
        validate_output: bool = True,
        max_response_bytes: int = 4 * 1024 * 1024,
        **options: Unpack[ServerOptions],
    ) -> Self:
        """Create a server whose tools are the operations of an ASGI application in this process, without a network.

        The document defaults to the application's own (FastAPI, Litestar). The other options are those of
        `from_openapi`. The server runs the lifespan of the application unless you pass `lifespan`.
        """
        from dovetail.server.openapi.senders import create_app_sender, get_openapi_document
        from dovetail.transports.http_server.asgi import run_lifespan

        return cls.from_openapi(
            document or get_openapi_document(app),
            create_app_sender(app, max_response_bytes),
            name=name,
            base_url=base_url,
            headers=headers,
            include=include,
            tool_names=tool_names,
            validate_output=validate_output,
            max_response_bytes=max_response_bytes,
            **{"lifespan": lambda: run_lifespan(app), **options},
        )

    def open_connection(
        self,
        send: Callable[[bytes], None],
        *,
        drain: "Callable[[], Coroutine[Any, Any, None]] | None" = None,
        principal: str | None = None,
        on_shutdown: Callable[[], None] | None = None,
    ) -> "DuplexServer":
        """Open a connection over a transport of your own. Pass each message to `receive`, and `close` it at the end.

        send: is called with each message to the client.
        drain: waits until the transport can take more.
        principal: who the client is, if your transport knows.
        on_shutdown: is called when the client asks to end the connection.
        """
        from dovetail.transports.duplex_server import DuplexServer

        return DuplexServer(self, send, drain=drain, principal=principal, on_shutdown=on_shutdown)


def is_authenticator(auth: Any) -> bool:
    """Return whether `auth` is an async function, which identifies callers by their headers."""
    return inspect.iscoroutinefunction(auth)


_OPTIONS_BY_TRANSPORT: Final[dict[str, Collection[str]]] = {
    "stdio": (),
    "http": HTTPServerOptions.__annotations__,
    "unix": ("path", "allow_anonymous"),
    "tcp": ("host", "port", "allow_anonymous"),
}
_REQUIRED_OPTIONS: Final = {"unix": ("path", '"/run/server.sock"'), "tcp": ("port", "9000")}


def _check_no_loop(transport: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f'run() cannot be called from a running event loop. Use `await app.serve("{transport}", ...)` instead'
    )


def _check_options(method: Literal["run", "serve"], transport: str, options: Mapping[str, Any]) -> None:
    """Raise for an unknown transport, and for options it does not have, with the transport that has them."""
    if transport not in _OPTIONS_BY_TRANSPORT:
        is_http = "http" in str(transport) or transport == "sse"
        hint = '. "http" serves Streamable HTTP and HTTP+SSE' if is_http else ""
        raise ValueError(f"transport must be 'stdio', 'http', 'unix' or 'tcp', not {transport!r}{hint}")
    allowed = set(_OPTIONS_BY_TRANSPORT[transport])
    if method == "serve" and "workers" in options:
        raise TypeError("serve() has no option `workers`, because it runs in your process. Use run() instead")
    for name in options:
        other = next((key for key in ("http", "tcp", "unix") if name in _OPTIONS_BY_TRANSPORT[key]), None)
        if name not in allowed and other is not None:
            raise TypeError(f'{transport} has no option `{name}`. Use app.{method}("{other}", {name}=...)')
    _check_names(transport, options, allowed)
    required, example = _REQUIRED_OPTIONS.get(transport, ("", ""))
    if required and required not in options:
        raise TypeError(f'{transport} needs `{required}`: app.{method}("{transport}", {required}={example})')
    port = options.get("port", 0)
    if not isinstance(port, int) or not 0 <= port < 65536:
        raise ValueError(f"port must be a number from 0 to 65535, not {port!r}")


def _check_names(owner: str, options: Iterable[str], allowed: Collection[str]) -> None:
    for name in options:
        if name not in allowed:
            raise TypeError(f"{owner} has no option `{name}`{_suggest_option(name, allowed)}")


def _suggest_option(name: str, options: Collection[str]) -> str:
    import difflib

    matches = difflib.get_close_matches(name, options, n=1)
    return f" (did you mean `{matches[0]}`?)" if matches else ""


def _run_reloader(transport: str, options: dict[str, Any]) -> bool:
    """Keep a child of this program running; False in that child, which is to serve."""
    from dovetail.server import reloader

    if reloader.is_child():
        return False
    if transport == "stdio":
        from dovetail.transports.stdio_server import isolate_streams

        with isolate_streams() as (source, sink), contextlib.suppress(KeyboardInterrupt):
            asyncio.run(reloader.relay_stdio(os.dup(source), sink))
    elif transport == "http":
        from dovetail.transports.http_server.uvicorn_server import bind_socket

        reloader.supervise(bind_socket(options.get("host", "127.0.0.1"), options.get("port", 8000)))
    else:
        reloader.supervise()
    return True


def run_stdio(server: Server) -> None:
    """Serve this process's standard streams until the client closes them or a signal comes."""
    from dovetail.server.loop_watchdog import LoopWatchdog
    from dovetail.transports.stdio_server import isolate_streams

    if sys.stdin is not None and sys.stdin.isatty():
        sys.stderr.write(
            f"{server.name} waits for a client that speaks MCP on standard input: let one start it. Ctrl-C ends it.\n"
        )
    with LoopWatchdog() as watchdog, isolate_streams() as (source, sink):
        _run_coroutine(_serve_stdio(server, watchdog, source, sink))


async def _serve_stdio(server: Server, watchdog: "LoopWatchdog", source: int, sink: int) -> None:
    from dovetail.transports.line_protocol import serve_connection
    from dovetail.transports.stdio_server import open_stdio

    watchdog.start(source)
    await server.start()
    lines = await open_stdio(server, source, sink)

    with _SignalHandlers(lambda: watchdog.exit_within(_SIGNAL_GRACE_S, 0), lines.end):
        lines.done.add_done_callback(lambda _: watchdog.exit_within(_SIGNAL_GRACE_S, 0))
        await serve_connection(lines, _EOF_GRACE_S)
        # The client is gone: from here on nothing may hold the process up, not even closing the loop.
        watchdog.exit_within(_EXIT_GRACE_S, 0)
        await server.stop()


def run_http(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int | Literal["auto"] = 1,
    ssl_certfile: "str | Path | None" = None,
    ssl_keyfile: "str | Path | None" = None,
    allow_anonymous: bool = False,
    **options: Unpack[ASGIOptions],
) -> None:
    """Serve over HTTP with uvicorn until a signal comes.

    On an address that other machines can reach, callers must authenticate unless `allow_anonymous` is True.
    """
    if workers == "auto":
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    check_type("workers=", workers, int, "'auto' or a number")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if workers > 1 and options.get("sessions", True):
        raise ValueError(
            "several workers cannot share handshake sessions yet: pass sessions=False to serve handshake clients "
            "without sessions, or workers=1"
        )
    if workers > 1 and server.keeps_results:
        raise ValueError(
            "several workers cannot share large results, because a link may reach another worker. "
            "Pass workers=1, or remove large_results="
        )
    if workers > 1:
        _check_shared_storage(server, options.get("fallback"))
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    listener, ssl, announce = _open_listener(server, host, port, ssl_certfile, ssl_keyfile, allow_anonymous, options)
    if workers == 1:
        _run_worker(server, listener, ssl, options, announce)
    else:
        _supervise(server, listener, workers, ssl, options, announce)


def _open_listener(
    server: Server,
    host: str,
    port: int,
    ssl_certfile: "str | Path | None",
    ssl_keyfile: "str | Path | None",
    allow_anonymous: bool,
    options: ASGIOptions,
) -> tuple[socket.socket, dict[str, Any], Callable[[], None]]:
    """The socket to serve on, what TLS needs, and a function that says where the server is, for when it has started."""
    from dovetail.transports.http_server.uvicorn_server import bind_socket

    _check_exposure(host, allow_anonymous or server.auth is not None)
    server.asgi(**options)  # raises for a wrong option before anything is announced
    for tls_file in (ssl_certfile, ssl_keyfile):
        if tls_file is not None and not os.path.isfile(tls_file):
            raise FileNotFoundError(f"TLS file not found: {str(tls_file)!r}")
    listener = _get_inherited_socket() or bind_socket(host, port)
    display_host = f"[{host}]" if ":" in host else host
    scheme = "https" if ssl_certfile else "http"
    path = "/" + options.get("path", "/mcp").strip("/")
    announcement = f"{server.name} is at {scheme}://{display_host}:{listener.getsockname()[1]}{path}\n"

    def announce() -> None:
        sys.stderr.write(announcement)
        sys.stderr.flush()

    return listener, {"ssl_certfile": ssl_certfile, "ssl_keyfile": ssl_keyfile} if ssl_certfile else {}, announce


async def serve_stdio(server: Server) -> None:
    """Serve this process's standard streams in the running loop."""
    from dovetail.transports.line_protocol import serve_connection
    from dovetail.transports.stdio_server import isolate_streams, open_stdio

    with isolate_streams() as (source, sink):
        try:
            await server.start()
            lines = await open_stdio(server, source, sink)
            with _SignalHandlers(lambda: None, lines.end):
                await serve_connection(lines, _EOF_GRACE_S)
        finally:
            await server.stop()


async def serve_http(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ssl_certfile: "str | Path | None" = None,
    ssl_keyfile: "str | Path | None" = None,
    allow_anonymous: bool = False,
    **options: Unpack[ASGIOptions],
) -> None:
    """Serve over HTTP in the running loop."""
    from dovetail.transports.http_server.uvicorn_server import UvicornServer, create_uvicorn_config

    await server.start()  # if it cannot, uvicorn would end the process
    try:
        listener, ssl, announce = _open_listener(
            server, host, port, ssl_certfile, ssl_keyfile, allow_anonymous, options
        )
        endpoint: Any = server.asgi(**options)
        web_server = UvicornServer(
            create_uvicorn_config(endpoint, server.limits, **ssl), lambda _: None, endpoint.close, on_ready=announce
        )
        task = asyncio.get_running_loop().create_task(web_server.serve([listener]))
        try:
            await asyncio.shield(task)
        finally:
            web_server.should_exit = True  # cancelled itself, it would leave its connections behind
            await task
            listener.close()
    finally:
        await server.stop()


async def serve_unix(server: Server, *, path: "str | Path", allow_anonymous: bool = False) -> None:
    """Serve newline-delimited messages on a Unix socket in the running loop, without authentication."""
    await _serve_socket(server, None, allow_anonymous, path=str(path))


async def serve_tcp(server: Server, *, host: str = "127.0.0.1", port: int, allow_anonymous: bool = False) -> None:
    """Serve newline-delimited messages on TCP in the running loop, without authentication."""
    await _serve_socket(server, None, allow_anonymous, host=host, port=port)


def _get_inherited_socket() -> socket.socket | None:
    """The socket of the process that starts this one anew, where there is one."""
    file_descriptor = os.environ.get("_DOVETAIL_LISTENER")
    return socket.socket(fileno=int(file_descriptor)) if file_descriptor else None


def _check_exposure(host: str, is_allowed: bool) -> None:
    from dovetail.protocol.http_checks import LOOPBACK

    if host not in LOOPBACK and not is_allowed:
        raise ValueError(
            f"any machine that can reach {host} could call this server. Set auth= on the server, or pass "
            "allow_anonymous=True"
        )


def _check_shared_storage(server: Server, fallback: Any) -> None:
    """Refuse an authorization server whose keys and clients each worker would have for itself."""
    from dovetail.auth.authorization_server_app import is_local_authorization_server
    from dovetail.oauth.guard.guard import get_credential_checker

    checker = None if server.auth is None or is_authenticator(server.auth) else get_credential_checker(server.auth)
    if is_local_authorization_server(fallback) or (checker is not None and checker.is_local):
        raise ValueError(
            "several workers cannot share an authorization server that keeps everything in memory: give it a file, "
            "AuthorizationServer(store=..., secret_key=...), or pass workers=1"
        )


def _run_worker(
    server: Server, listener: Any, ssl: dict[str, Any], options: ASGIOptions, announce: Callable[[], None]
) -> None:
    from dovetail.server.loop_watchdog import LoopWatchdog
    from dovetail.transports.http_server.uvicorn_server import UvicornServer, create_uvicorn_config

    def on_stop(times: int) -> None:
        watchdog.exit_within(server.limits.shutdown_timeout if times == 1 else _SECOND_SIGNAL_GRACE_S, _STUCK_EXIT_CODE)

    async def serve() -> None:
        watchdog.start()
        web = UvicornServer(config, on_stop, endpoint.close, on_start=server.start, on_ready=announce)
        await web.serve([listener])
        watchdog.exit_within(_EXIT_GRACE_S, 0)

    endpoint: Any = server.asgi(**options)
    config = create_uvicorn_config(endpoint, server.limits, **ssl)
    with LoopWatchdog() as watchdog:
        _run_coroutine(serve())


def _supervise(
    server: Server,
    listener: Any,
    workers: int,
    ssl: dict[str, Any],
    options: ASGIOptions,
    announce: Callable[[], None],
) -> None:
    """Run several processes on one socket and replace those that die, until a signal comes."""
    import multiprocessing.connection  # only here: it would be a tenth of the start of a server on stdio

    context = multiprocessing.get_context("fork")
    parent_exit_fd, parent_alive_fd = os.pipe()  # the workers read it, and it ends with this process, however that dies
    ready_read_fd, ready_write_fd = os.pipe()
    stopping = False

    def notify_ready() -> None:
        os.write(ready_write_fd, b".")

    def run_worker() -> None:
        os.close(parent_alive_fd)  # or workers would keep each other alive
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)  # the parent's handler is not for a worker that starts
        _exit_with_parent(parent_exit_fd)
        try:
            _run_worker(server, listener, ssl, options, notify_ready)
        except Exception as exc:
            from dovetail.server.lifespan import print_failure

            if not print_failure(exc):
                raise
            sys.exit(_STARTUP_FAILED_EXIT_CODE)

    def start() -> Any:
        process = context.Process(target=run_worker)
        process.start()
        return process

    def replace(process: Any) -> Any:
        if process.is_alive():
            return process
        process.join()
        successor = start()
        log.warning("worker %d %s; worker %d replaces it", process.pid, _describe_exit(process), successor.pid)
        return successor

    processes = [start() for _ in range(workers)]

    def stop(*_: Any) -> None:
        nonlocal stopping
        stopping = True
        for process in processes:
            if process.is_alive():
                process.terminate()

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)
    is_announced = False
    while not stopping:
        ready_objects = multiprocessing.connection.wait(
            [ready_read_fd, *(process.sentinel for process in processes)], timeout=_RESPAWN_DELAY_S
        )
        if ready_read_fd in ready_objects:
            os.read(ready_read_fd, 4096)
            if not is_announced:
                is_announced = True
                announce()
        if any(ready_object != ready_read_fd for ready_object in ready_objects):
            time.sleep(_RESPAWN_DELAY_S)  # one that dies at once must not be replaced without end
        if any(process.exitcode == _STARTUP_FAILED_EXIT_CODE for process in processes):
            stop()  # the next one would not start either
        if not stopping:
            processes[:] = [replace(process) for process in processes]
    stop()  # also one that was being started when the signal came
    for process in processes:
        process.join(server.limits.shutdown_timeout + 1)
    for descriptor in (parent_exit_fd, parent_alive_fd, ready_read_fd, ready_write_fd):
        os.close(descriptor)
    if any(process.exitcode == _STARTUP_FAILED_EXIT_CODE for process in processes):
        sys.exit(_STARTUP_FAILED_EXIT_CODE)


def _exit_with_parent(parent_exit_fd: int) -> None:
    """Stop this worker when its parent exits, so that the port becomes free."""
    import threading

    def wait() -> None:
        os.read(parent_exit_fd, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="dovetail-parent", daemon=True).start()


def _describe_exit(process: Any) -> str:
    code: int = process.exitcode
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def run_unix(server: Server, *, path: "str | Path", allow_anonymous: bool = False) -> None:
    """Serve newline-delimited messages on a Unix socket until a signal comes, without authentication."""
    _run_socket(server, allow_anonymous, path=str(path))


def run_tcp(server: Server, *, host: str = "127.0.0.1", port: int, allow_anonymous: bool = False) -> None:
    """Serve newline-delimited messages on TCP until a signal comes, without authentication.

    An address that other machines can reach needs `allow_anonymous=True`.
    """
    _run_socket(server, allow_anonymous, host=host, port=port)


def _check_unauthenticated(server: Server, allow_anonymous: bool) -> None:
    if server.auth is not None and not allow_anonymous:
        raise ValueError(
            "auth= only protects HTTP. Sockets are not authenticated. Pass allow_anonymous=True to serve without "
            "authentication"
        )


def _run_socket(server: Server, allow_anonymous: bool, **options: Any) -> None:
    from dovetail.server.loop_watchdog import LoopWatchdog

    with LoopWatchdog() as watchdog:
        _run_coroutine(_serve_socket(server, watchdog, allow_anonymous, **options))


async def _serve_socket(server: Server, watchdog: "LoopWatchdog | None", allow_anonymous: bool, **options: Any) -> None:
    from dovetail.transports.socket_server import serve_socket

    # Checked here because `run` and `serve` both pass this point.
    _check_unauthenticated(server, allow_anonymous)
    if "host" in options:
        _check_exposure(options["host"], allow_anonymous)

    def on_signal() -> None:
        if watchdog is not None:
            watchdog.exit_within(server.limits.shutdown_timeout, _STUCK_EXIT_CODE)

    stop = asyncio.Event()
    if watchdog is not None:
        watchdog.start()
    await server.start()
    try:
        async with serve_socket(server, **options) as listener:
            socket_name = listener.sockets[0].getsockname()
            address = socket_name if isinstance(socket_name, str) else f"{socket_name[0]}:{socket_name[1]}"
            with _SignalHandlers(on_signal, stop.set):
                sys.stderr.write(f"{server.name} is at {address}\n")
                await stop.wait()
            await server.stop()  # while those who wait for an answer are still there
    finally:
        await server.stop()
    if watchdog is not None:
        watchdog.exit_within(_EXIT_GRACE_S, 0)


def _run_coroutine(coroutine: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


class _SignalHandlers:
    """While it lasts, SIGINT and SIGTERM call `at_once`, even if the loop is blocked, and then `told` on the loop."""

    def __init__(self, on_signal: Callable[[], None], on_loop: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._on_loop = on_loop
        self._previous_handlers: dict[int, Any] = {}
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: signals are somebody else's
                self._previous_handlers[signum] = signal.signal(signum, self._handle_signal)

    def _handle_signal(self, *_: Any) -> None:
        self._on_signal()
        self._loop.call_soon_threadsafe(self._on_loop)

    def __exit__(self, *_: Any) -> None:
        for signum, previous in self._previous_handlers.items():
            signal.signal(signum, previous)

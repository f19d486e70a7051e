"""The joint between servers and transports: `Server` with its doors, `run` and `asgi`.

The framework knows no transport and the transports know no framework; they meet here. A transport is loaded by the door
that needs it.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from dovetail.server import server as framework

if TYPE_CHECKING:
    from dovetail.transports.duplex import Duplex
    from dovetail.transports.watchdog import Watchdog

log = logging.getLogger("dovetail")

TRACE = "DOVETAIL_TRACE"  # names the file of the trace, for servers and clients alike

Transport = Literal["stdio", "http", "unix", "tcp"]

_EOF_GRACE = 1.0  # for calls still running when the client has closed its end
_LEAVE_GRACE = 0.7
_SIGNAL_GRACE = 1.7
_SECOND_SIGNAL = 0.8
_STUCK = 75  # EX_TEMPFAIL of sysexits
_RESPAWN = 0.5
_UNSTARTED = 3  # as uvicorn says it


class RunOptions(TypedDict, total=False):
    """What `run` takes, whatever the transport; those of another transport are refused."""

    host: str
    port: int
    workers: int
    ssl_certfile: str | None
    ssl_keyfile: str | None
    anonymous: bool
    path: str
    public_url: str | None
    allowed_hosts: Collection[str]
    allowed_origins: Collection[str]
    cors: Collection[str]
    responses: Literal["auto", "json", "sse"]
    sessions: bool
    health: bool
    old_sse: bool
    authenticate: Any
    otherwise: Any


class Server(framework.Server):
    """A server: register tools, resources and prompts on it, then `run` it or mount its `asgi` application."""

    def checked_auth(self, auth: Any) -> Any:
        """What was given as `auth`; TypeError, where it was written, if it cannot guard a server."""
        if auth is not None:
            from dovetail.auth.guard import guard_for

            guard_for(auth)
        return auth

    def run(self, transport: Transport | str = "stdio", *, reload: bool = False, **options: Unpack[RunOptions]) -> None:
        """Serve until told to stop.

        "stdio": this process's standard streams. "http": options `host`, `port`, `workers`, `ssl_certfile`,
        `ssl_keyfile`, `anonymous`, and all of `asgi`. "unix": options `path`, `anonymous`. "tcp": options `host`,
        `port`, `anonymous`.
        reload: for development, start the program anew whenever one of its files changes.
        """
        runners: dict[str, Callable[..., None]] = {
            "stdio": run_stdio,
            "http": run_http,
            "unix": run_unix,
            "tcp": run_tcp,
        }
        _check_options(transport, runners, options)
        _check_no_loop(transport)
        if not (reload and _reloading(transport, dict(options))):
            runners[transport](self, **options)

    async def serve(self, transport: Transport | str = "stdio", **options: Unpack[RunOptions]) -> None:
        """Serve in the running loop, until the client closes its end ("stdio"), a signal comes or this is cancelled.

        Transports and options as for `run`, but for `workers` and `reload`: the process is yours.
        """
        doors: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
            "stdio": serve_stdio,
            "http": serve_http,
            "unix": serve_unix,
            "tcp": serve_tcp,
        }
        _check_options(transport, doors, options)
        await doors[transport](self, **options)

    def asgi(
        self,
        *,
        path: str = "/mcp",
        public_url: str | None = None,
        allowed_hosts: Collection[str] = (),
        allowed_origins: Collection[str] = (),
        cors: Collection[str] = (),
        responses: Literal["auto", "json", "sse"] = "auto",
        sessions: bool = True,
        health: bool = False,
        old_sse: bool = True,
        authenticate: Any = None,
        otherwise: Any = None,
    ) -> Any:
        """The server as an ASGI application, for any ASGI server or mounted in another application.

        otherwise: the application for all other paths, for frameworks that cannot mount.
        """
        from dovetail.transports.asgi import Endpoint

        guard = None
        if self.auth is not None:
            from dovetail.login.porter import porter_for

            guard = porter_for(self.auth, path, public_url, allowed_hosts, self.needed_scopes)
        endpoint = Endpoint(
            self,
            path=path,
            public_url=public_url,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            cors=cors,
            responses=responses,
            sessions=sessions,
            health=health,
            old_sse=old_sse,
            authenticate=authenticate,
            guard=guard,
            on_start=self.start,
            on_stop=self.stop,
        )
        self._endpoints.add(endpoint)
        application: Any = endpoint
        if otherwise is not None:
            from dovetail.transports.beside import Beside

            application = Beside(endpoint, otherwise)
        if self.tap is not None:
            from dovetail.transports.tracing import Traced

            application = Traced(endpoint, application, self.tap)
        return application

    @property
    def tap(self) -> Any:
        """Who is told of every message: the trace, if one is wanted by `trace=` or by DOVETAIL_TRACE."""
        file = self.trace or os.environ.get(TRACE)
        if file and self._tap is None:
            from dovetail.transports.tracing import Trace

            self._tap = Trace(file, self.name).tap
        return self._tap

    @classmethod
    def from_openapi(
        cls,
        document: Any,
        client: Any = None,
        *,
        name: str | None = None,
        url: str | None = None,
        headers: Any = None,
        include: Any = None,
        names: Mapping[str, str] | None = None,
        output_schemas: bool = True,
        max_reply: int = 4 * 1024 * 1024,
        **options: Any,
    ) -> Self:
        """A server whose tools are the operations of a web service, by its OpenAPI 3 document (a dict, or JSON).

        client: whatever sends a `WebRequest` and returns a `WebReply`, or an httpx client; ours unless given. The
        service is at `url`, or at the client's `base_url`, or where the document says. `headers`
        go with every request: a mapping, or a function of the Context that makes one for each call. `include`: a
        pattern for "GET /path", or a function of the operation. `names` rename tools. `output_schemas=False` promises
        nothing about results, for services that do not keep to their document.
        """
        from dovetail.server.openapi import add_operations
        from dovetail.transports.sending import base_of, sender

        title = (document.get("info") or {}).get("title") if isinstance(document, Mapping) else None
        app = cls(name or title or "service", **options)
        send = sender(client, max_reply)
        add_operations(
            app,
            document,
            send,
            url=url,
            home=base_of(client),
            headers=headers or {},
            include=include,
            names=names,
            output_schemas=output_schemas,
            max_reply=max_reply,
        )
        return app

    @classmethod
    def from_asgi(cls, application: Any, document: Any = None, **options: Any) -> Self:
        """A server whose tools are the operations of an ASGI application of this process; no network is involved.

        The document is the application's own (FastAPI, Litestar) unless given; other options as for `from_openapi`.
        The application's lifespan is the server's.
        """
        from dovetail.transports.sending import described, within
        from dovetail.transports.within import lifespan

        options = {"lifespan": lambda: lifespan(application), "url": "http://localhost"} | options
        client = within(application, options.get("max_reply", 4 * 1024 * 1024))
        return cls.from_openapi(document or described(application), client=client, **options)

    def link(self, write: Callable[[bytes], None], **options: Any) -> "Duplex":
        """One connection over a transport of your own: give whole messages to `receive`, and `close` it at the end."""
        from dovetail.transports.duplex import Duplex

        return Duplex(self, write, **options)


def _is_web(transport: Any) -> bool:
    return isinstance(transport, str) and ("http" in transport or transport == "sse")


def _check_no_loop(transport: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f'a loop is running here, and run would start another: await app.serve("{transport}", ...)')


def _check_options(transport: str, runners: Mapping[str, Callable[..., Any]], options: Mapping[str, Any]) -> None:
    """Refuse what the transport has no use for, with the one that has."""
    if transport not in runners:
        hint = ': "http" serves Streamable HTTP, and the older transport beside it' if _is_web(transport) else ""
        raise ValueError(f"transport must be 'stdio', 'http', 'unix' or 'tcp', not {transport!r}{hint}")
    if transport == "unix" and "path" not in options:
        raise TypeError('unix needs a path: app.run("unix", path="/run/server.sock")')
    known = {name: _options_of(function) for name, function in runners.items()} if options else {}
    for name in options:
        if name in known[transport]:
            continue
        other = next((one for one in ("http", "tcp", "unix") if name in known[one]), None)
        close = "" if other else _closest(name, known[transport])
        hint = f': app.run("{other}", {name}=...) has it' if other else close
        raise TypeError(f"{transport} has no option `{name}`{hint}")
    port = options.get("port", 0)
    if not isinstance(port, int) or not 0 <= port < 65536:
        raise ValueError(f"port must be a number from 0 to 65535, not {port!r}")


def _options_of(function: Callable[..., Any]) -> set[str]:
    import inspect

    web = function in (run_http, serve_http)
    taken = [inspect.signature(function), *([inspect.signature(Server.asgi)] if web else ())]
    return {one.name for each in taken for one in each.parameters.values() if one.kind is one.KEYWORD_ONLY}


def _closest(name: str, known: Collection[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


def _reloading(transport: str, options: dict[str, Any]) -> bool:
    """Keep a child of this program running; False in that child, which is to serve."""
    from dovetail.transports import reloading

    if reloading.is_child():
        return False
    if transport == "stdio":
        from dovetail.transports.stdio import private_streams

        with private_streams() as (source, sink), contextlib.suppress(KeyboardInterrupt):
            asyncio.run(reloading.relay(os.dup(source), sink))
    elif transport == "http":
        from dovetail.transports.web import bound_socket

        reloading.supervise(bound_socket(options.get("host", "127.0.0.1"), options.get("port", 8000)))
    else:
        reloading.supervise()
    return True


def run_stdio(server: Server) -> None:
    """Serve this process's standard streams until the client closes them or a signal comes."""
    from dovetail.transports.stdio import private_streams
    from dovetail.transports.watchdog import Watchdog

    if sys.stdin is not None and sys.stdin.isatty():
        sys.stderr.write(
            f"{server.name} waits for a client that speaks MCP on standard input: let one start it. Ctrl-C ends it.\n"
        )
    with Watchdog() as dog, private_streams() as (source, sink):
        _run(_serve_stdio(server, dog, source, sink))


async def _serve_stdio(server: Server, dog: "Watchdog", source: int, sink: int) -> None:
    from dovetail.transports.lines import serve_connection
    from dovetail.transports.stdio import open_lines

    dog.start(source)
    await server.start()
    lines = await open_lines(server, source, sink)

    with _Signals(lambda: dog.end_within(_SIGNAL_GRACE, 0), lines.end):
        lines.done.add_done_callback(lambda _: dog.end_within(_SIGNAL_GRACE, 0))
        await serve_connection(lines, _EOF_GRACE)
        # The client is gone: from here on nothing may hold the process up, not even closing the loop.
        dog.end_within(_LEAVE_GRACE, 0)
        await server.stop()


def run_http(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    ssl_certfile: str | None = None,
    ssl_keyfile: str | None = None,
    anonymous: bool = False,
    **options: Any,
) -> None:
    """Serve over HTTP with uvicorn until a signal comes.

    On an address others can reach, callers must be authenticated; `anonymous=True` serves everyone.
    """
    if workers > 1 and options.get("sessions", True):
        raise ValueError(
            "several workers cannot share handshake sessions yet: pass sessions=False to serve handshake clients "
            "without sessions, or workers=1"
        )
    if workers > 1 and server.keeps_results:
        raise ValueError(
            "several workers cannot share what offload= keeps back: whoever follows a link may reach another worker; "
            "pass workers=1, or no offload"
        )
    if workers > 1:
        _check_shared(server, options.get("otherwise"))
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    listener, ssl, announce = _opened(server, host, port, ssl_certfile, ssl_keyfile, anonymous, options)
    if workers == 1:
        _work(server, listener, ssl, options, announce)
    else:
        _supervise(server, listener, workers, ssl, options, announce)


def _opened(
    server: Server,
    host: str,
    port: int,
    ssl_certfile: str | None,
    ssl_keyfile: str | None,
    anonymous: bool,
    options: dict[str, Any],
) -> tuple[socket.socket, dict[str, Any], Callable[[], None]]:
    """The socket to serve on, what TLS needs, and a function that says where the server is, for when it has started."""
    from dovetail.transports.web import bound_socket

    _check_reach(host, anonymous or options.get("authenticate") is not None or server.auth is not None)
    server.asgi(**options)  # a wrong option shows before anything is announced
    for file in (ssl_certfile, ssl_keyfile):
        if file is not None and not os.path.isfile(file):
            raise FileNotFoundError(f"there is no file {file!r} to read the certificate or its key from")
    listener = _inherited() or bound_socket(host, port)
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if ssl_certfile else "http"
    path = "/" + options.get("path", "/mcp").strip("/")
    place = f"{server.name} is at {scheme}://{shown}:{listener.getsockname()[1]}{path}\n"

    def announce() -> None:
        sys.stderr.write(place)
        sys.stderr.flush()

    return listener, {"ssl_certfile": ssl_certfile, "ssl_keyfile": ssl_keyfile} if ssl_certfile else {}, announce


async def serve_stdio(server: Server) -> None:
    """Serve this process's standard streams in the running loop."""
    from dovetail.transports.lines import serve_connection
    from dovetail.transports.stdio import open_lines, private_streams

    with private_streams() as (source, sink):
        try:
            await server.start()
            lines = await open_lines(server, source, sink)
            with _Signals(lambda: None, lines.end):
                await serve_connection(lines, _EOF_GRACE)
        finally:
            await server.stop()


async def serve_http(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ssl_certfile: str | None = None,
    ssl_keyfile: str | None = None,
    anonymous: bool = False,
    **options: Any,
) -> None:
    """Serve over HTTP in the running loop."""
    from dovetail.transports.web import WebServer, configure

    await server.start()  # if it cannot, uvicorn would end the process
    try:
        listener, ssl, announce = _opened(server, host, port, ssl_certfile, ssl_keyfile, anonymous, options)
        endpoint = server.asgi(**options)
        web = WebServer(configure(endpoint, server.limits, **ssl), lambda _: None, endpoint.close, on_ready=announce)
        work = asyncio.get_running_loop().create_task(web.serve([listener]))
        try:
            await asyncio.shield(work)
        finally:
            web.should_exit = True  # cancelled itself, it would leave its connections behind
            await work
            listener.close()
    finally:
        await server.stop()


async def serve_unix(server: Server, *, path: str, anonymous: bool = False) -> None:
    """Serve newline-delimited messages on a Unix socket in the running loop, without authentication."""
    await _serve_socket(server, None, anonymous, path=path)


async def serve_tcp(server: Server, *, host: str = "127.0.0.1", port: int = 0, anonymous: bool = False) -> None:
    """Serve newline-delimited messages on TCP in the running loop, without authentication."""
    await _serve_socket(server, None, anonymous, host=host, port=port)


def serving(
    server: Server, *, host: str = "127.0.0.1", port: int = 8000, anonymous: bool = False, **options: Any
) -> tuple[Any, Coroutine[Any, Any, None]]:
    """Serve over HTTP in the running loop: the web server, which ends when its `should_exit` is set, and its work."""
    from dovetail.transports.web import WebServer, bound_socket, configure

    _check_reach(host, anonymous or options.get("authenticate") is not None or server.auth is not None)
    endpoint = server.asgi(**options)
    listener = bound_socket(host, port)
    web = WebServer(configure(endpoint, server.limits), lambda _: None, endpoint.close)
    return web, web.serve([listener])


def _inherited() -> socket.socket | None:
    """The socket of the process that starts this one anew, where there is one."""
    number = os.environ.get("DOVETAIL_LISTENER")
    return socket.socket(fileno=int(number)) if number else None


def _check_reach(host: str, allowed: bool) -> None:
    from dovetail.protocol.http import LOOPBACK

    if host not in LOOPBACK and not allowed:
        raise ValueError(
            f"on {host} anyone who reaches this machine could call the server: give it auth=, or pass anonymous=True "
            "if that is meant"
        )


def _check_shared(server: Server, otherwise: Any) -> None:
    """Refuse an authorization server whose keys and clients each worker would have for itself."""
    from dovetail.auth.guard import guard_for

    guard = guard_for(server.auth) if server.auth is not None else None
    if getattr(otherwise, "alone", False) is True or (guard is not None and guard.alone):
        raise ValueError(
            "several workers cannot share an authorization server that keeps everything in memory: give it a file, "
            "AuthorizationServer(store=..., secret=...), or pass workers=1"
        )


def _work(
    server: Server, listener: Any, ssl: dict[str, Any], options: dict[str, Any], announce: Callable[[], None]
) -> None:
    from dovetail.transports.watchdog import Watchdog
    from dovetail.transports.web import WebServer, configure

    def stopping(times: int) -> None:
        dog.end_within(server.limits.hard_stop if times == 1 else _SECOND_SIGNAL, _STUCK)

    async def serve() -> None:
        dog.start()
        web = WebServer(config, stopping, endpoint.close, start=server.start, on_ready=announce)
        await web.serve([listener])
        dog.end_within(_LEAVE_GRACE, 0)

    endpoint = server.asgi(**options)
    config = configure(endpoint, server.limits, **ssl)
    with Watchdog() as dog:
        _run(serve())


def _supervise(
    server: Server,
    listener: Any,
    workers: int,
    ssl: dict[str, Any],
    options: dict[str, Any],
    announce: Callable[[], None],
) -> None:
    """Run several processes on one socket and replace those that die, until a signal comes."""
    import multiprocessing.connection  # only here: it would be a tenth of the start of a server on stdio

    context = multiprocessing.get_context("fork")
    parent_is_gone, parent_lives = os.pipe()  # the workers read it, and it ends with this process, however that dies
    is_ready, say_ready = os.pipe()
    stopping = False

    def ready() -> None:
        os.write(say_ready, b".")

    def work() -> None:
        os.close(parent_lives)  # or workers would keep each other alive
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # the parent's handler is not for a worker that starts
        _follow_parent(parent_is_gone)
        try:
            _work(server, listener, ssl, options, ready)
        except Exception as exc:
            from dovetail.server.life import print_failure

            if not print_failure(exc):
                raise
            sys.exit(_UNSTARTED)

    def start() -> Any:
        process = context.Process(target=work)
        process.start()
        return process

    def replace(process: Any) -> Any:
        if process.is_alive():
            return process
        process.join()
        successor = start()
        log.warning("worker %d %s; worker %d replaces it", process.pid, _describe_exit(process), successor.pid)
        return successor

    running = [start() for _ in range(workers)]

    def stop(*_: Any) -> None:
        nonlocal stopping
        stopping = True
        for process in running:
            if process.is_alive():
                process.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    is_announced = False
    while not stopping:
        happened = multiprocessing.connection.wait([is_ready, *(one.sentinel for one in running)], timeout=_RESPAWN)
        if is_ready in happened:
            os.read(is_ready, 4096)
            if not is_announced:
                is_announced = True
                announce()
        if any(one != is_ready for one in happened):
            time.sleep(_RESPAWN)  # one that dies at once must not be replaced without end
        if any(process.exitcode == _UNSTARTED for process in running):
            stop()  # the next one would not start either
        if not stopping:
            running[:] = [replace(process) for process in running]
    stop()  # also one that was being started when the signal came
    for process in running:
        process.join(server.limits.hard_stop + 1)
    for descriptor in (parent_is_gone, parent_lives, is_ready, say_ready):
        os.close(descriptor)
    if any(process.exitcode == _UNSTARTED for process in running):
        sys.exit(_UNSTARTED)


def _follow_parent(parent_is_gone: int) -> None:
    """Stop this worker when its parent exits, so that the port becomes free."""
    import threading

    def wait() -> None:
        os.read(parent_is_gone, 1)
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


def run_unix(server: Server, *, path: str, anonymous: bool = False) -> None:
    """Serve newline-delimited messages on a Unix socket until a signal comes; nobody is authenticated here."""
    _run_socket(server, anonymous, path=path)


def run_tcp(server: Server, *, host: str = "127.0.0.1", port: int = 0, anonymous: bool = False) -> None:
    """Serve newline-delimited messages on TCP until a signal comes.

    Nobody is authenticated here: `anonymous=True` says that an address others can reach is meant.
    """
    _run_socket(server, anonymous, host=host, port=port)


def _check_unguarded(server: Server, anonymous: bool) -> None:
    if server.auth is not None and not anonymous:
        raise ValueError(
            "auth= guards a server over HTTP alone, on a socket nobody is asked: pass anonymous=True if that is meant"
        )


def _run_socket(server: Server, anonymous: bool, **options: Any) -> None:
    from dovetail.transports.watchdog import Watchdog

    with Watchdog() as dog:
        _run(_serve_socket(server, dog, anonymous, **options))


async def _serve_socket(server: Server, dog: "Watchdog | None", anonymous: bool, **options: Any) -> None:
    from dovetail.transports.sockets import listening

    # Checked here because `run` and `serve` both pass this point.
    _check_unguarded(server, anonymous)
    if "host" in options:
        _check_reach(options["host"], anonymous)

    def ending() -> None:
        if dog is not None:
            dog.end_within(server.limits.hard_stop, _STUCK)

    stop = asyncio.Event()
    if dog is not None:
        dog.start()
    await server.start()
    try:
        async with listening(server, **options) as door:
            name = door.sockets[0].getsockname()
            where = name if isinstance(name, str) else f"{name[0]}:{name[1]}"
            with _Signals(ending, stop.set):
                sys.stderr.write(f"{server.name} is at {where}\n")
                await stop.wait()
            await server.stop()  # while those who wait for an answer are still there
    finally:
        await server.stop()
    if dog is not None:
        dog.end_within(_LEAVE_GRACE, 0)


def _run(main: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class _Signals:
    """While it lasts, SIGINT and SIGTERM call `at_once`, even if the loop is blocked, and then `told` on the loop."""

    def __init__(self, at_once: Callable[[], None], told: Callable[[], None]) -> None:
        self._at_once = at_once
        self._told = told
        self._before: dict[int, Any] = {}
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: signals are somebody else's
                self._before[number] = signal.signal(number, self._came)

    def _came(self, *_: Any) -> None:
        self._at_once()
        self._loop.call_soon_threadsafe(self._told)

    def __exit__(self, *_: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

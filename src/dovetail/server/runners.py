"""Serve a server over each transport. Both `run` and `serve` use one async function per transport.

This function, or the function that creates its listener, makes all checks of options and security, so that no entry
point can skip a check. `run` adds a watchdog, reload and workers. Each transport is imported only if it is used.
"""

import asyncio
import contextlib
import gc
import math
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Unpack

from dovetail.error_context import check_type
from dovetail.protocol.exchange import Service
from dovetail.server.exit_codes import CALLS_CUT
from dovetail.server.server_options import ASGIOptions, Transport, check_address, is_authenticator

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from dovetail.protocol.interfaces.shared_state import SharedWorker
    from dovetail.server.dispatch.lifecycle import Lifecycle
    from dovetail.server.loop_watchdog import LoopWatchdog
    from dovetail.server.workers import WorkerPipes

_EOF_GRACE_S: Final = 1.0  # After the client has closed stdin, calls may continue for this many seconds.
_EXIT_GRACE_S: Final = 0.7
_SIGNAL_GRACE_S: Final = 1.7
_SECOND_SIGNAL_GRACE_S: Final = 0.8
_TASK_EXIT_GRACE_S: Final = 6.0  # the time in which a worker stores the outcomes of the tasks that it has cancelled
# The garbage collector's default threshold (700 or 2000 objects) is too low for dozens of waiting calls.
# Reference counting frees most objects, so fewer collections are enough.
_GC_THRESHOLD: Final = 5000
_CPU_LIMIT_FILE: Final = "/sys/fs/cgroup/cpu.max"  # the CPU limit of a container: quota and period
# Maps each wildcard address to the loopback address that clients on this machine can use.
_WILDCARD_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}


class RunnableServer(Protocol):
    """The interface of a server that can be run."""

    @property
    def name(self) -> str: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def asgi(self, **options: Any) -> Any: ...


class RunnableService(Service, Protocol):
    """A `Service` that can be run."""

    @property
    def lifecycle(self) -> "Lifecycle": ...
    def use_cluster(self, cluster: "SharedWorker") -> None: ...


class Runnable(NamedTuple):
    """A server, with the objects that run it."""

    server: RunnableServer
    service: RunnableService
    auth: Any  # The server's `auth=` value.


class HTTPListener(NamedTuple):
    """A socket that serves HTTP. Create it with `open_http_listener`, which checks all options."""

    socket: "socket.socket"
    tls_files: "tuple[str | Path, str | Path | None] | None"  # the certificate and its key
    options: ASGIOptions
    announcement: str  # the text with the URL
    on_ready: Callable[[], None]  # Called when the socket is served. By default, this function prints the announcement.
    is_inherited: bool = False  # True if another process has opened the socket and keeps it.
    is_worker: bool = False  # True if another process has started this process as one of several workers.


def run(runnable: Runnable, transport: Transport, options: dict[str, Any], *, reload: bool) -> None:
    """Serve until a signal stops the process or the client disconnects."""
    _check_no_loop(transport)
    if reload and _run_reloader(transport, options):
        return
    if transport == "http":
        _run_http(runnable, **options)
    elif transport == "stdio":
        from dovetail.transports.stdio_server import isolate_streams

        if sys.stdin is not None and sys.stdin.isatty():
            sys.stderr.write(
                f"{runnable.server.name} is waiting for an MCP client on standard input. Start it from a client, "
                "or press Ctrl-C to stop.\n"
            )
        with isolate_streams() as streams:
            run_in_process(partial(serve_stdio, runnable, streams))
    else:
        run_in_process(partial(_SERVE_SOCKET[transport], runnable, **options))


async def serve(runnable: Runnable, transport: Transport, options: dict[str, Any]) -> None:
    """Serve in the running event loop."""
    if transport == "http":
        await serve_http(runnable, open_http_listener(runnable, **options))
    elif transport == "stdio":
        from dovetail.transports.stdio_server import isolate_streams

        with isolate_streams() as streams:
            await serve_stdio(runnable, streams)
    else:
        await _SERVE_SOCKET[transport](runnable, **options)


# Each function below serves one transport. If the server takes too long to stop, a watchdog ends the process.


async def serve_stdio(runnable: Runnable, streams: tuple[int, int], watchdog: "LoopWatchdog | None" = None) -> None:
    """Serve on stdin and stdout until the client closes them or a signal arrives."""
    from dovetail.transports.line_protocol import LineProtocol, serve_connection
    from dovetail.transports.stdio_server import attach_streams

    def on_stop(*_: object) -> None:
        _exit_within(watchdog, _SIGNAL_GRACE_S, 0)

    source, sink = streams
    if watchdog is not None:
        watchdog.start(source)
    try:
        await runnable.server.start()
        lines = LineProtocol(runnable.service)
        # The client may stop the process after the first response, so signals are handled before the first message.
        with _SignalHandlers(on_stop, lines.end):
            lines.done.add_done_callback(on_stop)
            await attach_streams(lines, source, sink)
            await serve_connection(lines, _EOF_GRACE_S)
            # The client has disconnected. The process must exit soon, even if the event loop takes longer to close.
            _exit_within(watchdog, _EXIT_GRACE_S, 0)
            await runnable.server.stop()
    finally:
        await runnable.server.stop()


async def serve_http(runnable: Runnable, listener: HTTPListener, watchdog: "LoopWatchdog | None" = None) -> int:
    """Serve over HTTP until a signal arrives. Return the exit code of the process."""
    from dovetail.transports.http1.http_listener import HTTPServer

    server = runnable.server
    if watchdog is not None:
        watchdog.start()
    try:
        app = server.asgi(**listener.options)
        tls_context = None
        if listener.tls_files is not None:
            from dovetail.transports.http1.tls_context import create_tls_context  # Few servers use TLS.

            tls_context = create_tls_context(*listener.tls_files)
        http_server = HTTPServer(app, runnable.service.limits, tls_context, shares_socket=listener.is_worker)
        stop = _StopSignals(runnable.service, watchdog, http_server.force_stop, is_worker=listener.is_worker)
        with stop:
            await server.start()
            await http_server.start(listener.socket)
            # Other workers can serve the next request of each client.
            release = None if runnable.service.cluster is None else _Release(app, runnable.service, listener)
            try:
                listener.on_ready()
                await stop.wait()
            finally:
                await http_server.stop(app.close, release)
        _exit_within(watchdog, _EXIT_GRACE_S, stop.exit_code)
    finally:
        listener.socket.close()
        await server.stop()
    return stop.exit_code


class _Release:
    """Lets clients continue at other workers when this worker stops."""

    def __init__(self, app: Any, service: RunnableService, listener: HTTPListener) -> None:
        self._app = app
        self._service = service
        self._listener = listener

    def begin(self) -> None:
        """Report that this worker is not ready. If no other process has the socket, refuse new connections, too."""
        self._app.begin_drain()
        if not self._listener.is_worker and not self._listener.is_inherited:
            from dovetail.transports.http1.accept_filter import stop_opening_connections

            stop_opening_connections(self._listener.socket)

    async def end_streams(self) -> None:
        """End the streams that only wait for changes. The clients then open them again at other workers."""
        self._service.lifecycle.end_subscriptions()
        await self._app.end_streams()


async def serve_unix(
    runnable: Runnable, *, path: "str | Path", allow_anonymous: bool = False, watchdog: "LoopWatchdog | None" = None
) -> int:
    """Serve newline-delimited messages on a Unix socket, without authentication, until a signal arrives.

    Return the exit code of the process.
    """
    _check_unauthenticated(runnable, allow_anonymous)
    return await _serve_socket(runnable, watchdog, path=str(path))


async def serve_tcp(
    runnable: Runnable,
    *,
    host: str = "127.0.0.1",
    port: int,
    allow_anonymous: bool = False,
    watchdog: "LoopWatchdog | None" = None,
) -> int:
    """Serve newline-delimited messages on TCP, without authentication, until a signal arrives.

    Return the exit code of the process.
    """
    _check_unauthenticated(runnable, allow_anonymous)
    check_exposure(host, allow_anonymous)
    return await _serve_socket(runnable, watchdog, host=host, port=port)


_SERVE_SOCKET: Final[Mapping[str, Callable[..., Coroutine[Any, Any, int]]]] = {"unix": serve_unix, "tcp": serve_tcp}


async def _serve_socket(runnable: Runnable, watchdog: "LoopWatchdog | None", **address: Any) -> int:
    from dovetail.transports.socket_server import serve_socket

    server, stop = runnable.server, _StopSignals(runnable.service, watchdog)
    if watchdog is not None:
        watchdog.start()
    await server.start()
    try:
        async with serve_socket(runnable.service, **address) as listener:
            socket_name = listener.sockets[0].getsockname()
            display_name = socket_name if isinstance(socket_name, str) else f"{socket_name[0]}:{socket_name[1]}"
            with stop:
                sys.stderr.write(f"{server.name} is at {display_name}\n")
                await stop.wait()
                # The server stops before the connections close. Waiting clients can then receive their responses.
                await server.stop()
    finally:
        await server.stop()
    _exit_within(watchdog, _EXIT_GRACE_S, stop.exit_code)
    return stop.exit_code


async def serve_tasks(
    runnable: Runnable, *, drain_timeout: float, announce: Callable[[], None], watchdog: "LoopWatchdog | None" = None
) -> None:
    """Run the tasks of a server without a transport until a signal arrives. Then wait for running tasks.

    Args:
        announce: Called when the process is ready to run tasks.
        drain_timeout: Seconds to wait for running tasks.
    """
    server, stop = runnable.server, asyncio.Event()

    def on_signal(_: int) -> None:
        grace_s = _SECOND_SIGNAL_GRACE_S if stop.is_set() else drain_timeout + _TASK_EXIT_GRACE_S
        _exit_within(watchdog, grace_s, CALLS_CUT)

    if watchdog is not None:
        watchdog.start()
    try:
        with _SignalHandlers(on_signal, stop.set):
            await server.start()
            announce()
            await stop.wait()
            await server.stop()
    finally:
        await server.stop()
    _exit_within(watchdog, _EXIT_GRACE_S, 0)


def open_http_listener(
    runnable: Runnable,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ssl_certfile: "str | Path | None" = None,
    ssl_keyfile: "str | Path | None" = None,
    allow_anonymous: bool = False,
    **options: Unpack[ASGIOptions],
) -> HTTPListener:
    """Check the HTTP options and open the socket.

    If other machines can reach the address, callers must authenticate unless `allow_anonymous` is True.
    """
    from dovetail.transports.http1.forwarded_addresses import read_trusted_proxies
    from dovetail.transports.http1.http_listener import bind_socket

    check_exposure(host, allow_anonymous or runnable.auth is not None)
    # If the server ignored an invalid value, all clients would share the limits of the proxy's address.
    read_trusted_proxies()
    # This call checks the options before the URL is printed.
    runnable.server.asgi(**options)
    if ssl_keyfile is not None and ssl_certfile is None:
        raise ValueError("ssl_keyfile requires ssl_certfile. Without a certificate, the server would not use TLS")
    if ssl_certfile is not None:
        _check_tls_files(ssl_certfile, ssl_keyfile)
    inherited = _get_inherited_socket()
    listener = inherited or bind_socket(host, port)
    scheme = "https" if ssl_certfile else "http"
    location = _describe_location(scheme, host, listener.getsockname()[1], options)

    announcement = f"{runnable.server.name} is at {location}\n"
    tls_files = (ssl_certfile, ssl_keyfile) if ssl_certfile else None
    on_ready = partial(_print_announcement, announcement)
    return HTTPListener(listener, tls_files, options, announcement, on_ready, is_inherited=inherited is not None)


def _check_tls_files(certfile: "str | Path", keyfile: "str | Path | None") -> None:
    from dovetail.transports.http1.tls_context import create_tls_context, warn_if_expired

    for tls_file in (certfile, keyfile):
        if tls_file is not None and not os.path.isfile(tls_file):
            raise FileNotFoundError(f"TLS file not found: {str(tls_file)!r}")
    create_tls_context(certfile, keyfile)
    warn_if_expired(certfile)


def _print_announcement(announcement: str) -> None:
    sys.stderr.write(announcement)
    sys.stderr.flush()


def _describe_location(scheme: str, host: str, port: int, options: ASGIOptions) -> str:
    path = "/" + options.get("path", "/mcp").strip("/")
    address = f"{f'[{host}]' if ':' in host else host}:{port}"
    if public_url := options.get("public_url"):
        return f"{public_url} and listens on {scheme}://{address}{path}"
    if host not in _WILDCARD_HOSTS:
        return f"{scheme}://{address}{path}"
    hint = "" if options.get("allowed_hosts") else ". Set the public URL if clients use a host name"
    return f"{scheme}://{_WILDCARD_HOSTS[host]}:{port}{path} and listens on {address}{hint}"


def _run_http(runnable: Runnable, *, workers: int | Literal["auto"] = 1, **options: Any) -> None:
    from dovetail.server.workers import WorkerPipes, fork_workers, take_pipes

    worker_count = _check_workers(runnable, workers, options)
    pipes = take_pipes()
    if pipes is not None:
        pipes.exit_with_parent()
        _run_worker(runnable, open_http_listener(runnable, **options), pipes)
        return
    if worker_count == 1:
        run_in_process(partial(serve_http, runnable, open_http_listener(runnable, **options)))
        return
    with _join_workers(runnable.service):
        listener = open_http_listener(runnable, **options)

        def run_worker(pipes: WorkerPipes) -> None:
            _run_worker(runnable, listener, pipes)

        fork_workers(run_worker, worker_count, partial(_close_listener, listener.socket, listener.is_inherited))


def _run_worker(runnable: Runnable, listener: HTTPListener, pipes: "WorkerPipes") -> None:
    """Serve in one of several worker processes. The parent prints the announcement."""
    notify_ready = partial(pipes.notify_ready, runnable.service.limits.shutdown_timeout, listener.announcement)
    run_in_process(partial(serve_http, runnable, listener._replace(on_ready=notify_ready, is_worker=True)))


@contextlib.contextmanager
def _join_workers(service: RunnableService) -> Generator[None]:
    """Let the workers of this process share their state in a private folder, unless the server has a cluster."""
    from dovetail.server.attachments import find_default_cluster, open_workers_cluster

    if service.cluster is not None or find_default_cluster() is not None:
        yield
        return
    with open_workers_cluster() as worker:
        service.use_cluster(worker)
        yield


def run_workers(command: list[str], host: str, port: int, workers: int | Literal["auto"]) -> None:
    """Serve over HTTP with several processes that run the same command, until a signal arrives.

    The command must call `run`. It does not need to know that there are several processes.
    """
    from dovetail.server.attachments import open_workers_environment
    from dovetail.server.workers import spawn_workers
    from dovetail.transports.http1.http_listener import bind_socket

    worker_count = count_workers(workers)
    check_address(host, port)
    inherited = _get_inherited_socket()
    listener = inherited or bind_socket(host, port)
    close_listener = partial(_close_listener, listener, inherited is not None)
    with open_workers_environment() as environment:
        spawn_workers(command, environment, listener, worker_count, close_listener)


def _close_listener(listener: "socket.socket", is_inherited: bool) -> None:
    """Close the socket in this process. The workers accept the last connections."""
    from dovetail.transports.http1.accept_filter import stop_opening_connections

    if not is_inherited:
        stop_opening_connections(listener)
    listener.close()


def count_workers(workers: int | Literal["auto"]) -> int:
    """Return the number of worker processes. "auto" means one process for each core that this process may use."""
    if workers == "auto":
        workers = _count_cores()
    check_type("workers=", workers, int, "'auto' or an integer")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if workers > 1 and sys.platform == "win32":
        raise ValueError("several workers are not supported on Windows. Start one process for each port instead")
    return workers


def _count_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        with open(_CPU_LIMIT_FILE, encoding="ascii") as file:
            quota, period = file.read().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # There is no limit.
        return cores


def _check_workers(runnable: Runnable, workers: int | Literal["auto"], options: Mapping[str, Any]) -> int:
    """Return the number of worker processes. If the server must run in one process, raise ValueError."""
    from dovetail.server.workers import is_spawned_worker

    worker_count = count_workers(workers)
    if worker_count == 1 and not is_spawned_worker():
        return 1
    _check_shared_storage(runnable.auth, options.get("fallback"))
    return worker_count


def _get_inherited_socket() -> "socket.socket | None":
    from dovetail.server.workers import LISTENER_VARIABLE

    file_descriptor = os.environ.pop(LISTENER_VARIABLE, None)
    if not file_descriptor:
        return None
    import socket

    return socket.socket(fileno=int(file_descriptor))


def _check_no_loop(transport: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f'run() cannot be called from a running event loop. Use `await app.serve("{transport}", ...)` instead'
    )


class ExposedAddress(ValueError):
    """Other machines could call a server that does not authenticate callers."""


def check_exposure(host: str, is_allowed: bool) -> None:
    """Raise ExposedAddress if other machines can reach the address and `is_allowed` is False."""
    from dovetail.protocol.http_checks import is_on_this_machine

    if not is_allowed and not is_on_this_machine(host):
        raise ExposedAddress(
            f"any machine that can reach {host} could call this server. Set auth= on the server, or pass "
            "allow_anonymous=True"
        )


def _check_unauthenticated(runnable: Runnable, allow_anonymous: bool) -> None:
    if runnable.auth is not None and not allow_anonymous:
        raise ValueError(
            "auth= only protects HTTP. Sockets are not authenticated. Pass allow_anonymous=True to serve without "
            "authentication"
        )


def _check_shared_storage(auth: Any, fallback: Any) -> None:
    from dovetail.auth.authorization_server_app import is_local_authorization_server
    from dovetail.oauth.guard.guard import get_credential_checker

    checker = None if auth is None or is_authenticator(auth) else get_credential_checker(auth)
    if is_local_authorization_server(fallback) or (checker is not None and checker.is_local):
        raise ValueError(
            "several workers cannot share an authorization server in memory. Use a file with "
            "AuthorizationServer(store=..., secret_key=...), or pass workers=1"
        )


def run_in_process(serve: "Callable[..., Coroutine[Any, Any, int | None]]") -> None:
    """Run an async `serve` function in a new event loop with a watchdog. If it returns an exit code, exit with it."""
    from dovetail.server.loop_watchdog import LoopWatchdog

    with LoopWatchdog() as watchdog, _collect_garbage_less_often():
        coroutine = serve(watchdog=watchdog)
        try:
            import uvloop
        except ImportError:
            exit_code = asyncio.run(coroutine)
        else:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                exit_code = runner.run(coroutine)
    if exit_code:
        sys.exit(exit_code)


@contextlib.contextmanager
def _collect_garbage_less_often() -> Generator[None]:
    """Raise the first threshold of the garbage collector, so that it runs less often.

    A higher threshold is kept. 0 is also kept, because it turns collection off.
    """
    previous = gc.get_threshold()
    if 0 < previous[0] < _GC_THRESHOLD:
        gc.set_threshold(_GC_THRESHOLD, *previous[1:])
    try:
        yield
    finally:
        gc.set_threshold(*previous)


def _run_reloader(transport: Transport, options: Mapping[str, Any]) -> bool:
    """Start the reloader, which runs this program as a child process. Return False in the child."""
    from dovetail.server import reloader

    if reloader.is_child():
        return False
    if transport == "stdio":
        from dovetail.transports.stdio_server import isolate_streams

        with isolate_streams() as (source, sink), contextlib.suppress(KeyboardInterrupt):
            asyncio.run(reloader.relay_stdio(os.dup(source), sink))
    elif transport == "http":
        from dovetail.transports.http1.http_listener import bind_socket

        reloader.supervise(bind_socket(options.get("host", "127.0.0.1"), options.get("port", 8000)))
    else:
        reloader.supervise()
    return True


def _exit_within(watchdog: "LoopWatchdog | None", seconds: float, exit_code: int) -> None:
    if watchdog is not None:
        watchdog.exit_within(seconds, exit_code)


class _StopSignals:
    """Waits for SIGINT or SIGTERM while the context is open. A second signal ends the running calls.

    Args:
        force_stop: A function that is called in the event loop after a second signal.
        is_worker: True if a parent process sends the signals.
    """

    def __init__(
        self,
        service: RunnableService,
        watchdog: "LoopWatchdog | None",
        force_stop: Callable[[], None] | None = None,
        *,
        is_worker: bool = False,
    ) -> None:
        self.exit_code = 0
        self._service = service
        self._watchdog = watchdog
        self._force_stop = force_stop
        self._is_worker = is_worker
        self._count = 0
        self._received = asyncio.Event()
        self._handlers = _SignalHandlers(self._handle_signal, self._handle_on_loop)

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._received.wait()

    def _handle_signal(self, signum: int) -> None:
        # A service manager may send SIGTERM to all processes, and the parent of a worker sends it, too.
        if self._is_worker and self._count and signum == signal.SIGTERM:
            return
        self._count += 1
        grace_s = self._service.limits.shutdown_timeout if self._count == 1 else _SECOND_SIGNAL_GRACE_S
        _exit_within(self._watchdog, grace_s, CALLS_CUT)

    def _handle_on_loop(self) -> None:
        self._received.set()
        if self._count > 1:
            if self._force_stop is not None:
                self._force_stop()
            if self._service.lifecycle.end_calls():
                self.exit_code = CALLS_CUT

    def __enter__(self) -> None:
        self._handlers.__enter__()
        self._service.lifecycle.stops_on_second_signal = self._handlers.are_installed

    def __exit__(self, *_: Any) -> None:
        self._service.lifecycle.stops_on_second_signal = False
        self._handlers.__exit__()


class _SignalHandlers:
    """Handles SIGINT and SIGTERM while the context is open.

    Args:
        on_signal: Called immediately with the number of the signal, even if the event loop is blocked.
        on_loop: Called afterwards in the event loop.
    """

    def __init__(self, on_signal: Callable[[int], None], on_loop: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._on_loop = on_loop
        self._previous_handlers: dict[int, Any] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def are_installed(self) -> bool:
        """Whether signals are handled. This is only possible in the main thread."""
        return bool(self._previous_handlers)

    def __enter__(self) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # Only the main thread can handle signals.
                self._previous_handlers[signum] = signal.signal(signum, self._handle_signal)

    def _handle_signal(self, signum: int, _: Any) -> None:
        self._on_signal(signum)
        self._loop.call_soon_threadsafe(self._on_loop)

    def __exit__(self, *_: Any) -> None:
        for signum, previous in self._previous_handlers.items():
            signal.signal(signum, previous)

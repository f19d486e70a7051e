"""Worker processes: several processes serve one socket, and the parent replaces workers that exit."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from dovetail.log import log

_RESPAWN_DELAY_S: Final = 0.5
_STARTUP_FAILED_EXIT_CODE: Final = 3  # uvicorn exits with this code if the startup fails.


def supervise(
    run_worker: Callable[[Callable[[], None]], None],
    worker_count: int,
    *,
    announce: Callable[[], None],
    shutdown_timeout: float,
) -> None:
    """Run worker processes until a signal arrives, and replace workers that exit.

    Args:
        run_worker: Serves in a worker process. It takes a function that it must call when the worker is ready.
        announce: Called when the first worker is ready.
    """
    # Without this local import, stdio servers would start 10 % slower.
    import multiprocessing.connection

    context = multiprocessing.get_context("fork")
    # Workers read from this pipe. The system closes the pipe when this process exits.
    parent_exit_fd, parent_alive_fd = os.pipe()
    ready_read_fd, ready_write_fd = os.pipe()
    stopping = False

    def notify_ready() -> None:
        os.write(ready_write_fd, b".")

    def run_child() -> None:
        # The worker closes this end of the pipe. Otherwise it would not notice when the parent exits.
        os.close(parent_alive_fd)
        for signum in (signal.SIGINT, signal.SIGTERM):
            # A starting worker must not use the signal handlers of the parent.
            signal.signal(signum, signal.SIG_DFL)
        _exit_with_parent(parent_exit_fd)
        try:
            run_worker(notify_ready)
        except Exception as exc:
            from dovetail.server.lifespan import print_failure

            if not print_failure(exc):
                raise
            sys.exit(_STARTUP_FAILED_EXIT_CODE)

    def start() -> Any:
        process = context.Process(target=run_child)
        process.start()
        return process

    def replace(process: Any) -> Any:
        if process.is_alive():
            return process
        process.join()
        successor = start()
        log.warning("worker %d %s. Worker %d replaces it", process.pid, _describe_exit(process), successor.pid)
        return successor

    processes = [start() for _ in range(worker_count)]

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
            # If workers exit immediately, this delay prevents a fast loop.
            time.sleep(_RESPAWN_DELAY_S)
        if any(process.exitcode == _STARTUP_FAILED_EXIT_CODE for process in processes):
            # The startup failed, so new workers would also fail.
            stop()
        if not stopping:
            processes[:] = [replace(process) for process in processes]
    # Call `stop` again for workers that were starting during the first call.
    stop()
    for process in processes:
        process.join(shutdown_timeout + 1)
    for descriptor in (parent_exit_fd, parent_alive_fd, ready_read_fd, ready_write_fd):
        os.close(descriptor)
    if any(process.exitcode == _STARTUP_FAILED_EXIT_CODE for process in processes):
        sys.exit(_STARTUP_FAILED_EXIT_CODE)


def _exit_with_parent(parent_exit_fd: int) -> None:
    import threading

    def wait() -> None:
        os.read(parent_exit_fd, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="dovetail-parent", daemon=True).start()


def _describe_exit(process: Any) -> str:
    code: int = process.exitcode
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

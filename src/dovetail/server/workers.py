"""Worker processes: several processes that serve one socket, and the parent that replaces those that die."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger("dovetail")

_RESPAWN_DELAY_S: Final = 0.5
_STARTUP_FAILED_EXIT_CODE: Final = 3  # the exit code of uvicorn for it


def supervise(
    run_worker: Callable[[Callable[[], None]], None],
    worker_count: int,
    *,
    announce: Callable[[], None],
    shutdown_timeout: float,
) -> None:
    """Run worker processes and replace those that die, until a signal comes.

    run_worker: serves in a worker process. It takes a function to call once the worker is ready.
    announce: is called when the first worker is ready.
    """
    import multiprocessing.connection  # only here: it would be a tenth of the start of a server on stdio

    context = multiprocessing.get_context("fork")
    parent_exit_fd, parent_alive_fd = os.pipe()  # the workers read it, and it ends with this process, however that dies
    ready_read_fd, ready_write_fd = os.pipe()
    stopping = False

    def notify_ready() -> None:
        os.write(ready_write_fd, b".")

    def run_child() -> None:
        os.close(parent_alive_fd)  # or workers would keep each other alive
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)  # the parent's handler is not for a worker that starts
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
        log.warning("worker %d %s; worker %d replaces it", process.pid, _describe_exit(process), successor.pid)
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
            time.sleep(_RESPAWN_DELAY_S)  # one that dies at once must not be replaced without end
        if any(process.exitcode == _STARTUP_FAILED_EXIT_CODE for process in processes):
            stop()  # the next one would not start either
        if not stopping:
            processes[:] = [replace(process) for process in processes]
    stop()  # also one that was being started when the signal came
    for process in processes:
        process.join(shutdown_timeout + 1)
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

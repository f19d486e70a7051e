"""Worker processes: several processes serve one socket, and the parent replaces workers that exit.

A server object inside a program is served by forked workers. A file or a module is served by spawned workers: each of
them runs the command of the parent again, with a listening socket and two pipes that it inherits.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from dovetail.log import log
from dovetail.server.exit_codes import CALLS_CUT, STARTUP_FAILED

_PIPES_VARIABLE: Final = "_DOVETAIL_WORKER"
LISTENER_VARIABLE: Final = "_DOVETAIL_LISTENER"  # the file descriptor of a listening socket that a process inherits
_SIGNALS: Final = {signal.SIGINT, signal.SIGTERM} | ({signal.SIGHUP} if sys.platform != "win32" else set())
_POLL_INTERVAL_S: Final = 0.5
_MIN_UPTIME_S: Final = 1.0  # A worker that exits sooner is replaced after a delay.
_MIN_DELAY_S: Final = 0.5
_MAX_DELAY_S: Final = 10.0
_EXIT_DELAY_S: Final = 0.2  # the time between the end of the pipe and the end of the process


class WorkerPipes(NamedTuple):
    """The pipes of a worker. The worker writes to `ready` when it can serve. `parent` closes when the parent exits."""

    ready: int
    parent: int

    def notify_ready(self, shutdown_timeout: float, announcement: str) -> None:
        """Report to the parent that this worker is ready, how long it may take to stop, and what to print."""
        os.write(self.ready, f"{shutdown_timeout} {announcement}".encode())

    def exit_with_parent(self) -> None:
        """Stop this process when its parent has exited."""

        def wait() -> None:
            os.read(self.parent, 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="dovetail-parent", daemon=True).start()


class WorkerProcess(Protocol):
    """A running process with the interface of `multiprocessing.Process`."""

    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def kill(self) -> None: ...


StartProcess = Callable[[WorkerPipes], WorkerProcess]


class _Worker:
    """A worker process, as its parent sees it."""

    def __init__(self, start_process: StartProcess, parent_pipe: int) -> None:
        self.pipe, ready = os.pipe()
        self.is_ready = False
        self.ready_at = self.started_at = time.monotonic()
        self.shutdown_timeout = 0.0  # A worker that is not ready has no calls to finish.
        self.announcement = ""
        # This worker replaces its predecessor, which stops when this worker is ready.
        self.predecessor: _Worker | None = None
        try:
            self.process = start_process(WorkerPipes(ready, parent_pipe))
        finally:
            os.close(ready)

    def read_pipe(self) -> bool:
        """Read a message of the worker. Return False if the worker has exited."""
        data = os.read(self.pipe, 4096)
        if data and not self.is_ready:
            self.is_ready, self.ready_at = True, time.monotonic()
            shutdown_timeout, _, self.announcement = data.decode().partition(" ")
            self.shutdown_timeout = float(shutdown_timeout)
        return bool(data)

    @property
    def uptime(self) -> float:
        return time.monotonic() - self.ready_at if self.is_ready else 0.0

    def describe_exit(self) -> str:
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"exited with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


class Supervisor:
    """Starts workers, replaces workers that exit, and stops all of them when a signal arrives.

    The first worker starts alone. So a server that cannot start reports its problem once.

    Args:
        start_process: Starts a process that serves.
        worker_count: The number of workers.
        close_listener: Closes the socket of the parent, so that new connections are refused while workers stop.
    """

    def __init__(self, start_process: StartProcess, worker_count: int, close_listener: Callable[[], None]) -> None:
        self._start_process = start_process
        self._worker_count = worker_count
        self._close_listener = close_listener
        self._workers: list[_Worker] = []
        self._stopping_workers: list[_Worker] = []
        self._exited: list[_Worker] = []  # Workers that have exited and are not replaced yet.
        self._to_restart: list[_Worker] = []
        self._restarted_count = 0
        self._selector = selectors.DefaultSelector()
        # Workers read from this pipe. The system closes the pipe when this process exits.
        self._parent_pipe, self._own_end = os.pipe()
        self._was_ready = False
        self._signal_count = 0
        self._delay = 0.0
        self._start_at = 0.0
        self._exit_code = 0

    @property
    def own_end(self) -> int:
        """The end of the pipe that a forked worker must close, so that the worker notices the exit of its parent."""
        return self._own_end

    def run(self) -> None:
        """Supervise the workers until a signal arrives. If the server cannot start, exit with its code."""
        wakeup_read, wakeup_write = os.pipe()
        os.set_blocking(wakeup_read, False)
        os.set_blocking(wakeup_write, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        self._selector.register(wakeup_read, selectors.EVENT_READ)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._handle_stop)
        # A terminal that closes sends SIGHUP, and then the server must stop. Service managers have no terminal.
        if not sys.stderr.isatty():
            signal.signal(signal.SIGHUP, self._handle_restart)
        try:
            self._workers.append(self._start())
            while self._signal_count == 0 and not self._exit_code:
                self._poll()
                self._start_missing()
            self._stop()
        finally:
            signal.set_wakeup_fd(-1)
            self._selector.close()
            for descriptor in (self._parent_pipe, self._own_end, wakeup_read, wakeup_write):
                os.close(descriptor)
        if self._exit_code:
            sys.exit(self._exit_code)

    def _handle_stop(self, *_: Any) -> None:
        self._signal_count += 1
        if self._signal_count > 1:  # The first signal lets workers finish their calls. The second signal ends them.
            self._send(signal.SIGINT)

    def _handle_restart(self, *_: Any) -> None:
        self._to_restart, self._restarted_count = list(self._workers), 0

    def _start(self) -> _Worker:
        worker = _Worker(self._start_process, self._parent_pipe)
        self._selector.register(worker.pipe, selectors.EVENT_READ, worker)
        return worker

    def _poll(self) -> None:
        for key, _ in self._selector.select(_POLL_INTERVAL_S):
            if key.data is None:
                os.read(key.fd, 4096)
            elif key.data.read_pipe():
                self._handle_ready(key.data)
            else:
                # The worker is about to exit, or has closed all its descriptors. Its exit code shows which.
                self._selector.unregister(key.fd)
                key.data.process.join(_EXIT_DELAY_S)
        # A process that the worker started may keep the pipe open.
        for worker in (*self._workers, *self._stopping_workers):
            if worker.process.exitcode is not None:
                self._handle_exit(worker)

    def _handle_ready(self, worker: _Worker) -> None:
        self._delay = 0.0
        if not self._was_ready:
            self._was_ready = True
            self._start_missing()
            sys.stderr.write(worker.announcement)
            sys.stderr.flush()
        if worker.predecessor is not None:
            self._retire(worker.predecessor)
            worker.predecessor = None
            self._report_restart()

    def _report_restart(self) -> None:
        """Count a worker that a restart has replaced. After the last one, report the end of the restart on stderr."""
        self._restarted_count += 1
        if not any(worker in self._workers for worker in self._to_restart):
            sys.stderr.write(f"restarted {self._restarted_count} workers\n")
            sys.stderr.flush()

    def _handle_exit(self, worker: _Worker) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(worker.pipe)
        os.close(worker.pipe)
        if worker in self._stopping_workers:
            self._stopping_workers.remove(worker)
            return
        self._workers.remove(worker)
        if not self._was_ready:
            # The server cannot start, so other workers would also fail. The worker has printed the reason.
            self._exit_code = max(worker.process.exitcode or 0, 0) or STARTUP_FAILED
            return
        if worker.uptime < _MIN_UPTIME_S:
            # If workers exit immediately, a growing delay prevents a fast loop.
            self._delay = min(max(2 * self._delay, _MIN_DELAY_S), _MAX_DELAY_S)
            self._start_at = time.monotonic() + self._delay
        if worker.predecessor is None:
            self._exited.append(worker)
            return
        self._to_restart.clear()
        log.error(
            "the restart was abandoned, because worker %s %s before it was ready",
            worker.process.pid,
            worker.describe_exit(),
        )

    def _start_missing(self) -> None:
        """Start workers that are missing, and the next worker of a restart."""
        if not self._was_ready or self._exit_code or time.monotonic() < self._start_at:
            return
        replacing = [worker for worker in self._workers if worker.predecessor is not None]
        while len(self._workers) - len(replacing) < self._worker_count:
            worker = self._start()
            self._workers.append(worker)
            if self._exited:
                exited = self._exited.pop(0)
                log.warning(
                    "worker %s %s. Worker %s replaces it",
                    exited.process.pid,
                    exited.describe_exit(),
                    worker.process.pid,
                )
        while self._to_restart and not replacing:
            predecessor = self._to_restart.pop(0)
            if predecessor in self._workers:
                successor = self._start()
                successor.predecessor = predecessor
                self._workers.append(successor)
                replacing.append(successor)

    def _retire(self, worker: _Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            self._stopping_workers.append(worker)
            if worker.process.pid is not None:
                os.kill(worker.process.pid, signal.SIGTERM)

    def _stop(self) -> None:
        self._close_listener()
        self._send(signal.SIGTERM)
        workers = (*self._workers, *self._stopping_workers)
        # All workers stop at the same time. A worker that has not started yet gets the same time as the others.
        deadline = time.monotonic() + max((worker.shutdown_timeout for worker in workers), default=0.0) + 1
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
                self._exit_code = CALLS_CUT
            elif worker.process.exitcode == CALLS_CUT:
                self._exit_code = CALLS_CUT
            os.close(worker.pipe)

    def _send(self, signum: int) -> None:
        for worker in (*self._workers, *self._stopping_workers):
            if worker.process.exitcode is None and worker.process.pid is not None:
                os.kill(worker.process.pid, signum)


def fork_workers(
    run_worker: Callable[[WorkerPipes], None], worker_count: int, close_listener: Callable[[], None]
) -> None:
    """Serve with forked processes until a signal arrives. Each process calls `run_worker`.

    Raises:
        RuntimeError: this process has other threads. Their locks would stay locked in a forked process.
    """
    _check_threads(worker_count)
    import multiprocessing

    context = multiprocessing.get_context("fork")

    def run_child(pipes: WorkerPipes) -> None:
        os.close(supervisor.own_end)
        signal.set_wakeup_fd(-1)
        for signum in _SIGNALS:
            # The worker inherits the signal handlers of the parent, but must not use them.
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.setpgid(0, 0)  # Only the parent gets the signals of the terminal.
        pipes.exit_with_parent()
        try:
            run_worker(pipes)
        except Exception as exc:
            from dovetail.server.dispatch.lifespan import print_failure

            if not print_failure(exc):
                raise
            sys.exit(STARTUP_FAILED)

    def start_process(pipes: WorkerPipes) -> WorkerProcess:
        process = context.Process(target=run_child, args=(pipes,))
        # A signal to the new process waits until the process has removed the signal handlers of the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return process

    supervisor = Supervisor(start_process, worker_count, close_listener)
    supervisor.run()


def _check_threads(worker_count: int) -> None:
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    tasks = "/proc/self/task"  # Libraries such as numpy start threads that Python does not know.
    count = len(os.listdir(tasks)) - 1 if os.path.isdir(tasks) else len(others)
    if count:
        names = f" ({', '.join(others)})" if others else ""
        raise RuntimeError(
            f"workers={worker_count} cannot fork this process, because it has {count} other threads{names}. Start the "
            f"threads in the lifespan of the server, or serve the file with `dovetail run server.py --http --workers "
            f"{worker_count}`, which starts new processes"
        )


class _SpawnedProcess:
    """A process that was started with `subprocess`, with the interface of `multiprocessing.Process`."""

    def __init__(self, command: list[str], environment: Mapping[str, str], descriptors: tuple[int, ...]) -> None:
        # The process group keeps signals of the terminal away. Only the parent gets them.
        self._process = subprocess.Popen(command, env=environment, pass_fds=descriptors, process_group=0)
        self.pid = self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def join(self, timeout: float | None = None) -> None:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        self._process.kill()


def spawn_workers(
    command: list[str],
    environment: Mapping[str, str],
    listener: Any,
    worker_count: int,
    close_listener: Callable[[], None],
) -> None:
    """Serve with new processes until a signal arrives. Each process runs `command` and serves the socket `listener`."""

    def start_process(pipes: WorkerPipes) -> WorkerProcess:
        worker_environment = {
            **environment,
            LISTENER_VARIABLE: str(listener.fileno()),
            _PIPES_VARIABLE: f"{pipes.ready},{pipes.parent}",
        }
        return _SpawnedProcess(command, worker_environment, (listener.fileno(), pipes.ready, pipes.parent))

    Supervisor(start_process, worker_count, close_listener).run()


def is_spawned_worker() -> bool:
    """Return whether `spawn_workers` started this process."""
    return _PIPES_VARIABLE in os.environ


def take_pipes() -> WorkerPipes | None:
    """Return the pipes of a spawned worker, or None. Processes that the worker starts do not get the pipes."""
    described = os.environ.pop(_PIPES_VARIABLE, None)
    if described is None:
        return None
    ready, parent = (int(part) for part in described.split(","))
    for descriptor in (ready, parent):
        os.set_inheritable(descriptor, False)
    return WorkerPipes(ready, parent)

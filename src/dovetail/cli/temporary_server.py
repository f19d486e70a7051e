"""Serve a target over HTTP for a command that needs a URL."""

import contextlib
import queue
import re
import subprocess
import threading
from collections import deque
from collections.abc import Generator, Mapping

import click

from dovetail.cli.target_argument import DOVETAIL_COMMAND, TargetOptions, get_target_url

_START_TIMEOUT_S = 60.0  # The server must print its URL within this many seconds.
_STOP_TIMEOUT_S = 10.0
_MAX_STDERR_LINES = 100  # the number of stderr lines to print if the server fails


@contextlib.contextmanager
def serve_at_url(options: TargetOptions) -> Generator[str]:
    """Return the URL of the target. If the target has no URL, serve it over HTTP and return the new URL."""
    target, _ = options.split_target()
    url = get_target_url(target)
    if url is not None:
        configured_headers = target.get("headers") if isinstance(target, Mapping) else None
        if options.headers or options.auth is not None or configured_headers:
            raise click.UsageError(
                "the conformance suite cannot send headers. Run `dovetail tap URL` with the headers and pass its URL"
            )
        yield url
        return
    process = subprocess.Popen(
        [*DOVETAIL_COMMAND, *_build_run_args(options)], stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        yield _wait_for_url(process)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _build_run_args(options: TargetOptions) -> list[str]:
    option_pairs = [("--env", value) for value in options.env] + [("--header", value) for value in options.headers]
    option_pairs += [("--input", value) for value in options.inputs]
    option_pairs += [
        (name, value) for name, value in (("--auth", options.auth), ("--cwd", options.cwd)) if value is not None
    ]
    args = ["run", "--http", "--port", "0", *(part for pair in option_pairs for part in pair)]
    if options.command:
        return [*args, "--", *options.command]
    return [*args, "-m", options.module] if options.module is not None else [*args, options.args[0]]


def _wait_for_url(process: "subprocess.Popen[str]") -> str:
    stderr_lines: deque[str] = deque(maxlen=_MAX_STDERR_LINES)
    urls: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read_stderr() -> None:
        """Read stderr until it ends, because a full pipe would block the server."""
        assert process.stderr is not None
        with process.stderr as stream:
            for stderr_line in stream:
                stderr_lines.append(stderr_line)
                if match := re.search(r" is at (http://\S+)", stderr_line):
                    urls.put(match[1])
        urls.put(None)

    threading.Thread(target=read_stderr, name="dovetail-served", daemon=True).start()
    try:
        url = urls.get(timeout=_START_TIMEOUT_S)
    except queue.Empty:
        raise click.UsageError(
            f"the server did not print its URL within {_START_TIMEOUT_S:g} s:\n{''.join(stderr_lines)}"
        ) from None
    if url is None:
        raise click.UsageError(f"the server did not start:\n{''.join(stderr_lines)}")
    return url

"""A target that is not at a URL, served at one for as long as a command needs it."""

import contextlib
import queue
import re
import subprocess
import threading
from collections import deque
from collections.abc import Generator, Mapping

import click

from dovetail.cli.targets import OURS, Asked, url_of

_PATIENCE = 60.0  # for a server to say where it is
_GRACE = 10.0
_TOLD = 100  # lines of its stderr, should it fail


@contextlib.contextmanager
def at_url(line: Asked) -> Generator[str]:
    """Where the target is, or is made to be, on the web."""
    target, _ = line.split()
    url = url_of(target)
    if url is not None:
        configured = target.get("headers") if isinstance(target, Mapping) else None
        if line.headers or line.auth is not None or configured:
            raise click.UsageError("headers cannot be sent along from here: put `dovetail tap URL` in front, with them")
        yield url
        return
    process = subprocess.Popen([*OURS, *_words(line)], stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        yield _address(process)
    finally:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _words(line: Asked) -> list[str]:
    """The command that serves it."""
    given = [("--env", one) for one in line.env] + [("--header", one) for one in line.headers]
    given += [(name, one) for name, one in (("--auth", line.auth), ("--cwd", line.cwd)) if one is not None]
    words = ["run", "--http", "--port", "0", *(word for pair in given for word in pair)]
    if line.command:
        return [*words, "--", *line.command]
    return [*words, "-m", line.module] if line.module is not None else [*words, line.words[0]]


def _address(process: "subprocess.Popen[str]") -> str:
    said: deque[str] = deque(maxlen=_TOLD)
    found: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        """All it says, to the end: a full pipe would stop the server."""
        assert process.stderr is not None
        with process.stderr as stream:
            for row in stream:
                said.append(row)
                if named := re.search(r" is at (http://\S+)", row):
                    found.put(named[1])
        found.put(None)

    threading.Thread(target=read, name="dovetail-served", daemon=True).start()
    try:
        url = found.get(timeout=_PATIENCE)
    except queue.Empty:
        raise click.UsageError(f"the server did not say where it is in {_PATIENCE:g} s:\n{''.join(said)}") from None
    if url is None:
        raise click.UsageError(f"the server did not start:\n{''.join(said)}")
    return url

"""A target that is not at a URL, served at one for as long as a command needs it."""

import contextlib
import re
import subprocess
from collections.abc import Generator

import click

from dovetail.cli.targets import OURS, Asked, url_of


@contextlib.contextmanager
def at_url(line: Asked) -> Generator[str]:
    """Where the target is, or is made to be, on the web."""
    target, _ = line.split()
    url = url_of(target)
    if url is not None:
        yield url
        return
    words = ["run", *line.words[:1], "--http", "--port", "0"]
    if line.module is not None:
        words = ["run", "-m", line.module, "--http", "--port", "0"]
    if line.command:
        words = ["run", "--http", "--port", "0", "--", *line.command]
    process = subprocess.Popen([*OURS, *words], stderr=subprocess.PIPE, text=True)
    try:
        yield _address(process)
    finally:
        process.terminate()
        process.communicate()


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    said = ""
    while row := process.stderr.readline():
        said += row
        if found := re.search(r" is at (http://\S+)", row):
            return found[1]
    raise click.UsageError(f"the server did not start:\n{said}")

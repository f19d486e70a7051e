"""Processes that end with the block that started them, whatever fails in the block."""

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

END_TIMEOUT_S = 20.0


@contextlib.contextmanager
def run_process(command: list[Any], **options: Any) -> Iterator[Any]:
    """Start a process, and wait for its end. If the block fails, kill the process."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


@contextlib.contextmanager
def run_service(command: list[Any], **options: Any) -> Iterator[Any]:
    """Start a process, and terminate it at the end. Kill it if it does not end."""
    with run_process(command, **options) as process:
        try:
            yield process
        finally:
            stop_service(process)


def stop_service(process: "subprocess.Popen[Any]") -> None:
    """Terminate a process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise

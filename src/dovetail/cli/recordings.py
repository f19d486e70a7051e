"""Recordings as files of a command line."""

from pathlib import Path
from typing import Any

import click

from dovetail.protocol.recording import read_frames


def read_recording(path: str) -> list[Any]:
    """The parts of a recording; UsageError if it is none."""
    try:
        return [*read_frames(Path(path).read_bytes().splitlines())]
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"{path}: {exc}") from None

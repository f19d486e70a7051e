"""Colours for states and labels. This module does not need rich."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from dovetail.protocol.safe_text import escape_line


def has_cursor(*, err: bool = False) -> bool:
    """Return whether the stream is a terminal that understands escape sequences."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_styled(*, err: bool = False) -> bool:
    """Return whether the stream is a terminal with escape sequences, and NO_COLOR is not set."""
    return has_cursor(err=err) and "NO_COLOR" not in os.environ


def style(text: str, *, err: bool = False, **styles: Any) -> str:
    """Add styles to a text if the stream shows colours."""
    return click.style(text, **styles) if is_styled(err=err) else text


_STATE_COLOURS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ok", "ready", "completed", "valid", "passed", "match", "added"), "green"),
    **dict.fromkeys(("warn", "starting", "working", "input_required", "restarting", "cancelling"), "yellow"),
    **dict.fromkeys(("fail", "failed", "error", "unauthorized", "expired", "invalid", "mismatch", "removed"), "red"),
    **dict.fromkeys(("idle", "disabled", "stopped", "cancelled"), "bright_black"),
}


def get_state_colour(state: str) -> str | None:
    """Return the colour of a state such as "ready" or "completed (error)", or None."""
    return "red" if "error" in state else _STATE_COLOURS.get(state)


def style_state(state: str) -> str:
    """Return the name of a state, such as "ready" or "failed", in the colour of the state."""
    return style(escape_line(state, 100), fg=get_state_colour(state))

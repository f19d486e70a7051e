"""What a configuration asks its user for: at the terminal, each thing once, and passwords unseen."""

import getpass
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.cli import text
from dovetail.cli.asking import ask_field
from dovetail.errors import Dismissed
from dovetail.host.entries import Entry


def prompt_for_inputs(entries: Iterable[Entry]) -> dict[str, str]:
    """The inputs these servers need, by their ids; none after the end of the input."""
    inputs: dict[str, str] = {}
    for entry in entries:
        for definition in entry.asks():
            if definition["id"] not in inputs:
                try:
                    inputs[definition["id"]] = _prompt_for_input(entry, definition)
                except (Dismissed, EOFError):
                    return inputs
    return inputs


def _prompt_for_input(entry: Entry, definition: Mapping[str, Any]) -> str:
    text.print_note(text.escape_line(f"{entry.name} of {entry.path} needs"))
    label = str(definition.get("description") or definition["id"])
    if definition.get("password"):
        return getpass.getpass(f"{text.escape_line(label)} (not shown): ", sys.stderr)
    schema = {"type": "string", "title": label, "default": definition.get("default"), "enum": _list_options(definition)}
    return str(ask_field(definition["id"], schema, is_required=True))


def _list_options(definition: Mapping[str, Any]) -> list[str]:
    """What there is to choose from: words, or labels with a value each."""
    listed_options = definition.get("options")
    choices = listed_options if isinstance(listed_options, list) else []
    return [
        str(choice.get("value", choice.get("label"))) if isinstance(choice, dict) else str(choice) for choice in choices
    ]

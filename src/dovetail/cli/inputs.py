"""What a configuration asks its user for: at the terminal, each thing once, and passwords unseen."""

import getpass
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.cli import text
from dovetail.cli.asking import ask_field
from dovetail.errors import Dismissed
from dovetail.host.entries import Entry


def asked(entries: Iterable[Entry]) -> dict[str, str]:
    """The inputs these servers need, by their ids; none after the end of the input."""
    found: dict[str, str] = {}
    for entry in entries:
        for one in entry.asks():
            if one["id"] not in found:
                try:
                    found[one["id"]] = _answer(entry, one)
                except (Dismissed, EOFError):
                    return found
    return found


def _answer(entry: Entry, described: Mapping[str, Any]) -> str:
    text.note(text.line(f"{entry.name} of {entry.path} needs"))
    label = str(described.get("description") or described["id"])
    if described.get("password"):
        return getpass.getpass(f"{text.line(label)} (not shown): ", sys.stderr)
    rule = {"type": "string", "title": label, "default": described.get("default"), "enum": _options(described)}
    return str(ask_field(described["id"], rule, needed=True))


def _options(described: Mapping[str, Any]) -> list[str]:
    """What there is to choose from: words, or labels with a value each."""
    given = described.get("options")
    found = given if isinstance(given, list) else []
    return [str(one.get("value", one.get("label"))) if isinstance(one, dict) else str(one) for one in found]

"""Values for the inputs in a VS Code configuration. They come from options, environment variables, or the user."""

import contextlib
import getpass
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from dovetail.cli.tool_arguments import suggest_names
from dovetail.host.config.secret_lookup import get_input_variable
from dovetail.host.config.server_entry import ServerConfig
from dovetail.terminal import output
from dovetail.terminal.form import ask_field
from dovetail.terminal.line_reader import LineReader


def collect_inputs(
    entries: Sequence[ServerConfig], inputs: Mapping[str, str], *, should_prompt: bool = True
) -> dict[str, str]:
    """Return a dict that maps the IDs of the servers' inputs to their values.

    If `should_prompt` is True, ask the user for missing inputs at a terminal. Raise UsageError if an input is unknown.
    """
    known_ids = {definition["id"] for entry in entries for definition in entry.required_inputs}
    for input_id in inputs:
        if input_id not in known_ids:
            raise click.UsageError(f"--input {input_id}: unknown input{suggest_names(input_id, known_ids)}")
    if not should_prompt or not output.is_interactive():
        return dict(inputs)
    return _prompt_for_inputs(entries, inputs)


def find_missing_input(entry: ServerConfig, inputs: Mapping[str, str]) -> str | None:
    """Return the ID of the first input without a value. Return None if all inputs have values."""
    return next((definition["id"] for definition in _iter_missing(entry, inputs)), None)


def _iter_missing(entry: ServerConfig, inputs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for definition in entry.required_inputs:
        if definition["id"] not in inputs and get_input_variable(definition["id"]) not in os.environ:
            yield definition


def _prompt_for_inputs(entries: Iterable[ServerConfig], inputs: Mapping[str, str]) -> dict[str, str]:
    collected = dict(inputs)
    with LineReader() as lines, contextlib.suppress(EOFError):
        for entry in entries:
            for definition in _iter_missing(entry, collected):
                collected[definition["id"]] = _prompt_for_input(lines, entry, definition)
    return collected


def _prompt_for_input(lines: LineReader, entry: ServerConfig, definition: Mapping[str, Any]) -> str:
    output.print_note(output.escape_line(f"{entry.name} in {entry.path} needs an input:"))
    label = str(definition.get("description") or definition["id"])
    if definition.get("password"):
        lines.write_quoted(output.escape_line(label))
        return getpass.getpass("  value (not shown): ", sys.stderr)
    schema: dict[str, Any] = {"type": "string", "title": label, "default": definition.get("default")}
    if options := _list_options(definition):
        schema["enum"] = options
    return str(ask_field(lines, definition["id"], schema, is_required=True))


def _list_options(definition: Mapping[str, Any]) -> list[str]:
    """Return the choices of an input. In the file, a choice is a string, or an object with a label and a value."""
    listed_options = definition.get("options")
    choices = listed_options if isinstance(listed_options, list) else []
    return [
        str(choice.get("value", choice.get("label"))) if isinstance(choice, dict) else str(choice) for choice in choices
    ]

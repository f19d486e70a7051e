"""Questions of a server, answered at the terminal or by what the command line says; never waited for where nobody is.

What the server says is shown escaped; a page is named in full and opened by nobody but the user.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.arguments import coerce, list_types
from dovetail.errors import AnswerError, Declined, Dismissed
from dovetail.protocol.resolving import as_object, get_list, get_mapping, get_required
from dovetail.wire.elicitation import ElicitParams


class AnswerProvider:
    """Who answers, and what could not be answered."""

    def __init__(self, answers: Mapping[str, str], clear_output: Callable[[], None]) -> None:
        self.unanswered: list[str] = []  # questions nobody answered
        self.has_declined = False  # whether the user said no
        self.usage_error: click.UsageError | None = None  # an answer of the command line that does not fit
        self._answers = answers
        self._clear_output = clear_output  # makes room on the terminal

    def fill_form(self, request: ElicitParams) -> dict[str, Any]:
        """The fields of a form."""
        try:
            return self._collect_fields(request)
        except (Declined, Dismissed):
            self.has_declined = True
            raise

    def _collect_fields(self, request: ElicitParams) -> dict[str, Any]:
        schema = request.requested_schema or {}
        properties = {name: as_object(property_schema) for name, property_schema in get_mapping(schema).items()}
        required_names = get_required(schema)
        answer = self._parse_answers(properties)
        if answer and all(name in answer for name in required_names):
            return answer
        if not text.is_interactive():
            raise self._record_unanswered(
                request, {name: property_schema for name, property_schema in properties.items() if name not in answer}
            )
        self._clear_output()
        _print_stderr(text.style(text.escape_text(request.message), err=True, bold=True))
        for name, property_schema in properties.items():
            if name not in answer and (value := ask_field(name, property_schema, name in required_names)) is not None:
                answer[name] = value
        if not _confirm("Send this?", default=True):
            raise Declined
        return answer

    def _parse_answers(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {
                name: _parse_answer(name, self._answers[name], property_schema)
                for name, property_schema in properties.items()
                if name in self._answers
            }
        except click.UsageError as exc:
            self.usage_error = click.UsageError(f"--answer {exc.message}")
            raise AnswerError(self.usage_error.message) from None

    def confirm_url(self, request: ElicitParams) -> bool:
        """Whether the user has been at a page."""
        if not text.is_interactive():
            raise self._record_unanswered(request, {})
        self._clear_output()
        _print_stderr(text.style(text.escape_text(request.message), err=True, bold=True))
        _print_stderr(f"  {text.escape_full_line(request.url or '')}")
        self.has_declined = True  # unless they say otherwise
        self.has_declined = not _confirm("Did you finish there?", default=False)
        return not self.has_declined

    def _record_unanswered(self, request: ElicitParams, fields: Mapping[str, Any]) -> AnswerError:
        message = text.escape_text(request.message if request.mode == "form" else f"{request.message} {request.url}")
        self.unanswered.append(message)
        options = " ".join(
            f"--answer {text.escape_line(name)}={_format_choices(property_schema)}"
            for name, property_schema in fields.items()
        )
        return AnswerError(f"the server asks: {message}").at(hint=options or "run it at a terminal")


def _print_stderr(message: str) -> None:
    click.echo(message, err=True)


def _read_line(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    typed = sys.stdin.readline()
    if not typed:
        raise Dismissed
    return typed.strip()


def _confirm(prompt: str, *, default: bool) -> bool:
    while True:
        answer = _read_line(f"{prompt} [{'Y/n' if default else 'y/N'}] ").lower()
        if answer in ("", "y", "yes", "n", "no"):
            return default if not answer else answer.startswith("y")


def ask_field(name: str, schema: Mapping[str, Any], is_required: bool) -> Any:
    """One answer that fits; None where nothing need be said."""
    label = text.escape_line(str(schema.get("title") or name))
    if schema.get("description"):
        text.print_note("  " + text.escape_line(str(schema["description"])))
    choices = _list_choices(schema)
    if choices:
        text.print_note("  one of: " + ", ".join(text.escape_line(choice) for choice in choices))
    default = schema.get("default")
    suffix = (
        f" [{text.escape_line(_format_value(default))}]"
        if default is not None
        else ""
        if is_required
        else " (may be empty)"
    )
    while True:
        typed = _read_line(f"{label}{suffix}: ")
        if not typed and default is not None:
            return default
        if not typed and not is_required:
            return None
        if not typed and "string" not in list_types(schema):
            text.print_note("  an answer is needed")
            continue
        try:
            return _parse_answer(name, typed, schema)
        except click.UsageError as exc:
            text.print_note("  " + exc.message)


def _parse_answer(name: str, typed: str, schema: Mapping[str, Any]) -> Any:
    """A value of the kind that is asked for, and of the choices if there are any."""
    value, choices = coerce(name, typed, schema), _list_choices(schema)
    for item in value if isinstance(value, list) else [value]:
        if choices and _format_value(item) not in choices:
            allowed = ", ".join(text.escape_line(choice) for choice in choices)
            raise click.UsageError(f"{text.escape_line(name)} must be one of {allowed}, not {_format_value(item)!r}")
    return value


def _list_choices(schema: Mapping[str, Any]) -> list[str]:
    item_schema = as_object(schema["items"]) if schema.get("items") else schema
    alternatives = [
        as_object(alternative) for alternative in (get_list(item_schema, "oneOf") or get_list(item_schema, "anyOf"))
    ]
    constants = [alternative["const"] for alternative in alternatives if "const" in alternative]
    return [_format_value(choice) for choice in (get_list(item_schema, "enum") or constants)]


def _format_choices(schema: Mapping[str, Any]) -> str:
    return "|".join(text.escape_line(choice) for choice in _list_choices(schema)) or "..."


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)

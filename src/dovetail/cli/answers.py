"""Answers to elicitations, from --answer or from the user at the terminal.

Text of the server is escaped. A URL is printed in full, and only the user opens it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import click

from dovetail.error_context import add_context
from dovetail.errors import ElicitationCancelled, ElicitationDeclined, InputRequestError
from dovetail.schemas.reader import as_object, get_mapping, get_required
from dovetail.terminal import output
from dovetail.terminal.form import ask_field, list_choices, parse_answer, read_line
from dovetail.wire.elicitation import ElicitRequestParams


class AnswerProvider:
    """Answers elicitations, and remembers those without an answer."""

    def __init__(self, answers: Mapping[str, str], clear_output: Callable[[], None]) -> None:
        self.unanswered: list[str] = []  # questions without an answer
        self.has_declined = False  # whether the user declined
        self.usage_error: click.UsageError | None = None  # an invalid --answer
        self._answers = answers
        self._clear_output = clear_output  # clears the progress bar

    def fill_form(self, request: ElicitRequestParams) -> dict[str, Any]:
        """Return the values of a form."""
        try:
            return self._collect_fields(request)
        except (ElicitationDeclined, ElicitationCancelled):
            self.has_declined = True
            raise

    def _collect_fields(self, request: ElicitRequestParams) -> dict[str, Any]:
        schema = request.requested_schema or {}
        properties = {name: as_object(property_schema) for name, property_schema in get_mapping(schema).items()}
        required_names = get_required(schema)
        answer = self._parse_answers(properties)
        if answer and all(name in answer for name in required_names):
            return answer
        if not output.is_interactive():
            raise self._record_unanswered(
                request, {name: property_schema for name, property_schema in properties.items() if name not in answer}
            )
        self._clear_output()
        _print_stderr(output.style(output.escape_text(request.message), err=True, bold=True))
        for name, property_schema in properties.items():
            if name not in answer and (value := ask_field(name, property_schema, name in required_names)) is not None:
                answer[name] = value
        if not _confirm("Send this?", default=True):
            raise ElicitationDeclined
        return answer

    def _parse_answers(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {
                name: parse_answer(name, self._answers[name], property_schema)
                for name, property_schema in properties.items()
                if name in self._answers
            }
        except click.UsageError as exc:
            self.usage_error = click.UsageError(f"--answer {exc.message}")
            raise InputRequestError(self.usage_error.message) from None

    def confirm_url(self, request: ElicitRequestParams) -> bool:
        """Return whether the user has opened a URL and finished there."""
        if not output.is_interactive():
            raise self._record_unanswered(request, {})
        self._clear_output()
        _print_stderr(output.style(output.escape_text(request.message), err=True, bold=True))
        _print_stderr(f"  {output.escape_full_line(request.url or '')}")
        self.has_declined = True  # unless the user confirms
        self.has_declined = not _confirm("Did you finish there?", default=False)
        return not self.has_declined

    def _record_unanswered(self, request: ElicitRequestParams, fields: Mapping[str, Any]) -> InputRequestError:
        message = output.escape_text(request.message if request.mode == "form" else f"{request.message} {request.url}")
        self.unanswered.append(message)
        options = " ".join(
            f"--answer {output.escape_line(name)}={_format_choices(property_schema)}"
            for name, property_schema in fields.items()
        )
        return add_context(
            InputRequestError(f"the server asks: {message}"), hint=options or "run the command at a terminal"
        )


def _print_stderr(message: str) -> None:
    click.echo(message, err=True)


def _confirm(prompt: str, *, default: bool) -> bool:
    while True:
        answer = read_line(f"{prompt} [{'Y/n' if default else 'y/N'}] ").lower()
        if answer in ("", "y", "yes", "n", "no"):
            return default if not answer else answer.startswith("y")


def _format_choices(schema: Mapping[str, Any]) -> str:
    return "|".join(output.escape_line(choice) for choice in list_choices(schema)) or "..."

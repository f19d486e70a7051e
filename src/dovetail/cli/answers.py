"""Answers to elicitations, from --answer or from the user at the terminal.

Text from the server is escaped, and each line of it starts with a bar. A URL is printed in full, and is never opened
automatically.
"""

import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import click

from dovetail.cli.tool_arguments import suggest_names
from dovetail.error_context import add_context
from dovetail.errors import ElicitationCancelled, ElicitationDeclined, InputRequestError
from dovetail.protocol.safe_text import quote_lines
from dovetail.schemas.reader import as_object, get_mapping, get_required
from dovetail.terminal import output
from dovetail.terminal.form import confirm, fill_form, is_yes_no_form, list_choices, parse_answer
from dovetail.terminal.line_reader import LineReader
from dovetail.wire.elicitation import ElicitRequestParams


class AnswerProvider:
    """Answers a server's elicitations, and lists the elicitations that nobody answered."""

    def __init__(self, answers: Mapping[str, str], hide_progress: Callable[[], AbstractContextManager[None]]) -> None:
        self.unanswered: list[str] = []  # the texts of elicitations that nobody answered
        self.has_declined = False
        self.usage_error: click.UsageError | None = None  # the error message if an --answer is invalid
        self.unused_answers = set(answers)  # the names of the --answer options that were not used
        self._answers = answers
        self._asked_names: set[str] = set()
        self._hide_progress = hide_progress

    def fill_form(self, request: ElicitRequestParams) -> dict[str, Any]:
        """Return the values for the fields of an elicitation form."""
        try:
            return self._collect_fields(request)
        except ElicitationDeclined:
            self.has_declined = True
            raise
        except EOFError:
            self.has_declined = True
            raise ElicitationCancelled from None

    def _collect_fields(self, request: ElicitRequestParams) -> dict[str, Any]:
        schema = request.requested_schema or {}
        properties = {name: as_object(property_schema) for name, property_schema in get_mapping(schema).items()}
        required_names = get_required(schema)
        self._asked_names |= properties.keys()
        self.unused_answers -= properties.keys()
        answer = self._parse_answers(properties)
        if answer and all(name in answer for name in required_names):
            return answer
        if not output.is_interactive():
            raise self._record_unanswered(
                request, {name: property_schema for name, property_schema in properties.items() if name not in answer}
            )
        with self._hide_progress(), LineReader() as lines:
            _print_message(lines, request)
            values = fill_form(lines, schema, answer)
            # After a single yes-or-no question, do not ask again whether to send the answer.
            if not is_yes_no_form(schema) and not confirm(lines, "Send this?", default=True):
                raise ElicitationDeclined
        return values

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

    def describe_unused(self) -> str | None:
        """Return a message about the first --answer that was not used, or None."""
        if not self.unused_answers or not self._asked_names:
            return None
        name = min(self.unused_answers)
        return (
            f"--answer {name} was not used. The server did not ask for this field"
            f"{suggest_names(name, self._asked_names)}"
        )

    def confirm_url(self, request: ElicitRequestParams) -> bool:
        """Ask the user to open a URL. Return True if the user confirms that they have finished on the page."""
        if not output.is_interactive():
            raise self._record_unanswered(request, {})
        # If the user does not confirm, the elicitation is declined.
        self.has_declined = True
        try:
            with self._hide_progress(), LineReader() as lines:
                _print_message(lines, request)
                lines.write_quoted(output.escape_full_line(request.url or ""))
                self.has_declined = not confirm(lines, "Did you finish on that page?", default=False)
        except EOFError:
            raise ElicitationCancelled from None
        return not self.has_declined

    def _record_unanswered(self, request: ElicitRequestParams, fields: Mapping[str, Any]) -> InputRequestError:
        text = request.message if request.mode == "form" else f"{request.message} {request.url}"
        message = "\n".join(quote_lines(text))
        self.unanswered.append(message)
        options = " ".join(
            f"--answer {shlex.quote(output.escape_line(name))}={_format_choices(property_schema)}"
            for name, property_schema in fields.items()
        )
        return add_context(
            InputRequestError(f"the server asks:\n{message}"), hint=options or "run the command at a terminal"
        )


def _print_message(lines: LineReader, request: ElicitRequestParams) -> None:
    lines.write(output.style("The server asks:", err=True, bold=True) + "\n")
    lines.write_quoted(request.message)


def _format_choices(schema: Mapping[str, Any]) -> str:
    return "|".join(shlex.quote(output.escape_line(choice)) for choice in list_choices(schema)) or "..."

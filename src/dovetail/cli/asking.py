"""Questions of a server, answered at the terminal or by what the command line says; never waited for where nobody is.

What the server says is shown escaped; a page is named in full and opened by nobody but the user.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.arguments import coerce, kinds
from dovetail.errors import AnswerError, Declined, Dismissed
from dovetail.protocol.resolving import as_object, listed, named, required
from dovetail.wire.elicitation import ElicitParams


class Questions:
    """Who answers, and what could not be answered."""

    def __init__(self, given: Mapping[str, str], before: Callable[[], None]) -> None:
        self.open: list[str] = []  # questions nobody answered
        self.refused = False  # whether the user said no
        self.wrong: click.UsageError | None = None  # an answer of the command line that does not fit
        self._given = given
        self._before = before  # makes room on the terminal

    def form(self, question: ElicitParams) -> dict[str, Any]:
        """The fields of a form."""
        try:
            return self._filled(question)
        except (Declined, Dismissed):
            self.refused = True
            raise

    def _filled(self, question: ElicitParams) -> dict[str, Any]:
        schema = question.requested_schema or {}
        properties = {name: as_object(rule) for name, rule in named(schema).items()}
        needed = required(schema)
        answer = self._from_line(properties)
        if answer and all(name in answer for name in needed):
            return answer
        if not text.somebody():
            raise self._unanswered(question, {name: one for name, one in properties.items() if name not in answer})
        self._before()
        _say(text.style(text.safe(question.message), err=True, bold=True))
        for name, rule in properties.items():
            if name not in answer and (value := ask_field(name, rule, name in needed)) is not None:
                answer[name] = value
        if not _confirm("Send this?", default=True):
            raise Declined
        return answer

    def _from_line(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {
                name: _fitting(name, self._given[name], rule)
                for name, rule in properties.items()
                if name in self._given
            }
        except click.UsageError as exc:
            self.wrong = click.UsageError(f"--answer {exc.message}")
            raise AnswerError(self.wrong.message) from None

    def visit(self, question: ElicitParams) -> bool:
        """Whether the user has been at a page."""
        if not text.somebody():
            raise self._unanswered(question, {})
        self._before()
        _say(text.style(text.safe(question.message), err=True, bold=True))
        _say(f"  {text.whole(question.url or '')}")
        self.refused = True  # unless they say otherwise
        self.refused = not _confirm("Did you finish there?", default=False)
        return not self.refused

    def _unanswered(self, question: ElicitParams, fields: Mapping[str, Any]) -> AnswerError:
        said = text.safe(question.message if question.mode == "form" else f"{question.message} {question.url}")
        self.open.append(said)
        names = " ".join(f"--answer {text.line(name)}={_values(rule)}" for name, rule in fields.items())
        return AnswerError(f"the server asks: {said}").at(hint=names or "run it at a terminal")


def _say(words: str) -> None:
    click.echo(words, err=True)


def _read(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    said = sys.stdin.readline()
    if not said:
        raise Dismissed
    return said.strip()


def _confirm(prompt: str, *, default: bool) -> bool:
    while True:
        said = _read(f"{prompt} [{'Y/n' if default else 'y/N'}] ").lower()
        if said in ("", "y", "yes", "n", "no"):
            return default if not said else said.startswith("y")


def ask_field(name: str, rule: Mapping[str, Any], needed: bool) -> Any:
    """One answer that fits; None where nothing need be said."""
    label = text.line(str(rule.get("title") or name))
    if rule.get("description"):
        text.note("  " + text.line(str(rule["description"])))
    choices = _choices(rule)
    if choices:
        text.note("  one of: " + ", ".join(text.line(one) for one in choices))
    default = rule.get("default")
    shown = f" [{text.line(_spelled(default))}]" if default is not None else "" if needed else " (may be empty)"
    while True:
        said = _read(f"{label}{shown}: ")
        if not said and default is not None:
            return default
        if not said and not needed:
            return None
        if not said and "string" not in kinds(rule):
            text.note("  an answer is needed")
            continue
        try:
            return _fitting(name, said, rule)
        except click.UsageError as exc:
            text.note("  " + exc.message)


def _fitting(name: str, said: str, rule: Mapping[str, Any]) -> Any:
    """A value of the kind that is asked for, and of the choices if there are any."""
    value, choices = coerce(name, said, rule), _choices(rule)
    for one in value if isinstance(value, list) else [value]:
        if choices and _spelled(one) not in choices:
            shown = ", ".join(text.line(choice) for choice in choices)
            raise click.UsageError(f"{text.line(name)} must be one of {shown}, not {_spelled(one)!r}")
    return value


def _choices(rule: Mapping[str, Any]) -> list[str]:
    inner = as_object(rule["items"]) if rule.get("items") else rule
    several = [as_object(one) for one in (listed(inner, "oneOf") or listed(inner, "anyOf"))]
    titled = [one["const"] for one in several if "const" in one]
    return [_spelled(one) for one in (listed(inner, "enum") or titled)]


def _values(rule: Mapping[str, Any]) -> str:
    return "|".join(text.line(one) for one in _choices(rule)) or "..."


def _spelled(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)

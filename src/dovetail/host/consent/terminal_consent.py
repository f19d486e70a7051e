"""Consent: the one way from a host to the person in charge. A question has a kind, and words that are the host's own;
what a server says stands in it as text that cannot act.

Brokers ask: a terminal, a function, or nobody. The answer allows, denies, edits, or puts off.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from dovetail.host.consent.consent import (
    Allow,
    ConsentAnswer,
    ConsentRequest,
    Deny,
    DenyAll,
    Edit,
    format_untrusted,
    quote_value,
)
from dovetail.protocol.safe_text import escape_line
from dovetail.terminal.line_reader import BlockingLineReader


class TerminalConsent:
    """Asks on a terminal, one question at a time. An empty line is a no; where there is no terminal, nobody is."""

    def __init__(self, input: Callable[[], str] | None = None, output: TextIO | None = None) -> None:
        self._read_input = input
        self._output = output or sys.stderr
        self._lock = asyncio.Lock()

    @property
    def is_interactive(self) -> bool:
        """Whether the input is a terminal: what comes through a pipe is nobody's word."""
        return self._read_input is not None or sys.stdin.isatty()

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """What the person typed."""
        if not self.is_interactive:
            return await DenyAll().ask(request)
        async with self._lock:
            with BlockingLineReader(self._read_input) as lines:  # whose end, when this is given up, ends the thread
                return await asyncio.to_thread(self._prompt, request, lines)

    def _prompt(self, request: ConsentRequest, lines: BlockingLineReader) -> ConsentAnswer:
        try:
            return (
                self._fill_form(request, lines) if request.kind == "elicitation.form" else self._choose(request, lines)
            )
        except EOFError:
            return Deny("the input ended before an answer", cancelled=True)

    def _choose(self, request: ConsentRequest, lines: BlockingLineReader) -> ConsentAnswer:
        can_remember = request.kind in ("tool.call", "resource.read", "prompt.get", "server.start")
        self._write(f"{request.text}\n")
        choices = "[y]es once, for this [s]ession, [a]lways, [n]o" if can_remember else "[y]es, [n]o"
        answers = {**_ONCE_ANSWERS, **_LASTING_ANSWERS} if can_remember else _ONCE_ANSWERS
        return self._read_choice(choices, answers, lines)

    def _read_choice(
        self, choices: str, answers: Mapping[str, ConsentAnswer], lines: BlockingLineReader
    ) -> ConsentAnswer:
        """The answer that was typed; what is none is asked again."""
        while True:
            self._write(f"{choices}: ")
            answer = answers.get(lines.read_line().strip().lower())
            if answer is not None:
                return answer
            self._write("Type one of the letters in brackets; an empty line is a no.\n")

    def _fill_form(self, request: ConsentRequest, lines: BlockingLineReader) -> ConsentAnswer:
        schema = request.details.get("schema") or {}
        self._write(
            f"{request.summary}\n" + "\n".join(quote_value("message", request.details.get("message", ""))) + "\n"
        )
        choice = self._read_choice("[y]es to answer, [n]o to decline", _ONCE_ANSWERS, lines)
        if isinstance(choice, Deny):
            return Deny("the user declined")
        content: dict[str, Any] = {}
        for name, field in (schema.get("properties") or {}).items():
            value = self._read_field(name, field, name in (schema.get("required") or ()), lines)
            if value is not None:
                content[name] = value
        return Edit(content)

    def _read_field(self, name: str, field: Mapping[str, Any], is_required: bool, lines: BlockingLineReader) -> Any:
        expected = field.get("enum") or field.get("type", "string")
        default = field.get("default")
        text = f"  {escape_line(str(field.get('title') or name), 80)} ({format_untrusted(expected, 200)}"
        self._write(text + (f", {format_untrusted(default, 80)} if empty" if default is not None else "") + "): ")
        typed = lines.read_line().strip()
        if not typed:
            return default if default is not None else "" if is_required and field.get("type") == "string" else None
        if field.get("type") in ("integer", "number", "boolean", "array"):
            with contextlib.suppress(ValueError):
                return json.loads(typed)
        return typed

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


_USER_DENIED: Final = Deny("the user said no")
_ONCE_ANSWERS: Final[Mapping[str, ConsentAnswer]] = {
    "y": Allow(),
    "yes": Allow(),
    "n": _USER_DENIED,
    "no": _USER_DENIED,
    "": _USER_DENIED,
}
_LASTING_ANSWERS: Final[Mapping[str, ConsentAnswer]] = {
    "s": Allow("session"),
    "session": Allow("session"),
    "a": Allow("always"),
    "always": Allow("always"),
}

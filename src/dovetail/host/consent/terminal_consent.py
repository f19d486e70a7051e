"""Ask for consent and show forms of servers on a terminal. Server text is escaped, with a bar before each line."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Final, TextIO, TypeVar

from dovetail.host.consent.consent import (
    Allow,
    AllowWithChanges,
    ConsentAnswer,
    ConsentRequest,
    Deny,
    DenyAllConsent,
    quote_value,
)
from dovetail.terminal.line_reader import LineReader

T = TypeVar("T")


class TerminalConsent:
    """A consent handler that asks in the terminal, one question at a time. An empty line means no.

    Args:
        input: A function that reads a line. Defaults to reading from the terminal.
        output: The stream for questions. Defaults to the terminal.
    """

    _no_user_hint = (
        "Standard input is not a terminal, so TerminalConsent cannot ask. Run the program in a terminal, pass another "
        "consent= to the host"
    )

    def __init__(self, input: Callable[[], str] | None = None, output: TextIO | None = None) -> None:
        self._read_input = input
        self._output = output
        self._lock = asyncio.Lock()

    @property
    def is_interactive(self) -> bool:
        """Return whether a user can answer at a terminal. Text from a pipe does not count as a user's answer."""
        return self._read_input is not None or sys.stdin.isatty()

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """Ask the user for consent and return the answer."""
        if not self.is_interactive:
            return await DenyAllConsent().ask(request)
        async with self._lock:
            # Leaving this context stops the thread that reads input.
            with LineReader(self._read_input, self._output) as lines:
                return await asyncio.to_thread(_prompt, request, lines)


def _prompt(request: ConsentRequest, lines: LineReader) -> ConsentAnswer:
    try:
        return _ask_form(request, lines) if request.kind == "elicitation.form" else _ask_choice(request, lines)
    except EOFError:
        return Deny("the input ended before an answer", cancelled=True)


def _ask_choice(request: ConsentRequest, lines: LineReader) -> ConsentAnswer:
    _show(request, lines, request.text)
    if request.is_shortened:
        # The user has not seen the whole request, so the answer can apply only to this request.
        prompt = "This is not all. [v]iew all of it, [y]es once, [n]o: "
        answer = _choose(lines, prompt, {**_ONCE_ANSWERS, "v": None, "view": None})
        if answer is not None:
            return answer
        _show(request, lines, request.full_text)
    if request.kind in ("tool.call", "resource.read", "skill.tools", "prompt.get", "server.start"):
        # A stored answer also applies to calls with other arguments.
        condition = "" if request.arguments is None else "with any arguments "
        prompt = f"[y]es once, {condition}for this [s]ession or [a]lways, [n]o: "
        return _choose(lines, prompt, {**_ONCE_ANSWERS, **_LASTING_ANSWERS})
    # An answer about a changed definition is permanent, because the user has seen the whole change.
    is_change = request.kind == "definition.changed"
    return _choose(lines, "[y]es, [n]o: ", _CHANGE_ANSWERS if is_change else _ONCE_ANSWERS)


def _ask_form(request: ConsentRequest, lines: LineReader) -> ConsentAnswer:
    from dovetail.terminal.form import fill_form

    message = request.details.get("message", "")
    shown, whole = quote_value("message", message), quote_value("message", message, max_chars=None)
    _show(request, lines, "\n".join([request.summary, *shown]))
    answer: ConsentAnswer | None = None
    if shown != whole:
        prompt = "This is not all. [v]iew all of it, [y]es to answer, [n]o to decline: "
        answer = _choose(lines, prompt, {**_ONCE_ANSWERS, "v": None, "view": None})
        if answer is None:
            _show(request, lines, "\n".join([request.summary, *whole]))
    if isinstance(answer or _choose(lines, "[y]es to answer, [n]o to decline: ", _ONCE_ANSWERS), Deny):
        return Deny("the user declined")
    return AllowWithChanges(fill_form(lines, request.details.get("schema") or {}))


def _show(request: ConsentRequest, lines: LineReader, text: str) -> None:
    """Write a question. If its first line scrolled off the screen, write the summary again."""
    if not lines.write_wrapped(f"{text}\n"):
        lines.write_wrapped(f"{request.summary}\n")


def _choose(lines: LineReader, prompt: str, answers: Mapping[str, T]) -> T:
    """Ask until the user types one of the answers. Keys that were pressed before the question do not count."""
    from dovetail.terminal.form import choose

    lines.discard_typed()
    return choose(lines, prompt, answers, _CHOICE_HINT)


_CHOICE_HINT: Final = "Type one of the letters in brackets. An empty line means no.\n"
_USER_DENIED: Final = Deny("the user declined")
_ONCE_ANSWERS: Final[Mapping[str, ConsentAnswer]] = {
    "y": Allow(),
    "yes": Allow(),
    "n": _USER_DENIED,
    "no": _USER_DENIED,
    "": _USER_DENIED,
}
_CHANGE_ANSWERS: Final[Mapping[str, ConsentAnswer]] = {**_ONCE_ANSWERS, "y": Allow("always"), "yes": Allow("always")}
_LASTING_ANSWERS: Final[Mapping[str, ConsentAnswer]] = {
    "s": Allow("session"),
    "session": Allow("session"),
    "a": Allow("always"),
    "always": Allow("always"),
}

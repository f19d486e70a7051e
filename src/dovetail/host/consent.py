"""Consent: the one way from a host to the person in charge. A question has a kind, and words that are the host's own;
what a server says stands in it as text that cannot act.

Brokers ask: a terminal, a function, or nobody. The answer allows, denies, edits, or puts off.
"""

import asyncio
import contextlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, TextIO, TypeAlias

from dovetail.host.escaping import line, safe
from dovetail.host.kinds import Kind
from dovetail.wire.codec import plain
from dovetail.wire.shape import Struct

Scope: TypeAlias = Literal["once", "session", "project", "always"]

# What a person is asked, in words no server has a say in.
_SENTENCES: Final[Mapping[str, str]] = {
    "server.start": "Start the server {server}?",
    "tool.call": "Let {server} run its tool {tool}?",
    "tool.result": "Pass on what {tool} of {server} answered?",
    "resource.read": "Read {tool} from {server}?",
    "prompt.get": "Use the prompt {tool} of {server}?",
    "complete": "Let {server} suggest how to go on with {tool}?",
    "definition.changed": "{tool} of {server} is not what it was when it was allowed. Use it as it is now?",
    "sampling.request": "{server} wants to put this to the model. Let it?",
    "sampling.response": "Give this answer of the model to {server}?",
    "elicit.form": "{server} asks you to fill in a form. Your answer goes to {server}.",
    "elicit.url": "{server} asks you to visit a page of {host}. Open it?",
    "roots.list": "Tell {server} which folders it may work in?",
    "login": "Log in to {server}?",
}


class ConsentRequest(Struct, frozen=True, kw_only=True):
    """What a person is asked. `details` are plain values, some of them the server's: show them with `shown`."""

    kind: Kind
    server: str
    tool: str = ""  # or the URI of a resource, or the name of a prompt
    arguments: Mapping[str, Any] | None = None
    details: Mapping[str, Any] = {}
    reason: str = ""  # why it is asked
    trusted: bool = False
    wait: bool = True  # whether whoever asks waits for the answer

    @property
    def summary(self) -> str:
        """The question, on one line, in the host's words."""
        names = {"server": self.server, "tool": self.tool, "host": str(self.details.get("host", ""))}
        return _SENTENCES[self.kind].format_map({name: line(value, 100) for name, value in names.items()})

    @property
    def text(self) -> str:
        """The question with everything there is to know, safe to print."""
        lines = [self.summary]
        if self.arguments is not None:
            lines += _quoted("arguments", self.arguments)
        for name, value in self.details.items():
            if name != "host":
                lines += _quoted(name, value)
        if self.reason:
            lines.append(f"  because: {line(self.reason, 400)}")
        return "\n".join(lines)


class Allow(Struct, frozen=True):
    """Yes: this once, or for longer. `expires` in seconds, `exact` for these arguments only."""

    scope: Scope = "once"
    expires: float | None = None
    exact: bool = False


class Deny(Struct, frozen=True):
    """No. `dismissed`: nobody decided, the question was only closed."""

    reason: str = ""
    dismissed: bool = False


class Edit(Struct, frozen=True):
    """Yes, but with this instead: arguments, messages, an answer of the model; for a form, what was filled in."""

    value: Any


class Later(Struct, frozen=True):
    """Not now: it is remembered under a ticket."""

    ticket: str


Answer: TypeAlias = Allow | Deny | Edit | Later


class Broker(Protocol):
    """Whoever can ask the person in charge. One with a false `attended` has nobody to ask."""

    async def ask(self, request: ConsentRequest) -> Answer:
        """The person's answer."""
        ...


def attended(broker: Broker) -> bool:
    """Whether somebody is there to be asked."""
    return bool(getattr(broker, "attended", True))


class DenyAll:
    """Nobody is there."""

    attended = False

    async def ask(self, request: ConsentRequest) -> Answer:
        """No."""
        return Deny("nobody is there to be asked")


class CallbackConsent:
    """Asks a function; a plain one may wait for the person, so it has a thread of its own."""

    def __init__(self, function: Callable[[ConsentRequest], Any]) -> None:
        self._function = function

    async def ask(self, request: ConsentRequest) -> Answer:
        """What the function says; True and False will do."""
        if inspect.iscoroutinefunction(self._function):
            made = await self._function(request)
        else:
            made = await asyncio.to_thread(self._function, request)
            made = await made if inspect.isawaitable(made) else made
        return read_answer(made)


def read_answer(given: Any) -> Answer:
    """An answer as a function may put it."""
    match given:
        case Allow() | Deny() | Edit() | Later():
            return given
        case True:
            return Allow()
        case False | None:
            return Deny()
        case dict():
            return Edit(given)
        case _:
            raise TypeError(f"consent is given by Allow, Deny, Edit, Later, True or False, not {type(given).__name__}")


class TerminalConsent:
    """Asks on a terminal, one question at a time. No answer, or the end of the input, is a no."""

    def __init__(self, read: Callable[[], str] | None = None, out: TextIO | None = None) -> None:
        self._own = read is None
        self._read = read or sys.stdin.readline
        self._out = out or sys.stderr
        self._turn = asyncio.Lock()

    @property
    def attended(self) -> bool:
        """Whether the input is a terminal: what comes through a pipe is nobody's word."""
        return not self._own or sys.stdin.isatty()

    async def ask(self, request: ConsentRequest) -> Answer:
        """What the person typed."""
        if not self.attended:
            return await DenyAll().ask(request)
        async with self._turn:
            if request.kind == "elicit.form":
                return await asyncio.to_thread(self._form, request)
            return await asyncio.to_thread(self._choose, request)

    def _choose(self, request: ConsentRequest) -> Answer:
        lasting = request.kind in ("tool.call", "resource.read", "prompt.get", "server.start")
        choices = "[y]es once, for this [s]ession, [a]lways, [n]o" if lasting else "[y]es, [n]o"
        self._say(f"{request.text}\n{choices}: ")
        match self._read().strip().lower():
            case "y" | "yes":
                return Allow()
            case "s" | "session" if lasting:
                return Allow("session")
            case "a" | "always" if lasting:
                return Allow("always")
            case _:
                return Deny("the user said no")

    def _form(self, request: ConsentRequest) -> Answer:
        schema = request.details.get("schema") or {}
        self._say(f"{request.summary}\n" + "\n".join(_quoted("message", request.details.get("message", ""))) + "\n")
        self._say("[y]es to answer, [n]o to decline: ")
        if self._read().strip().lower() not in ("y", "yes"):
            return Deny("the user declined")
        content: dict[str, Any] = {}
        for name, field in (schema.get("properties") or {}).items():
            given = self._field(name, field, name in (schema.get("required") or ()))
            if given is not None:
                content[name] = given
        return Edit(content)

    def _field(self, name: str, field: Mapping[str, Any], required: bool) -> Any:
        wanted = field.get("enum") or field.get("type", "string")
        default = field.get("default")
        text = f"  {line(str(field.get('title') or name), 80)} ({shown(wanted, 200)}"
        self._say(text + (f", {shown(default, 80)} if empty" if default is not None else "") + "): ")
        typed = self._read().strip()
        if not typed:
            return default if default is not None else "" if required and field.get("type") == "string" else None
        if field.get("type") in ("integer", "number", "boolean", "array"):
            with contextlib.suppress(ValueError):
                return json.loads(typed)
        return typed

    def _say(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def shown(value: Any, limit: int = 4000) -> str:
    """Anything of a server's as text that does nothing but be read; line breaks are left in it."""
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False, default=str)
    return safe(text if len(text) <= limit else f"{text[: limit - 1]}…")


def _quoted(name: str, value: Any) -> list[str]:
    """A value with a bar before each of its lines, so that none of them looks like the host's."""
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False, indent=1, default=str)
    return [f"  {line(name, 80)}:", *(f"  │ {line}" for line in shown(text).split("\n"))]

"""Consent: the one way from a host to the person in charge. A question has a kind, and words that are the host's own;
what a server says stands in it as text that cannot act.

Brokers ask: a terminal, a function, or nobody. The answer allows, denies, edits, or puts off.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias, cast, get_args

from dovetail.host.policy.rules import ConsentKind
from dovetail.protocol.safe_text import escape_line, escape_text
from dovetail.wire.base import Struct
from dovetail.wire.codec import to_plain

Scope: TypeAlias = Literal["once", "session", "project", "always"]

# What a person is asked, in words no server has a say in.
_SUMMARY_TEMPLATES: Final[Mapping[str, str]] = {
    "server.start": "Start the server {server}?",
    "tool.call": "Let {server} run its tool {tool}?",
    "tool.result": "Pass on what {tool} of {server} answered?",
    "resource.read": "Read {tool} from {server}?",
    "prompt.get": "Use the prompt {tool} of {server}?",
    "completion": "Let {server} suggest how to go on with {tool}?",
    "definition.changed": "{tool} of {server} is not what it was when it was allowed. Use it as it is now?",
    "sampling.request": "{server} wants to put this to the model. Let it?",
    "sampling.response": "Give this answer of the model to {server}?",
    "elicitation.form": "{server} asks you to fill in a form. Your answer goes to {server}.",
    "elicitation.url": "{server} asks you to visit a page of {host}. Open it?",
    "roots.list": "Tell {server} which folders it may work in?",
    "login": "Log in to {server}?",
}


_MAX_NAME_CHARS: Final = 200  # characters of a name that stand in a sentence
_MAX_SHOWN_MEMBERS: Final = 40  # members of one value that are shown


class ConsentRequest(Struct, frozen=True, kw_only=True):
    """What a person is asked. `details` are plain values, some of them the server's: show them with `shown`."""

    kind: ConsentKind
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
        return _SUMMARY_TEMPLATES[self.kind].format_map(
            {name: escape_line(_elide_middle(value, _MAX_NAME_CHARS)) for name, value in names.items()}
        )

    @property
    def text(self) -> str:
        """The question with everything there is to know, safe to print."""
        lines = [self.summary]
        if len(self.tool) > _MAX_NAME_CHARS:
            lines += quote_value("in full", self.tool)
        if self.arguments is not None:
            lines += quote_value("arguments", self.arguments)
        for name, value in self.details.items():
            if name != "host":
                lines += quote_value(name, value)
        if self.reason:
            lines.append(f"  because: {escape_line(self.reason, 400)}")
        return "\n".join(lines)


class Allow(Struct, frozen=True):
    """Yes: this once, or for longer. `expires_in` is in seconds, `exact_arguments` limits it to these arguments."""

    scope: Scope = "once"
    expires_in: float | None = None
    exact_arguments: bool = False

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"a yes holds for one of {', '.join(get_args(Scope))}, not {self.scope!r}")


class Deny(Struct, frozen=True):
    """No. `cancelled`: the user closed the question without deciding."""

    reason: str = ""
    cancelled: bool = False


class Edit(Struct, frozen=True):
    """Yes, but with this instead: arguments, messages, an answer of the model; for a form, what was filled in."""

    value: Any


class Defer(Struct, frozen=True):
    """Not now: it is remembered under a ticket."""

    ticket: str


ConsentAnswer: TypeAlias = Allow | Deny | Edit | Defer


# A function may also answer with a boolean, or with what was filled into a form.
ConsentReply: TypeAlias = Allow | Deny | Edit | Defer | bool | dict[str, Any] | None
ConsentCallback: TypeAlias = Callable[[ConsentRequest], ConsentReply | Awaitable[ConsentReply]]


class ConsentHandler(Protocol):
    """Whoever can ask the person in charge. One with a false `is_interactive` has no user to ask."""

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """The person's answer."""
        ...


def is_interactive(consent_handler: ConsentHandler) -> bool:
    """Return whether a user can be asked."""
    return bool(getattr(consent_handler, "is_interactive", True))


class DenyAll:
    """Nobody is there."""

    is_interactive = False

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """No."""
        return Deny("nobody is there to be asked")


class CallbackConsent:
    """Asks a function; a plain one may wait for the person, so it has a thread of its own."""

    def __init__(self, callback: ConsentCallback) -> None:
        self._callback = callback

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """What the function says; True and False will do."""
        if inspect.iscoroutinefunction(self._callback):
            answer = self._callback(request)
        else:
            answer = await asyncio.to_thread(self._callback, request)
        answer = await answer if inspect.isawaitable(answer) else answer
        return as_consent_answer(answer)


def as_consent_handler(consent: ConsentHandler | ConsentCallback | None) -> ConsentHandler:
    """A broker as it may be given: a function will do; nothing is nobody."""
    if consent is None:
        return DenyAll()
    if hasattr(consent, "ask"):
        return cast(ConsentHandler, consent)
    if not callable(consent):
        raise TypeError(f"consent must be a function, or an object with a method ask, not {consent!r}")
    return CallbackConsent(consent)


def as_consent_answer(answer: Any) -> ConsentAnswer:
    """An answer as a function may put it."""
    match answer:
        case Allow() | Deny() | Edit() | Defer():
            return answer
        case True:
            return Allow()
        case False | None:
            return Deny()
        case dict():
            return Edit(answer)
        case _:
            raise TypeError(f"consent is given by Allow, Deny, Edit, Defer, True or False, not {type(answer).__name__}")


def format_untrusted(value: Any, limit: int = 8000) -> str:
    """Anything of a server's as text that does nothing but be read; line breaks are left in it."""
    text = value if isinstance(value, str) else json.dumps(to_plain(value), ensure_ascii=False, default=str)
    return escape_text(_elide_middle(text, limit))


def quote_value(name: str, value: Any) -> list[str]:
    """A value with a bar before each of its lines, so that none of them looks like the host's."""
    text = value
    if not isinstance(value, str):
        text = json.dumps(_shorten_value(to_plain(value)), ensure_ascii=False, indent=1, default=str)
    return [
        f"  {escape_line(name, 80)}:",
        *(f"  │ {quoted_line}" for quoted_line in format_untrusted(text, 40_000).split("\n")),
    ]


def _elide_middle(text: str, limit: int) -> str:
    """A text; if it is long, how it begins and ends and how long it is, so that nothing hides behind its length."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} … [{len(text)} characters] … {text[-(limit // 2) :]}"


def _shorten_value(value: Any) -> Any:
    """A value of which each member can be seen: long texts by their ends, long lists and objects too."""
    match value:
        case str():
            return _elide_middle(value, 1000)
        case list():
            items = (
                value
                if len(value) <= _MAX_SHOWN_MEMBERS
                else [*value[: _MAX_SHOWN_MEMBERS // 2], _omitted_note(value), *value[-_MAX_SHOWN_MEMBERS // 2 :]]
            )
            return [_shorten_value(item) for item in items]
        case dict():
            pairs = [*value.items()]
            if len(pairs) > _MAX_SHOWN_MEMBERS:
                pairs = [
                    *pairs[: _MAX_SHOWN_MEMBERS // 2],
                    ("…", _omitted_note(pairs)),
                    *pairs[-_MAX_SHOWN_MEMBERS // 2 :],
                ]
            return {_elide_middle(name, 200): _shorten_value(member) for name, member in pairs}
        case _:
            return value


def _omitted_note(members: "list[Any]") -> str:
    return f"… {len(members) - _MAX_SHOWN_MEMBERS} members more …"

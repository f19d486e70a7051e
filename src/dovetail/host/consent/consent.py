"""Consent requests of a host and the answers of its user.

The host writes the text of each consent request. Text from a server is quoted and escaped in it. A consent handler asks
the user in a terminal or with a function, or answers without a user. The user can allow, deny, edit or postpone a
request.
"""

import asyncio
import contextlib
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias, cast, get_args

from dovetail.host.policy.rules import ConsentKind, PolicyRequest
from dovetail.protocol.safe_text import escape_line, quote_lines
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode, to_plain

Scope: TypeAlias = Literal["once", "session", "project", "always"]

# The questions that the host asks the user. Servers cannot change the wording.
_SUMMARY_TEMPLATES: Final[Mapping[str, str]] = {
    "server.start": "Start the server {server}?",
    "tool.call": "Let {server} run its tool {tool}?",
    "tool.result": "Pass on the result of {tool} from {server}?",
    "resource.read": "Read {tool} from {server}?",
    "skill.tools": "Let the model call these tools without more questions while it uses the skill {tool} of {server}?",
    "prompt.get": "Use the prompt {tool} of {server}?",
    "completion": "Let {server} suggest completions for {tool}?",
    "definition.changed": "{tool} of {server} has changed since it was allowed. Use the new definition?",
    "sampling.request": "{server} wants to send this to the model. Allow it?",
    "sampling.response": "Send this reply of the model to {server}?",
    "elicitation.form": "{server} asks you to fill in a form. Your answer goes to {server}.",
    "elicitation.url": "{server} asks you to visit a page on {host}. Open it?",
    "roots.list": "Tell {server} which folders it may work in?",
    "login": "Log in to {server}?",
}
_SKILL_SUMMARY: Final = "Read the skill {tool} from {server}, with all its files?"
_DYNAMIC_SKILL_SUMMARY: Final = "Read this file of the skill {tool} from {server}?"


# Files of format version 1 use these older names.
RENAMED_KINDS: Final[Mapping[str, str]] = {
    "complete": "completion",
    "elicit.form": "elicitation.form",
    "elicit.url": "elicitation.url",
}

_MAX_NAME_CHARS: Final = 200  # Names above this length are shortened in the text for the user.
_PLAIN_NAME: Final = re.compile(r"[^\s\"\u2800]+")  # a name without blanks
_MAX_VALUE_CHARS: Final = 40_000  # Values above this length are shortened in the text for the user.
_MAX_BYTES_PER_CHAR: Final = 4  # The maximum in UTF-8.
_MAX_SHOWN_MEMBERS: Final = 40  # A shortened object or list shows at most this many members.


class ConsentRequest(Struct, frozen=True, kw_only=True):
    """A request for the user's consent. Its `text` is safe to print."""

    kind: ConsentKind  # the kind of request, such as "tool.call"
    server: str  # the name of the server
    tool: str = ""  # the name of the tool or prompt, or the URI of the resource
    arguments: Mapping[str, Any] | None = None  # the arguments of the call
    details: Mapping[str, Any] = {}  # more details, some of which come from the server
    reason: str = ""  # why the user is asked
    trusted: bool = False  # True if the user trusts the server
    wait: bool = True  # True if the caller waits for the answer

    @property
    def summary(self) -> str:
        """Return the question to the user in one line. The host chooses the wording, so a server cannot change it."""
        names = {"server": self.server, "tool": self.tool, "host": str(self.details.get("host", ""))}
        return self._summary_template.format_map(
            {name: _quote_name(_elide_middle(value, _MAX_NAME_CHARS)) for name, value in names.items()}
        )

    @property
    def _summary_template(self) -> str:
        if self.kind == "resource.read" and "skill" in self.details:
            return _DYNAMIC_SKILL_SUMMARY if "file" in self.details else _SKILL_SUMMARY
        return _SUMMARY_TEMPLATES[self.kind]

    @property
    def text(self) -> str:
        """Return the question with its details.

        The text is safe to print. Values of more than 40,000 characters are shortened.
        """
        return self._format_text(max_chars=_MAX_VALUE_CHARS)

    @property
    def full_text(self) -> str:
        """Return the question with all details, even if they are very long. The text is safe to print."""
        return self._format_text(max_chars=None)

    @property
    def is_shortened(self) -> bool:
        """Return whether `text` shows only a part of a value.

        If the text is shortened, show `full_text` before you return an answer that is also valid for later calls, such
        as `Allow("always")`. `Allow()` is valid only for this call.
        """
        return any(_is_longer(value, _MAX_VALUE_CHARS) for _, value in self._list_values())

    def _format_text(self, max_chars: int | None) -> str:
        lines = [self.summary]
        for name, value in self._list_values():
            lines += quote_value(name, value, max_chars)
        if self.reason:
            lines.append(f"  because: {escape_line(self.reason, 400)}")
        return "\n".join(lines)

    def _list_values(self) -> list[tuple[str, Any]]:
        values: list[tuple[str, Any]] = [("full name", self.tool)] if len(self.tool) > _MAX_NAME_CHARS else []
        values += [(name, value) for name, value in self.details.items() if name != "host"]
        # A long text from the server could push the arguments off the screen, so the arguments come last.
        return values if self.arguments is None else [*values, ("arguments", self.arguments)]


def build_consent_request(
    request: PolicyRequest, reason: str, details: Mapping[str, Any] | None = None, wait: bool = True
) -> ConsentRequest:
    """Create a consent request, which asks the user whether a request is allowed."""
    kind: ConsentKind = request.kind  # pyright: ignore[reportAssignmentType]
    return ConsentRequest(
        kind=kind,
        server=request.server,
        tool=request.tool,
        arguments=request.arguments,
        details=details or {},
        reason=reason,
        trusted=request.trusted,
        wait=wait,
    )


class Allow(Struct, frozen=True):
    """The answer that allows a request."""

    scope: Scope = "once"  # how long the answer applies: "once", "session", "project" or "always"
    expires_in: float | None = None  # seconds until the user is asked again, or None for never
    exact_arguments: bool = False  # True allows only calls with the same arguments

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"scope must be one of {', '.join(get_args(Scope))}, not {self.scope!r}")


class Deny(Struct, frozen=True):
    """The answer that denies a request."""

    reason: str = ""  # the reason that the caller sees
    cancelled: bool = False  # True if the user closed the question without deciding


class AllowWithChanges(Struct, frozen=True):
    """The answer that allows a request with changed values."""

    value: Any  # the new arguments, messages, model reply or form fields


class AnswerLater(Struct, frozen=True):
    """The answer that postpones the decision. The request is stored under a ticket."""

    ticket: str  # the ticket to pass to `Host.answer`


# The answer of a consent handler.
ConsentAnswer: TypeAlias = Allow | Deny | AllowWithChanges | AnswerLater


# A consent function can return a short answer. True means Allow. False or None means Deny.
# A dict as the answer means AllowWithChanges.
ShortAnswer: TypeAlias = bool | Mapping[str, object] | None
ConsentFunction: TypeAlias = Callable[
    [ConsentRequest], ConsentAnswer | ShortAnswer | Awaitable[ConsentAnswer | ShortAnswer]
]


class ConsentHandler(Protocol):
    """Asks the user for consent. If `is_interactive` is False, there is no user to ask."""

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """Return the user's answer."""
        ...


def is_interactive(consent_handler: ConsentHandler) -> bool:
    """Return whether a consent handler has a user to ask."""
    return bool(getattr(consent_handler, "is_interactive", True))


def get_no_user_hint(consent_handler: ConsentHandler) -> str:
    """Return the error hint for a consent handler that has no user to ask."""
    hint = f"{type(consent_handler).__name__} has no user to ask. Pass another consent= to the host"
    return getattr(consent_handler, "_no_user_hint", hint)


class DenyAllConsent:
    """A consent handler that denies every request, for programs without a user."""

    is_interactive = False
    _no_user_hint = "Pass consent= to the host"

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """Deny the request."""
        return Deny("no user can be asked")


class FunctionConsent:
    """A consent handler that calls a function. A plain function runs in a thread, because it may wait for the user."""

    def __init__(self, callback: ConsentFunction) -> None:
        self._callback = callback

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """Call the function and return its answer."""
        if inspect.iscoroutinefunction(self._callback):
            answer = self._callback(request)
        else:
            answer = await asyncio.to_thread(self._callback, request)
        answer = await answer if inspect.isawaitable(answer) else answer
        return as_consent_answer(answer)


def as_consent_handler(consent: ConsentHandler | ConsentFunction | None) -> ConsentHandler:
    """Return the consent handler for the value of `consent=`. For None, return a handler that denies every request."""
    if consent is None:
        return DenyAllConsent()
    if hasattr(consent, "ask"):
        return cast(ConsentHandler, consent)
    if not callable(consent):
        raise TypeError(f"consent must be a function or an object with an ask() method, not {consent!r}")
    return FunctionConsent(consent)


def as_consent_answer(answer: object) -> ConsentAnswer:
    """Convert the return value of a consent function to an answer. Raise TypeError if its type is wrong."""
    match answer:
        case Allow() | Deny() | AllowWithChanges() | AnswerLater():
            return answer
        case True:
            return Allow()
        case False | None:
            return Deny()
        case Mapping():
            return AllowWithChanges(dict(answer))
        case _:
            raise TypeError(
                "a consent function must return Allow, Deny, AllowWithChanges, AnswerLater, a bool, a dict or None, "
                f"not {type(answer).__name__}"
            )


def quote_value(name: str, value: Any, max_chars: int | None = _MAX_VALUE_CHARS) -> list[str]:
    """Return a value as lines that start with a bar. The bars show that the text does not come from the host.

    Shorten a value of more than `max_chars` characters.
    """
    if max_chars is not None and _is_longer(value, max_chars):
        value = _elide_middle(
            _format_value(value if isinstance(value, str) else _shorten_value(to_plain(value))), max_chars
        )
    text = _format_value(value)
    return [f"  {escape_line(name, 80)}:", *quote_lines(text)]


def _is_longer(value: Any, max_chars: int) -> bool:
    if isinstance(value, str):
        return len(value) > max_chars
    with contextlib.suppress(TypeError, ValueError):  # Some values cannot be encoded as JSON.
        # A character has at most 4 bytes in UTF-8, so a value with more bytes than this is too long.
        if len(encode(value)) > _MAX_BYTES_PER_CHAR * max_chars:
            return True
    return len(_format_value(value)) > max_chars


def _quote_name(name: str) -> str:
    """Return a name as it appears in a question to the user.

    A name with blanks gets quotation marks. Otherwise its words would look like words of the host.
    """
    line = escape_line(name)
    if _PLAIN_NAME.fullmatch(line):
        return line
    return '"{}"'.format(line.replace('"', '\\"')) if line else ""


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(to_plain(value), ensure_ascii=False, indent=1, default=str)


def _elide_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} … [{len(text)} characters] … {text[-(limit // 2) :]}"


def _shorten_value(value: Any) -> Any:
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
    return f"… {len(members) - _MAX_SHOWN_MEMBERS} more members …"

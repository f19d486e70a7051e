"""Asking the caller of a gateway for consent: at once where it can be asked, else by a result that asks.

What the gateway must remember from one round to the next it seals, together with what the server behind it wants to be
told again.
"""

import asyncio
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from dovetail.errors import InvalidParams
from dovetail.host.consent import Allow, Answer, ConsentRequest, Deny
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.state import Remembered, Sealer, binding, digest, nothing
from dovetail.wire.codec import convert
from dovetail.wire.elicitation import ElicitResult
from dovetail.wire.incoming import body
from dovetail.wire.inputs import InputRequest, InputRequiredResult
from dovetail.wire.shape import Result, replace

_STATE_TIME: Final = 600.0  # seconds a question may be answered
_MOST_USED: Final = 65536
_ASKS: Final = b'"input_required"'
_TICKET: Final = "ticket"
_PREFIX: Final = "dovetail.consent."
_ROUND: Final = frozenset({"inputResponses", "requestState"})
_ANSWERS: Final = {"once": "Yes, this once", "session": "Yes, from now on", "no": "No"}


def _form(*, lasting: bool) -> dict[str, Any]:
    """What is filled in; who cannot be known again is not asked for longer than once."""
    offered = {name: text for name, text in _ANSWERS.items() if lasting or name != "session"}
    allow = {"type": "string", "title": "Allow it?", "enum": [*offered], "enumNames": [*offered.values()]}
    return {"type": "object", "properties": {"allow": allow}, "required": ["allow"]}


class Tickets:
    """What is sealed from one round to the next; each is good once."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._used: dict[str, float] = {}  # until when each would have been good

    def seal(self, remembered: Remembered, bound: bytes) -> str:
        """A state to come back with."""
        remembered.once = {_TICKET: os.urandom(12).hex()}
        return self._sealer.seal(remembered, bound, time.time() + _STATE_TIME)

    def open(self, state: str, bound: bytes) -> Remembered | None:
        """What was sealed; None for what was not, or has been used."""
        try:
            found = self._sealer.open(state, bound, time.time())
        except InvalidParams:
            return None
        return None if found.once.get(_TICKET) in self._used else found

    def use(self, remembered: Remembered) -> None:
        """It is good no longer."""
        now = time.time()
        while self._used and (len(self._used) >= _MOST_USED or next(iter(self._used.values())) <= now):
            del self._used[next(iter(self._used))]  # the oldest stands first
        self._used[str(remembered.once.get(_TICKET))] = now + _STATE_TIME


class Needed(Exception):
    """The caller has to be asked first, and this is the result that asks."""

    def __init__(self, result: InputRequiredResult) -> None:
        self.result = result


class Round:
    """One round of a request: what its caller was asked before, and can be asked now.

    A stateless caller comes back with the answer, and with whatever the server behind wanted to be told again; both
    are sealed in one state. An answer counts for what was shown, and for the definition that was meant (`mark`).
    """

    def __init__(self, exchange: Exchange, tickets: Tickets, server: str, mark: str = "") -> None:
        self._exchange = exchange
        self._tickets = tickets
        self._mark = mark
        self._bound = binding(exchange.caller.principal, f"{exchange.method} {server}", exchange.params)
        self._remembered = self._recall()
        self._asked = self._remembered is not None
        self._given = {} if self._remembered is None else self._answered(self._remembered)

    def _recall(self) -> Remembered | None:
        """What this gateway sealed; None for a state that is the server's own."""
        state = self._exchange.params.get("requestState")
        if type(state) is not str or not self._exchange.caller.stateless:
            return None
        return self._tickets.open(state, self._bound)

    def _answered(self, remembered: Remembered) -> dict[str, Any]:
        """All answers so far, of those that were asked for."""
        fresh: Any = self._exchange.params.get("inputResponses")
        told = fresh if type(fresh) is dict else {}
        return remembered.answers | {key: value for key, value in told.items() if key in remembered.questions}

    @property
    def who(self) -> str:
        """What the caller is known by, and will be in its next request; empty if by nothing."""
        caller = self._exchange.caller
        return str(caller.principal or caller.session)

    @property
    def able(self) -> bool:
        """Whether the caller's user can be asked."""
        caller = self._exchange.caller
        forms = caller.capabilities.elicitation
        able = forms is not None and (forms.form is not None or forms.url is None)
        return able and (caller.stateless or self._exchange.ask is not None)

    @property
    def at_once(self) -> bool:
        """Whether that takes no other round."""
        return self.able and not self._exchange.caller.stateless

    async def ask(self, request: ConsentRequest) -> Answer:
        """The user's answer: asked for at once, or, of a stateless caller, by ending the round."""
        params = {"mode": "form", "message": request.text, "requestedSchema": _form(lasting=bool(self.who))}
        self._asked = True
        if self._exchange.ask is not None and self.at_once:
            return self._read(await self._directly(self._exchange.ask, params))
        key = f"{_PREFIX}{request.kind}.{digest([request.text, self._mark])}"
        if key in self._given:
            return self._read(self._given[key])
        remembered = self._remembered or nothing()
        kept = Remembered(answers=self._given, questions={key: ""}, once={}, state=remembered.state)
        question = InputRequest(method="elicitation/create", params=params)
        state = self._tickets.seal(kept, self._bound)
        raise Needed(
            InputRequiredResult(result_type="input_required", input_requests={key: question}, request_state=state)
        )

    def _read(self, raw: Any) -> Answer:
        answer = convert(raw, ElicitResult, what="elicitation answer")
        if answer.action != "accept":
            return Deny("the user said no", dismissed=answer.action == "cancel")
        match (answer.content or {}).get("allow"):
            case "once":
                return Allow()
            case "session" if self.who:
                return Allow("session")
            case _:
                return Deny("the user said no")

    async def _directly(self, ask: Any, params: dict[str, Any]) -> Any:
        exchange = self._exchange
        method, told = downgrade.question(exchange.caller.revision, "elicitation/create", params)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        exchange.pause(asked_at)
        try:
            return await ask(method, told)
        finally:
            exchange.resume(asked_at, loop.time())

    @contextmanager
    def going_on(self, **changes: Any) -> Generator[None]:
        """The request as the server behind is to see it: without what was between the gateway and its caller."""
        before = self._exchange.params
        self._exchange.params = before | changes
        if self._remembered is not None:
            self._tickets.use(self._remembered)
            self._exchange.params = self._without(self._remembered, self._exchange.params)
        try:
            yield
        finally:
            self._exchange.params = before

    def _without(self, remembered: Remembered, params: dict[str, Any]) -> dict[str, Any]:
        told = {name: value for name, value in params.items() if name not in _ROUND}
        fresh: Any = params.get("inputResponses")
        answers = {key: one for key, one in fresh.items() if key not in self._given} if type(fresh) is dict else {}
        if answers:
            told["inputResponses"] = answers
        if remembered.state is not None:
            told["requestState"] = remembered.state
        return told

    def wrapped(self, result: Result | bytes) -> Result | bytes:
        """What the server behind wants to know goes to the caller together with the consent that was given."""
        if not self._asked or not self._exchange.caller.stateless:
            return result
        asked = question_in(result, self._exchange.method)
        if asked is None:
            return result
        kept = Remembered(answers=self._given, questions={}, once={}, state=asked.request_state)
        return replace(asked, request_state=self._tickets.seal(kept, self._bound))


def question_in(result: Result | bytes, method: str) -> InputRequiredResult | None:
    """What a server wants to know, if it asks instead of answering."""
    if isinstance(result, bytes):
        result = body(result, InputRequiredResult, f"the result of {method}") if _ASKS in result else Result()
    return result if isinstance(result, InputRequiredResult) and result.result_type == "input_required" else None

"""Asking the caller of a gateway for consent: at once where it can be asked, else by a result that asks.

What the gateway must remember from one round to the next it seals, together with what the server behind it wants to be
told again.
"""

import time
from typing import Any, Final

from dovetail.errors import InvalidParams
from dovetail.host.consent import Allow, Answer, ConsentRequest, Deny
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.state import Remembered, Sealer, binding, nothing
from dovetail.wire.codec import convert
from dovetail.wire.elicitation import ElicitResult
from dovetail.wire.incoming import body
from dovetail.wire.inputs import InputRequest, InputRequiredResult
from dovetail.wire.shape import Result, replace

_STATE_TIME: Final = 600.0  # seconds a question may be answered
_ASKS: Final = b'"input_required"'
_CONSENTED: Final = "consented"
_PREFIX: Final = "dovetail.consent."
_ROUND: Final = frozenset({"inputResponses", "requestState"})

_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "allow": {
            "type": "string",
            "title": "Allow it?",
            "enum": ["once", "session", "no"],
            "enumNames": ["Yes, this once", "Yes, from now on", "No"],
        }
    },
    "required": ["allow"],
}


class Needed(Exception):
    """The caller has to be asked first, and this is the result that asks."""

    def __init__(self, result: InputRequiredResult) -> None:
        self.result = result


class Round:
    """One round of a request: what its caller was asked before, and can be asked now.

    A stateless caller comes back with the answer, and with whatever the server behind wanted to be told again; both
    are sealed in one state.
    """

    def __init__(self, exchange: Exchange, sealer: Sealer) -> None:
        self._exchange = exchange
        self._sealer = sealer
        self._bound = binding(exchange.caller.principal, exchange.method, exchange.params)
        self._remembered = self._recall()
        self._asked = self._remembered is not None
        self.consented = self._remembered is not None and _CONSENTED in self._remembered.once

    def _recall(self) -> Remembered | None:
        """What this gateway sealed; None for a state that is the server's own."""
        state = self._exchange.params.get("requestState")
        if type(state) is not str or not self._exchange.caller.stateless:
            return None
        try:
            return self._sealer.open(state, self._bound, time.time())
        except InvalidParams:
            return None

    @property
    def able(self) -> bool:
        """Whether the caller's user can be asked."""
        caller = self._exchange.caller
        forms = caller.capabilities.elicitation
        able = forms is not None and (forms.form is not None or forms.url is None)
        return able and (caller.stateless or self._exchange.ask is not None)

    async def ask(self, request: ConsentRequest) -> Answer:
        """The user's answer: asked for at once, or, of a stateless caller, by ending the round."""
        key = f"{_PREFIX}{request.kind}"
        params = {"mode": "form", "message": request.text, "requestedSchema": _FORM}
        self._asked = True
        if self._exchange.ask is not None and not self._exchange.caller.stateless:
            return _read(await self._directly(self._exchange.ask, params))
        remembered = self._remembered or nothing()
        fresh: Any = self._exchange.params.get("inputResponses")
        given = remembered.answers | {
            name: value
            for name, value in (fresh if type(fresh) is dict and self._remembered is not None else {}).items()
            if name.startswith(_PREFIX)
        }
        if key in given:
            return _read(given[key])
        remembered.answers = given
        state = self._sealer.seal(remembered, self._bound, time.time() + _STATE_TIME)
        question = InputRequest(method="elicitation/create", params=params)
        raise Needed(
            InputRequiredResult(result_type="input_required", input_requests={key: question}, request_state=state)
        )

    async def _directly(self, ask: Any, params: dict[str, Any]) -> Any:
        exchange = self._exchange
        method, told = downgrade.question(exchange.caller.revision, "elicitation/create", params)
        deadline, exchange.deadline = exchange.deadline, None  # people may take their time
        try:
            return await ask(method, told)
        finally:
            exchange.deadline = deadline

    def go_on(self) -> None:
        """The request as the server behind is to see it: without what was between the gateway and its caller."""
        if self._remembered is None:
            return
        params = {name: value for name, value in self._exchange.params.items() if name not in _ROUND}
        if self.consented:
            answers = self._exchange.params.get("inputResponses")
            params |= {} if answers is None else {"inputResponses": answers}
            params |= {} if self._remembered.state is None else {"requestState": self._remembered.state}
        self._exchange.params = params

    def wrapped(self, result: Result | bytes) -> Result | bytes:
        """What the server behind wants to know goes to the caller together with the consent that was given."""
        if not self._asked or not self._exchange.caller.stateless:
            return result
        if isinstance(result, bytes) and _ASKS in result:
            asked: Any = body(result, InputRequiredResult, f"the result of {self._exchange.method}")
        else:
            asked = result
        if not isinstance(asked, InputRequiredResult) or asked.result_type != "input_required":
            return result
        kept = Remembered(answers={}, questions={}, once={_CONSENTED: True}, state=asked.request_state)
        return replace(asked, request_state=self._sealer.seal(kept, self._bound, time.time() + _STATE_TIME))


def _read(raw: Any) -> Answer:
    answer = convert(raw, ElicitResult, what="elicitation answer")
    if answer.action != "accept":
        return Deny("the user said no", dismissed=answer.action == "cancel")
    match (answer.content or {}).get("allow"):
        case "once":
            return Allow()
        case "session":
            return Allow("session")
        case _:
            return Deny("the user said no")

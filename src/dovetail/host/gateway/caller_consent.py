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
from dovetail.host.consent.consent import Allow, ConsentAnswer, ConsentRequest, Deny
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.request_state import RequestState, Sealer, compute_binding, create_empty_state, hash_request
from dovetail.wire.base import Result, replace
from dovetail.wire.codec import convert
from dovetail.wire.elicitation import ElicitResult
from dovetail.wire.input_required import InputRequest, InputRequiredResult
from dovetail.wire.raw_message import decode_body

_STATE_TTL_S: Final = 600.0  # seconds a question may be answered
_MAX_USED_STATES: Final = 65536
_INPUT_REQUIRED_MARKER: Final = b'"input_required"'
_STATE_ID_KEY: Final = "ticket"
_REQUEST_KEY_PREFIX: Final = "dovetail.consent."
_ROUND_PARAMS: Final = frozenset({"inputResponses", "requestState"})
_CHOICES: Final = {"once": "Yes, this once", "session": "Yes, from now on", "no": "No"}


def _build_form(*, can_remember: bool) -> dict[str, Any]:
    """What is filled in; who cannot be known again is not asked for longer than once."""
    choices = {name: text for name, text in _CHOICES.items() if can_remember or name != "session"}
    field = {"type": "string", "title": "Allow it?", "enum": [*choices], "enumNames": [*choices.values()]}
    return {"type": "object", "properties": {"allow": field}, "required": ["allow"]}


class SingleUseStates:
    """What is sealed from one round to the next; each is good once."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._used_until: dict[str, float] = {}  # until when each would have been good

    def seal(self, state: RequestState, binding: bytes) -> str:
        """A state to come back with."""
        state.once_values = {_STATE_ID_KEY: os.urandom(12).hex()}
        return self._sealer.seal(state, binding, time.time() + _STATE_TTL_S)

    def open(self, state: str, binding: bytes) -> RequestState | None:
        """What was sealed; None for what was not, or has been used."""
        try:
            opened = self._sealer.open(state, binding, time.time())
        except InvalidParams:
            return None
        return None if opened.once_values.get(_STATE_ID_KEY) in self._used_until else opened

    def mark_used(self, state: RequestState) -> None:
        """It is good no longer."""
        now = time.time()
        while self._used_until and (
            len(self._used_until) >= _MAX_USED_STATES or next(iter(self._used_until.values())) <= now
        ):
            del self._used_until[next(iter(self._used_until))]  # the oldest stands first
        self._used_until[str(state.once_values.get(_STATE_ID_KEY))] = now + _STATE_TTL_S


class ConsentRequired(Exception):
    """The caller has to be asked first, and this is the result that asks."""

    def __init__(self, result: InputRequiredResult) -> None:
        self.result = result


class ConsentRound:
    """One round of a request: what its caller was asked before, and can be asked now.

    A stateless caller comes back with the answer, and with whatever the server behind wanted to be told again; both
    are sealed in one state. An answer counts for what was shown, and for the definition that was meant (`mark`).
    """

    def __init__(self, exchange: Exchange, states: SingleUseStates, server_name: str, fingerprint: str = "") -> None:
        self._exchange = exchange
        self._states = states
        self._fingerprint = fingerprint
        self._binding = compute_binding(exchange.caller.principal, f"{exchange.method} {server_name}", exchange.params)
        self._request_state = self._open_state()
        self._has_asked = self._request_state is not None
        self._responses = {} if self._request_state is None else self._collect_responses(self._request_state)

    def _open_state(self) -> RequestState | None:
        """What this gateway sealed; None for a state that is the server's own."""
        state = self._exchange.params.get("requestState")
        if type(state) is not str or not self._exchange.caller.is_stateless:
            return None
        return self._states.open(state, self._binding)

    def _collect_responses(self, request_state: RequestState) -> dict[str, Any]:
        """All answers so far, of those that were asked for."""
        input_responses: Any = self._exchange.params.get("inputResponses")
        new_responses = input_responses if type(input_responses) is dict else {}
        return request_state.input_responses | {
            key: value for key, value in new_responses.items() if key in request_state.request_digests
        }

    @property
    def caller_id(self) -> str:
        """What the caller is known by, and will be in its next request; empty if by nothing."""
        caller = self._exchange.caller
        return str(caller.principal or caller.session_id)

    @property
    def can_ask(self) -> bool:
        """Whether the caller's user can be asked."""
        caller = self._exchange.caller
        elicitation = caller.client_capabilities.elicitation
        has_forms = elicitation is not None and (elicitation.form is not None or elicitation.url is None)
        return has_forms and (caller.is_stateless or self._exchange.ask is not None)

    @property
    def can_ask_directly(self) -> bool:
        """Whether that takes no other round."""
        return self.can_ask and not self._exchange.caller.is_stateless

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """The user's answer: asked for at once, or, of a stateless caller, by ending the round."""
        params = {
            "mode": "form",
            "message": request.text,
            "requestedSchema": _build_form(can_remember=bool(self.caller_id)),
        }
        self._has_asked = True
        if self._exchange.ask is not None and self.can_ask_directly:
            return self._parse_response(await self._ask_directly(self._exchange.ask, params))
        key = f"{_REQUEST_KEY_PREFIX}{request.kind}.{hash_request([request.text, self._fingerprint])}"
        if key in self._responses:
            return self._parse_response(self._responses[key])
        earlier_state = self._request_state or create_empty_state()
        next_state = RequestState(
            input_responses=self._responses,
            request_digests={key: ""},
            once_values={},
            author_state=earlier_state.author_state,
        )
        input_request = InputRequest(method="elicitation/create", params=params)
        state = self._states.seal(next_state, self._binding)
        raise ConsentRequired(
            InputRequiredResult(result_type="input_required", input_requests={key: input_request}, request_state=state)
        )

    def _parse_response(self, raw: Any) -> ConsentAnswer:
        result = convert(raw, ElicitResult, label="elicitation answer")
        if result.action != "accept":
            return Deny("the user said no", cancelled=result.action == "cancel")
        match (result.content or {}).get("allow"):
            case "once":
                return Allow()
            case "session" if self.caller_id:
                return Allow("session")
            case _:
                return Deny("the user said no")

    async def _ask_directly(self, ask: Any, params: dict[str, Any]) -> Any:
        exchange = self._exchange
        method, downgraded = downgrade.downgrade_request(exchange.caller.protocol_version, "elicitation/create", params)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        exchange.pause(asked_at)
        try:
            return await ask(method, downgraded)
        finally:
            exchange.resume(asked_at, loop.time())

    @contextmanager
    def forward_params(self, **changes: Any) -> Generator[None]:
        """The request as the server behind is to see it: without what was between the gateway and its caller."""
        original_params = self._exchange.params
        self._exchange.params = original_params | changes
        if self._request_state is not None:
            self._states.mark_used(self._request_state)
            self._exchange.params = self._strip_own_state(self._request_state, self._exchange.params)
        try:
            yield
        finally:
            self._exchange.params = original_params

    def _strip_own_state(self, request_state: RequestState, params: dict[str, Any]) -> dict[str, Any]:
        forwarded = {name: value for name, value in params.items() if name not in _ROUND_PARAMS}
        input_responses: Any = params.get("inputResponses")
        answers = (
            {key: response for key, response in input_responses.items() if key not in self._responses}
            if type(input_responses) is dict
            else {}
        )
        if answers:
            forwarded["inputResponses"] = answers
        if request_state.author_state is not None:
            forwarded["requestState"] = request_state.author_state
        return forwarded

    def wrap_result(self, result: Result | bytes) -> Result | bytes:
        """What the server behind wants to know goes to the caller together with the consent that was given."""
        if not self._has_asked or not self._exchange.caller.is_stateless:
            return result
        input_required = find_input_required(result, self._exchange.method)
        if input_required is None:
            return result
        next_state = RequestState(
            input_responses=self._responses,
            request_digests={},
            once_values={},
            author_state=input_required.request_state,
        )
        return replace(input_required, request_state=self._states.seal(next_state, self._binding))


def find_input_required(result: Result | bytes, method: str) -> InputRequiredResult | None:
    """What a server wants to know, if it asks instead of answering."""
    if isinstance(result, bytes):
        result = (
            decode_body(result, InputRequiredResult, f"the result of {method}")
            if _INPUT_REQUIRED_MARKER in result
            else Result()
        )
    return result if isinstance(result, InputRequiredResult) and result.result_type == "input_required" else None

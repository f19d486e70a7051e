"""Ask the user of a gateway caller for consent, with a request or with an input required result.

The gateway encrypts the data that it needs for the caller's next request, together with the server's request state.
"""

import asyncio
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from dovetail.errors import InvalidParams, ServerBusy
from dovetail.host.caller_pins import ANONYMOUS, get_caller_id
from dovetail.host.consent.consent import Allow, ConsentAnswer, ConsentRequest, Deny
from dovetail.oauth.replay_memory import ReplayMemory
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.interfaces.shared_state import HistoryLost, SharedStateUnavailable, SharedWorker, use_with_retry
from dovetail.protocol.request_state import (
    RequestState,
    RequestStateSealer,
    compute_binding,
    hash_request,
)
from dovetail.wire.base import Result, replace
from dovetail.wire.codec import convert
from dovetail.wire.elicitation import ElicitResult
from dovetail.wire.input_required import InputRequest, InputRequiredResult

_STATE_TTL_S: Final = 600.0  # A caller must answer within this many seconds.
_MAX_USED_STATES: Final = 65_536
_SEAL_PURPOSE: Final = "gateway consent"
_STATE_ID_KEY: Final = "ticket"
_SEALED_AT_KEY: Final = "sealed_at"
_OWNER_KEY: Final = "owner"
_EPOCH_KEY: Final = "epoch"
_REQUEST_KEY_PREFIX: Final = "dovetail.consent."
# A stateless caller can repeat requests with these methods, to add the answer of its user.
_REPEATABLE_METHODS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
_ROUND_PARAMS: Final = frozenset({"inputResponses", "requestState"})
_CHOICES: Final = {"once": "Yes, once", "session": "Yes, from now on", "no": "No"}
_ANY_ARGUMENTS_CHOICE: Final = "Yes, from now on, with any arguments"


def _build_form(*, can_remember: bool, has_arguments: bool) -> dict[str, Any]:
    """Return the schema of the consent form.

    Some callers cannot be recognized in later requests. They can only allow one request.
    """
    choices = {name: text for name, text in _CHOICES.items() if can_remember or name != "session"}
    if can_remember and has_arguments:  # A stored answer also applies to calls with other arguments.
        choices["session"] = _ANY_ARGUMENTS_CHOICE
    field = {"type": "string", "title": "Allow this?", "enum": [*choices], "enumNames": [*choices.values()]}
    return {"type": "object", "properties": {"allow": field}, "required": ["allow"]}


class SingleUseStates:
    """Encrypts request states. A caller sends a state back with its user's answer, and can use each state once.

    Gateways of one process may share keys, so used states are recorded for the whole process. Other processes do not
    know which states were used. In a cluster, used states are recorded for all workers.
    """

    _used_states: ClassVar = ReplayMemory(_STATE_TTL_S, _MAX_USED_STATES)
    _lock: ClassVar = threading.Lock()  # Gateways may run in several threads.

    def __init__(self, secret_keys: Sequence[str | bytes] = ()) -> None:
        self._sealer = RequestStateSealer(secret_keys, purpose=_SEAL_PURPOSE)
        self._cluster: SharedWorker | None = None

    def join_cluster(self, cluster: SharedWorker) -> None:
        """Share the secret keys and the list of used states with all workers of a cluster."""
        if self._cluster is not cluster:
            self._cluster = cluster
            self._sealer = RequestStateSealer(cluster.secret_keys, purpose=_SEAL_PURPOSE)

    def seal(self, state: RequestState, binding: bytes, owner: str) -> str:
        """Return the encrypted state, which the caller sends back.

        Each owner has a share of the memory for used states. The state counts toward the share of its owner.
        """
        now = time.time()
        state.once_values = {_STATE_ID_KEY: os.urandom(12).hex(), _SEALED_AT_KEY: now, _OWNER_KEY: owner}
        if self._cluster is not None:
            state.once_values[_EPOCH_KEY] = self._cluster.state.get_status().epoch
        return self._sealer.seal(state, binding, now + _STATE_TTL_S)

    def open(self, state: str, binding: bytes) -> RequestState | None:
        """Decrypt a state. Return None if the state was used before or belongs to another request.

        In a cluster, only `use` finds out whether the state was used before.
        """
        try:
            opened = self._sealer.open(state, binding, time.time())
        except InvalidParams:
            return None
        if self._cluster is not None:
            return opened
        with self._lock:
            return None if self._used_states.has(*_get_use(opened)) else opened

    async def use(self, state: RequestState) -> bool:
        """Mark a state as used. Return False if another request has already used it, or may have used it.

        Raises:
            ServerBusy: the shared state of the workers cannot be used now. The caller may send the request again.
        """
        if self._cluster is None:
            with self._lock:
                return self._used_states.add(*_get_use(state), time.time())
        owner, id, sealed_at = _get_use(state)
        epoch = state.once_values.get(_EPOCH_KEY, "")
        try:
            return await use_with_retry(self._cluster.state, f"consent:{owner}:{id}", sealed_at, _STATE_TTL_S, epoch)
        except HistoryLost:
            return False
        except SharedStateUnavailable as exc:
            raise ServerBusy(
                "The gateway cannot check the answer of your user now. Send the same request again",
                retry_after=exc.retry_after,
            ) from exc


def _get_use(state: RequestState) -> tuple[Any, Any, float]:
    values = state.once_values
    return values.get(_OWNER_KEY), values.get(_STATE_ID_KEY), values.get(_SEALED_AT_KEY, 0.0)


class ConsentRequired(Exception):
    """Raised if the caller must first ask its user. `result` is the response that asks for input."""

    def __init__(self, result: InputRequiredResult) -> None:
        self.result = result


class ConsentRound:
    """Asks the caller's user for consent to one request.

    When the caller repeats the request, earlier answers still count. A stateless caller sends its answer back together
    with the request state of the server behind the gateway. Both are encrypted in one state. An answer counts only for
    the text that was shown and for one definition (`fingerprint`).
    """

    def __init__(self, exchange: IncomingExchange, states: SingleUseStates, server: Sequence[str]) -> None:
        caller = exchange.caller
        has_id = caller.principal is not None or caller.session_id != ""
        self.caller_id = get_caller_id(caller) if has_id else ANONYMOUS
        self.fingerprint = ""
        self._exchange = exchange
        self._states = states
        self._server = server
        self._params = exchange.params
        self.request_state: RequestState | None = None  # the decrypted state of an earlier attempt, or None
        self._is_state_used = False  # True after `_use_state` has marked the request state as used
        self._responses: dict[str, Any] = {}
        state = exchange.params.get("requestState")
        if type(state) is str and caller.is_stateless:
            self.request_state = states.open(state, self._compute_binding())
            if self.request_state is not None:
                self._responses = self._collect_responses(self.request_state)
        self._has_asked = self.request_state is not None

    def _compute_binding(self) -> bytes:
        exchange = self._exchange
        return compute_binding(exchange.caller.principal, self._server, exchange.method, self._params)

    def _collect_responses(self, request_state: RequestState) -> dict[str, Any]:
        """Add the answers in this request to the earlier answers. Ignore answers to questions that were not asked."""
        input_responses: Any = self._params.get("inputResponses")
        new_responses = input_responses if type(input_responses) is dict else {}
        return request_state.input_responses | {
            key: value for key, value in new_responses.items() if key in request_state.request_digests
        }

    @property
    def _can_remember(self) -> bool:
        return self.caller_id != ANONYMOUS

    @property
    def owner(self) -> str:
        """Return the ID of the caller to which the limits for open questions and request states apply.

        Anonymous callers share a caller ID, but callers with different addresses have different owner IDs.
        """
        return self.caller_id if self._can_remember else f"{ANONYMOUS} {self._exchange.origin}"

    async def _use_state(self, request_state: RequestState) -> bool:
        self._is_state_used = self._is_state_used or await self._states.use(request_state)
        return self._is_state_used

    @property
    def can_ask(self) -> bool:
        """Return whether the caller can ask its user."""
        caller = self._exchange.caller
        elicitation = caller.client_capabilities.elicitation
        has_forms = elicitation is not None and (elicitation.form is not None or elicitation.url is None)
        if caller.is_stateless:
            return has_forms and self._exchange.method in _REPEATABLE_METHODS
        return has_forms and self._exchange.ask is not None

    @property
    def can_ask_directly(self) -> bool:
        """Return whether the gateway can ask the user during the request. A stateless caller cannot be asked."""
        return self.can_ask and not self._exchange.caller.is_stateless

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """Ask the caller's user for consent.

        Raise ConsentRequired if a stateless caller must repeat the request with the answer.
        """
        # The user has not seen the whole request, so the answer can apply only to this request.
        can_remember = self._can_remember and not request.is_shortened
        params = {
            "mode": "form",
            "message": request.text,
            "requestedSchema": _build_form(can_remember=can_remember, has_arguments=request.arguments is not None),
        }
        self._has_asked = True
        if self._exchange.ask is not None and self.can_ask_directly:
            return self._parse_response(await self._ask_directly(self._exchange.ask, params), can_remember)
        key = f"{_REQUEST_KEY_PREFIX}{request.kind}.{hash_request([request.text, self.fingerprint])}"
        # The state is used up here, even if the user must answer another question before the request is forwarded.
        state = self.request_state
        if state is not None and not await self._use_state(state):
            state = None
        responses = self._responses if state is not None else {}
        if key in responses:
            return self._parse_response(responses[key], can_remember)
        next_state = RequestState(
            input_responses=responses,
            request_digests={key: ""},
            once_values={},
            author_state=None if state is None else state.author_state,
        )
        input_request = InputRequest(method="elicitation/create", params=params)
        sealed_state = self._states.seal(next_state, self._compute_binding(), self.owner)
        raise ConsentRequired(
            InputRequiredResult(
                result_type="input_required", input_requests={key: input_request}, request_state=sealed_state
            )
        )

    def _parse_response(self, raw: Any, can_remember: bool) -> ConsentAnswer:
        result = convert(raw, ElicitResult, label="elicitation answer")
        if result.action != "accept":
            return Deny("the user declined", cancelled=result.action == "cancel")
        match (result.content or {}).get("allow"):
            case "once":
                return Allow()
            case "session" if can_remember:
                return Allow("session")
            case _:
                return Deny("the user declined")

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

    async def build_params(self, judged_arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the parameters for the server, with the checked arguments and without the gateway's request state.

        Raises:
            InvalidParams: another request has already used the state.
        """
        params = self._params
        sent_arguments = params.get("arguments")
        has_changed = judged_arguments is not sent_arguments and judged_arguments is not None
        if has_changed and (judged_arguments or sent_arguments is not None):
            params = params | {"arguments": judged_arguments}
        if self.request_state is not None:
            if not await self._use_state(self.request_state):
                raise InvalidParams("Invalid params: requestState was already used")
            params = self._strip_own_state(self.request_state, params)
        return params

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
        """Convert a result of the server to the form that the caller expects.

        If the server asks for input, encrypt the server's request state together with the user's consent.
        """
        if not self._has_asked or not self._exchange.caller.is_stateless or not isinstance(result, InputRequiredResult):
            return result
        next_state = RequestState(
            input_responses=self._responses,
            request_digests={},
            once_values={},
            author_state=result.request_state,
        )
        return replace(result, request_state=self._states.seal(next_state, self._compute_binding(), self.owner))

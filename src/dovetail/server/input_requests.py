"""Asking the client: questions, and answers across rounds.

One primitive serves both eras. Where the peer can be asked directly, a question is a request. Where it cannot, the
answer is already here (sent with the retry, or sealed in requestState) or InputNeeded ends the round: the client is
told what is needed and the function runs again from the top when it comes back with it.

So the rule for authors: before the first unanswered question, do nothing you would not do twice; `Context.once`
remembers a value across rounds for those who must.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dovetail.error_context import clip
from dovetail.errors import ElicitationCancelled, ElicitationDeclined, InvalidParams, MissingClientCapability
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Ask, Exchange
from dovetail.protocol.request_state import RequestState, Sealer, compute_binding, create_empty_state, hash_request
from dovetail.server.thread_pool import current_slot
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.content import SamplingContent, TextContent
from dovetail.wire.elicitation import ElicitResult
from dovetail.wire.input_required import InputRequest, InputRequiredResult
from dovetail.wire.lifecycle import ClientCapabilities
from dovetail.wire.roots import ListRootsResult, Root
from dovetail.wire.sampling import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ModelPreferences,
    SamplingMessage,
    ToolChoice,
)
from dovetail.wire.tools import Tool

INPUT_REQUIRED = "input_required"

T = TypeVar("T")
Answer = TypeVar("Answer", covariant=True)


class InputRoundEnded(BaseException):
    """Ends a round in which a question has no answer yet. Not an Exception: no author should catch it by accident."""


class InputRequestBase(Generic[Answer]):
    """Something to ask the client. `read` makes the author's value of what came back."""

    method: str

    def params(self) -> dict[str, Any]:
        """The question as it is sent."""
        raise NotImplementedError

    def missing(self, client_capabilities: ClientCapabilities) -> dict[str, Any] | None:
        """What the client would have had to declare and did not."""
        raise NotImplementedError

    def read(self, raw: Any) -> Answer:
        """The answer, checked."""
        raise NotImplementedError


class Elicit(InputRequestBase[Any]):
    """A form for the user: a type with flat fields, a single primitive type, or a schema of your own."""

    method = "elicitation/create"

    def __init__(self, message: str, form: Any) -> None:
        from dovetail.server.parameters.elicitation_form import compile_form  # only servers that ask pay for it

        self.message = message
        self.form = compile_form(form)

    def params(self) -> dict[str, Any]:
        return {"mode": "form", "message": self.message, "requestedSchema": self.form.schema}

    def missing(self, client_capabilities: ClientCapabilities) -> dict[str, Any] | None:
        # An empty declaration means forms. spec: elicitation#capabilities
        capability = client_capabilities.elicitation
        is_supported = capability is not None and (capability.form is not None or capability.url is None)
        return None if is_supported else {"elicitation": {"form": {}}}

    def read(self, raw: Any) -> Any:
        result = _read_accepted(raw)
        try:
            return self.form.read(result.content)
        except ValueError as exc:
            raise InvalidParams(f"Invalid params: the answer does not fit the form: {clip(str(exc), 512)}") from None


class ElicitURL(InputRequestBase[None]):
    """A page the user is asked to visit, for what must not pass through the client."""

    method = "elicitation/create"

    def __init__(self, message: str, url: str) -> None:
        self.message = message
        self.url = url

    def params(self) -> dict[str, Any]:
        return {"mode": "url", "message": self.message, "url": self.url}

    def missing(self, client_capabilities: ClientCapabilities) -> dict[str, Any] | None:
        capability = client_capabilities.elicitation
        return None if capability is not None and capability.url is not None else {"elicitation": {"url": {}}}

    def read(self, raw: Any) -> None:
        _read_accepted(raw)


class Sample(InputRequestBase[CreateMessageResult]):
    """A message for the client's model to complete."""

    method = "sampling/createMessage"

    def __init__(
        self,
        messages: str | SamplingContent | Sequence[str | SamplingMessage],
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        temperature: float | None = None,
        stop_sequences: list[str] | None = None,
        model_preferences: ModelPreferences | None = None,
        tools: list[Tool] | None = None,
        tool_choice: ToolChoice | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._message_params = CreateMessageRequestParams(
            messages=_to_sampling_messages(messages),
            max_tokens=max_tokens,
            system_prompt=system_prompt,
            temperature=temperature,
            stop_sequences=stop_sequences,
            model_preferences=model_preferences,
            tools=tools,
            tool_choice=tool_choice,
            metadata=metadata,
        )

    def params(self) -> dict[str, Any]:
        return to_plain(self._message_params)

    def missing(self, client_capabilities: ClientCapabilities) -> dict[str, Any] | None:
        capability, tools = client_capabilities.sampling, self._message_params.tools or self._message_params.tool_choice
        is_supported = capability is not None and (not tools or capability.tools is not None)
        return None if is_supported else {"sampling": {"tools": {}} if tools else {}}

    def read(self, raw: Any) -> CreateMessageResult:
        return convert(raw, CreateMessageResult, label="sampling answer")


class ListRoots(InputRequestBase[list[Root]]):
    """The directories and files the client lets the server work in."""

    method = "roots/list"

    def params(self) -> dict[str, Any]:
        return {}

    def missing(self, client_capabilities: ClientCapabilities) -> dict[str, Any] | None:
        return None if client_capabilities.roots is not None else {"roots": {}}

    def read(self, raw: Any) -> list[Root]:
        return convert(raw, ListRootsResult, label="roots").roots


class InputRequired:
    """Returned by a function that drives the rounds itself: what it needs, and what it wants to be told again."""

    def __init__(
        self, requests: Mapping[str, InputRequestBase[Any]] | None = None, request_state: str | None = None
    ) -> None:
        if not requests and request_state is None:
            raise ValueError("InputRequired needs requests, a state, or both")
        self.requests = dict(requests or {})
        self.request_state = request_state


class InputRequests:
    """The questions and answers of one exchange."""

    def __init__(self, exchange: Exchange, sealer: Sealer, state_ttl: float, debug: bool) -> None:
        self._exchange = exchange
        self._sealer = sealer
        self._state_ttl = state_ttl
        self._debug = debug
        self._state_binding: bytes | None = None
        self._request_count = 0
        self._reached_keys: set[str] = set()
        self._used_keys: set[str] = set()  # keys of this run
        self._unanswered: dict[str, InputRequestBase[Any]] = {}
        self.round_state = self._restore_state()

    def _restore_state(self) -> RequestState:
        params = self._exchange.params
        sealed_state, responses = params.get("requestState"), params.get("inputResponses")
        if not self._exchange.caller.is_stateless or (sealed_state is None and responses is None):
            return create_empty_state()
        if sealed_state is not None and type(sealed_state) is not str:
            raise InvalidParams("Invalid params: requestState must be a string")
        if responses is not None and type(responses) is not dict:
            raise InvalidParams("Invalid params: inputResponses must be an object")
        round_state = (
            create_empty_state()
            if sealed_state is None
            else self._sealer.open(sealed_state, self._get_binding(), time.time())
        )
        round_state.input_responses |= responses or {}
        return round_state

    def _get_binding(self) -> bytes:
        if self._state_binding is None:
            exchange = self._exchange
            self._state_binding = compute_binding(exchange.caller.principal, exchange.method, exchange.params)
        return self._state_binding

    def begin_round(self) -> None:
        """The function runs, perhaps again, from the top."""
        self._request_count = 0
        self._used_keys.clear()

    def next_key(self) -> str:
        """A key for a question its author did not name: its place in the order of asking."""
        self._request_count += 1
        return f"q{self._request_count}"

    async def ask(self, requests: Mapping[str, InputRequestBase[Any]]) -> dict[str, Any]:
        """Answers to all of them, asked together; ends the round where the peer cannot be asked directly."""
        for key in requests:
            if key in self._used_keys:
                raise RuntimeError(f"two questions of one call have the key {key!r}: give each its own, or none")
            self._used_keys.add(key)
        self._check_capabilities(requests.values())
        if self._exchange.ask is not None:
            raw_responses = await self._ask_directly(requests, self._exchange.ask)
            return {key: request.read(raw_responses[key]) for key, request in requests.items()}
        if not self._exchange.caller.is_stateless:
            raise _make_unreachable_error(requests.values())
        answers: dict[str, Any] = {}
        for key, request in requests.items():
            if self._has_answer(key, request):
                answers[key] = request.read(self.round_state.input_responses[key])
            else:
                self._unanswered[key] = request
        if self._unanswered:
            raise InputRoundEnded
        return answers

    def _has_answer(self, key: str, request: InputRequestBase[Any]) -> bool:
        self._reached_keys.add(key)
        request_digest = hash_request([request.method, request.params()])
        previous_digest = self.round_state.request_digests.get(key)
        if previous_digest is not None and previous_digest != request_digest:
            if self._debug:
                raise RuntimeError(
                    f"question {key!r} is not the one asked in an earlier round: a function that asks runs again "
                    "from the top in each round and must ask the same questions in the same order"
                )
            self.round_state.input_responses.pop(key, None)  # an answer to another question
        self.round_state.request_digests[key] = request_digest
        return key in self.round_state.input_responses

    def _check_capabilities(self, requests: Any) -> None:
        required: dict[str, Any] = {}
        for request in requests:
            missing = request.missing(self._exchange.caller.client_capabilities)
            for name, capability in (missing or {}).items():
                required[name] = required.get(name, {}) | capability
        if required:
            raise MissingClientCapability(required)

    async def _ask_directly(self, requests: Mapping[str, InputRequestBase[Any]], ask: Ask) -> dict[str, Any]:
        """What the client answers to each, unread; when one fails, the others are withdrawn."""
        revision = self._exchange.caller.protocol_version
        outgoing = [
            downgrade.downgrade_request(revision, request.method, request.params()) for request in requests.values()
        ]
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        self._exchange.pause(asked_at)
        slot = current_slot.get()  # of a plain function, which waits for the answer in its thread
        is_lent = slot is not None and slot.lend()
        tasks = [loop.create_task(ask(method, params)) for method, params in outgoing]
        try:
            return dict(zip(requests, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # they are withdrawn before anything else is said
            if slot is not None and is_lent:
                slot.take_back()
            self._exchange.resume(asked_at, loop.time())

    async def once(self, key: str, function: Callable[[], Any], into: Any) -> Any:
        """The function's value, made in the first round that gets here and remembered in all later ones."""
        stored_values = self.round_state.once_values
        if key not in stored_values:
            value = function()
            if asyncio.iscoroutine(value) or isinstance(value, asyncio.Future):
                value = await value
            stored_values[key] = to_plain(value)
        return stored_values[key] if into is None else convert(stored_values[key], into, label=f"value of step {key}")

    def build_required_result(self) -> InputRequiredResult:
        """The result that ends a round: every question asked in vain, and the sealed memory."""
        requests = {
            key: InputRequest(method=request.method, params=request.params() or None)
            for key, request in self._unanswered.items()
        }
        return self._build_result(requests)

    def build_explicit_result(self, input_required: InputRequired) -> InputRequiredResult:
        """The result of an author who drives the rounds."""
        self._check_capabilities(input_required.requests.values())
        self.round_state.author_state = input_required.request_state
        requests = {
            key: InputRequest(method=request.method, params=request.params() or None)
            for key, request in input_required.requests.items()
        }
        return self._build_result(requests)

    def _build_result(self, requests: dict[str, InputRequest]) -> InputRequiredResult:
        sealed_state = self._sealer.seal(self.round_state, self._get_binding(), time.time() + self._state_ttl)
        return InputRequiredResult(
            result_type=INPUT_REQUIRED, input_requests=requests or None, request_state=sealed_state
        )

    async def ask_explicit(self, input_required: InputRequired) -> None:
        """Handshake eras: ask what an author's InputRequired wants, so that the function can run again with it."""
        self._check_capabilities(input_required.requests.values())
        self.round_state.author_state = input_required.request_state
        if input_required.requests:
            if self._exchange.ask is None:
                raise _make_unreachable_error(input_required.requests.values())
            self.round_state.input_responses |= await self._ask_directly(input_required.requests, self._exchange.ask)

    @property
    def has_unanswered(self) -> bool:
        """Whether a question without an answer ended nothing: someone caught what should have ended the round."""
        return bool(self._unanswered)

    def list_unreached_keys(self) -> list[str]:
        """Questions answered in an earlier round that this one, now complete, never came to."""
        return [key for key in self.round_state.request_digests if key not in self._reached_keys]


def _make_unreachable_error(requests: Iterable[InputRequestBase[Any]]) -> MissingClientCapability:
    """A handshake client without a session, or that takes no event stream, cannot be sent a question."""
    required: dict[str, Any] = {request.method.partition("/")[0]: {} for request in requests}
    return MissingClientCapability(
        required, "This client cannot be asked: there is no session, or no event stream, to ask it on"
    )


def _read_accepted(raw: Any) -> ElicitResult:
    result = convert(raw, ElicitResult, label="elicitation answer")
    if result.action == "decline":
        raise ElicitationDeclined
    if result.action == "cancel":
        raise ElicitationCancelled
    return result


def _to_sampling_messages(messages: str | SamplingContent | Sequence[str | SamplingMessage]) -> list[SamplingMessage]:
    if isinstance(messages, str):
        return [SamplingMessage(role="user", content=TextContent(text=messages))]
    if isinstance(messages, SamplingContent):
        return [SamplingMessage(role="user", content=messages)]
    return [
        message if isinstance(message, SamplingMessage) else _to_sampling_messages(message)[0] for message in messages
    ]

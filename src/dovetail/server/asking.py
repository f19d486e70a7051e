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

from dovetail.errors import Declined, Dismissed, InvalidParams, MissingCapability, clip
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Ask, Exchange
from dovetail.protocol.state import Remembered, Sealer, binding, digest, nothing
from dovetail.server.threads import current_place
from dovetail.wire.codec import convert, plain
from dovetail.wire.content import SamplingContent, TextContent
from dovetail.wire.elicitation import ElicitResult
from dovetail.wire.inputs import InputRequest, InputRequiredResult
from dovetail.wire.lifecycle import ClientCapabilities
from dovetail.wire.roots import ListRootsResult, Root
from dovetail.wire.sampling import (
    CreateMessageParams,
    CreateMessageResult,
    ModelPreferences,
    SamplingMessage,
    ToolChoice,
)
from dovetail.wire.tools import Tool

INPUT_REQUIRED = "input_required"

T = TypeVar("T")
Answer = TypeVar("Answer", covariant=True)


class InputNeeded(BaseException):
    """Ends a round in which a question has no answer yet. Not an Exception: no author should catch it by accident."""


class Question(Generic[Answer]):
    """Something to ask the client. `read` makes the author's value of what came back."""

    method: str

    def params(self) -> dict[str, Any]:
        """The question as it is sent."""
        raise NotImplementedError

    def missing(self, declared: ClientCapabilities) -> dict[str, Any] | None:
        """What the client would have had to declare and did not."""
        raise NotImplementedError

    def read(self, raw: Any) -> Answer:
        """The answer, checked."""
        raise NotImplementedError


class Elicit(Question[Any]):
    """A form for the user: a type with flat fields, a single primitive type, or a schema of your own."""

    method = "elicitation/create"

    def __init__(self, message: str, form: Any) -> None:
        from dovetail.server.forms import compile_form  # only servers that ask pay for it

        self.message = message
        self.form = compile_form(form)

    def params(self) -> dict[str, Any]:
        return {"mode": "form", "message": self.message, "requestedSchema": self.form.schema}

    def missing(self, declared: ClientCapabilities) -> dict[str, Any] | None:
        # An empty declaration means forms. spec: elicitation#capabilities
        known = declared.elicitation
        able = known is not None and (known.form is not None or known.url is None)
        return None if able else {"elicitation": {"form": {}}}

    def read(self, raw: Any) -> Any:
        answer = _accepted(raw)
        try:
            return self.form.read(answer.content)
        except ValueError as exc:
            raise InvalidParams(f"Invalid params: the answer does not fit the form: {clip(str(exc), 512)}") from None


class ElicitUrl(Question[None]):
    """A page the user is asked to visit, for what must not pass through the client."""

    method = "elicitation/create"

    def __init__(self, message: str, url: str) -> None:
        self.message = message
        self.url = url

    def params(self) -> dict[str, Any]:
        return {"mode": "url", "message": self.message, "url": self.url}

    def missing(self, declared: ClientCapabilities) -> dict[str, Any] | None:
        known = declared.elicitation
        return None if known is not None and known.url is not None else {"elicitation": {"url": {}}}

    def read(self, raw: Any) -> None:
        _accepted(raw)


class Sample(Question[CreateMessageResult]):
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
        self._params = CreateMessageParams(
            messages=_sampling_messages(messages),
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
        return plain(self._params)

    def missing(self, declared: ClientCapabilities) -> dict[str, Any] | None:
        known, tools = declared.sampling, self._params.tools or self._params.tool_choice
        able = known is not None and (not tools or known.tools is not None)
        return None if able else {"sampling": {"tools": {}} if tools else {}}

    def read(self, raw: Any) -> CreateMessageResult:
        return convert(raw, CreateMessageResult, what="sampling answer")


class Roots(Question[list[Root]]):
    """The directories and files the client lets the server work in."""

    method = "roots/list"

    def params(self) -> dict[str, Any]:
        return {}

    def missing(self, declared: ClientCapabilities) -> dict[str, Any] | None:
        return None if declared.roots is not None else {"roots": {}}

    def read(self, raw: Any) -> list[Root]:
        return convert(raw, ListRootsResult, what="roots").roots


class InputRequired:
    """Returned by a function that drives the rounds itself: what it needs, and what it wants to be told again."""

    def __init__(self, requests: Mapping[str, Question[Any]] | None = None, state: str | None = None) -> None:
        if not requests and state is None:
            raise ValueError("InputRequired needs requests, a state, or both")
        self.requests = dict(requests or {})
        self.state = state


class Asking:
    """The questions and answers of one exchange."""

    def __init__(self, exchange: Exchange, sealer: Sealer, lifetime: float, debug: bool) -> None:
        self._exchange = exchange
        self._sealer = sealer
        self._lifetime = lifetime
        self._debug = debug
        self._binding: bytes | None = None
        self._asked = 0
        self._reached: set[str] = set()
        self._used: set[str] = set()  # keys of this run
        self._needed: dict[str, Question[Any]] = {}
        self.remembered = self._recall()

    def _recall(self) -> Remembered:
        params = self._exchange.params
        state, fresh = params.get("requestState"), params.get("inputResponses")
        if not self._exchange.caller.stateless or (state is None and fresh is None):
            return nothing()
        if state is not None and type(state) is not str:
            raise InvalidParams("Invalid params: requestState must be a string")
        if fresh is not None and type(fresh) is not dict:
            raise InvalidParams("Invalid params: inputResponses must be an object")
        remembered = nothing() if state is None else self._sealer.open(state, self._bound(), time.time())
        remembered.answers |= fresh or {}
        return remembered

    def _bound(self) -> bytes:
        if self._binding is None:
            exchange = self._exchange
            self._binding = binding(exchange.caller.principal, exchange.method, exchange.params)
        return self._binding

    def begin(self) -> None:
        """The function runs, perhaps again, from the top."""
        self._asked = 0
        self._used.clear()

    def next_key(self) -> str:
        """A key for a question its author did not name: its place in the order of asking."""
        self._asked += 1
        return f"q{self._asked}"

    async def ask(self, questions: Mapping[str, Question[Any]]) -> dict[str, Any]:
        """Answers to all of them, asked together; ends the round where the peer cannot be asked directly."""
        for key in questions:
            if key in self._used:
                raise RuntimeError(f"two questions of one call have the key {key!r}: give each its own, or none")
            self._used.add(key)
        self._check_capabilities(questions.values())
        if self._exchange.ask is not None:
            raw = await self._ask_directly(questions, self._exchange.ask)
            return {key: question.read(raw[key]) for key, question in questions.items()}
        if not self._exchange.caller.stateless:
            raise _unreachable(questions.values())
        answers: dict[str, Any] = {}
        for key, question in questions.items():
            if self._answered(key, question):
                answers[key] = question.read(self.remembered.answers[key])
            else:
                self._needed[key] = question
        if self._needed:
            raise InputNeeded
        return answers

    def _answered(self, key: str, question: Question[Any]) -> bool:
        self._reached.add(key)
        mark = digest([question.method, question.params()])
        before = self.remembered.questions.get(key)
        if before is not None and before != mark:
            if self._debug:
                raise RuntimeError(
                    f"question {key!r} is not the one asked in an earlier round: a function that asks runs again "
                    "from the top in each round and must ask the same questions in the same order"
                )
            self.remembered.answers.pop(key, None)  # an answer to another question
        self.remembered.questions[key] = mark
        return key in self.remembered.answers

    def _check_capabilities(self, questions: Any) -> None:
        required: dict[str, Any] = {}
        for question in questions:
            missing = question.missing(self._exchange.caller.capabilities)
            for name, needed in (missing or {}).items():
                required[name] = required.get(name, {}) | needed
        if required:
            raise MissingCapability(required)

    async def _ask_directly(self, questions: Mapping[str, Question[Any]], ask: Ask) -> dict[str, Any]:
        """What the client answers to each, unread; when one fails, the others are withdrawn."""
        revision = self._exchange.caller.revision
        asked = [downgrade.question(revision, question.method, question.params()) for question in questions.values()]
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        self._exchange.pause(asked_at)
        place = current_place.get()  # of a plain function, which waits for the answer in its thread
        lent = place is not None and place.lend()
        tasks = [loop.create_task(ask(method, params)) for method, params in asked]
        try:
            return dict(zip(questions, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # they are withdrawn before anything else is said
            if place is not None and lent:
                place.take_back()
            self._exchange.resume(asked_at, loop.time())

    async def once(self, key: str, function: Callable[[], Any], type_: Any) -> Any:
        """The function's value, made in the first round that gets here and remembered in all later ones."""
        kept = self.remembered.once
        if key not in kept:
            value = function()
            if asyncio.iscoroutine(value) or isinstance(value, asyncio.Future):
                value = await value
            kept[key] = plain(value)
        return kept[key] if type_ is None else convert(kept[key], type_, what=f"value of step {key}")

    def required(self) -> InputRequiredResult:
        """The result that ends a round: every question asked in vain, and the sealed memory."""
        questions = {
            key: InputRequest(method=question.method, params=question.params() or None)
            for key, question in self._needed.items()
        }
        return self._sealed(questions)

    def explicit(self, needed: InputRequired) -> InputRequiredResult:
        """The result of an author who drives the rounds."""
        self._check_capabilities(needed.requests.values())
        self.remembered.state = needed.state
        questions = {
            key: InputRequest(method=question.method, params=question.params() or None)
            for key, question in needed.requests.items()
        }
        return self._sealed(questions)

    def _sealed(self, questions: dict[str, InputRequest]) -> InputRequiredResult:
        state = self._sealer.seal(self.remembered, self._bound(), time.time() + self._lifetime)
        return InputRequiredResult(result_type=INPUT_REQUIRED, input_requests=questions or None, request_state=state)

    async def answer_for(self, needed: InputRequired) -> None:
        """Handshake eras: ask what an author's InputRequired wants, so that the function can run again with it."""
        self._check_capabilities(needed.requests.values())
        self.remembered.state = needed.state
        if needed.requests:
            if self._exchange.ask is None:
                raise _unreachable(needed.requests.values())
            self.remembered.answers |= await self._ask_directly(needed.requests, self._exchange.ask)

    @property
    def swallowed(self) -> bool:
        """Whether a question without an answer ended nothing: someone caught what should have ended the round."""
        return bool(self._needed)

    def unreached(self) -> list[str]:
        """Questions answered in an earlier round that this one, now complete, never came to."""
        return [key for key in self.remembered.questions if key not in self._reached]


def _unreachable(questions: Iterable[Question[Any]]) -> MissingCapability:
    """A handshake client without a session, or that takes no event stream, cannot be sent a question."""
    required: dict[str, Any] = {question.method.partition("/")[0]: {} for question in questions}
    return MissingCapability(
        required, "This client cannot be asked: there is no session, or no event stream, to ask it on"
    )


def _accepted(raw: Any) -> ElicitResult:
    answer = convert(raw, ElicitResult, what="elicitation answer")
    if answer.action == "decline":
        raise Declined
    if answer.action == "cancel":
        raise Dismissed
    return answer


def _sampling_messages(given: str | SamplingContent | Sequence[str | SamplingMessage]) -> list[SamplingMessage]:
    if isinstance(given, str):
        return [SamplingMessage(role="user", content=TextContent(text=given))]
    if isinstance(given, SamplingContent):
        return [SamplingMessage(role="user", content=given)]
    return [one if isinstance(one, SamplingMessage) else _sampling_messages(one)[0] for one in given]

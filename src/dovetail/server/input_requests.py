"""Input requests: a function asks the client for input, and the client sends responses.

The same API works with all protocol versions. If the server can send requests to the client, an input request is sent
as one. Otherwise the call ends with a result that lists the missing input, and the client calls again with the
responses. Responses to earlier input requests are encrypted in `requestState`. One such call is a round. In a task, the
record of the task contains the input requests and the responses.

InputRoundEnded ends a round, and the function runs again from the top in the next round. The code before an unanswered
input request can therefore run several times. `Context.once` runs a step only once.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from dovetail.error_context import clip
from dovetail.errors import ElicitationCancelled, ElicitationDeclined, InvalidParams, MissingClientCapability
from dovetail.log import log
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Ask, IncomingExchange, make_type_error
from dovetail.protocol.request_state import (
    RequestState,
    RequestStateSealer,
    compute_binding,
    create_empty_state,
    hash_request,
)
from dovetail.server.thread_pool import lend_current_slot
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.content import SamplingContent, TextContent
from dovetail.wire.elicitation import ElicitResult
from dovetail.wire.input_required import InputRequest, InputRequiredResult
from dovetail.wire.lifecycle import ClientCapabilities
from dovetail.wire.meta import PROGRESS_TOKEN
from dovetail.wire.progress import ProgressParams
from dovetail.wire.roots import ListRootsResult
from dovetail.wire.sampling import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ModelPreferences,
    SamplingMessage,
    ToolChoice,
    check_tool_results,
)
from dovetail.wire.tools import Tool

INPUT_REQUIRED = "input_required"

InputProgressHandler: TypeAlias = Callable[[float, float | None, str | None], None]


class InputRoundEnded(BaseException):
    """Raised to stop a function that needs an answer from the client. The function runs again with the answer.

    It is a BaseException, so that `except Exception` in the function does not catch it.
    """


class Elicit:
    """A form for the user.

    Args:
        message: The question, as the user reads it.
        form: A class with simple fields, a primitive type such as `str`, or a JSON Schema.
    """

    def __init__(self, message: str, form: Any) -> None:
        # This import is here because servers without forms do not need the module.
        from dovetail.server.parameters.elicitation_form import compile_form

        self.message = message
        self.form = compile_form(form)


class ElicitURL:
    """A web page that the user should open, for example to enter data that the client must not see.

    Args:
        message: Why the user should open the page.
        url: The URL of the page.
        elicitation_id: An ID for `Context.notify_elicitation_complete`.
    """

    def __init__(self, message: str, url: str, elicitation_id: str | None = None) -> None:
        self.message = message
        self.url = url
        self.elicitation_id = elicitation_id


class Sample:
    """A message for the client's model to complete.

    Args:
        messages: A string, a content block, or the messages of a conversation.
        max_tokens: The maximum number of tokens in the response.
        system_prompt: The system prompt. The client may change or ignore it.
        temperature: The sampling temperature. If None, the client chooses it.
        stop_sequences: Strings at which the model stops.
        model_preferences: Hints and priorities for the client's choice of a model.
        tools: Tools that the model may call. The client must support sampling with tools.
        tool_choice: Whether the model may, must or must not call a tool.
        metadata: Values for the model provider. Their meaning depends on the provider.
        include_context: Which context the client should add to the messages. The server sends it only to clients that
            support it.
        progress_handler: Receives `(progress, total, message)` if the client reports progress.
    """

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
        include_context: Literal["none", "thisServer", "allServers"] | None = None,
        progress_handler: "InputProgressHandler | None" = None,
    ) -> None:
        self.messages = check_tool_results(_to_sampling_messages(messages))
        self.max_tokens = max_tokens
        self.system_prompt = system_prompt
        self.temperature = temperature
        self.stop_sequences = stop_sequences
        self.model_preferences = model_preferences
        self.tools = tools
        self.tool_choice = tool_choice
        self.metadata = metadata
        self.include_context = include_context
        self.progress_handler = progress_handler


class ListRoots:
    """A request for the directories and files that the server may use."""


AnyInputRequest: TypeAlias = Elicit | ElicitURL | Sample | ListRoots


def build_input_request(request: AnyInputRequest) -> InputRequest:
    """Convert an input request to the protocol message."""
    match request:
        case Elicit():
            params = {"mode": "form", "message": request.message, "requestedSchema": request.form.schema}
            return InputRequest(method="elicitation/create", params=params)
        case ElicitURL():
            params = {"mode": "url", "message": request.message, "url": request.url}
            if request.elicitation_id is not None:
                params["elicitationId"] = request.elicitation_id
            return InputRequest(method="elicitation/create", params=params)
        case Sample():
            fields = {name: value for name, value in vars(request).items() if name != "progress_handler"}
            params = to_plain(CreateMessageRequestParams(**fields))
            return InputRequest(method="sampling/createMessage", params=params)
        case ListRoots():
            return InputRequest(method="roots/list", params=None)


def find_missing_capabilities(request: AnyInputRequest, declared: ClientCapabilities) -> dict[str, Any]:
    """Return the capabilities that an input request needs but the client did not declare."""
    match request:
        case Elicit():
            # An empty elicitation capability means that the client supports forms. spec: elicitation#capabilities
            elicitation = declared.elicitation
            is_supported = elicitation is not None and (elicitation.form is not None or elicitation.url is None)
            return {} if is_supported else {"elicitation": {"form": {}}}
        case ElicitURL():
            is_supported = declared.elicitation is not None and declared.elicitation.url is not None
            return {} if is_supported else {"elicitation": {"url": {}}}
        case Sample():
            needs_tools = bool(request.tools or request.tool_choice)
            is_supported = declared.sampling is not None and (not needs_tools or declared.sampling.tools is not None)
            return {} if is_supported else {"sampling": {"tools": {}} if needs_tools else {}}
        case ListRoots():
            return {} if declared.roots is not None else {"roots": {}}


def read_input_response(request: AnyInputRequest, response: Any) -> Any:
    """Convert the client's response to the value that the function receives.

    Raises:
        ElicitationDeclined: the user declined.
        ElicitationCancelled: the user cancelled.
        InvalidParams: the response does not match the request.
    """
    match request:
        case Elicit():
            result = _read_accepted(response)
            try:
                return request.form.read(result.content)
            except ValueError as exc:
                raise InvalidParams(
                    f"Invalid params: the answer does not match the form: {clip(str(exc), 512)}"
                ) from None
        case ElicitURL():
            _read_accepted(response)
            return None
        case Sample():
            return convert(response, CreateMessageResult, label="sampling answer")
        case ListRoots():
            return convert(response, ListRootsResult, label="roots").roots


def check_form_answer(request: InputRequest, response: Any) -> None:
    """Raise ValueError if the user's answer does not match the form. Do nothing for a request without a form."""
    params: dict[str, Any] = request.params or {}
    schema: dict[str, Any] | None = params.get("requestedSchema")
    if schema is None or response.get("action") != "accept":
        return
    from dovetail.server.parameters.elicitation_form import compile_form

    required = schema.get("required", ())
    # Some clients send null for fields that the user left empty.
    content: dict[str, Any] = {
        name: value for name, value in (response.get("content") or {}).items() if value is not None or name in required
    }
    compile_form(schema).read(content)


class InputRequired:
    """A return value that asks the client for input. Use it if your function handles the responses itself.

    Args:
        requests: Input requests by key. When the function runs again, `ctx.input_responses` has the responses.
        request_state: A string that `ctx.request_state` returns when the function runs again. It is encrypted for the
            client.
    """

    def __init__(self, requests: Mapping[str, AnyInputRequest] | None = None, request_state: str | None = None) -> None:
        if not requests and request_state is None:
            raise ValueError("InputRequired requires at least one of `requests` and `request_state`")
        self.requests = dict(requests or {})
        self.request_state = request_state


class ProgressHandlers:
    """The progress handlers for requests to clients."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], InputProgressHandler] = {}

    def add(self, session_id: str, handler: InputProgressHandler) -> str:
        """Create a progress token. From now on, call the handler for each progress notification with this token."""
        token = os.urandom(8).hex()
        self._handlers[session_id, token] = handler
        return token

    def remove(self, session_id: str, token: str) -> None:
        del self._handlers[session_id, token]

    def receive(self, exchange: IncomingExchange) -> None:
        """Call the handler for a progress notification. Ignore a token without a handler."""
        token = exchange.params.get("progressToken")
        handler = self._handlers.get((exchange.caller.session_id, token)) if type(token) is str else None
        if handler is None:
            return
        try:
            progress = convert(exchange.params, ProgressParams)
            handler(progress.progress, progress.total, progress.message)
        except Exception:
            log.exception("the progress handler of an input request failed")


class InputRequests:
    """The input requests of one call, and the responses of the client."""

    def __init__(
        self,
        exchange: IncomingExchange,
        server_name: str,
        sealer: RequestStateSealer,
        state_ttl: float,
        debug: bool,
        progress_handlers: ProgressHandlers | None = None,
    ) -> None:
        self._progress_handlers = progress_handlers or ProgressHandlers()
        self._exchange = exchange
        self._server_name = server_name
        self._sealer = sealer
        self._state_ttl = state_ttl
        self._debug = debug
        self._state_binding: bytes | None = None
        self._request_count = 0
        self._reached_keys: set[str] = set()
        self._used_keys: set[str] = set()
        self._unanswered: dict[str, AnyInputRequest] = {}
        self.is_ended = False
        task_call = exchange.task_call
        if task_call is None:
            self.round_state = self._restore_state()
        else:
            if task_call.round_state is None:
                task_call.round_state = self._restore_state()
            self.round_state = task_call.round_state

    def _restore_state(self) -> RequestState:
        params = self._exchange.params
        sealed_state, responses = params.get("requestState"), params.get("inputResponses")
        if not self._exchange.caller.is_stateless or (sealed_state is None and responses is None):
            return create_empty_state()
        if sealed_state is not None and type(sealed_state) is not str:
            raise make_type_error("requestState", "a string")
        if responses is not None and type(responses) is not dict:
            raise make_type_error("inputResponses", "an object")
        round_state = (
            create_empty_state()
            if sealed_state is None
            else self._sealer.open(sealed_state, self._get_binding(), time.time())
        )
        # The function may already have used an earlier response, so a new response must not replace it.
        round_state.input_responses = (responses or {}) | round_state.input_responses
        return round_state

    def _get_binding(self) -> bytes:
        if self._state_binding is None:
            exchange = self._exchange
            # Mounted servers share encryption keys, so only the mount path distinguishes their states.
            server = (*exchange.mount_path, self._server_name)
            self._state_binding = compute_binding(exchange.caller.principal, server, exchange.method, exchange.params)
        return self._state_binding

    def begin_round(self) -> None:
        """Reset the keys of the input requests before the function runs again."""
        self._request_count = 0
        self._used_keys.clear()

    def next_key(self) -> str:
        """Return the default key for the next input request. The first key is "q1"."""
        self._request_count += 1
        return f"q{self._request_count}"

    async def ask(self, requests: Mapping[str, AnyInputRequest]) -> dict[str, Any]:
        """Send all input requests at once and return the responses.

        If a response is missing and the server cannot send requests to the client, raise InputRoundEnded.
        """
        for key in requests:
            if key in self._used_keys:
                raise RuntimeError(
                    f"duplicate key {key!r}: input requests of a call must have different keys. "
                    "Pass another key=, or leave it out"
                )
            self._used_keys.add(key)
        self._check_capabilities(requests.values())
        if self._exchange.ask is not None:
            raw_responses = await self._ask_directly(requests, self._exchange.ask)
            return {key: read_input_response(request, raw_responses[key]) for key, request in requests.items()}
        if not self._exchange.caller.is_stateless:
            raise _make_unreachable_error(requests.values())
        answers: dict[str, Any] = {}
        unanswered: dict[str, AnyInputRequest] = {}
        for key, request in requests.items():
            if self._has_answer(key, request):
                answers[key] = read_input_response(request, self.round_state.input_responses[key])
            else:
                unanswered[key] = request
        if unanswered and self._exchange.is_task:
            responses = await self._ask_in_task(unanswered)
            return answers | {key: read_input_response(requests[key], response) for key, response in responses.items()}
        self._unanswered |= unanswered
        if self._unanswered:
            if self.is_ended:
                raise RuntimeError(
                    "an input request was made after the call had ended, so the client cannot receive it. Await all "
                    "input requests before the function returns"
                )
            raise InputRoundEnded
        return answers

    def _has_answer(self, key: str, request: AnyInputRequest) -> bool:
        self._reached_keys.add(key)
        input_request = self._build_request(request)
        request_digest = hash_request([input_request.method, input_request.params or {}])
        previous_digest = self.round_state.request_digests.get(key)
        if previous_digest is not None and previous_digest != request_digest:
            if self._debug:
                raise RuntimeError(
                    f"input request {key!r} differs from the input request in the previous run. The function runs "
                    "again from the top after each response and must make the same input requests in the same order"
                )
            # The stored response answers a different input request, so it is removed.
            self.round_state.input_responses.pop(key, None)
        self.round_state.request_digests[key] = request_digest
        return key in self.round_state.input_responses

    def _build_request(self, request: AnyInputRequest) -> InputRequest:
        input_request, caller = build_input_request(request), self._exchange.caller
        params = input_request.params or {}
        if "includeContext" in params and not downgrade.allows_sampling_context(
            caller.protocol_version, caller.client_capabilities
        ):
            del params["includeContext"]
        if caller.is_stateless:
            params.pop("elicitationId", None)  # Protocol version 2026-07 does not have this field.
        return input_request

    def _check_capabilities(self, requests: Any) -> None:
        required: dict[str, Any] = {}
        for request in requests:
            missing = find_missing_capabilities(request, self._exchange.caller.client_capabilities)
            for name, capability in missing.items():
                required[name] = required.get(name, {}) | capability
        if required:
            raise MissingClientCapability(required)

    async def _ask_directly(self, requests: Mapping[str, AnyInputRequest], ask: Ask) -> dict[str, Any]:
        """Send requests to the client and return the responses. If one request fails, cancel the others."""
        revision = self._exchange.caller.protocol_version
        input_requests = [self._build_request(request) for request in requests.values()]
        outgoing = [
            downgrade.downgrade_request(revision, request.method, request.params or {}) for request in input_requests
        ]
        tokens = self._add_progress_tokens(requests.values(), outgoing)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        self._exchange.pause(asked_at)
        tasks = [loop.create_task(ask(method, params)) for method, params in outgoing]
        try:
            with lend_current_slot():
                try:
                    return dict(zip(requests, await asyncio.gather(*tasks), strict=True))
                finally:
                    for token in tokens:
                        self._progress_handlers.remove(self._exchange.caller.session_id, token)
                    for task in tasks:
                        task.cancel()
                    # Wait until the cancellations are sent. No other message may be sent before them.
                    await asyncio.wait(tasks)
        finally:
            self._exchange.resume(asked_at, loop.time())

    async def _ask_in_task(self, requests: Mapping[str, AnyInputRequest]) -> dict[str, Any]:
        """Ask the client of a task, and wait for its answers.

        If the answers take too long, raise InputRoundEnded. The function runs again when they have arrived.
        """
        task_call = self._exchange.task_call
        assert task_call is not None
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        self._exchange.pause(asked_at)
        try:
            with lend_current_slot():
                responses = await task_call.ask({key: self._build_request(value) for key, value in requests.items()})
        finally:
            self._exchange.resume(asked_at, loop.time())
        if responses is None:
            self._unanswered |= requests
            raise InputRoundEnded
        return responses

    def _add_progress_tokens(
        self, requests: Iterable[AnyInputRequest], outgoing: Iterable[tuple[str, dict[str, Any]]]
    ) -> list[str]:
        tokens: list[str] = []
        for request, (_, params) in zip(requests, outgoing, strict=True):
            if isinstance(request, Sample) and request.progress_handler is not None:
                tokens.append(self._progress_handlers.add(self._exchange.caller.session_id, request.progress_handler))
                params["_meta"] = {PROGRESS_TOKEN: tokens[-1]}
        return tokens

    async def once(self, key: str, function: Callable[[], Any], into: Any) -> Any:
        """Run a function once and store its value in the request state. Later runs use the stored value."""
        stored_values = self.round_state.once_values
        if key not in stored_values:
            value = function()
            if asyncio.iscoroutine(value) or isinstance(value, asyncio.Future):
                value = await value
            stored_values[key] = to_plain(value)
            if self._exchange.task_call is not None and self._exchange.is_task:
                await self._exchange.task_call.save_once_value(key, stored_values[key])
        return stored_values[key] if into is None else convert(stored_values[key], into, label=f"value of step {key}")

    def build_required_result(self) -> InputRequiredResult:
        """Build the result that asks the client for the missing responses. It contains the encrypted state."""
        return self._build_result(self._unanswered)

    def build_explicit_result(self, input_required: InputRequired) -> InputRequiredResult:
        """Build the result for an `InputRequired` that the function returned."""
        self._check_capabilities(input_required.requests.values())
        self.round_state.author_state = input_required.request_state
        return self._build_result(input_required.requests)

    def _build_result(self, requests: Mapping[str, AnyInputRequest]) -> InputRequiredResult:
        input_requests = {key: self._build_request(request) for key, request in requests.items()}
        for key in requests:
            # The function wants a new response to this input request, so remove the earlier response.
            self.round_state.input_responses.pop(key, None)
        sealed_state = self._sealer.seal(self.round_state, self._get_binding(), time.time() + self._state_ttl)
        return InputRequiredResult(
            result_type=INPUT_REQUIRED, input_requests=input_requests or None, request_state=sealed_state
        )

    async def ask_explicit(self, input_required: InputRequired) -> None:
        """Send the input requests of an `InputRequired`. This is only for tasks, and for clients before 2026-07.

        Then the function runs again with the responses.
        """
        self._check_capabilities(input_required.requests.values())
        if self._exchange.task_call is not None and self._exchange.is_task:
            responses = await self._ask_in_task(input_required.requests) if input_required.requests else {}
            await self._exchange.task_call.save_round(responses, input_required.request_state)
            self.round_state.input_responses |= responses
            self.round_state.author_state = input_required.request_state
            return
        self.round_state.author_state = input_required.request_state
        if input_required.requests:
            if self._exchange.ask is None:
                raise _make_unreachable_error(input_required.requests.values())
            self.round_state.input_responses |= await self._ask_directly(input_required.requests, self._exchange.ask)

    @property
    def has_unanswered(self) -> bool:
        """Return whether any input request still has no response.

        If so, and the function has returned, the function has caught InputRoundEnded.
        """
        return bool(self._unanswered)

    def list_unreached_keys(self) -> list[str]:
        """Return the keys of earlier input requests that the function has not repeated in this run."""
        return [key for key in self.round_state.request_digests if key not in self._reached_keys]


def _make_unreachable_error(requests: Iterable[AnyInputRequest]) -> MissingClientCapability:
    required: dict[str, Any] = {build_input_request(request).method.partition("/")[0]: {} for request in requests}
    return MissingClientCapability(
        required, "This client cannot receive input requests, because it has no session or no event stream"
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

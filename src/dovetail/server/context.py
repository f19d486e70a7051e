"""Context object that the server passes to each parameter annotated with `Context`.

The context sends progress, log messages and input requests to the caller, and describes the current call. It works
the same for every protocol version and transport.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from dovetail.errors import InsufficientScope, MethodNotFound, MissingClientCapability, NotSupported
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.principal import Principal
from dovetail.server.input_requests import (
    AnyInputRequest,
    Elicit,
    ElicitURL,
    InputProgressHandler,
    InputRequests,
    ListRoots,
    Sample,
)
from dovetail.server.require_await import require_await
from dovetail.wire.base import JSONValue, Result
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.content import SamplingContent
from dovetail.wire.elicitation import ElicitationCompleteParams
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.lifecycle import ClientCapabilities, Implementation
from dovetail.wire.logs import LoggingLevel, LoggingMessageNotificationParams, get_severity
from dovetail.wire.methods import METHODS
from dovetail.wire.progress import ProgressParams
from dovetail.wire.prompts import GetPromptResult, ListPromptsResult, Prompt
from dovetail.wire.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from dovetail.wire.revisions import DRAFT
from dovetail.wire.roots import Root
from dovetail.wire.sampling import CreateMessageResult, ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import CallToolResult, Tool

T = TypeVar("T")
Page = TypeVar("Page", ListResourcesResult, ListResourceTemplatesResult, ListPromptsResult)
# `once` returns values of these types unchanged. It turns tuples into lists, and dataclasses into dicts.
PlainJSON = TypeVar("PlainJSON", bound="str | int | float | bool | list[Any] | Mapping[str, object] | None")
# Handles a request that a function sends to its server.
# The arguments are the running request, and the method and parameters of the new request.
NestedHandler = Callable[[IncomingExchange, str, dict[str, Any]], Awaitable[Result | bytes]]
# Returns the state of a user or a session. The arguments are the kind of state, and the user or session.
StateOpener = Callable[[Literal["user", "session"], str], "CallState"]
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from dovetail.server.call_state import CallState

    # The default lets type checkers accept `Context` without a type argument.
    State = TypeVarWithDefault("State", default=Any)
else:
    State = TypeVar("State")


# The running exchange, and the function that creates its context. A list is faster to create than an object.
# The list is emptied when the call ends, so that timers and tasks do not keep the exchange in memory.
CURRENT_CALL: ContextVar[list[Any]] = ContextVar("current_call")


def get_context() -> "Context[Any]":
    """Return the context of the call that runs now.

    Use it in functions that your tools, resources, prompts and middleware call, if you do not want to pass `ctx` on. It
    also works in threads and tasks that the call starts, until the call ends.

    Raises:
        RuntimeError: no call is running.
    """
    exchange, create_context = _get_current_call("get_context")
    return create_context(exchange) if exchange.context is None else exchange.context


def current_principal() -> Principal | None:
    """Return the caller of the call that runs now. Return None if the server does not authenticate callers.

    Raises:
        RuntimeError: no call is running.
    """
    return _get_current_call("current_principal")[0].caller.principal


def _get_current_call(name: str) -> "tuple[IncomingExchange, Callable[[IncomingExchange], Context[Any]]]":
    call = CURRENT_CALL.get(None)
    if call is None:
        raise RuntimeError(
            f"{name}() can only be used during a call: in a tool, a resource, a prompt, middleware, or a function that "
            "they call"
        )
    if not call:
        raise RuntimeError(f"{name}() was used after the call had ended. Call it before you start a background task")
    return call[0], call[1]


class Context(Generic[State]):
    """The current call and its caller. In `Context[State]`, `State` is the type of the value from the lifespan."""

    __slots__ = ("_exchange", "_handle_nested", "_input_requests", "_logger", "_open_state", "lifespan")

    def __init__(
        self,
        _exchange: IncomingExchange,
        _input_requests: InputRequests,
        _logger: str,
        _lifespan: State,
        _handle_nested: NestedHandler | None = None,
        _open_state: StateOpener | None = None,
        /,
    ) -> None:
        self._exchange = _exchange
        self._handle_nested = _handle_nested
        self._open_state = _open_state
        self.lifespan: State = _lifespan  # The value that the lifespan of the server yielded.
        self._input_requests = _input_requests
        self._logger = _logger

    if not TYPE_CHECKING:  # Type checkers must report unknown attributes.

        def __getattr__(self, name: str) -> Any:
            from dovetail.peer_names import CONTEXT_HINTS, create_attribute_error

            raise create_attribute_error(self, name, CONTEXT_HINTS)

    @property
    def request_id(self) -> RequestId:
        """Return the JSON-RPC ID of the client's request."""
        return self._exchange.id

    @property
    def extra(self) -> dict[str, Any]:
        """Return the dict in which middleware stores values for this request."""
        return self._exchange.extra

    @property
    def protocol_version(self) -> str:
        """Return the protocol version of the client."""
        return self._exchange.caller.protocol_version

    @property
    def principal(self) -> Principal | None:
        """Return the caller with its scopes and claims. Return None if the server does not authenticate callers."""
        return self._exchange.caller.principal

    @property
    def session_id(self) -> str:
        """Return the ID of the client's session or connection. It is empty if the transport has none."""
        return self._exchange.caller.session_id

    @property
    def user_state(self) -> "CallState":
        """Return the values that this server stores for the caller. They are the same in all sessions of the caller.

        Raises:
            RuntimeError: the server does not authenticate callers.
        """
        principal = self.principal
        if principal is None:
            raise RuntimeError("ctx.user_state requires an authenticated caller. Set auth= on the server")
        assert self._open_state is not None
        return self._open_state("user", principal)

    @property
    def session_state(self) -> "CallState":
        """Return the values that this server keeps for the session of the client.

        Raises:
            NotSupported: the client has no session, for example because its protocol version is stateless.
        """
        if self._exchange.caller.is_stateless or not self.session_id:
            raise NotSupported(
                f"this client has no session (protocol version {self.protocol_version}). Use ctx.user_state, or let "
                "the client pass an ID as an argument"
            )
        assert self._open_state is not None
        return self._open_state("session", self.session_id)

    @property
    def client_info(self) -> Implementation | None:
        """Return the name and version that the client reports. The server does not verify them."""
        return self._exchange.caller.client_info

    @property
    def client_capabilities(self) -> ClientCapabilities:
        """Return the capabilities that the client declared."""
        return self._exchange.caller.client_capabilities

    @property
    def meta(self) -> Mapping[str, Any]:
        """Return the `_meta` of the request."""
        return self._exchange.meta

    @property
    def attempt(self) -> int:
        """Return how many times this call was started. The number is greater than 1 only if a task has lost its worker.

        A task that continues after an answer is not a new attempt.
        """
        task_call = self._exchange.task_call
        return 1 if task_call is None else task_call.attempt

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the HTTP headers of the request. Names are case-insensitive. Other transports have no headers."""
        # This import is here because servers on stdio do not need the module.
        from dovetail.protocol.interfaces.http_types import Headers

        return Headers(self._exchange.headers or {})

    def wait(self, awaited: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from a function that is not async: `ctx.wait(ctx.progress(1))`.

        Plain functions run in a thread and cannot use `await`.

        Raises:
            RuntimeError: an event loop runs in this thread, for example with `run_in_thread=False`.
            concurrent.futures.CancelledError: the call was stopped.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(
                self._wait_within_call(awaited), self._exchange.task.get_loop()
            ).result()
        awaited.close()
        raise RuntimeError("Context.wait() is only for functions that are not async. Use `await` here")

    async def _wait_within_call(self, awaited: Coroutine[Any, Any, T]) -> T:
        if self._exchange.task.done():
            awaited.close()
            raise asyncio.CancelledError
        waiting_task: Any = asyncio.current_task()

        def cancel_waiting(_: Any) -> None:
            waiting_task.cancel()

        self._exchange.task.add_done_callback(cancel_waiting)
        try:
            return await awaited
        finally:
            self._exchange.task.remove_done_callback(cancel_waiting)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress if the caller asked for it. A value is sent only if it is larger than the last value.

        In a task, the message becomes the status message. The server stores the newest one at most twice a second.

        Args:
            progress: The amount of work that is done, in any unit.
            total: The value of `progress` when the work is done, if you know it.
            message: A short description of the current step.
        """
        if self._exchange.task_call is not None and self._exchange.is_task:
            await self._exchange.task_call.report_progress(progress, total, message)
            return
        token = self._exchange.progress_token
        if token is None:
            if self.protocol_version != DRAFT or self._exchange.parent is not None:
                return
            token = self._exchange.id
        # spec: progress#progress-flow
        last_progress = self._exchange.last_progress
        if last_progress is not None and progress <= last_progress:
            return
        self._exchange.last_progress = progress
        params = ProgressParams(progress_token=token, progress=progress, total=total, message=message)
        await self._exchange.notify("notifications/progress", params)

    async def log(self, level: LoggingLevel, data: object, logger: str | None = None) -> None:
        """Send a log message if the caller asked for messages of this level.

        Args:
            level: The severity of the message, such as "info".
            data: A text, or any value that can be encoded as JSON.
            logger: The name of the logger in the message. Defaults to the name of the server.
        """
        # An unknown level is always an error, even if the caller does not receive log messages.
        severity, min_severity = get_severity(level), self._exchange.caller.log_level
        if min_severity is None or severity < min_severity:
            return
        params = LoggingMessageNotificationParams(level=level, data=to_plain(data), logger=logger or self._logger)
        await self._exchange.notify("notifications/message", params)

    async def debug(self, data: object, logger: str | None = None) -> None:
        """Send a log message at level `debug`."""
        await self.log("debug", data, logger)

    async def info(self, data: object, logger: str | None = None) -> None:
        """Send a log message at level `info`."""
        await self.log("info", data, logger)

    async def warning(self, data: object, logger: str | None = None) -> None:
        """Send a log message at level `warning`."""
        await self.log("warning", data, logger)

    async def error(self, data: object, logger: str | None = None) -> None:
        """Send a log message at level `error`."""
        await self.log("error", data, logger)

    async def notify(self, method: str, params: object = None) -> None:
        """Send a notification of an extension to the caller. A client without this extension ignores it.

        A call that continues as a task sends it only while the request that started the task is open.

        Args:
            method: The name, which starts with "notifications/".
            params: The parameters, as a dict or a protocol object.
        """
        if method in METHODS:
            raise ValueError(
                f"{method!r} is a notification of the protocol. ctx.notify() only sends those of extensions"
            )
        await self._exchange.notify(method, params)

    @overload
    async def elicit(self, message: str, form: type[T], *, key: str | None = None) -> T: ...
    @overload
    async def elicit(self, message: str, form: Any, *, key: str | None = None) -> Any: ...
    @require_await
    async def elicit(self, message: str, form: Any, *, key: str | None = None) -> Any:
        """Ask the user to fill in a form, and return the user's answer.

        Args:
            key: Identifies this request if the function runs again. Set it if your function does not always ask in the
                same order.

        Raises:
            ElicitationDeclined: the user declined.
            ElicitationCancelled: the user closed the form.
            MissingClientCapability: the client does not support forms.
        """
        return await self._request_input(Elicit(message, form), key)

    async def elicit_url(
        self, message: str, url: str, *, key: str | None = None, elicitation_id: str | None = None
    ) -> None:
        """Ask the user to open a web page.

        This method returns when the user agrees, not when the user has finished on the page.

        Args:
            key: Identifies this request if the function runs again. Set it if your function does not always ask in the
                same order.
            elicitation_id: An ID for `notify_elicitation_complete`.
        """
        await self._request_input(ElicitURL(message, url, elicitation_id), key)

    async def notify_elicitation_complete(self, elicitation_id: str) -> None:
        """Notify the client that the user has completed a URL elicitation.

        Only protocol version 2025-11 and the draft define this notification. In other versions, this method does
        nothing.

        Args:
            elicitation_id: The ID that you passed to `elicit_url` or `URLElicitationRequired`.
        """
        if METHODS["notifications/elicitation/complete"].exists_in(self.protocol_version):
            params = ElicitationCompleteParams(elicitation_id=elicitation_id)
            await self._exchange.notify("notifications/elicitation/complete", params)

    @require_await
    async def sample(
        self,
        messages: str | SamplingContent | Sequence[str | SamplingMessage],
        *,
        key: str | None = None,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        temperature: float | None = None,
        stop_sequences: list[str] | None = None,
        model_preferences: ModelPreferences | None = None,
        tools: list[Tool] | None = None,
        tool_choice: ToolChoice | None = None,
        metadata: dict[str, Any] | None = None,
        include_context: Literal["none", "thisServer", "allServers"] | None = None,
        progress_handler: InputProgressHandler | None = None,
    ) -> CreateMessageResult:
        """Ask the client's model to complete a message, and return the result.

        Args:
            key: Identifies this request if the function runs again. Set it if your function does not always ask in the
                same order.
            include_context: Which context the client should add to the messages. The server sends it only to clients
                that support it.
            progress_handler: Receives `(progress, total, message)` if the client reports progress. Clients of protocol
                version 2026-07 do not.
        """
        request = Sample(
            messages,
            max_tokens=max_tokens,
            system_prompt=system_prompt,
            temperature=temperature,
            stop_sequences=stop_sequences,
            model_preferences=model_preferences,
            tools=tools,
            tool_choice=tool_choice,
            metadata=metadata,
            include_context=include_context,
            progress_handler=progress_handler,
        )
        return await self._request_input(request, key)

    @require_await
    async def list_roots(self, *, key: str | None = None) -> list[Root]:
        """Return the directories and files that the client lets the server use.

        Args:
            key: Identifies this request if the function runs again. Set it if your function does not always ask in the
                same order.
        """
        return await self._request_input(ListRoots(), key)

    @require_await
    async def request_inputs(self, **requests: AnyInputRequest) -> dict[str, Any]:
        """Send several input requests to the client at once, and return the answers under the same names."""
        return await self._input_requests.ask(requests)

    @require_await
    async def read_resource(self, uri: str) -> ReadResourceResult:
        """Read a resource of this server, with the rights of the caller.

        Middleware and access rules apply as if the caller had sent the request. The `timeout=` of the resource applies,
        too. Time spent waiting for the user does not count toward any timeout.

        Raises:
            ResourceNotFound: the server has no such resource, or the caller may not see it.
            InsufficientScope: the caller's token lacks scopes.
            InternalError: the resource took longer than its `timeout=`.
            NotSupported: the resource asks the caller for input, which is not possible here in this protocol version.
        """
        return await self._request_item("resources/read", {"uri": uri}, ReadResourceResult, f"the resource {uri}")

    @require_await
    async def call_tool(self, name: str, arguments: Mapping[str, object] | None = None) -> CallToolResult:
        """Call a tool of this server, with the rights of the caller.

        Middleware, access rules and limits of the tool apply as if the caller had sent the request. If the tool fails
        or the arguments are invalid, `is_error` of the result is True. The tool never becomes a task.

        Args:
            arguments: The arguments of the tool, by name.

        Raises:
            ToolNotFound: the server has no such tool, or the caller may not see it.
            InsufficientScope: the caller's token lacks scopes.
            NotSupported: the tool asks the caller for input, which is not possible here in this protocol version.
        """
        params = {"name": name, "arguments": {} if arguments is None else to_plain(dict(arguments))}
        return await self._request_item("tools/call", params, CallToolResult, f"the tool {name}")

    @require_await
    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """Get a prompt of this server, with the rights of the caller. Middleware and access rules apply.

        Args:
            arguments: The arguments of the prompt, by name.

        Raises:
            PromptNotFound: the server has no such prompt, or the caller may not see it.
            InsufficientScope: the caller's token lacks scopes.
            ToolError: the arguments do not match the prompt.
            NotSupported: the prompt asks the caller for input, which is not possible here in this protocol version.
        """
        params = {"name": name, "arguments": {} if arguments is None else dict(arguments)}
        return await self._request_item("prompts/get", params, GetPromptResult, f"the prompt {name}")

    @require_await
    async def list_resources(self) -> list[Resource]:
        """Return the resources of this server that the caller sees. Templates are not included."""
        return await self._list_items("resources/list", ListResourcesResult, lambda page: page.resources)

    @require_await
    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return the resource templates of this server that the caller sees."""
        return await self._list_items(
            "resources/templates/list", ListResourceTemplatesResult, lambda page: page.resource_templates
        )

    @require_await
    async def list_prompts(self) -> list[Prompt]:
        """Return the prompts of this server that the caller sees."""
        return await self._list_items("prompts/list", ListPromptsResult, lambda page: page.prompts)

    async def _list_items(self, method: str, page_type: type[Page], get_items: Callable[[Page], list[T]]) -> list[T]:
        items: list[T] = []
        cursor: str | None = None
        while True:
            params = {} if cursor is None else {"cursor": cursor}
            try:
                page = await self._request_item(method, params, page_type, method)
            except MethodNotFound:  # Without items of this kind, the method does not exist.
                return items
            items += get_items(page)
            cursor = page.next_cursor
            if cursor is None:
                return items

    async def _request_item(self, method: str, params: dict[str, Any], result_type: type[T], item: str) -> T:
        assert self._handle_nested is not None
        result = await self._handle_nested(self._exchange, method, params)
        if isinstance(result, bytes):  # Mounted servers in other processes return bytes.
            from dovetail.wire.raw_message import decode_body, decode_input_required

            label = f"the result of {method}"
            result = decode_input_required(result, method) or decode_body(result, result_type, label)
        if not isinstance(result, result_type):
            raise NotSupported(f"{item} asks the caller for input, so another function cannot use it")
        return result

    async def _request_input(self, request: AnyInputRequest, key: str | None) -> Any:
        key = key or self._input_requests.next_key()
        return (await self._input_requests.ask({key: request}))[key]

    @overload
    async def once(self, key: str, function: Callable[[], object], into: type[T]) -> T: ...
    @overload
    async def once(self, key: str, function: Callable[[], Awaitable[PlainJSON]], into: None = None) -> PlainJSON: ...
    @overload
    async def once(self, key: str, function: Callable[[], PlainJSON], into: None = None) -> PlainJSON: ...
    @overload
    async def once(self, key: str, function: Callable[[], object], into: None = None) -> JSONValue: ...
    @overload
    async def once(self, key: str, function: Callable[[], object], into: object) -> Any: ...
    @require_await
    async def once(self, key: str, function: Callable[[], object], into: Any = None) -> Any:
        """Run a step only once, even if your function runs again to get more input.

        The value must be JSON. The client stores it, encrypted, until the call is complete. In a task, the task store
        keeps the value, also for a later attempt. If the function runs again, this method returns the stored value as
        plain JSON. If you pass a type as `into`, the stored value is converted to this type.

        Args:
            into: The type to convert the stored value to. None returns plain JSON.
        """
        return await self._input_requests.once(key, function, into)

    @property
    def input_responses(self) -> Mapping[str, Any]:
        """Return the client's responses to the last `InputRequired` result. The keys are those of its requests."""
        return self._input_requests.round_state.input_responses

    @property
    def request_state(self) -> str | None:
        """Return the `request_state` of the last `InputRequired` result."""
        return self._input_requests.round_state.author_state

    async def ping(self) -> None:
        """Send a ping to the client and return when the client has answered.

        Raises:
            NotSupported: the protocol version has no ping, or the client cannot receive requests.
        """
        if self._exchange.ask is None:
            raise NotSupported(f"this client cannot receive a ping (protocol version {self.protocol_version})")
        await self._exchange.ask("ping", {})

    def require_capabilities(self, **capabilities: bool | Mapping[str, object]) -> None:
        """Raise MissingClientCapability unless the client declared these capabilities.

        For example, `ctx.require_capabilities(sampling={"tools": {}})` requires sampling with tools.
        """
        required: dict[str, Any] = {name: {} if value is True else value for name, value in capabilities.items()}
        declared = to_plain(self.client_capabilities)
        if declared.get("elicitation") == {}:
            declared["elicitation"] = {"form": {}}  # spec: elicitation#capabilities
        missing = {name: value for name, value in required.items() if not _covers(declared.get(name), value)}
        if missing:
            convert(missing, ClientCapabilities, label="capabilities")
            raise MissingClientCapability(missing)

    def require_scopes(self, *scopes: str) -> None:
        """Raise InsufficientScope unless the caller's token has these scopes.

        Over HTTP, the response lists all missing scopes, so that the client can request them at once.
        """
        granted = self.principal.scopes if self.principal is not None else frozenset[str]()
        if not granted.issuperset(scopes):
            raise InsufficientScope(scopes)

    async def close_sse_stream(self, retry_ms: int = 1000) -> None:
        """Close the HTTP connection during a call. The client receives the remaining messages when it reconnects.

        If the client cannot resume the stream, this method does nothing.

        Args:
            retry_ms: Milliseconds after which the client should connect again.
        """
        if self._exchange.close_stream is not None:
            await self._exchange.close_stream(retry_ms)


def get_input_requests(context: Context[Any]) -> InputRequests:
    """Return the input requests of a call."""
    return context._input_requests  # pyright: ignore[reportPrivateUsage]


def _covers(declared: Any, required: Any) -> bool:
    if declared is None:
        return False
    if not isinstance(required, dict):
        return True
    return all(_covers(declared.get(name), value) for name, value in required.items())

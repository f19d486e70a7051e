"""Handlers of the requests that call a tool, read a resource, get a prompt or complete an argument.

Each handler finds the item, runs its function and converts the return value. The dispatcher decides whether a call
may run and for how long. A handler only adds the `timeout=` of the item.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from dovetail.error_context import clip
from dovetail.errors import (
    InvalidParams,
    MethodNotFound,
    PromptNotFound,
    ProtocolError,
    RemoteError,
    ResourceNotFound,
    ToolError,
    ToolNotFound,
)
from dovetail.protocol.exchange import IncomingExchange, convert_params, make_type_error, make_uri_length_error
from dovetail.protocol.handshake import EMPTY_RESULT
from dovetail.protocol.headers import check_param_headers
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.middleware import Handler
from dovetail.protocol.request_state import RequestState, RequestStateSealer
from dovetail.server.context import CURRENT_CALL, Context, NestedHandler, get_input_requests
from dovetail.server.exception_mask import mask_exception, unwrap_group
from dovetail.server.input_requests import InputRequests, InputRequired, InputRoundEnded, ProgressHandlers
from dovetail.server.invocation import Runner
from dovetail.server.items.completer import build_completion, find_matching
from dovetail.server.items.item_options import CacheHint
from dovetail.server.items.registry import Registry
from dovetail.server.items.tool import TaskSupport, Tool, build_error_result
from dovetail.server.items.visibility import Visibility
from dovetail.server.parameters.signature import InvalidArguments
from dovetail.server.results import build_failure_result, check_read_result, to_prompt_messages, to_resource_contents
from dovetail.server.thread_pool import ThreadPool
from dovetail.wire.base import Result, replace
from dovetail.wire.completion import CompleteParams, CompleteResult, PromptReference
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult

if TYPE_CHECKING:
    from dovetail.protocol.interfaces.state_store import StateStore
    from dovetail.server.call_state import CallState
    from dovetail.server.large_results import ResultStore

# A call with a timeout below this value gets a timer. All other calls are checked periodically.
_MAX_TIMER_TIMEOUT_S: Final = 2.0


class ItemHandlers:
    """Handles requests for a single tool, resource or prompt."""

    def __init__(
        self,
        registry: Registry,
        visibility: Visibility,
        *,
        server_name: str,
        limits: ServerLimits,
        thread_pool: ThreadPool,
        secret_keys: Sequence[str | bytes],
        get_lifespan_value: Callable[[IncomingExchange], Any] | None,
        handle_nested: NestedHandler,
        get_state_store: "Callable[[], StateStore]",
        debug: bool,
    ) -> None:
        self._get_state_store = get_state_store
        self.sealer = RequestStateSealer(secret_keys)
        self._has_secret_keys = bool(secret_keys)
        self.progress_handlers = ProgressHandlers()
        self._registry = registry
        self._visibility = visibility
        self._server_name = server_name
        self._limits = limits
        self._thread_pool = thread_pool
        self._get_lifespan_value = get_lifespan_value
        self._handle_nested = handle_nested
        self._debug = debug

    def use_sealer(self, sealer: RequestStateSealer) -> None:
        """Use the mounting server's keys for request states, unless this server has secret keys."""
        if not self._has_secret_keys:
            self.sealer = sealer

    async def call_tool(self, exchange: IncomingExchange) -> Result:
        """Call a tool. If the tool fails, return an error result that the model can read."""
        params = exchange.params
        name, arguments = params.get("name"), params.get("arguments")
        registry = self._registry
        tool = registry.tools.get(name) if type(name) is str else None
        if tool is None or (
            registry.access_rules is not None and not self._visibility.is_available(exchange, "tool", tool.name)
        ):
            self._visibility.check_supported(exchange, "tools", registry.tools)
            raise ToolNotFound(name) if type(name) is str else make_type_error("name", "a string")
        if arguments is None:
            arguments = {}
        elif type(arguments) is not dict:
            raise make_type_error("arguments", "an object")
        if (
            tool.headers
            and exchange.headers is not None
            and exchange.caller.is_stateless
            and not exchange.skips_param_headers
        ):
            check_param_headers(tool.headers, arguments, exchange.headers)
        exchange.wraps = tool.wraps
        try:
            if tool.task is not None:
                return await self._call_task_tool(exchange, tool, tool.task, arguments)
            return tool.output.to_result(await self._run_function(exchange, tool.runner, tool.signature, arguments))
        except ProtocolError:
            raise
        except BaseException as exc:
            if (required := _build_required_result(exchange, exc)) is not None:
                return required
            exchange.exception = error = unwrap_group(exc)
            if isinstance(error, ProtocolError):
                raise error from None
            if isinstance(error, (ToolError, RemoteError)):
                return build_failure_result(error)
            masked_error = mask_exception(
                exchange, exc, f"tool {tool.name}", server=self._server_name, debug=self._debug
            )
            return build_error_result(masked_error.message)

    async def _call_task_tool(
        self, exchange: IncomingExchange, tool: Tool, task_support: TaskSupport, arguments: dict[str, Any]
    ) -> Result:
        """Create a task for a tool call. If the call already is a task or cannot become one, run the tool."""
        created_task = await task_support.start(exchange, tool, arguments, self._open_round_state)
        if created_task is not None:
            return created_task
        runner, thread_pool = task_support.get_runner(exchange, tool), task_support.get_thread_pool(exchange)
        # A call that can become a task runs with a copy of the exchange.
        call = [exchange, self.create_context]
        token = CURRENT_CALL.set(call)
        try:
            with task_support.report_alive(exchange):
                value = await self._run_function(exchange, runner, tool.signature, arguments, thread_pool)
                return tool.output.to_result(value)
        finally:
            CURRENT_CALL.reset(token)
            call.clear()

    async def call_and_store(self, exchange: IncomingExchange) -> Result:
        """Call a tool. Store the parts of the result that are too large to send."""
        result = await self.call_tool(exchange)
        tool = self._registry.tools.get(exchange.params["name"])
        store = cast("ResultStore", self._registry.result_store)
        # If the tool was removed during the call, the empty schema allows every result.
        schema = {} if tool is None else tool.output.schema
        return await store.store_large_parts(result, exchange.caller.principal, schema)

    async def read_resource(self, exchange: IncomingExchange) -> Result:
        """Read the resource with a URI. The URI may match a resource template."""
        self._visibility.check_supported(exchange, "resources", self._registry.resources or self._registry.templates)
        uri = exchange.params.get("uri")
        if type(uri) is not str:
            raise make_type_error("uri", "a string")
        if len(uri) > self._limits.max_uri_bytes:
            raise make_uri_length_error(self._limits.max_uri_bytes)
        resource, variables = self._visibility.find_resource(uri, exchange.caller.principal)
        try:
            value = await self._run_function(exchange, resource.runner, resource.signature, variables)
        except InvalidArguments:
            # If a template variable has the wrong type, no resource has this URI.
            raise ResourceNotFound(uri) from None
        except BaseException as exc:
            if (required := _build_required_result(exchange, exc)) is not None:
                return required
            raise
        if isinstance(value, Result):
            result = check_read_result(value) if isinstance(value, ReadResourceResult) else value
        else:
            # A function that should return text or bytes probably lacks a `return` statement.
            if value is None and resource.signature.returns in (str, bytes):
                raise ValueError(f"{resource.signature.where}: the function must return a value, but it returned None")
            try:
                contents = to_resource_contents(value, uri, resource.declaration.mime_type)
            except (TypeError, ValueError) as exc:
                raise TypeError(f"{resource.signature.where}: {exc}") from exc
            result = ReadResourceResult(contents=contents)
        if isinstance(result, ReadResourceResult) and result.ttl_ms is None:
            cache_hint = resource.cache_hint or self._visibility.get_cache_hint("resources/read")
            if self._registry.access_rules is not None and self._visibility.is_restricted(resource, uri, variables):
                # Not all callers may read this resource, so shared caches must not store it.
                cache_hint = CacheHint(cache_hint.ttl_ms)
            result = replace(result, ttl_ms=cache_hint.ttl_ms, cache_scope=cache_hint.scope)
        return result

    async def get_prompt(self, exchange: IncomingExchange) -> Result:
        self._visibility.check_supported(exchange, "prompts", self._registry.prompts)
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        prompt = self._registry.prompts.get(name) if type(name) is str else None
        if prompt is None or not self._visibility.is_available(exchange, "prompt", prompt.declaration.name):
            raise PromptNotFound(name) if type(name) is str else make_type_error("name", "a string")
        if arguments is not None and type(arguments) is not dict:
            raise make_type_error("arguments", "an object")
        try:
            value = await self._run_function(exchange, prompt.runner, prompt.signature, arguments or {})
        except BaseException as exc:
            if (required := _build_required_result(exchange, exc)) is not None:
                return required
            raise
        if isinstance(value, Result) and not isinstance(value, GetPromptResult):
            return value
        try:
            messages = to_prompt_messages(value)
        except (TypeError, ValueError) as exc:
            raise TypeError(f"{prompt.signature.where}: {exc}") from exc
        if isinstance(messages, GetPromptResult):
            return messages
        return GetPromptResult(messages=messages, description=prompt.declaration.description)

    async def complete(self, exchange: IncomingExchange) -> Result:
        if not self._registry.has_completions():
            raise MethodNotFound(exchange.method)
        params = convert_params(exchange, CompleteParams)
        if isinstance(params.ref, PromptReference):
            kind, ref_name = "prompt", params.ref.name
            item: Any = self._registry.prompts.get(ref_name)
        else:
            kind, ref_name = "resource template", self._registry.get_template_name(params.ref.uri)
            item = self._registry.templates.get(ref_name)
        if item is None or not self._visibility.is_available(exchange, kind, ref_name):
            raise InvalidParams(f"Invalid params: unknown {kind} {clip(ref_name)}", {"field": "ref"})
        argument, value = params.argument.name, params.argument.value
        if argument not in item.signature.parameters:
            raise InvalidParams(
                f"Invalid params: {kind} {clip(ref_name)} has no argument {clip(argument)}", {"field": "argument.name"}
            )
        completer = self._registry.completers.get((ref_name, argument))
        if completer is None:
            values: Any = find_matching(item.signature.choices.get(argument, ()), value)
        else:
            other_arguments = (params.context.arguments if params.context else None) or {}
            args = completer.build_arguments(value, other_arguments)
            values = await completer.runner.run(args, {}, self._thread_pool, exchange.origin)
        return CompleteResult(completion=build_completion(values))

    def create_notification_handler(self, runner: Runner) -> Handler:
        """Return a handler that calls a function with the parameters of a notification and the context."""

        async def handle(exchange: IncomingExchange) -> Result:
            context, _ = self._create_context(exchange)
            await runner.run((exchange.params, context), {}, self._thread_pool, exchange.origin)
            return EMPTY_RESULT

        return handle

    def _open_round_state(self, exchange: IncomingExchange) -> RequestState:
        return self._create_context(exchange)[1].round_state

    def _create_context(self, exchange: IncomingExchange) -> tuple[Context[Any], InputRequests]:
        input_requests = InputRequests(
            exchange,
            self._server_name,
            self.sealer,
            self._limits.request_state_ttl,
            self._debug,
            self.progress_handlers,
        )
        lifespan_value = None if self._get_lifespan_value is None else self._get_lifespan_value(exchange)
        context = exchange.context = Context[Any](
            exchange, input_requests, self._server_name, lifespan_value, self._handle_nested, self._open_state
        )
        return context, input_requests

    def _open_state(self, kind: Literal["user", "session"], owner: str) -> "CallState":
        from dovetail.server.call_state import CallState  # Few servers need this module.

        ttl = self._limits.session_lifetime if kind == "session" else None
        return CallState(self._get_state_store(), self._server_name, kind, owner, ttl)

    def create_context(self, exchange: IncomingExchange) -> Context[Any]:
        """Create the context of a call for `get_context`."""
        return self._create_context(exchange)[0]

    def _run_function(
        self,
        exchange: IncomingExchange,
        runner: Runner,
        signature: Any,
        arguments: dict[str, Any],
        thread_pool: ThreadPool | None = None,
    ) -> Awaitable[Any]:
        params = exchange.params
        thread_pool = thread_pool or self._thread_pool
        if signature.context is not None or "requestState" in params or "inputResponses" in params:
            return self._run_with_context(exchange, runner, signature, arguments, thread_pool)
        args, kwargs = signature.bind(arguments, None)
        if runner.timeout is not None:
            exchange.deadline, exchange.time_limit = _now() + runner.timeout, runner.timeout
            if runner.timeout < _MAX_TIMER_TIMEOUT_S:
                return _run_until_deadline(exchange, runner.run(args, kwargs, thread_pool, exchange.origin))
        return runner.run(args, kwargs, thread_pool, exchange.origin)

    async def _run_with_context(
        self,
        exchange: IncomingExchange,
        runner: Runner,
        signature: Any,
        arguments: dict[str, Any],
        thread_pool: ThreadPool,
    ) -> Any:
        """Bind the arguments and call the function.

        If the function requests input that the client has not sent yet, return a result that asks the client for it.
        """
        context, input_requests = self._create_context(exchange)
        try:
            while True:
                input_requests.begin_round()
                args, kwargs = signature.bind(arguments, context)
                if runner.timeout is not None:
                    exchange.deadline, exchange.time_limit = _now() + runner.timeout, runner.timeout
                try:
                    awaitable = runner.run(args, kwargs, thread_pool, exchange.origin)
                    value = await (
                        _run_until_deadline(exchange, awaitable)
                        if (runner.timeout or _MAX_TIMER_TIMEOUT_S) < _MAX_TIMER_TIMEOUT_S
                        else awaitable
                    )
                except InputRoundEnded:
                    return input_requests.build_required_result()
                except BaseExceptionGroup as group:
                    if group.split(InputRoundEnded)[1] is not None:
                        raise
                    # If the function requested input in a task group, the group wraps the exception.
                    return input_requests.build_required_result()
                if input_requests.has_unanswered:
                    raise RuntimeError(
                        "the function requested input, but caught InputRoundEnded with `except:` or `except "
                        "BaseException:`. Raise InputRoundEnded again, because it asks the client for the input"
                    )
                if not isinstance(value, InputRequired):
                    self._check_unreached_requests(input_requests)
                    return value
                if exchange.caller.is_stateless and not exchange.is_task:
                    return input_requests.build_explicit_result(value)
                try:
                    await input_requests.ask_explicit(value)
                except InputRoundEnded:
                    return input_requests.build_required_result()
        finally:
            input_requests.is_ended = True

    def _check_unreached_requests(self, input_requests: InputRequests) -> None:
        if self._debug and (unreached_keys := input_requests.list_unreached_keys()):
            raise RuntimeError(
                f"the function did not repeat its input requests {', '.join(unreached_keys)}. "
                "The function runs again from the top after each response and must make the same input requests"
            )


def _build_required_result(exchange: IncomingExchange, exc: BaseException) -> Result | None:
    """Return the result that asks the client for input, if a function without `ctx` used `get_context` to ask.

    Return None for all other exceptions.
    """
    is_group = isinstance(exc, BaseExceptionGroup) and exc.split(InputRoundEnded)[1] is None
    if exchange.context is None or not (is_group or isinstance(exc, InputRoundEnded)):
        return None
    return get_input_requests(exchange.context).build_required_result()


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _run_until_deadline(exchange: IncomingExchange, awaitable: Awaitable[Any]) -> Any:
    deadline = exchange.deadline
    assert deadline is not None
    timer = asyncio.get_running_loop().call_at(deadline, _expire_exchange, exchange, deadline)
    try:
        return await awaitable
    finally:
        timer.cancel()


def _expire_exchange(exchange: IncomingExchange, deadline: float) -> None:
    if exchange.deadline == deadline and not exchange.questions:
        exchange.end("timeout")

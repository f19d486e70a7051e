"""Run authorized requests within their limits, report their outcomes, and check the results.

The host and its gateways both use this module, so the same rules and limits apply to calls of the user and of gateway
callers.
"""

import hashlib
import re
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from dovetail.error_context import add_context, clip
from dovetail.errors import InvalidResult, PolicyError
from dovetail.host.authorization import AskUser, Authorization, RequestAuthorizer
from dovetail.host.events import EventEmitter, HostEvent
from dovetail.host.policy.argument_coercion import parse_pointer
from dovetail.host.policy.policy import PolicyRequest, Rule, decide_without
from dovetail.host.policy.quotas import truncate_result
from dovetail.host.supervisor import ServerSupervisor
from dovetail.server.items.uri_template import expand
from dovetail.tasks.task_messages import CreateTaskResult
from dovetail.wire.base import UNSET, Struct, WireStruct, replace
from dovetail.wire.codec import convert, encode, to_plain
from dovetail.wire.raw_message import decode_body
from dovetail.wire.tools import CallToolResult

# Matches an `isError` flag that is not false, or an escape, because the name `isError` may be escaped.
_POSSIBLE_ERROR_FLAG: Final = re.compile(rb'"isError"\s*+:\s*+(?!false)|\\u00[4-7]')


class CallExecutor:
    """Applies the limits of a host to calls, and checks results."""

    def __init__(self, authorizer: RequestAuthorizer, events: EventEmitter) -> None:
        self.meter = authorizer.meter
        self.events = events
        self._authorizer = authorizer

    async def review(self, authorization: Authorization, result: Any, ask: AskUser | None = None) -> Any:
        """Check the result of a tool with the policy, and return it. Raise PolicyError if the result is denied.

        An encoded result is returned without decoding if it does not change.
        """
        assert authorization.record is not None
        request, max_bytes = authorization.record.result_request, authorization.limits.max_result_bytes
        if authorization.record.result_needs_arguments:
            request = replace(request, arguments=authorization.request.arguments)
        if authorization.request.caller:
            request = replace(request, caller=authorization.request.caller)
        decision = self._authorizer.policy.decide(request)
        if isinstance(result, bytes):
            if decision.action == "allow" and (max_bytes is None or len(result) <= max_bytes):
                if self.events.has_listeners("decision"):
                    self._authorizer.emit_decision(request, decision)
                return result
            result = decode_body(result, CallToolResult, "the result of tools/call")
        if max_bytes is not None:
            result = truncate_result(result, max_bytes)
        if decision.action == "allow":
            if self.events.has_listeners("decision"):
                self._authorizer.emit_decision(request, decision)
            return result
        details = {"result": to_plain(result.content)}
        if result.structured_content is not UNSET:
            details["structured content"] = to_plain(result.structured_content)
        if result.meta:
            details["metadata"] = to_plain(result.meta)
        edited = (await self._authorizer.authorize(request, None, details, decision=decision, ask=ask)).edited_value
        if edited is None:
            return result
        content = [{"type": "text", "text": edited}] if isinstance(edited, str) else edited
        return convert({"content": content, "isError": result.is_error}, CallToolResult, label="an edited result")


class ServerUse:
    """The use of a server for one authorized request. It applies the request's limits, and emits an event at the end.

    `async with ServerUse(...) as use: use.result = await use.client.call_tool(...)`
    """

    __slots__ = ("_authorization", "_events", "_limit", "_meter", "_started_at", "_supervisor", "client", "result")

    def __init__(self, executor: CallExecutor, supervisor: ServerSupervisor, authorization: Authorization) -> None:
        self._events = executor.events
        self._meter = executor.meter
        self._supervisor = supervisor
        self._authorization = authorization
        self._limit: AbstractAsyncContextManager[None] | None = None
        self._started_at: float | None = None
        self.client: Any = None
        self.result: Any = None

    async def __aenter__(self) -> Self:
        request, limits, supervisor = self._authorization.request, self._authorization.limits, self._supervisor
        if limits.rate is not None or limits.max_concurrency is not None:
            limit = self._meter.limit_call(request.server, request.tool, limits, request.kind)
            await limit.__aenter__()
            self._limit = limit
        supervisor.use_count += 1
        try:
            self.client = supervisor.client or await supervisor.ready()
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        if self._events.has_listeners("tool.result"):
            self._started_at = time.perf_counter()
        if self._events.has_listeners("tool.call"):
            self._events.emit(build_call_event(request))
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._started_at is not None:
            self._events.emit(build_outcome_event(self._authorization.request, self._started_at, self.result, error))
        self._supervisor.end_use(self.client, error)
        if self._limit is not None:
            await self._limit.__aexit__(error_type, error, traceback)


class CallOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a call."""

    request: PolicyRequest
    # "ok", "error", or the name of the exception class.
    # "task" if the call became a task, and "failed" or "cancelled" if the task ended without a result.
    outcome: str
    duration_ms: float
    error: str = ""
    result_bytes: int | None = None
    task: str = ""  # A digest of the server's task ID. The events of a call and of its task have the same digest.


def build_call_event(request: PolicyRequest) -> HostEvent:
    """Return the event for a call that has started."""
    return HostEvent(kind="tool.call", server=request.server, message=request.tool, details=request)


def build_outcome_event(
    request: PolicyRequest, started_at: float, result: Any, error: BaseException | None
) -> HostEvent:
    """Return the event for a call that has ended. `started_at` is a `perf_counter` time."""
    task_id = result.task_id if isinstance(result, CreateTaskResult) else ""
    outcome = (
        type(error).__name__ if error is not None else "task" if task_id else "error" if _has_failed(result) else "ok"
    )
    details = CallOutcome(
        request=request,
        outcome=outcome,
        duration_ms=(time.perf_counter() - started_at) * 1000,
        error="" if error is None else str(error),
        result_bytes=None if result is None else len(result) if isinstance(result, bytes) else len(encode(result)),
        task=_hash_task_id(task_id),
    )
    return HostEvent(kind="tool.result", server=request.server, message=request.tool, reason=outcome, details=details)


def build_task_outcome_event(
    request: PolicyRequest, task_id: str, created_at: float, status: str, result: CallToolResult | None, error: str
) -> HostEvent:
    """Return the event for a task that has ended. `task_id` is the ID that the server gave to the task."""
    outcome = status if result is None else "error" if result.is_error else "ok"
    details = CallOutcome(
        request=request,
        outcome=outcome,
        duration_ms=max(0.0, time.time() - created_at) * 1000,
        error=error,
        result_bytes=None if result is None else len(encode(result)),
        task=_hash_task_id(task_id),
    )
    return HostEvent(kind="tool.result", server=request.server, message=request.tool, reason=outcome, details=details)


def _hash_task_id(task_id: str) -> str:
    """Return a short digest of a task ID. Logs contain the digest, because the task ID may be a secret."""
    return hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()[:12] if task_id else ""


class _ErrorFlag(WireStruct):
    is_error: bool = False


def _has_failed(result: Any) -> bool:
    if not isinstance(result, bytes):
        return getattr(result, "is_error", False)
    # A search for a fixed text is faster than the pattern, and is enough for most results.
    if b'"isError"' not in result and b"\\u00" not in result:
        return False
    if _POSSIBLE_ERROR_FLAG.search(result) is None:
        return False
    try:
        return decode_body(result, _ErrorFlag, "the result of a call").is_error
    except InvalidResult:
        return True


def find_denial(
    authorizer: RequestAuthorizer,
    supervisor: ServerSupervisor,
    kind: str,
    name: str,
    arguments: Mapping[str, Any] | None = None,
) -> PolicyError | None:
    """Return an error if the policy denies or hides every request with these arguments. Otherwise return None.

    The annotations and some of the arguments are not known yet.
    """
    request = authorizer.create_request(supervisor, kind, name, arguments)
    decision = authorizer.policy.decide(request)
    if _depends_on_call(request, decision.rule):
        # This rule may deny only some calls of the tool. Check whether another rule denies every call.
        decision = decide_without(authorizer.policy, request, partial(_depends_on_call, request))
    if decision.action in ("hide", "deny"):
        error = PolicyError(f"{request.full_name}: {decision.reason}", action=decision.action, rule=decision.rule)
        return add_context(error, server=supervisor.name)
    return None


def _depends_on_call(request: PolicyRequest, rule: Rule | None) -> bool:
    if rule is None or rule.action not in ("hide", "deny"):
        return False
    if request.kind == "resource.read":
        return bool(rule.annotations)
    names = (parse_pointer(condition.pointer)[0] for condition in (*rule.when, *rule.unless))
    known_arguments = request.arguments or {}
    return bool(rule.annotations) or any(name not in known_arguments for name in names)


def find_completion_denial(
    authorizer: RequestAuthorizer,
    supervisor: ServerSupervisor,
    prompt: str | None,
    template: str,
    arguments: Mapping[str, str],
) -> PolicyError | None:
    """Check the prompt or resource of a completion request. Return an error if the policy denies or hides it.

    `arguments` has the values that are known so far. They select the resource of a template.
    """
    if prompt is not None:
        return find_denial(authorizer, supervisor, "prompt.get", prompt, arguments)
    denial = find_denial(authorizer, supervisor, "resource.read", template)
    if denial is not None:
        return denial
    try:
        uri = expand(template, arguments)
    except ValueError as exc:  # The policy can check only a valid template.
        error = PolicyError(f"{clip(template)} is not a valid URI template: {exc}", action="deny")
        return add_context(error, server=supervisor.name)
    return find_denial(authorizer, supervisor, "resource.read", uri)

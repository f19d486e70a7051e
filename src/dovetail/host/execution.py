"""Execution: runs authorized requests within their limits, and checks the results.

The host and its gateways both use this module, so the same rules and limits apply to calls of the user and of gateway
callers.
"""

import sys
import time
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from dovetail.error_context import add_context
from dovetail.errors import PolicyError
from dovetail.host.audit_log import build_call_event, build_outcome_event
from dovetail.host.authorization import AskUser, Authorization, RequestAuthorizer
from dovetail.host.events import EventEmitter
from dovetail.host.policy.quotas import truncate_result
from dovetail.host.supervisor import ServerSupervisor
from dovetail.wire.base import replace
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.raw_message import decode_body
from dovetail.wire.tools import CallToolResult


class CallExecutor:
    """Applies the limits of a host to calls, and checks results."""

    def __init__(self, authorizer: RequestAuthorizer, events: EventEmitter) -> None:
        self.meter = authorizer.meter
        self.events = events
        self._authorizer = authorizer

    async def review(self, authorization: Authorization, result: Any, ask: AskUser | None = None) -> Any:
        """Return the result of a tool after the policy checked it. Raise PolicyError if the result is denied.

        An encoded result stays encoded if it does not change.
        """
        assert authorization.record is not None
        request, max_bytes = authorization.record.result_request, authorization.limits.max_result_bytes
        if authorization.request.caller:
            request = replace(request, caller=authorization.request.caller)
        decision = self._authorizer.policy.decide(request)
        if isinstance(result, bytes):
            if decision.action == "allow" and (max_bytes is None or len(result) <= max_bytes):
                return result
            result = decode_body(result, CallToolResult, "the result of tools/call")
        if max_bytes is not None:
            result = truncate_result(result, max_bytes)
        if decision.action == "allow":
            if self.events.has_listeners("decision"):
                self._authorizer.allow(request, decision)
            return result
        details = {"result": to_plain(result.content)}
        edited = (await self._authorizer.authorize(request, None, details, decision=decision, ask=ask)).edited_value
        if edited is None:
            return result
        content = [{"type": "text", "text": edited}] if isinstance(edited, str) else edited
        return convert({"content": content, "isError": result.is_error}, CallToolResult, label="an edited result")


class ServerUse:
    """Uses a server for one authorized request, within its limits. At the end it emits an event.

    `async with ServerUse(...) as use: use.result = await use.client.call_tool(...)`
    """

    __slots__ = ("_authorization", "_events", "_limit", "_meter", "_started_at", "_supervisor", "client", "result")

    def __init__(self, executor: CallExecutor, supervisor: ServerSupervisor, authorization: Authorization) -> None:
        self._events = executor.events
        self._meter = executor.meter
        self._supervisor = supervisor
        self._authorization = authorization
        self._limit: AbstractAsyncContextManager[None] | None = None
        self._started_at: float | None = None  # None if no listener needs the duration
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
        if self._events.has_listeners("tool.call") or self._events.has_listeners("tool.result"):
            self._started_at = time.perf_counter()
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


def find_denial(
    authorizer: RequestAuthorizer, supervisor: ServerSupervisor, kind: str, name: str
) -> PolicyError | None:
    """Return the error for an item that the policy always denies or hides. Return None for other items."""
    request = authorizer.create_request(supervisor, kind, name, None)
    decision = authorizer.policy.decide(request)
    rule = decision.rule
    # The arguments of the call are not known yet.
    depends_on_call = rule is not None and bool(rule.when or rule.unless or rule.annotations)
    if decision.action in ("hide", "deny") and not depends_on_call:
        error = PolicyError(f"{request.full_name}: {decision.reason}", action=decision.action, rule=decision.rule)
        return add_context(error, server=supervisor.name)
    return None

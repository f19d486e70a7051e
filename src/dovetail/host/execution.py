"""Execution: does at a server what was authorized, within its limits, and checks the result with the same value.

The host's own calls and those of a gateway's callers both come here, so that every rule and limit is for both.
"""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, Final, TypeAlias

from dovetail.client.client import Client
from dovetail.error_context import add_context
from dovetail.errors import PolicyError
from dovetail.host.audit_log import report_call
from dovetail.host.authorization import AskUser, Authorization, RequestAuthorizer
from dovetail.host.events import EventEmitter
from dovetail.host.policy.quotas import truncate_result
from dovetail.host.supervisor import ServerSupervisor
from dovetail.wire.base import replace
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.raw_message import decode_body
from dovetail.wire.tools import CallToolResult

# From a client and the seconds it may take, if there is a limit, to a result.
ClientOperation: TypeAlias = Callable[[Client, float | None], Awaitable[Any]]

_NO_LIMIT: Final = nullcontext()
_NO_REPORT: Final = nullcontext()


class CallExecutor:
    """Performs the authorized calls of one host."""

    def __init__(self, authorizer: RequestAuthorizer, events: EventEmitter) -> None:
        self._authorizer = authorizer
        self._events = events

    async def run(self, supervisor: ServerSupervisor, authorization: Authorization, operation: ClientOperation) -> Any:
        """Perform an operation at a server, within the limits of its authorization, and report it."""
        request, limits = authorization.request, authorization.limits
        is_limited = limits.rate is not None or limits.max_concurrency is not None
        is_reported = self._events.has_listeners("tool.call") or self._events.has_listeners("tool.result")
        async with (
            self._authorizer.meter.limit_call(request.server, request.tool, limits, request.kind)
            if is_limited
            else _NO_LIMIT,
            supervisor.using() as client,
        ):
            with report_call(request, self._events.emit) if is_reported else _NO_REPORT as set_result:
                result = await operation(client, limits.timeout)
                if set_result is not None:
                    set_result(result)
        return result

    async def review(self, authorization: Authorization, result: Any, ask: AskUser | None = None) -> Any:
        """Return what may be passed on of a tool's result: all of it, its beginning, or what the user made of it.

        Bytes stay bytes where nothing has to be decided or cut.
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
            if self._events.has_listeners("decision"):
                self._authorizer.allow(request, decision)
            return result
        details = {"result": to_plain(result.content)}
        edited = (await self._authorizer.authorize(request, None, details, decision=decision, ask=ask)).edited_value
        if edited is None:
            return result
        content = [{"type": "text", "text": edited}] if isinstance(edited, str) else edited
        return convert({"content": content, "isError": result.is_error}, CallToolResult, label="an edited result")


def find_denial(
    authorizer: RequestAuthorizer, supervisor: ServerSupervisor, kind: str, name: str
) -> PolicyError | None:
    """Return why nothing at all may be done with an item, whatever the arguments, or None if something may."""
    request = authorizer.create_request(supervisor, kind, name, None)
    decision = authorizer.policy.decide(request)
    rule = decision.rule
    depends_on_call = rule is not None and bool(
        rule.when or rule.unless or rule.annotations
    )  # on what is not known here
    if decision.action in ("hide", "deny") and not depends_on_call:
        error = PolicyError(f"{request.full_name}: {decision.reason}", action=decision.action, rule=decision.rule)
        return add_context(error, server=supervisor.name)
    return None

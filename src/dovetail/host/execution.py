"""Performing: what was agreed to is done at its server, within the limits, and noted; and of what comes back only what
may be is passed on.

The host's own requests and those of a gateway's callers come by here, so that no rule and no limit is for one alone.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from dovetail.client.client import Client
from dovetail.error_context import add_context
from dovetail.errors import PolicyError
from dovetail.host.audit_log import report_call
from dovetail.host.consent.consent import ConsentAnswer, ConsentRequest
from dovetail.host.managed_server import ManagedServer
from dovetail.host.policy.policy import PolicyRequest
from dovetail.host.policy.quotas import truncate_result
from dovetail.host.servers import ManagedServers
from dovetail.wire.base import replace
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.raw_message import decode_body
from dovetail.wire.tools import CallToolResult

# From a client and the seconds it may take, if there is a limit, to a result.
ClientOperation: TypeAlias = Callable[[Client, float | None], Awaitable[Any]]
AskUser: TypeAlias = Callable[[ConsentRequest], Awaitable[ConsentAnswer]]


async def run_request(
    host: ManagedServers, managed_server: ManagedServer, request: PolicyRequest, operation: ClientOperation
) -> Any:
    """Have it done, within the limits of its kind."""
    limits = host.quota(managed_server, request.tool)
    async with (
        host.meter.limit_call(managed_server.name, request.tool, limits, request.kind),
        managed_server.using() as client,
    ):
        with report_call(request, host.tell) as set_result:
            result = await operation(client, limits.timeout)
            set_result(result)
    return result


async def review_result(
    host: ManagedServers,
    managed_server: ManagedServer,
    definition: Any,
    result: Any,
    ask: AskUser | None = None,
    caller: str = "",
) -> Any:
    """What may be passed on of a tool's result: all of it, its beginning, or what the user made of it.

    Bytes stay bytes where nothing has to be decided or cut.
    """
    request = replace(host.question(managed_server, "tool.result", definition.name, None, definition), caller=caller)
    max_bytes = host.quota(managed_server, definition.name).max_result_bytes
    if isinstance(result, bytes):
        if host.desk.evaluate(request).action == "allow" and (max_bytes is None or len(result) <= max_bytes):
            return result
        result = decode_body(result, CallToolResult, "the result of tools/call")
    result = truncate_result(result, max_bytes)
    authorization = await host.desk.authorize(request, details={"result": to_plain(result.content)}, ask=ask)
    if authorization.edited_value is None:
        return result
    edited = authorization.edited_value
    content = [{"type": "text", "text": edited}] if isinstance(edited, str) else edited
    return convert({"content": content, "isError": result.is_error}, CallToolResult, label="an edited result")


def find_denial(host: ManagedServers, managed_server: ManagedServer, kind: str, name: str) -> PolicyError | None:
    """Why nothing at all may be done with something, whatever the arguments; None if something may."""
    request = host.question(managed_server, kind, name, None)
    decision = host.desk.evaluate(request)
    rule = decision.rule
    depends_on_call = rule is not None and bool(
        rule.when or rule.unless or rule.annotations
    )  # on what is not known here
    if decision.action in ("hide", "deny") and not depends_on_call:
        error = PolicyError(f"{request.full_name}: {decision.reason}", action=decision.action, rule=decision.rule)
        return add_context(error, server=managed_server.name)
    return None

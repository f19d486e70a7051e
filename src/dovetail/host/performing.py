"""Performing: what was agreed to is done at its server, within the limits, and noted; and of what comes back only what
may be is passed on.

The host's own requests and those of a gateway's callers come by here, so that no rule and no limit is for one alone.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from dovetail.connect import Client
from dovetail.errors import PolicyError
from dovetail.host.consent import Answer, ConsentRequest
from dovetail.host.member import Member
from dovetail.host.metering import shortened
from dovetail.host.noting import noted
from dovetail.host.policy import Question
from dovetail.host.roster import Roster
from dovetail.wire.codec import convert, plain
from dovetail.wire.incoming import body
from dovetail.wire.shape import replace
from dovetail.wire.tools import CallToolResult

# From a client and the seconds it may take, if there is a limit, to a result.
Work: TypeAlias = Callable[[Client, float | None], Awaitable[Any]]
Ask: TypeAlias = Callable[[ConsentRequest], Awaitable[Answer]]


async def performed(host: Roster, member: Member, question: Question, work: Work) -> Any:
    """Have it done, within the limits of its kind."""
    quota = host.quota(member, question.tool)
    async with host.meter.within(member.name, question.tool, quota, question.kind), member.using() as client:
        with noted(question, host.tell) as note:
            result = await work(client, quota.timeout)
            note(result)
    return result


async def passed(
    host: Roster, member: Member, definition: Any, result: Any, ask: Ask | None = None, caller: str = ""
) -> Any:
    """What may be passed on of a tool's result: all of it, its beginning, or what the user made of it.

    Bytes stay bytes where nothing has to be decided or cut.
    """
    question = replace(host.question(member, "tool.result", definition.name, None, definition), caller=caller)
    limit = host.quota(member, definition.name).result_bytes
    if isinstance(result, bytes):
        if host.desk.look(question).verdict == "allow" and (limit is None or len(result) <= limit):
            return result
        result = body(result, CallToolResult, "the result of tools/call")
    result = shortened(result, limit)
    settled = await host.desk.settle(question, details={"result": plain(result.content)}, ask=ask)
    if settled.edited is None:
        return result
    edited = settled.edited
    content = [{"type": "text", "text": edited}] if isinstance(edited, str) else edited
    return convert({"content": content, "isError": result.is_error}, CallToolResult, what="an edited result")


def barred(host: Roster, member: Member, kind: str, name: str) -> PolicyError | None:
    """Why nothing at all may be done with something, whatever the arguments; None if something may."""
    question = host.question(member, kind, name, None)
    decision = host.desk.look(question)
    rule = decision.rule
    depends = rule is not None and (rule.conditional or bool(rule.facts))  # on what is not known here
    if decision.verdict in ("hide", "deny") and not depends:
        why = PolicyError(f"{question.full}: {decision.reason}", verdict=decision.verdict, rule=decision.rule)
        return why.at(server=member.name)
    return None

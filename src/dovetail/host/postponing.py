"""Postponing: calls that wait in the inbox, and going on with them when they are answered.

What was agreed to is looked at again: another server, another definition, or a policy that forbids it now ends it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dovetail.client.rounds import Pending
from dovetail.connect import Client
from dovetail.errors import AnswerError, NotOffered, PolicyError, clip
from dovetail.host.consent import Allow, Answer, ConsentRequest, Deny, Edit
from dovetail.host.deciding import Desk
from dovetail.host.inbox import DurableConsent, Item, Waiting, Work, responses
from dovetail.host.member import Member
from dovetail.host.pins import fingerprint
from dovetail.host.policy import Question
from dovetail.wire.codec import plain

_FORMS = ("elicitation/create",)


class Place(Protocol):
    """A host, as far as this goes."""

    desk: Desk

    async def find(self, name: str) -> tuple[Member, str]: ...
    async def declared(self, member: Member, tool: str) -> Any: ...
    def question(self, member: Member, kind: str, name: str, arguments: Any, declaration: Any = None) -> Question: ...
    async def perform(
        self,
        member: Member,
        declared: Any,
        arguments: dict[str, Any],
        *,
        wait: bool = True,
        resume: Callable[[Client], Awaitable[Any]] | None = None,
    ) -> Any: ...


class Postponing:
    """The calls of one host that wait."""

    def __init__(self, host: Place) -> None:
        self._host = host

    @property
    def _inbox(self) -> DurableConsent:
        broker = self._host.desk.broker
        if not isinstance(broker, DurableConsent):
            raise AnswerError("questions can only be put off with consent=DurableConsent(...)")
        return broker

    async def items(self) -> list[Item]:
        """What waits."""
        return await self._inbox.items()

    async def put_off(self, ticket: str, question: Question, declared: Any) -> Waiting:
        """A call that was not agreed to yet."""
        await self._inbox.attach(ticket, _work(question, declared))
        return Waiting(ticket=ticket)

    async def asked(self, member: Member, declared: Any, arguments: dict[str, Any], pending: Pending) -> Waiting:
        """A call whose server asks: what only a person can answer is written down, the rest is answered now."""
        question = self._host.question(member, "tool.call", declared.name, arguments, declared)
        forms = {key: one for key, one in pending.questions.items() if one.method in _FORMS}
        rest = {key: one for key, one in pending.questions.items() if key not in forms}
        answers = await member.answer(rest) if rest else {}
        told = {key: plain(one) for key, one in forms.items()}
        work = _work(question, declared, pending=pending.dump().decode(), questions=told, answers=answers)
        requests = tuple(_request(member, one) for one in told.values())
        ticket = await self._inbox.put(requests[0] if requests else _request(member, {}), work)
        return Waiting(ticket=ticket, questions=requests)

    async def answer(self, ticket: str, answer: Answer) -> Any:
        """Go on with what waited."""
        taken = await self._inbox.take(ticket)
        if taken is None:
            if not await self._inbox.answer(ticket, answer):
                raise NotOffered(f"no question waits under {clip(ticket)}")
            return None
        request, work = taken
        member, tool = await self._host.find(f"{work.server}.{work.tool}")
        declared = await self._host.declared(member, tool)
        if member.identity != work.identity or fingerprint(declared) != work.fingerprint:
            raise PolicyError(f"{work.server}.{work.tool} is not what it was when it was asked for")
        question = self._host.question(member, "tool.call", tool, work.arguments, declared)
        decision = self._host.desk.look(question)
        self._host.desk.heard(question, answer, decision.reason)
        if decision.verdict in ("deny", "hide"):
            raise PolicyError(f"{question.full}: {decision.reason}", verdict=decision.verdict, rule=decision.rule)
        if work.pending is not None:
            return await self._resumed(member, declared, work, answer)
        if isinstance(answer, Deny):
            raise PolicyError(f"{question.full}: {answer.reason or 'the user said no'}")
        if isinstance(answer, Allow):
            self._host.desk.remember(question, work.fingerprint, answer)
        arguments = answer.value if isinstance(answer, Edit) else work.arguments
        return await self._host.perform(member, declared, arguments, wait=request.wait)

    async def _resumed(self, member: Member, declared: Any, work: Work, answer: Answer) -> Any:
        pending = Pending.load(work.pending or "")

        async def resume(client: Client) -> Any:
            return await client.resume(pending, responses(work, answer))

        return await self._host.perform(member, declared, work.arguments, wait=False, resume=resume)


def _work(question: Question, declared: Any, **more: Any) -> Work:
    return Work(
        server=question.server,
        identity=question.identity,
        tool=question.tool,
        arguments=dict(question.arguments or {}),
        fingerprint=fingerprint(declared),
        **more,
    )


def _request(member: Member, question: dict[str, Any]) -> ConsentRequest:
    params: dict[str, Any] = question.get("params") or {}
    details = {"message": params.get("message", ""), "schema": params.get("requestedSchema") or {}}
    if params.get("mode") == "url":
        details = {"message": params.get("message", ""), "url": params.get("url", "")}
    kind = "elicit.url" if "url" in details else "elicit.form"
    return ConsentRequest(kind=kind, server=member.name, details=details, wait=False, trusted=member.settings.trust)

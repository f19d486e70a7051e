"""Postponing: calls that wait in the inbox, and going on with them when they are answered.

What was agreed to is looked at again: another server, another definition, or a policy that forbids it now ends it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

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
from dovetail.wire.shape import replace

_FORMS = ("elicitation/create",)


class Place(Protocol):
    """A host, as far as this goes."""

    desk: Desk

    async def find(self, name: str) -> tuple[Member, str]: ...
    async def declared(self, member: Member, tool: str) -> Any: ...
    def question(self, member: Member, kind: str, name: str, arguments: Any, declaration: Any = None) -> Question: ...
    async def call(self, name: str, /, arguments: Mapping[str, Any] | None = None, *, wait: bool = True) -> Any: ...
    async def perform(
        self,
        member: Member,
        declared: Any,
        question: Question,
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

    @property
    def open_questions(self) -> int:
        """How many questions wait in the inbox, if there is one."""
        broker = self._host.desk.broker
        return broker.open_questions if isinstance(broker, DurableConsent) else 0

    async def items(self) -> list[Item]:
        """What waits."""
        return await self._inbox.items()

    async def put_off(self, ticket: str, question: Question, declared: Any) -> Waiting:
        """A call that was not agreed to yet."""
        await self._inbox.attach(ticket, _work(question, declared))
        return Waiting(ticket=ticket)

    async def asked(self, member: Member, declared: Any, question: Question, pending: Pending) -> Any:
        """A call whose server asks: what only a person can answer is written down, the rest is answered now."""
        asked = {key: plain(one) for key, one in pending.questions.items() if one.method in _FORMS}
        forms = {key: one for key, one in asked.items() if self._may_ask(member, one)}
        rest = {key: one for key, one in pending.questions.items() if key not in asked}
        answers: dict[str, Any] = {key: {"action": "decline"} for key in asked if key not in forms}
        answers |= await member.answer(rest) if rest else {}
        work = _work(question, declared, pending=pending.dump().decode(), questions=forms, answers=answers)
        if not forms:
            return await self._resumed(member, declared, question, work, Deny())
        ticket = await self._inbox.put(_together(member, forms), work)
        return Waiting(ticket=ticket, questions=tuple(_request(member, one) for one in forms.values()))

    def _may_ask(self, member: Member, form: dict[str, Any]) -> bool:
        kind = _request(member, form).kind
        return self._host.desk.look(self._host.question(member, kind, "", None)).verdict not in ("deny", "hide")

    async def answer(self, ticket: str, answer: Answer) -> Any:
        """Go on with what waited. Until it is certain that it can go on, the question stays where it is."""
        found = await self._inbox.find(ticket)
        if found is None:
            if not await self._inbox.answer(ticket, answer):
                raise NotOffered(f"no question waits under {clip(ticket)}")
            return None
        request, work = found
        if isinstance(answer, Deny) and work.pending is None:
            await self._take(ticket)
            said = Question(server=work.server, tool=work.tool, kind=request.kind, arguments=work.arguments)
            self._host.desk.heard(said, answer, request.reason)
            raise PolicyError(f"{said.full}: {answer.reason or 'the user said no'}")
        member, tool = await self._host.find(f"{work.server}.{work.tool}")
        async with member.using():  # before it is taken: a server that is down costs nobody their answer
            declared = await self._host.declared(member, tool)
            return await self._gone_on(ticket, request, work, answer, member, declared)

    async def _gone_on(
        self, ticket: str, request: ConsentRequest, work: Work, answer: Answer, member: Member, declared: Any
    ) -> Any:
        desk = self._host.desk
        question = self._host.question(member, "tool.call", declared.name, work.arguments, declared)
        if work.pending is not None:
            responses(work, answer)  # what does not answer it leaves it open
        elif isinstance(answer, Edit):
            desk.check_edited(question, answer.value)
        await self._take(ticket)
        if member.identity != work.identity or fingerprint(declared) != work.fingerprint:
            raise PolicyError(f"{question.full} is not what it was when it was asked for")
        decision = desk.check(question)
        desk.heard(replace(question, kind=request.kind), answer, decision.reason)
        if work.pending is not None:
            return await self._resumed(member, declared, question, work, answer)
        if request.kind == "definition.changed":
            return await self._agreed(question, declared, answer)
        settled = await desk.accept(question, work.fingerprint, answer, decision)
        await desk.note(question, declared, fingerprint(declared))
        return await self._host.perform(member, declared, settled.question, wait=request.wait)

    async def _agreed(self, question: Question, declared: Any, answer: Answer) -> Any:
        """The new definition may be used, which says nothing of the call that met it."""
        if not isinstance(answer, Allow):
            raise PolicyError(f"{question.full}: its definition changed, and that was not agreed to")
        await self._host.desk.note(question, declared, fingerprint(declared))
        return await self._host.call(question.full, question.arguments, wait=False)

    async def _take(self, ticket: str) -> None:
        if not await self._inbox.take(ticket):
            raise NotOffered(f"no question waits under {clip(ticket)} any more")

    async def _resumed(self, member: Member, declared: Any, question: Question, work: Work, answer: Answer) -> Any:
        pending = Pending.load(work.pending or "")

        async def resume(client: Client) -> Any:
            if not work.questions and pending.rounds > client.limits.rounds:  # nobody is there to lose patience
                raise AnswerError(f"it asked in more than {client.limits.rounds} rounds")
            return await client.resume(pending, responses(work, answer))

        return await self._host.perform(member, declared, question, wait=False, resume=resume)


def _work(question: Question, declared: Any, **more: Any) -> Work:
    return Work(
        server=question.server,
        identity=question.identity,
        tool=question.tool,
        arguments=dict(question.arguments or {}),
        fingerprint=fingerprint(declared),
        **more,
    )


def _request(member: Member, question: Mapping[str, Any]) -> ConsentRequest:
    params: Mapping[str, Any] = question.get("params") or {}
    details: dict[str, Any] = {"message": params.get("message", ""), "schema": params.get("requestedSchema") or {}}
    if params.get("mode") == "url":
        url = str(params.get("url", ""))
        details = {"message": params.get("message", ""), "url": url, "host": urlsplit(url).hostname or ""}
    kind = "elicit.url" if "url" in details else "elicit.form"
    return ConsentRequest(kind=kind, server=member.name, details=details, wait=False, trusted=member.settings.trust)


def _together(member: Member, forms: Mapping[str, Mapping[str, Any]]) -> ConsentRequest:
    """All that is open as one question; several stand in it by their keys."""
    requests = {key: _request(member, one) for key, one in forms.items()}
    first = next(iter(requests.values()))
    if len(requests) == 1:
        return first
    details = {key: {**one.details} for key, one in requests.items()}
    return replace(first, kind="elicit.form", details=details, reason="several are open: answer each by its key")

"""Deciding: what the policy, the grants given before and the person in charge make of a question, in that order.

Every decision is told with its reason. A definition that is no longer the one first seen is shown before it is used,
whatever a rule or a grant says; and what a person changes is looked at again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dovetail.errors import PolicyError, clip
from dovetail.host.caller_pins import ANONYMOUS, CallerPins
from dovetail.host.consent import Allow, Answer, Broker, ConsentRequest, Edit, Later, attended
from dovetail.host.events import Event
from dovetail.host.grants import Grants, grant
from dovetail.host.kinds import Kind
from dovetail.host.pinned import Pins
from dovetail.host.pins import Difference, changes, describe, fingerprint
from dovetail.host.policy import Decision, Policy, Question
from dovetail.wire.shape import Struct, replace

_GRAVE: Final = frozenset({"widening", "instruction", "egress"})
_WITH_ARGUMENTS: Final = frozenset({"tool.call", "prompt.get"})

Ask = Callable[[ConsentRequest], Any]


class Postponed(PolicyError):
    """The question was put off: it stands in the inbox under a ticket."""

    def __init__(self, ticket: str) -> None:
        super().__init__(f"it waits for an answer under the ticket {ticket}", verdict="ask")
        self.ticket = ticket


class Settled(Struct, frozen=True):
    """It may happen: the question as it was judged, whose arguments are to be sent, and what the user put instead."""

    reason: str
    question: Question
    edited: Any = None


class Decided(Struct, frozen=True):
    """What was asked, and what was decided: the details of an event."""

    question: Question
    decision: Decision


class Desk:
    """Where the questions of one host are decided."""

    def __init__(
        self, policy: Policy, broker: Broker, grants: Grants, pins: Pins, tell: Callable[[Event], None]
    ) -> None:
        self.policy = policy
        self.broker = broker
        self.grants = grants
        self.pins = pins
        self._caller_pins = CallerPins()
        self._tell = tell

    def look(self, question: Question) -> Decision:
        """What the policy says."""
        return self.policy.decide(question)

    def check(self, question: Question) -> Decision:
        """What the policy says; PolicyError if that is no."""
        return self._passed(question, self.look(question))

    async def settle(
        self,
        question: Question,
        definition: Any = None,
        details: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        ask: Ask | None = None,
    ) -> Settled:
        """Whether it may happen: PolicyError if not. `ask` asks somebody else than the host's own user."""
        if question.kind in _WITH_ARGUMENTS and question.arguments is None:
            question = replace(question, arguments={})  # what is to happen has arguments, if only none
        decision = self._passed(question, self._possible(question, ask))
        mark = "" if definition is None else fingerprint(definition)
        changed = self.changed(question, definition, mark)
        if changed is not None:
            await self._show(question, changed, wait, ask)
        keeps = changed is None or question.caller != ANONYMOUS
        if changed is not None and keeps:
            await self.note(question, definition, mark)
        settled = await self._settled(question, decision, mark, details, wait, ask)
        if keeps:
            await self.note(question, definition, mark)
        return settled

    async def _settled(
        self,
        question: Question,
        decision: Decision,
        mark: str,
        details: Mapping[str, Any] | None,
        wait: bool,
        ask: Ask | None,
    ) -> Settled:
        if decision.verdict == "allow":
            return self._allowed(question, decision)
        if self.grants.find(question, mark, time.time()) is not None:
            return self._allowed(question, decision, "granted before")
        answer = await (ask or self.broker.ask)(asked(question, decision.reason, details, wait))
        self.heard(question, answer, decision.reason)
        return await self.accept(question, mark, answer, decision)

    async def accept(self, question: Question, mark: str, answer: Answer, decision: Decision) -> Settled:
        """What a person's answer makes of a question that was decided to be asked: PolicyError if not a yes."""
        match answer:
            case Allow():
                await self._remember(question, mark, answer)
                return self._allowed(question, decision, f"the user said yes: {answer.scope}")
            case Edit():
                question = self.check_edited(question, answer.value)
                return replace(self._allowed(question, decision, "the user changed it"), edited=answer.value)
            case Later():
                raise Postponed(answer.ticket)
            case _:
                raise self._refused(question, decision, answer.reason or "the user said no")

    def check_edited(self, question: Question, value: Any) -> Question:
        """The question with the arguments a person put in their place, if the policy lets them pass; or PolicyError."""
        if question.kind not in _WITH_ARGUMENTS:
            return question
        if not isinstance(value, dict):
            raise PolicyError(f"{question.full}: arguments are an object, and the user's edit is none")
        edited = question.with_arguments(value)
        self.check(edited)
        return edited

    # What is decided, and told

    def _possible(self, question: Question, ask: Ask | None) -> Decision:
        """What the policy says, where nobody may be there to be asked."""
        decision = self.look(question)
        if decision.verdict != "ask" or ask is not None or attended(self.broker):
            return decision
        decision = self.policy.unattended(decision)
        if decision.verdict == "allow":
            return decision
        return replace(decision, reason=f"{decision.reason}. Give the host consent=, or allow it: {_cure(question)}")

    def _passed(self, question: Question, decision: Decision) -> Decision:
        if decision.verdict in ("deny", "hide"):
            raise self._refused(question, decision, decision.reason)
        return decision

    def _allowed(self, question: Question, decision: Decision, reason: str = "") -> Settled:
        self._decided(question, replace(decision, verdict="allow", reason=reason or decision.reason))
        return Settled(reason or decision.reason, question)

    def _refused(self, question: Question, decision: Decision, reason: str) -> PolicyError:
        verdict = "deny" if decision.verdict in ("allow", "ask") else decision.verdict
        self._decided(question, replace(decision, verdict=verdict, reason=reason))
        what = question.full if question.kind == "tool.call" else f"{question.full} ({question.kind})"
        return PolicyError(f"{what}: {reason}", verdict=verdict, rule=decision.rule).at(server=question.server)

    def _decided(self, question: Question, decision: Decision) -> None:
        event = Event(kind="decision", server=question.server, old=question.kind, new=decision.verdict)
        self._tell(replace(event, reason=decision.reason, details=Decided(question, decision)))

    def heard(self, question: Question, answer: Answer, reason: str) -> None:
        """Tell what the person in charge answered."""
        event = Event(kind="consent", server=question.server, old=question.kind, new=type(answer).__name__.lower())
        self._tell(replace(event, reason=reason, details=question))

    # What is kept

    async def _remember(self, question: Question, mark: str, answer: Allow) -> None:
        """Keep what was agreed to for longer than once."""
        if answer.scope != "once" and question.identity:
            exact = (question.arguments or {}).keys() if answer.exact else None
            given = grant(question, mark, time.time(), scope=answer.scope, seconds=answer.expires, exact=exact)
            await _kept(question, self.grants.add, given)

    async def note(self, question: Question, definition: Any, mark: str) -> None:
        """Remember that this definition is used: by the caller the question is for, or by the host's user."""
        if definition is None or not question.identity:
            return
        if question.caller:
            self._caller_pins.keep(question.caller, question.identity, question.tool, mark, definition)
            return  # first sight by a caller does not pin it for the host's user either
        pin = self.pins.get(question.identity, question.tool)
        if pin is None or pin.fingerprint != mark:
            await _kept(question, self.pins.keep, question.server, question.identity, [definition], time.time())

    # Definitions that change

    def changed(self, question: Question, definition: Any, mark: str) -> list[Difference] | None:
        """What is graver than words in other places, since it was used last; None if there is nothing to show."""
        if definition is None or not question.identity:
            return None
        found = self._differences(question, definition, mark)
        return found if any(one.kind in _GRAVE for one in found) else None

    def _differences(self, question: Question, definition: Any, mark: str) -> list[Difference]:
        """Return what changed since the caller used it.

        A caller that has not used it is compared with the host's user. So are callers that cannot be told apart, as
        soon as the user has agreed to the definition.
        """
        used: str | None = None
        if question.caller:
            used = self._caller_pins.get(question.caller, question.identity, question.tool)
        if used == mark:
            return []
        pin = self.pins.get(question.identity, question.tool)
        if question.caller == ANONYMOUS and pin is not None and pin.fingerprint == mark:
            return []
        if used is not None:
            kept = pin.definition if pin is not None and pin.fingerprint == used else None
            return _compare(kept or self._caller_pins.definition(used), definition)
        if pin is None or pin.fingerprint == mark:
            return []
        return self.pins.compare(question.identity, [definition]).changed[0].differences

    async def _show(self, question: Question, found: list[Difference], wait: bool, ask: Ask | None) -> None:
        changed = replace(question, kind="definition.changed", arguments=None)
        decision = self.check(changed)
        reason = "its definition is not the one that was used before"
        answer = await (ask or self.broker.ask)(asked(changed, reason, {"changes": describe(found)}, wait))
        self.heard(changed, answer, reason)
        if isinstance(answer, Later):
            raise Postponed(answer.ticket)
        if not isinstance(answer, Allow):
            text = f"its definition changed, and that was not agreed to: {describe(found[:3])}"
            raise self._refused(question, decision, text)


async def _kept(question: Question, keep: Callable[..., Any], *values: Any) -> None:
    """Written down off the loop, since another process may hold the file."""
    try:
        await asyncio.to_thread(keep, *values)
    except OSError as exc:
        text = f"{question.full}: what was agreed to cannot be kept: {exc}"
        raise PolicyError(text).at(server=question.server) from exc


def _compare(old: Any, new: Any) -> list[Difference]:
    found = changes(old, new) if old else []
    return found or [Difference("", "widening", "the definition that was used before is not known any more")]


def _cure(question: Question) -> str:
    names = {"kind": question.kind, "server": question.server, "tool": question.tool}
    said = ", ".join(f'{name}="{clip(value)}"' for name, value in names.items() if value)
    return f'rule("allow", {said})'


def asked(
    question: Question, reason: str, details: Mapping[str, Any] | None = None, wait: bool = True
) -> ConsentRequest:
    """A question for a policy as one for a person."""
    kind: Kind = question.kind  # pyright: ignore[reportAssignmentType]
    return ConsentRequest(
        kind=kind,
        server=question.server,
        tool=question.tool,
        arguments=question.arguments,
        details=details or {},
        reason=reason,
        trusted=question.trusted,
        wait=wait,
    )

"""Deciding: what the policy, the grants given before and the person in charge make of a question, in that order.

Every decision is told with its reason. A definition that is no longer the one first seen is shown before it is used,
whatever a rule or a grant says.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dovetail.errors import PolicyError
from dovetail.host.consent import Allow, Answer, Broker, ConsentRequest, Deny, DenyAll, Edit, Kind, Later
from dovetail.host.events import Event
from dovetail.host.grants import Grants, grant
from dovetail.host.pinned import Pins
from dovetail.host.pins import Difference, describe, fingerprint
from dovetail.host.policy import Decision, Policy, Question
from dovetail.wire.shape import Struct, replace

# What the user has said yes to by configuring it: only a rule that names it makes it a question.
_GIVEN: Final = frozenset({"server.start", "tool.result", "sampling.response", "roots.list", "complete"})
_GRAVE: Final = frozenset({"widening", "instruction", "egress"})


class Postponed(PolicyError):
    """The question was put off: it stands in the inbox under a ticket."""

    def __init__(self, ticket: str) -> None:
        super().__init__(f"it waits for an answer under the ticket {ticket}", verdict="ask")
        self.ticket = ticket


class Settled(Struct, frozen=True):
    """It may happen, perhaps with something else than was asked for."""

    reason: str
    edited: Any = None


class Desk:
    """Where the questions of one host are decided."""

    def __init__(
        self, policy: Policy, broker: Broker, grants: Grants, pins: Pins, tell: Callable[[Event], None]
    ) -> None:
        self.policy = policy
        self.broker = broker
        self.grants = grants
        self.pins = pins
        self._tell = tell

    def look(self, question: Question) -> Decision:
        """What the policy says; what the user has configured is not asked about unless a rule wants it."""
        decision = self.policy.decide(question)
        if question.kind in _GIVEN and not _means(decision, question):
            return Decision(verdict="allow", reason="configured by the user")
        return decision

    async def settle(
        self,
        question: Question,
        definition: Any = None,
        details: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        ask: Callable[[ConsentRequest], Any] | None = None,
        given: bool = True,
    ) -> Settled:
        """Whether it may happen: PolicyError if not. `ask` asks somebody else than the host's own user.

        `given`: what only a configuration asks for was configured by the user, not by a project.
        """
        decision = self.look(question) if given else self.policy.decide(question)
        if ask is None and isinstance(self.broker, DenyAll):
            decision = self.policy.unattended(decision)
        mark = "" if definition is None else fingerprint(definition)
        if decision.verdict in ("deny", "hide"):
            raise self._refused(question, decision.verdict, decision.reason, decision.rule)
        changed = self._changed(question, definition, mark)
        if changed is not None:
            await self._show(question, changed, wait, ask)
            self._note(question, definition)
        if decision.verdict == "allow":
            self._note(question, definition)
            return self._allowed(question, decision.reason)
        if self._granted(question, mark):
            self._note(question, definition)
            return self._allowed(question, "granted before")
        request = asked(question, decision.reason, details or {}, wait=wait)
        answer = await (ask or self.broker.ask)(request)
        self.heard(question, answer, decision.reason)
        match answer:
            case Allow():
                self.remember(question, mark, answer)
                self._note(question, definition)
                return self._allowed(question, f"the user said yes: {answer.scope}")
            case Edit():
                self._note(question, definition)
                return Settled(self._allowed(question, "the user changed it").reason, answer.value)
            case Later():
                raise Postponed(answer.ticket)
            case _:
                reason = answer.reason if isinstance(answer, Deny) else ""
                raise self._refused(question, "deny", reason or "the user said no", decision.rule)

    def _allowed(self, question: Question, reason: str) -> Settled:
        self._told("decision", question, "allow", reason)
        return Settled(reason)

    def _refused(self, question: Question, verdict: str, reason: str, rule: Any) -> PolicyError:
        self._told("decision", question, verdict, reason)
        return PolicyError(f"{question.full}: {reason}", verdict=verdict, rule=rule).at(server=question.server)

    def _told(self, kind: str, question: Question, verdict: str, reason: str) -> None:
        event = Event(kind=kind, server=question.server, old=question.kind, new=verdict, reason=reason)
        self._tell(replace(event, details=question))

    def heard(self, question: Question, answer: Answer, reason: str) -> None:
        """Tell what the person in charge answered."""
        self._told("consent", question, type(answer).__name__.lower(), reason)

    # Grants

    def _granted(self, question: Question, mark: str) -> bool:
        return self.grants.find(question, mark, time.time()) is not None

    def remember(self, question: Question, mark: str, answer: Allow) -> None:
        """Keep what was agreed to for longer than once."""
        if answer.scope != "once" and question.identity:
            exact = (question.arguments or {}).keys() if answer.exact else None
            given = grant(question, mark, time.time(), scope=answer.scope, seconds=answer.expires, exact=exact)
            self.grants.add(given)

    # Definitions that change

    def _note(self, question: Question, definition: Any) -> None:
        if definition is None or not question.identity:
            return
        pin = self.pins.get(question.identity, question.tool)
        if pin is None or pin.fingerprint != fingerprint(definition):
            self.pins.keep(question.server, question.identity, [definition], time.time())

    def _changed(self, question: Question, definition: Any, mark: str) -> list[Difference] | None:
        """What is graver than words in other places, since it was used last; None if there is nothing to show."""
        pin = self.pins.get(question.identity, question.tool) if definition is not None else None
        if pin is None or pin.fingerprint == mark:
            return None
        found = self.pins.compare(question.identity, [definition]).changed[0].differences
        return found if any(one.kind in _GRAVE for one in found) else None

    async def _show(self, question: Question, found: list[Any], wait: bool, ask: Callable[..., Any] | None) -> None:
        changed = replace(question, kind="definition.changed", arguments=None)
        reason = "its definition is not the one that was used before"
        request = asked(changed, reason, {"changes": describe(found)}, wait=wait)
        answer = await (ask or self.broker.ask)(request)
        self.heard(changed, answer, reason)
        if isinstance(answer, Later):
            raise Postponed(answer.ticket)
        if not isinstance(answer, Allow):
            text = f"its definition changed, and that was not agreed to: {describe(found[:3])}"
            raise self._refused(question, "deny", text, None)


def asked(question: Question, reason: str, details: Mapping[str, Any], *, wait: bool = True) -> ConsentRequest:
    """A question for a policy as one for a person."""
    kind: Kind = question.kind  # pyright: ignore[reportAssignmentType]
    return ConsentRequest(
        kind=kind,
        server=question.server,
        tool=question.tool,
        arguments=question.arguments,
        details=details,
        reason=reason,
        trusted=question.trusted,
        wait=wait,
    )


def _means(decision: Decision, question: Question) -> bool:
    """Whether a rule is about what the user has configured: it names the kind, or it forbids the whole server."""
    rule = decision.rule
    if rule is None:
        return False
    return bool(rule.kind) or (decision.verdict in ("deny", "hide") and bool(question.tool or not rule.tool))

"""Authorization: what the policy, the pins, the grants and the user make of a request, computed once for each.

Every decision is reported with its reason. A changed definition is shown to the user before it is used, whatever a
rule or a grant says. Arguments that the user edits are checked again.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from dovetail.error_context import add_context, clip
from dovetail.errors import PolicyError
from dovetail.host.consent.consent import (
    Allow,
    ConsentAnswer,
    ConsentHandler,
    ConsentRequest,
    Defer,
    Edit,
    is_interactive,
)
from dovetail.host.consent.grants import Grant, GrantStore
from dovetail.host.consent.pins import PinStore, fingerprint
from dovetail.host.events import EventEmitter, HostEvent
from dovetail.host.gateway.caller_pins import ANONYMOUS, CallerPins
from dovetail.host.policy.policy import Decision, Policy, PolicyRequest, apply_non_interactive, find_limits
from dovetail.host.policy.quotas import Meter, ToolLimits, combine_limits, parse_rate
from dovetail.host.policy.rules import ConsentKind
from dovetail.host.supervisor import ServerSupervisor
from dovetail.schemas.definition_changes import DefinitionChange, diff_definitions, format_changes
from dovetail.wire.base import Struct, replace

_SEVERE_CHANGES: Final = frozenset({"widening", "instruction", "egress"})
_KINDS_WITH_ARGUMENTS: Final = frozenset({"tool.call", "prompt.get"})

AskUser = Callable[[ConsentRequest], Any]


class ConsentDeferred(PolicyError):
    """The question was put off: it stands in the inbox under a ticket."""

    def __init__(self, ticket: str) -> None:
        super().__init__(f"it waits for an answer under the ticket {ticket}", action="ask")
        self.ticket = ticket


class ToolRecord(Struct, frozen=True, kw_only=True):
    """A tool of a server with everything that is the same for all of its calls, computed once per definition."""

    definition: Any
    fingerprint: str
    request: PolicyRequest  # about the tool itself, without arguments
    result_request: PolicyRequest  # about its results
    limits: ToolLimits


class Authorization(Struct, frozen=True, kw_only=True):
    """The permission for one call. It travels from the decision to the execution and to the check of the result."""

    reason: str
    request: PolicyRequest  # as it was judged: these arguments are sent
    limits: ToolLimits = ToolLimits()
    record: ToolRecord | None = None  # of a call of a tool
    edited_value: Any = None  # what the user put in place of the arguments or the result


class DecisionDetails(Struct, frozen=True):
    """What was asked, and what was decided: the details of an event."""

    request: PolicyRequest
    decision: Decision


class RequestAuthorizer:
    """Policy, consent, grants, pins and limits of one host, and what they make of a request."""

    def __init__(
        self,
        policy: Policy,
        consent_handler: ConsentHandler,
        grants: GrantStore,
        pins: PinStore,
        events: EventEmitter,
        project: str = "",
    ) -> None:
        self.policy = policy
        self.consent_handler = consent_handler
        self.grants = grants
        self.pins = pins
        self.meter = Meter()
        self._caller_pins = CallerPins()
        self._events = events
        self._project = project

    # Requests and limits

    def create_request(
        self,
        supervisor: ServerSupervisor,
        kind: str,
        name: str,
        arguments: Mapping[str, Any] | None,
        definition: Any = None,
    ) -> PolicyRequest:
        """Return what the policy is asked about one item of one server."""
        request = PolicyRequest(
            server=supervisor.name,
            tool=name,
            kind=kind,
            schema=getattr(definition, "input_schema", None) if kind == "tool.call" else None,
            annotations=getattr(definition, "annotations", None) if kind.startswith("tool.") else None,
            trusted=supervisor.settings.trusted,
            server_identity=supervisor.identity,
            project=self._project,
        )
        return request if arguments is None else request.with_arguments(arguments)

    def create_record(self, supervisor: ServerSupervisor, definition: Any) -> ToolRecord:
        """Return the record of one definition of a tool."""
        name = definition.name
        return ToolRecord(
            definition=definition,
            fingerprint=fingerprint(definition),
            request=self.create_request(supervisor, "tool.call", name, None, definition),
            result_request=self.create_request(supervisor, "tool.result", name, None, definition),
            limits=self.get_limits(supervisor, name),
        )

    def get_limits(self, supervisor: ServerSupervisor, name: str) -> ToolLimits:
        """Return the limits of one item: those of the policy and of the settings of its server."""
        return combine_limits(find_limits(self.policy, supervisor.name, name), supervisor.settings.limits)

    async def check_rate(self, server_name: str, operation: str) -> None:
        """Count a request of a server. Raise PolicyError if there were too many."""
        rate = find_limits(self.policy, server_name, operation).rate
        if rate is not None:
            self.meter.record_call(server_name, operation, parse_rate(rate))

    # Decisions

    def check(self, request: PolicyRequest) -> Decision:
        """What the policy says; PolicyError if that is no."""
        return self._check_decision(request, self.policy.decide(request))

    async def authorize_call(
        self,
        record: ToolRecord,
        arguments: Mapping[str, Any],
        *,
        caller: str = "",
        wait: bool = True,
        ask: AskUser | None = None,
    ) -> Authorization:
        """Authorize one call of a tool. Raise PolicyError if it may not happen."""
        request = record.request.with_arguments(arguments)
        if caller:
            request = replace(request, caller=caller)
        decision = self.policy.decide(request)
        if decision.action == "ask":
            decision = self._decide(request, decision, ask)
        is_pinned = self._is_pinned(request, record.fingerprint)
        if is_pinned and decision.action == "allow":
            if self._events.has_listeners("decision"):
                self._emit_decision(request, decision)
            return Authorization(reason=decision.reason, request=request, limits=record.limits, record=record)
        authorization = await self._authorize_definition(
            request,
            decision,
            record.definition,
            record.fingerprint,
            {"description": record.definition.description or ""},
            is_pinned,
            wait,
            ask,
        )
        return replace(authorization, record=record, limits=record.limits)

    async def authorize(
        self,
        request: PolicyRequest,
        definition: Any = None,
        details: Mapping[str, Any] | None = None,
        *,
        decision: Decision | None = None,
        limits: ToolLimits | None = None,
        wait: bool = True,
        ask: AskUser | None = None,
    ) -> Authorization:
        """Authorize a request. Raise PolicyError if it may not happen.

        decision: what the policy says, if it was evaluated already. ask: asks another user than that of the host.
        """
        if request.kind in _KINDS_WITH_ARGUMENTS and request.arguments is None:
            request = replace(request, arguments={})  # what is to happen has arguments, if only none
        decision = self._decide(request, decision or self.policy.decide(request), ask)
        current_fingerprint = "" if definition is None else fingerprint(definition)
        authorization = await self._authorize_definition(
            request, decision, definition, current_fingerprint, details, definition is None, wait, ask
        )
        return authorization if limits is None else replace(authorization, limits=limits)

    async def _authorize_definition(
        self,
        request: PolicyRequest,
        decision: Decision,
        definition: Any,
        current_fingerprint: str,
        details: Mapping[str, Any] | None,
        is_pinned: bool,
        wait: bool,
        ask: AskUser | None,
    ) -> Authorization:
        self._check_decision(request, decision)
        definition_changes = (
            None if is_pinned else self.find_definition_changes(request, definition, current_fingerprint)
        )
        if definition_changes is not None:
            await self._confirm_changes(request, definition_changes, wait, ask)
        should_pin = definition_changes is None or request.caller != ANONYMOUS
        if definition_changes is not None and should_pin:
            await self.pin_definition(request, definition, current_fingerprint)
        authorization = await self._authorize_decision(request, decision, current_fingerprint, details, wait, ask)
        if should_pin:
            await self.pin_definition(request, definition, current_fingerprint)
        return authorization

    async def _authorize_decision(
        self,
        request: PolicyRequest,
        decision: Decision,
        current_fingerprint: str,
        details: Mapping[str, Any] | None,
        wait: bool,
        ask: AskUser | None,
    ) -> Authorization:
        if decision.action == "allow":
            return self.allow(request, decision)
        if self.grants.find(request, current_fingerprint) is not None:
            return self.allow(request, decision, "granted before")
        answer = await (ask or self.consent_handler.ask)(build_consent_request(request, decision.reason, details, wait))
        self.emit_answer(request, answer, decision.reason)
        return await self.apply_answer(request, current_fingerprint, answer, decision)

    async def apply_answer(
        self, request: PolicyRequest, current_fingerprint: str, answer: ConsentAnswer, decision: Decision
    ) -> Authorization:
        """What a person's answer makes of a question that was decided to be asked: PolicyError if not a yes."""
        match answer:
            case Allow():
                await self._store_grant(request, current_fingerprint, answer)
                return self.allow(request, decision, f"the user said yes: {answer.scope}")
            case Edit():
                request = self.check_edited_arguments(request, answer.value)
                return replace(self.allow(request, decision, "the user changed it"), edited_value=answer.value)
            case Defer():
                raise ConsentDeferred(answer.ticket)
            case _:
                raise self._refusal_error(request, decision, answer.reason or "the user said no")

    def check_edited_arguments(self, request: PolicyRequest, value: Any) -> PolicyRequest:
        """The question with the arguments a person put in their place, if the policy lets them pass; or PolicyError."""
        if request.kind not in _KINDS_WITH_ARGUMENTS:
            return request
        if not isinstance(value, dict):
            raise PolicyError(f"{request.full_name}: arguments are an object, and the user's edit is none")
        edited_request = request.with_arguments(value)
        self.check(edited_request)
        return edited_request

    # What is decided, and told

    def _decide(self, request: PolicyRequest, decision: Decision, ask: AskUser | None) -> Decision:
        """Return what a decision means here, where no user may be there to be asked."""
        if decision.action != "ask" or ask is not None or is_interactive(self.consent_handler):
            return decision
        decision = apply_non_interactive(self.policy, decision)
        if decision.action == "allow":
            return decision
        return replace(
            decision, reason=f"{decision.reason}. Give the host consent=, or allow it: {_suggest_rule(request)}"
        )

    def _check_decision(self, request: PolicyRequest, decision: Decision) -> Decision:
        if decision.action in ("deny", "hide"):
            raise self._refusal_error(request, decision, decision.reason)
        return decision

    def allow(self, request: PolicyRequest, decision: Decision, reason: str = "") -> Authorization:
        """Report that a request is allowed, and return its authorization."""
        reason = reason or decision.reason
        if self._events.has_listeners("decision"):
            self._emit_decision(request, replace(decision, action="allow", reason=reason))
        return Authorization(reason=reason, request=request)

    def _refusal_error(self, request: PolicyRequest, decision: Decision, reason: str) -> PolicyError:
        action = "deny" if decision.action in ("allow", "ask") else decision.action
        self._emit_decision(request, replace(decision, action=action, reason=reason))
        description = request.full_name if request.kind == "tool.call" else f"{request.full_name} ({request.kind})"
        return add_context(
            PolicyError(f"{description}: {reason}", action=action, rule=decision.rule), server=request.server
        )

    def _emit_decision(self, request: PolicyRequest, decision: Decision) -> None:
        details = DecisionDetails(request, decision)
        self._events.emit(
            HostEvent(
                kind="decision",
                server=request.server,
                message=decision.action,
                reason=decision.reason,
                details=details,
            )
        )

    def emit_answer(self, request: PolicyRequest, answer: ConsentAnswer, reason: str) -> None:
        """Tell what the person in charge answered."""
        message = type(answer).__name__.lower()
        self._events.emit(
            HostEvent(kind="consent", server=request.server, message=message, reason=reason, details=request)
        )

    # What is kept

    async def _store_grant(self, request: PolicyRequest, current_fingerprint: str, answer: Allow) -> None:
        """Keep what was agreed to for longer than once."""
        if answer.scope != "once" and request.server_identity:
            new_grant = Grant.from_request(
                request,
                current_fingerprint,
                scope=answer.scope,
                expires_in=answer.expires_in,
                exact_arguments=answer.exact_arguments,
            )
            await _store(request, self.grants.add, new_grant)

    def _is_pinned(self, request: PolicyRequest, current_fingerprint: str) -> bool:
        """Return whether the definition is the one that the caller, or the host's user, used last."""
        identity = request.server_identity
        if not identity:
            return True  # nothing can be pinned
        if request.caller:
            return self._caller_pins.get(request.caller, identity, request.tool) == current_fingerprint
        pin = self.pins.get(identity, request.tool)
        return pin is not None and pin.fingerprint == current_fingerprint

    async def pin_definition(self, request: PolicyRequest, definition: Any, current_fingerprint: str) -> None:
        """Remember that this definition is used: by the caller the question is for, or by the host's user."""
        if definition is None or not request.server_identity:
            return
        if request.caller:
            self._caller_pins.put(
                request.caller, request.server_identity, request.tool, current_fingerprint, definition
            )
            return  # first sight by a caller does not pin it for the host's user either
        pin = self.pins.get(request.server_identity, request.tool)
        if pin is None or pin.fingerprint != current_fingerprint:
            await _store(request, self.pins.accept, request.server, request.server_identity, [definition])

    # Definitions that change

    def find_definition_changes(
        self, request: PolicyRequest, definition: Any, current_fingerprint: str
    ) -> list[DefinitionChange] | None:
        """What is graver than words in other places, since it was used last; None if there is nothing to show."""
        if definition is None or not request.server_identity:
            return None
        definition_changes = self._compare_with_pin(request, definition, current_fingerprint)
        return definition_changes if any(change.severity in _SEVERE_CHANGES for change in definition_changes) else None

    def _compare_with_pin(
        self, request: PolicyRequest, definition: Any, current_fingerprint: str
    ) -> list[DefinitionChange]:
        """Return what changed since the caller used it.

        A caller that has not used it is compared with the host's user. So are callers that cannot be told apart, as
        soon as the user has agreed to the definition.
        """
        used_fingerprint: str | None = None
        if request.caller:
            used_fingerprint = self._caller_pins.get(request.caller, request.server_identity, request.tool)
        if used_fingerprint == current_fingerprint:
            return []
        pin = self.pins.get(request.server_identity, request.tool)
        if request.caller == ANONYMOUS and pin is not None and pin.fingerprint == current_fingerprint:
            return []
        if used_fingerprint is not None:
            pinned_definition = pin.definition if pin is not None and pin.fingerprint == used_fingerprint else None
            return _diff_or_unknown(pinned_definition or self._caller_pins.get_definition(used_fingerprint), definition)
        if pin is None or pin.fingerprint == current_fingerprint:
            return []
        return self.pins.compare(request.server_identity, [definition]).changed[0].differences

    async def _confirm_changes(
        self, request: PolicyRequest, definition_changes: list[DefinitionChange], wait: bool, ask: AskUser | None
    ) -> None:
        change_request = replace(request, kind="definition.changed", arguments=None)
        decision = self.check(change_request)
        reason = "its definition is not the one that was used before"
        answer = await (ask or self.consent_handler.ask)(
            build_consent_request(change_request, reason, {"changes": format_changes(definition_changes)}, wait)
        )
        self.emit_answer(change_request, answer, reason)
        if isinstance(answer, Defer):
            raise ConsentDeferred(answer.ticket)
        if not isinstance(answer, Allow):
            text = f"its definition changed, and that was not agreed to: {format_changes(definition_changes[:3])}"
            raise self._refusal_error(request, decision, text)


async def _store(request: PolicyRequest, save: Callable[..., Any], *args: Any) -> None:
    """Written down off the loop, since another process may hold the file."""
    try:
        await asyncio.to_thread(save, *args)
    except OSError as exc:
        text = f"{request.full_name}: what was agreed to cannot be kept: {exc}"
        raise add_context(PolicyError(text), server=request.server) from exc


def _diff_or_unknown(old: Any, new: Any) -> list[DefinitionChange]:
    definition_changes = diff_definitions(old, new) if old else []
    return definition_changes or [
        DefinitionChange("", "widening", "the definition that was used before is not known any more")
    ]


def _suggest_rule(request: PolicyRequest) -> str:
    fields = {"kind": request.kind, "server": request.server, "tool": request.tool}
    arguments = ", ".join(f'{name}="{clip(value)}"' for name, value in fields.items() if value)
    return f'rule("allow", {arguments})'


def build_consent_request(
    request: PolicyRequest, reason: str, details: Mapping[str, Any] | None = None, wait: bool = True
) -> ConsentRequest:
    """A question for a policy as one for a person."""
    kind: ConsentKind = request.kind  # pyright: ignore[reportAssignmentType]
    return ConsentRequest(
        kind=kind,
        server=request.server,
        tool=request.tool,
        arguments=request.arguments,
        details=details or {},
        reason=reason,
        trusted=request.trusted,
        wait=wait,
    )

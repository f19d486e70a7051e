"""Decide whether a host may send a request, from its policy, pins, grants and the answers of its user.

Every decision is reported with its reason. A changed definition is shown to the user before it is used, even if a rule
or a grant allows the call. Arguments that the user edits are checked again.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from dovetail.error_context import add_context, clip
from dovetail.errors import ConsentDeferred, PolicyError
from dovetail.host.caller_pins import ANONYMOUS, SESSION_PREFIX, CallerPins
from dovetail.host.consent.consent import (
    Allow,
    AllowWithChanges,
    AnswerLater,
    ConsentAnswer,
    ConsentHandler,
    ConsentRequest,
    build_consent_request,
    get_no_user_hint,
    is_interactive,
)
from dovetail.host.consent.definition_changes import (
    DefinitionChange,
    describe_changes,
    diff_definitions,
    format_changes,
)
from dovetail.host.consent.grants import Grant, GrantStore, on_revoke, peek_grant
from dovetail.host.consent.pins import PinStore, compare_with_pin, fingerprint
from dovetail.host.events import EventEmitter, HostEvent
from dovetail.host.policy.argument_coercion import normalize
from dovetail.host.policy.policy import (
    Decision,
    Policy,
    PolicyRequest,
    apply_non_interactive,
    find_limits,
    needs_arguments,
)
from dovetail.host.policy.quotas import Meter, ToolLimits, combine_limits
from dovetail.host.supervisor import ServerSupervisor
from dovetail.protocol.headers import HeaderPath, read_header_paths
from dovetail.protocol.interfaces.shared_state import SharedWorker
from dovetail.wire.base import Struct, replace

if TYPE_CHECKING:
    from dovetail.host.shared_callers import SharedCallers

_SEVERE_CHANGES: Final = frozenset({"widening", "instruction", "egress"})
_KINDS_WITH_ARGUMENTS: Final = frozenset({"tool.call", "prompt.get"})
# The user can edit the content of requests of these kinds.
_KINDS_WITH_CONTENT: Final = frozenset({"tool.result", "sampling.request", "sampling.response", "roots.list"})
_MAX_QUESTIONS_PER_CALLER: Final = 4  # the maximum number of open questions of one gateway caller
# A caller's session grants end after this time, because the host does not see when the caller disconnects.
_MAX_CALLER_GRANT_S: Final = 86_400.0

T = TypeVar("T")
AskUser = Callable[[ConsentRequest], Any]


class ToolRecord(Struct, frozen=True, kw_only=True):
    """A tool definition, with its fingerprint, its policy requests and its limits."""

    definition: Any
    fingerprint: str
    request: PolicyRequest  # the policy request for calls of the tool, without arguments
    result_request: PolicyRequest  # the policy request for results of the tool
    result_needs_arguments: bool  # True if a rule about results depends on the call's arguments
    limits: ToolLimits
    header_paths: tuple[HeaderPath, ...]  # the headers in which callers of a gateway repeat arguments


class Authorization(Struct, frozen=True, kw_only=True):
    """The permission to send one request to a server."""

    reason: str
    request: PolicyRequest  # the allowed request, with the arguments to send
    limits: ToolLimits = ToolLimits()
    record: ToolRecord | None = None  # the tool to call, or None if the request is not a tool call
    # True if the host authorized the request without waiting, so that the tool definition cannot have changed.
    is_immediate: bool = False
    edited_value: Any = None  # the arguments or the result as the user has changed them
    is_once: bool = False  # True if the user's answer was not stored as a grant


class DecisionDetails(Struct, frozen=True):
    """The data of a "decision" event of a host."""

    request: PolicyRequest
    decision: Decision


class RequestAuthorizer:
    """Decides whether a host may send a request.

    It checks the policy, grants, pins and limits, and asks the user if needed.
    """

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
        self._question_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._events = events
        self._project = project
        self._shared_callers: SharedCallers | None = None  # None if the gateway is not in a cluster

    def join_cluster(self, cluster: SharedWorker) -> None:
        """Share quotas, session grants and the definitions that callers used with all workers of a gateway."""
        if self._shared_callers is not None and self._shared_callers.cluster is cluster:
            return
        from dovetail.host.shared_callers import SharedCallers  # Few gateways are in a cluster.

        self._shared_callers = SharedCallers(cluster, self.grants, self._caller_pins)
        self.meter.join_cluster(cluster)
        on_revoke(self.grants, self._shared_callers.revoke)

    def create_request(
        self,
        supervisor: ServerSupervisor,
        kind: str,
        name: str,
        arguments: Mapping[str, Any] | None,
        definition: Any = None,
    ) -> PolicyRequest:
        """Create the policy request for one item of a server."""
        request = PolicyRequest(
            server=supervisor.name,
            tool=name,
            kind=kind,
            schema=getattr(definition, "input_schema", None) if kind.startswith("tool.") else None,
            annotations=getattr(definition, "annotations", None) if kind.startswith("tool.") else None,
            trusted=supervisor.settings.trusted,
            server_identity=supervisor.identity,
            project=self._project,
        )
        return request if arguments is None else request.with_arguments(arguments)

    def create_read_request(self, server: str, identity: str, uri: str) -> PolicyRequest:
        """Create the policy request for reading a resource. The server does not have to be connected."""
        return PolicyRequest(
            server=server, tool=uri, kind="resource.read", server_identity=identity, project=self._project
        )

    def create_record(self, supervisor: ServerSupervisor, definition: Any) -> ToolRecord:
        """Create the record of a tool definition."""
        name = definition.name
        result_request = self.create_request(supervisor, "tool.result", name, None, definition)
        return ToolRecord(
            definition=definition,
            fingerprint=fingerprint(definition),
            request=self.create_request(supervisor, "tool.call", name, None, definition),
            result_request=result_request,
            result_needs_arguments=needs_arguments(self.policy, result_request),
            limits=self.get_limits(supervisor, name),
            header_paths=read_header_paths(definition.input_schema),
        )

    def get_limits(self, supervisor: ServerSupervisor, name: str) -> ToolLimits:
        """Return the limits of one item. Combine the limits in the policy and in the server's settings."""
        return combine_limits(find_limits(self.policy, supervisor.name, name), supervisor.settings.limits)

    async def check_rate(self, server_name: str, operation: str) -> None:
        """Count a request to a server. Raise PolicyError if its rate limit is exceeded."""
        rate = find_limits(self.policy, server_name, operation).rate
        if rate is not None:
            await self.meter.record_call(server_name, operation, rate)

    async def ask_for_caller(self, caller: str, request: ConsentRequest) -> ConsentAnswer:
        """Ask the user of the host whether a caller of the gateway may send a request.

        Each caller can have only a few open questions, so that the questions of others do not wait.
        """
        # A caller without open questions is removed from the dictionary.
        slots = self._question_slots.setdefault(caller, asyncio.Semaphore(_MAX_QUESTIONS_PER_CALLER))
        async with slots:
            return await self.consent_handler.ask(request)

    def check(self, request: PolicyRequest) -> Decision:
        """Return the policy's decision about a request. Raise PolicyError if the request is denied."""
        return self._check_decision(request, self.policy.decide(request))

    async def authorize_call(
        self,
        record: ToolRecord,
        arguments: Mapping[str, Any],
        *,
        caller: str = "",
        wait: bool = True,
        ask: AskUser | None = None,
        permission: str = "",
    ) -> Authorization:
        """Authorize one tool call. Raise PolicyError if the call is denied.

        Args:
            permission: The reason why the user is not asked about the call, or "". Rules and limits still apply.
        """
        request = replace(record.request, arguments=normalize(record.request.schema, arguments), caller=caller)
        decision = self.policy.decide(request)
        if decision.action == "ask":
            decision = (
                replace(decision, action="allow", reason=permission)
                if permission
                else self._decide(request, decision, ask)
            )
        is_pinned = self._is_pinned(request, record.fingerprint)
        if self._shared_callers is not None and (not is_pinned or decision.action == "ask"):
            await self._load_caller(request)
            is_pinned = self._is_pinned(request, record.fingerprint)
        if is_pinned and decision.action == "allow":
            if self._events.has_listeners("decision"):
                self.emit_decision(request, decision)
            return Authorization(
                reason=decision.reason, request=request, limits=record.limits, record=record, is_immediate=True
            )
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
        can_remember: bool = True,
    ) -> Authorization:
        """Authorize a request. Raise PolicyError if the request is denied.

        Args:
            decision: The decision of the policy, if it is known already.
            ask: A function that asks another user instead of the host's user.
            can_remember: False stores no grant, whatever the user answers.
        """
        if request.kind in _KINDS_WITH_ARGUMENTS and request.arguments is None:
            request = replace(request, arguments={})
        decision = self._decide(request, decision or self.policy.decide(request), ask)
        if self._shared_callers is not None and decision.action == "ask":
            await self._load_caller(request)
        current_fingerprint = "" if definition is None else fingerprint(definition)
        authorization = await self._authorize_definition(
            request, decision, definition, current_fingerprint, details, definition is None, wait, ask, can_remember
        )
        return authorization if limits is None else replace(authorization, limits=limits)

    async def authorize_skill_tools(
        self, request: PolicyRequest, current_fingerprint: str, details: Mapping[str, Any], *, wait: bool
    ) -> Authorization:
        """Authorize the tools that a skill asks for. Raise PolicyError if the user does not allow them.

        Only a grant or the user's answer allows the tools. A rule never does. If the caller does not wait, or if there
        is no user, only a grant counts. The answer applies to all tools, so the question must show all of them.
        """
        decision = self.check(request)
        if build_consent_request(request, decision.reason, details, wait).is_shortened:
            raise self._refusal_error(
                request, decision, "the names of the tools are too long to show them in a question"
            )
        can_ask = wait and is_interactive(self.consent_handler)
        if not can_ask and peek_grant(self.grants, request, current_fingerprint) is None:
            raise self._refusal_error(request, decision, "the user cannot be asked about these tools now")
        return await self._authorize_decision(
            request, decision, current_fingerprint, details, wait, ask=None, can_remember=True
        )

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
        can_remember: bool = True,
    ) -> Authorization:
        self._check_decision(request, decision)
        definition_changes = (
            None if is_pinned else self.find_definition_changes(request, definition, current_fingerprint)
        )
        should_pin = definition_changes is None or request.caller != ANONYMOUS
        if definition_changes is not None:
            is_all_seen = await self._confirm_changes(request, definition, definition_changes, wait, ask)
            should_pin = should_pin and is_all_seen
            if should_pin:
                await self.pin_definition(request, definition, current_fingerprint)
        authorization = await self._authorize_decision(
            request, decision, current_fingerprint, details, wait, ask, can_remember
        )
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
        can_remember: bool,
    ) -> Authorization:
        if decision.action == "allow":
            return self.allow(request, decision)
        if await self._find_grant(request, current_fingerprint) is not None:
            return self.allow(request, decision, "covered by a grant")
        answer = await (ask or self.consent_handler.ask)(build_consent_request(request, decision.reason, details, wait))
        self.emit_answer(request, answer, decision.reason)
        if isinstance(answer, Allow) and not can_remember:
            answer = Allow()
        return await self.apply_answer(request, current_fingerprint, answer, decision)

    async def apply_answer(
        self, request: PolicyRequest, current_fingerprint: str, answer: ConsentAnswer, decision: Decision
    ) -> Authorization:
        """Apply the user's answer and return the authorization. Raise PolicyError if the user did not allow the
        request.
        """
        match answer:
            case Allow():
                is_stored = await self._store_grant(request, current_fingerprint, answer)
                authorization = self.allow(request, decision, f"the user allowed the request: {answer.scope}")
                return replace(authorization, is_once=not is_stored)
            case AllowWithChanges():
                request = self.check_edited_arguments(request, answer.value)
                return replace(self.allow(request, decision, "the user edited the request"), edited_value=answer.value)
            case AnswerLater():
                raise ConsentDeferred(answer.ticket)
            case _:
                raise self._refusal_error(request, decision, answer.reason or "the user declined")

    def check_edited_arguments(self, request: PolicyRequest, value: Any) -> PolicyRequest:
        """Return the request with the arguments that the user entered. Raise PolicyError if the policy denies them."""
        if request.kind in _KINDS_WITH_CONTENT:
            return request
        if request.kind not in _KINDS_WITH_ARGUMENTS:
            raise PolicyError(f"{request.full_name} ({request.kind}) cannot be edited. Answer with Allow or Deny")
        if not isinstance(value, dict):
            raise PolicyError(
                f"the edited arguments for {request.full_name} must be an object, not {type(value).__name__}"
            )
        edited_request = request.with_arguments(value)
        self.check(edited_request)
        return edited_request

    def _decide(self, request: PolicyRequest, decision: Decision, ask: AskUser | None) -> Decision:
        """Return the policy's decision. If the decision is "ask" but there is no user, use `Policy.non_interactive`."""
        if decision.action != "ask" or ask is not None or is_interactive(self.consent_handler):
            return decision
        decision = apply_non_interactive(self.policy, decision)
        if decision.action == "allow":
            return decision
        return replace(
            decision,
            reason=f"{decision.reason}. {get_no_user_hint(self.consent_handler)}, or add a rule: "
            f"{_suggest_rule(request)}",
        )

    def _check_decision(self, request: PolicyRequest, decision: Decision) -> Decision:
        if decision.action in ("deny", "hide"):
            raise self._refusal_error(request, decision, decision.reason)
        return decision

    def allow(self, request: PolicyRequest, decision: Decision, reason: str = "") -> Authorization:
        """Emit an event for an allowed request, and return the authorization to send the request."""
        reason = reason or decision.reason
        if self._events.has_listeners("decision"):
            self.emit_decision(request, replace(decision, action="allow", reason=reason))
        return Authorization(reason=reason, request=request)

    def _refusal_error(self, request: PolicyRequest, decision: Decision, reason: str) -> PolicyError:
        action = "deny" if decision.action in ("allow", "ask") else decision.action
        self.emit_decision(request, replace(decision, action=action, reason=reason))
        description = request.full_name if request.kind == "tool.call" else f"{request.full_name} ({request.kind})"
        return add_context(
            PolicyError(f"{description}: {reason}", action=action, rule=decision.rule), server=request.server
        )

    def emit_decision(self, request: PolicyRequest, decision: Decision) -> None:
        """Emit an event with a decision."""
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
        """Emit an event with the user's answer."""
        message = type(answer).__name__.lower()
        self._events.emit(
            HostEvent(kind="consent", server=request.server, message=message, reason=reason, details=request)
        )

    async def _load_caller(self, request: PolicyRequest) -> None:
        if self._shared_callers is not None and request.caller not in ("", ANONYMOUS):
            await self._shared_callers.load(request.caller)

    async def _find_grant(self, request: PolicyRequest, current_fingerprint: str) -> Grant | None:
        grant = peek_grant(self.grants, request, current_fingerprint)
        if grant is None or grant.scope != "once":
            return grant
        return await _store(request, self.grants.find, request, current_fingerprint)

    async def _store_grant(self, request: PolicyRequest, current_fingerprint: str, answer: Allow) -> bool:
        """Store a grant, unless the user allowed the request only once. Return whether it was stored.

        Anonymous callers share an ID, so no grant is stored for them. A caller that is known only by its session gets a
        session grant, because the session never returns.
        """
        if answer.scope == "once" or not request.server_identity or request.caller == ANONYMOUS:
            return False
        scope = "session" if request.caller.startswith(SESSION_PREFIX) else answer.scope
        expires_in = answer.expires_in
        if request.caller and scope == "session":
            expires_in = min(_MAX_CALLER_GRANT_S if expires_in is None else expires_in, _MAX_CALLER_GRANT_S)
        new_grant = Grant.from_request(
            request,
            current_fingerprint,
            scope=scope,
            expires_in=expires_in,
            exact_arguments=answer.exact_arguments,
        )
        added = await _store(request, self.grants.add, new_grant)
        if self._shared_callers is not None and added.caller and added.scope == "session":
            await self._shared_callers.add_grant(added)
        return True

    async def store_answer(self, request: PolicyRequest, current_fingerprint: str, answer: Allow) -> None:
        """Store a consent answer. If its scope is "once", the answer allows the next request only."""
        if answer.scope == "once":
            grant = Grant.from_request(request, current_fingerprint, scope="once", expires_in=answer.expires_in)
            await _store(request, self.grants.add, grant)
        else:
            await self._store_grant(request, current_fingerprint, answer)

    async def use_once_grant(self, request: PolicyRequest, current_fingerprint: str) -> bool:
        """Return whether a `once` grant allows this request. A grant that allows it is removed."""
        grant = await self._find_grant(request, current_fingerprint)
        return grant is not None and grant.scope == "once"

    async def revoke_changed(self, request: PolicyRequest, current_fingerprint: str) -> None:
        """Revoke the grants for an item if its definition differs from the definition that the user last used."""
        pin = self.pins.get(request.server_identity, request.tool)
        if pin is not None and pin.fingerprint != current_fingerprint:
            await _store(request, partial(self.grants.revoke, server=request.server, tool=request.tool))

    def _is_pinned(self, request: PolicyRequest, current_fingerprint: str) -> bool:
        identity = request.server_identity
        if not identity:
            return True  # A server without an identity cannot have pins.
        if request.caller:
            return self._caller_pins.get(request.caller, identity, request.tool) == current_fingerprint
        pin = self.pins.get(identity, request.tool)
        return pin is not None and pin.fingerprint == current_fingerprint

    async def pin_definition(self, request: PolicyRequest, definition: Any, current_fingerprint: str) -> None:
        """Remember that the caller has used this tool definition."""
        if definition is None or not request.server_identity:
            return
        if request.caller:
            key = request.caller, request.server_identity, request.tool
            is_new = self._caller_pins.get(*key) != current_fingerprint
            self._caller_pins.put(*key, current_fingerprint, definition)
            if self._shared_callers is not None and is_new and request.caller != ANONYMOUS:
                await self._shared_callers.add_pin(*key, current_fingerprint)
            # Gateway callers never change the pins of the host's user.
            return
        pin = self.pins.get(request.server_identity, request.tool)
        if pin is None or pin.fingerprint != current_fingerprint:
            await _store(request, self.pins.accept, request.server, request.server_identity, [definition])

    def find_definition_changes(
        self, request: PolicyRequest, definition: Any, current_fingerprint: str
    ) -> list[DefinitionChange] | None:
        """Return the changes in a tool definition since its last use. Return None if all changes are harmless."""
        if definition is None or not request.server_identity:
            return None
        definition_changes = self._compare_with_pin(request, definition, current_fingerprint)
        return definition_changes if any(change.severity in _SEVERE_CHANGES for change in definition_changes) else None

    def _compare_with_pin(
        self, request: PolicyRequest, definition: Any, current_fingerprint: str
    ) -> list[DefinitionChange]:
        """Return how a tool definition changed since the caller last used it.

        If the caller has not used the definition, compare with the pin of the host's user. An anonymous caller gets no
        changes if the host's user has pinned the current definition.
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
        return compare_with_pin(pin, definition)

    async def _confirm_changes(
        self,
        request: PolicyRequest,
        definition: Any,
        definition_changes: list[DefinitionChange],
        wait: bool,
        ask: AskUser | None,
    ) -> bool:
        """Ask the user about a changed definition. Return True if the question showed the whole change.

        If not, the answer counts only for this request.
        """
        change_request = replace(request, kind="definition.changed", arguments=None)
        decision = self.check(change_request)
        reason = (
            "its definition differs from the definition that was used before. If the request itself needs consent, it "
            "is the next question"
        )
        details = describe_changes(definition_changes, definition)
        consent_request = build_consent_request(change_request, reason, details, wait)
        answer = await (ask or self.consent_handler.ask)(consent_request)
        self.emit_answer(change_request, answer, reason)
        if isinstance(answer, AnswerLater):
            raise ConsentDeferred(answer.ticket)
        if not isinstance(answer, Allow):
            text = f"its definition changed, and the change was not accepted: {format_changes(definition_changes[:3])}"
            raise self._refusal_error(request, decision, text)
        # An answer to a shortened question has the scope "once".
        # Any other scope means that the user has seen the full text.
        return not consent_request.is_shortened or answer.scope != "once"


async def _store(request: PolicyRequest, save: Callable[..., T], *args: Any) -> T:
    """Call `save` in a thread, because `save` may wait for a file lock. Raise PolicyError if saving fails."""
    try:
        return await asyncio.to_thread(save, *args)
    except OSError as exc:
        text = f"{request.full_name}: the consent cannot be stored: {exc}"
        raise add_context(PolicyError(text), server=request.server) from exc


def _diff_or_unknown(old: Any, new: Any) -> list[DefinitionChange]:
    definition_changes = diff_definitions(old, new) if old else []
    return definition_changes or [
        DefinitionChange("", "widening", "changed. The definition that was used before is no longer known")
    ]


def _suggest_rule(request: PolicyRequest) -> str:
    fields = {"kind": request.kind, "server": request.server, "tool": request.tool}
    arguments = ", ".join(f'{name}="{clip(value)}"' for name, value in fields.items() if value)
    return f'rule("allow", {arguments})'

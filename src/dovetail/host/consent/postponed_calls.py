"""Tool calls that wait for the user's consent in a file, and continue after the answer.

A call is checked again before it continues. The call fails if the server or the definition has changed, or if the
policy now denies it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from dovetail.client.client import Client, get_session
from dovetail.client.input_rounds import RequestAwaitingInput
from dovetail.error_context import clip
from dovetail.errors import InputRequestError, NotSupported, PolicyError
from dovetail.host.authorization import Authorization, RequestAuthorizer, ToolRecord
from dovetail.host.consent.consent import Allow, AllowWithChanges, ConsentAnswer, ConsentRequest, Deny
from dovetail.host.consent.inbox import (
    CallAwaitingConsent,
    DeferredCall,
    DeferredSkill,
    Inbox,
    PendingConsent,
    build_responses,
    get_inbox,
)
from dovetail.host.consent.pins import fingerprint
from dovetail.host.host_catalog import HostCatalog
from dovetail.host.policy.policy import PolicyRequest
from dovetail.host.supervisor import ServerSupervisor
from dovetail.wire.base import replace
from dovetail.wire.codec import to_plain

# Runs an authorized call. The parameters are (server, authorization, *, wait=, resume=).
Perform: TypeAlias = Callable[..., Awaitable[Any]]
# Calls a tool with a new authorization. The parameters are (name, arguments, *, wait=).
Call: TypeAlias = Callable[..., Awaitable[Any]]

_FORM_METHODS = ("elicitation/create",)


class PendingCalls:
    """Calls of a host that are waiting for the user's consent."""

    def __init__(self, authorizer: RequestAuthorizer, catalog: HostCatalog, perform: Perform, call: Call) -> None:
        self._authorizer = authorizer
        self._catalog = catalog
        self._perform = perform
        self._call = call

    @property
    def _inbox(self) -> Inbox:
        inbox = get_inbox(self._authorizer.consent_handler)
        if inbox is None:
            raise InputRequestError(
                "this host cannot store calls that wait for consent. Create it with Host(consent=FileConsent(...))"
            )
        return inbox

    @property
    def open_questions(self) -> int:
        """Return the number of open consent requests."""
        inbox = get_inbox(self._authorizer.consent_handler)
        return 0 if inbox is None else inbox.open_questions

    async def list_items(self) -> list[PendingConsent]:
        """Return the open consent requests."""
        return await self._inbox.items()

    async def defer_call(self, ticket: str, record: ToolRecord, arguments: Mapping[str, Any]) -> CallAwaitingConsent:
        """Store a call that waits for the user's consent, and return an object with its ticket."""
        request = record.request.with_arguments(arguments)
        await self._inbox.attach(ticket, _create_deferred_call(request, record.fingerprint))
        return CallAwaitingConsent(ticket=ticket)

    async def handle_input_requests(
        self, supervisor: ServerSupervisor, authorization: Authorization, pending: RequestAwaitingInput
    ) -> Any:
        """Answer the input requests that a server sends during a call.

        Store the questions for the user, and answer the others.
        """
        elicitations = {
            key: to_plain(input_request)
            for key, input_request in pending.input_requests.items()
            if input_request.method in _FORM_METHODS
        }
        allowed_forms = {key: form for key, form in elicitations.items() if self._can_ask(supervisor, form)}
        other_requests = {
            key: input_request for key, input_request in pending.input_requests.items() if key not in elicitations
        }
        answers: dict[str, Any] = {key: {"action": "decline"} for key in elicitations if key not in allowed_forms}
        answers |= await supervisor.answer(other_requests) if other_requests else {}
        assert authorization.record is not None
        deferred_call = _create_deferred_call(
            authorization.request,
            authorization.record.fingerprint,
            pending=pending.dump().decode(),
            questions=allowed_forms,
            answers=answers,
        )
        if not allowed_forms:
            return await self._resume_call(supervisor, authorization, deferred_call, Deny())
        ticket = await self._inbox.put(_combine_requests(supervisor, allowed_forms), deferred_call)
        return CallAwaitingConsent(
            ticket=ticket,
            requests=tuple(_build_consent_request(supervisor, form) for form in allowed_forms.values()),
        )

    def _can_ask(self, supervisor: ServerSupervisor, form: dict[str, Any]) -> bool:
        kind = _build_consent_request(supervisor, form).kind
        request = self._authorizer.create_request(supervisor, kind, "", None)
        return self._authorizer.policy.decide(request).action not in ("deny", "hide")

    async def answer(self, ticket: str, answer: ConsentAnswer) -> Any:
        """Continue a call with the user's answer.

        Until the call can continue, the consent request stays in the file.
        """
        stored = await self._inbox.find(ticket)
        if stored is None:
            if not await self._inbox.answer(ticket, answer):
                raise NotSupported(f"unknown ticket {clip(ticket)}: no open consent request has this ticket")
            return None
        request, deferred_call = stored
        if isinstance(answer, Deny) and deferred_call.pending is None:
            await self._take(ticket)
            policy_request = PolicyRequest(
                server=deferred_call.server,
                tool=deferred_call.tool,
                kind=request.kind,
                arguments=deferred_call.arguments,
            )
            self._authorizer.emit_answer(policy_request, answer, request.reason)
            raise PolicyError(f"{policy_request.full_name}: {answer.reason or 'the user declined'}")
        if deferred_call.skill is not None:
            return await self._store_skill_answer(ticket, request, deferred_call, deferred_call.skill, answer)
        supervisor, tool = await self._catalog.find_tool(f"{deferred_call.server}.{deferred_call.tool}")
        # Start the server first. If it does not start, the consent request stays open.
        async with supervisor.using():
            record = await self._catalog.get_record(supervisor, tool)
            return await self._continue_call(ticket, request, deferred_call, answer, supervisor, record)

    async def _store_skill_answer(
        self,
        ticket: str,
        request: ConsentRequest,
        deferred_call: DeferredCall,
        skill: DeferredSkill,
        answer: ConsentAnswer,
    ) -> None:
        """Store the user's answer for the next read. The answer applies only to the definition that the user saw."""
        policy_request = self._authorizer.create_read_request(
            deferred_call.server, deferred_call.identity, deferred_call.tool
        )
        if not isinstance(answer, Allow):
            raise PolicyError(f"{policy_request.full_name} cannot be edited. Answer with Allow or Deny")
        is_change = request.kind == "definition.changed"
        if is_change and request.is_shortened and answer.scope == "once":
            raise PolicyError(
                f"the question about {policy_request.full_name} was shortened. Show full_text to the user, and "
                'answer with Allow("always")'
            )
        await self._take(ticket)
        self._authorizer.emit_answer(replace(policy_request, kind=request.kind), answer, request.reason)
        await self._authorizer.pin_definition(policy_request, skill.definition, fingerprint(skill.definition))
        if not is_change:
            answer = answer if skill.can_remember else Allow()
            await self._authorizer.store_answer(policy_request, deferred_call.fingerprint, answer)

    async def _continue_call(
        self,
        ticket: str,
        request: ConsentRequest,
        deferred_call: DeferredCall,
        answer: ConsentAnswer,
        supervisor: ServerSupervisor,
        record: ToolRecord,
    ) -> Any:
        authorizer = self._authorizer
        policy_request = record.request.with_arguments(deferred_call.arguments)
        if deferred_call.pending is not None:
            # If the answer is invalid, an error is raised here and the consent request stays open.
            build_responses(deferred_call, answer)
        elif isinstance(answer, AllowWithChanges):
            authorizer.check_edited_arguments(policy_request, answer.value)
        await self._take(ticket)
        if supervisor.identity != deferred_call.identity or record.fingerprint != deferred_call.fingerprint:
            raise PolicyError(f"the tool {policy_request.full_name} has changed since it was called")
        decision = authorizer.check(policy_request)
        authorizer.emit_answer(replace(policy_request, kind=request.kind), answer, decision.reason)
        if deferred_call.pending is not None:
            authorization = Authorization(
                reason=decision.reason, request=policy_request, limits=record.limits, record=record
            )
            return await self._resume_call(supervisor, authorization, deferred_call, answer)
        if request.kind == "definition.changed":
            return await self._accept_definition(policy_request, record, answer)
        authorization = await authorizer.apply_answer(policy_request, deferred_call.fingerprint, answer, decision)
        await authorizer.pin_definition(policy_request, record.definition, record.fingerprint)
        authorization = replace(authorization, limits=record.limits, record=record)
        return await self._perform(supervisor, authorization, wait=request.wait)

    async def _accept_definition(self, request: PolicyRequest, record: ToolRecord, answer: ConsentAnswer) -> Any:
        """Pin the new definition of a tool, and then call the tool. The host may ask the user again about the call."""
        if not isinstance(answer, Allow):
            raise PolicyError(
                f"the definition of {request.full_name} has changed, and the user did not accept the change"
            )
        await self._authorizer.pin_definition(request, record.definition, record.fingerprint)
        return await self._call(request.full_name, request.arguments, wait=False)

    async def _take(self, ticket: str) -> None:
        if not await self._inbox.take(ticket):
            raise NotSupported(f"unknown ticket {clip(ticket)}: the consent request was already answered")

    async def _resume_call(
        self,
        supervisor: ServerSupervisor,
        authorization: Authorization,
        deferred_call: DeferredCall,
        answer: ConsentAnswer,
    ) -> Any:
        pending = RequestAwaitingInput.load(deferred_call.pending or "")

        async def resume(client: Client) -> Any:
            # Limit the number of questions, because no user can stop a server that asks again and again.
            if not deferred_call.questions and pending.round > get_session(client).limits.max_input_rounds:
                raise InputRequestError(
                    f"the server asked for input more than {get_session(client).limits.max_input_rounds} times"
                )
            return await client.resume(pending, build_responses(deferred_call, answer))

        return await self._perform(supervisor, authorization, wait=False, resume=resume)


def _create_deferred_call(request: PolicyRequest, definition_digest: str, **extra_fields: Any) -> DeferredCall:
    return DeferredCall(
        server=request.server,
        identity=request.server_identity,
        tool=request.tool,
        arguments=dict(request.arguments or {}),
        fingerprint=definition_digest,
        **extra_fields,
    )


def _build_consent_request(supervisor: ServerSupervisor, input_request: Mapping[str, Any]) -> ConsentRequest:
    params: Mapping[str, Any] = input_request.get("params") or {}
    details: dict[str, Any] = {"message": params.get("message", ""), "schema": params.get("requestedSchema") or {}}
    if params.get("mode") == "url":
        url = str(params.get("url", ""))
        details = {"message": params.get("message", ""), "url": url, "host": urlsplit(url).hostname or ""}
    kind = "elicitation.url" if "url" in details else "elicitation.form"
    return ConsentRequest(
        kind=kind, server=supervisor.name, details=details, wait=False, trusted=supervisor.settings.trusted
    )


def _combine_requests(supervisor: ServerSupervisor, forms: Mapping[str, Mapping[str, Any]]) -> ConsentRequest:
    requests = {key: _build_consent_request(supervisor, form) for key, form in forms.items()}
    first = next(iter(requests.values()))
    if len(requests) == 1:
        return first
    # The server chose these keys, so the host must not show them as its own text.
    details = {"questions": {key: {**request.details} for key, request in requests.items()}}
    return replace(
        first,
        kind="elicitation.form",
        details=details,
        reason="the server sent several forms. Answer each form by its key",
    )

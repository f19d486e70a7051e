"""Postponing: calls that wait in the inbox, and going on with them when they are answered.

What was agreed to is looked at again: another server, another definition, or a policy that forbids it now ends it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from dovetail.client.client import Client, get_session
from dovetail.client.input_rounds import PendingRequest
from dovetail.error_context import clip
from dovetail.errors import InputRequestError, NotSupported, PolicyError
from dovetail.host.authorization import RequestAuthorizer
from dovetail.host.consent.consent import Allow, ConsentAnswer, ConsentRequest, Deny, Edit
from dovetail.host.consent.inbox import DeferredCall, Inbox, PendingCall, PendingConsent, build_responses, get_inbox
from dovetail.host.consent.pins import fingerprint
from dovetail.host.managed_server import ManagedServer
from dovetail.host.policy.policy import PolicyRequest
from dovetail.wire.base import replace
from dovetail.wire.codec import to_plain

_FORM_METHODS = ("elicitation/create",)


class PendingCallHost(Protocol):
    """A host, as far as this goes."""

    desk: RequestAuthorizer

    async def find(self, name: str) -> tuple[ManagedServer, str]: ...
    async def declared(self, managed_server: ManagedServer, tool: str) -> Any: ...
    def question(
        self, managed_server: ManagedServer, kind: str, name: str, arguments: Any, definition: Any = None
    ) -> PolicyRequest: ...
    async def call(self, name: str, /, arguments: Mapping[str, Any] | None = None, *, wait: bool = True) -> Any: ...
    async def perform(
        self,
        managed_server: ManagedServer,
        definition: Any,
        request: PolicyRequest,
        *,
        wait: bool = True,
        resume: Callable[[Client], Awaitable[Any]] | None = None,
    ) -> Any: ...


class PendingCalls:
    """The calls of one host that wait."""

    def __init__(self, host: PendingCallHost) -> None:
        self._host = host

    @property
    def _inbox(self) -> Inbox:
        inbox = get_inbox(self._host.desk.consent_handler)
        if inbox is None:
            raise InputRequestError("calls can only wait for consent with Host(consent=DurableConsent(...))")
        return inbox

    @property
    def open_questions(self) -> int:
        """How many questions wait in the inbox, if there is one."""
        inbox = get_inbox(self._host.desk.consent_handler)
        return 0 if inbox is None else inbox.open_questions

    async def list_items(self) -> list[PendingConsent]:
        """What waits."""
        return await self._inbox.items()

    async def defer_call(self, ticket: str, request: PolicyRequest, definition: Any) -> PendingCall:
        """A call that was not agreed to yet."""
        await self._inbox.attach(ticket, _create_deferred_call(request, definition))
        return PendingCall(ticket=ticket)

    async def handle_input_requests(
        self, managed_server: ManagedServer, definition: Any, request: PolicyRequest, pending: PendingRequest
    ) -> Any:
        """A call whose server asks: what only a person can answer is written down, the rest is answered now."""
        elicitations = {
            key: to_plain(input_request)
            for key, input_request in pending.input_requests.items()
            if input_request.method in _FORM_METHODS
        }
        allowed_forms = {key: form for key, form in elicitations.items() if self._can_ask(managed_server, form)}
        other_requests = {
            key: input_request for key, input_request in pending.input_requests.items() if key not in elicitations
        }
        answers: dict[str, Any] = {key: {"action": "decline"} for key in elicitations if key not in allowed_forms}
        answers |= await managed_server.answer(other_requests) if other_requests else {}
        deferred_call = _create_deferred_call(
            request, definition, pending=pending.dump().decode(), questions=allowed_forms, answers=answers
        )
        if not allowed_forms:
            return await self._resume_call(managed_server, definition, request, deferred_call, Deny())
        ticket = await self._inbox.put(_combine_requests(managed_server, allowed_forms), deferred_call)
        return PendingCall(
            ticket=ticket,
            requests=tuple(_build_consent_request(managed_server, form) for form in allowed_forms.values()),
        )

    def _can_ask(self, managed_server: ManagedServer, form: dict[str, Any]) -> bool:
        kind = _build_consent_request(managed_server, form).kind
        return self._host.desk.evaluate(self._host.question(managed_server, kind, "", None)).action not in (
            "deny",
            "hide",
        )

    async def answer(self, ticket: str, answer: ConsentAnswer) -> Any:
        """Go on with what waited. Until it is certain that it can go on, the question stays where it is."""
        stored = await self._inbox.find(ticket)
        if stored is None:
            if not await self._inbox.answer(ticket, answer):
                raise NotSupported(f"no question waits under {clip(ticket)}")
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
            self._host.desk.emit_answer(policy_request, answer, request.reason)
            raise PolicyError(f"{policy_request.full_name}: {answer.reason or 'the user said no'}")
        managed_server, tool = await self._host.find(f"{deferred_call.server}.{deferred_call.tool}")
        async with managed_server.using():  # before it is taken: a server that is down costs nobody their answer
            definition = await self._host.declared(managed_server, tool)
            return await self._continue_call(ticket, request, deferred_call, answer, managed_server, definition)

    async def _continue_call(
        self,
        ticket: str,
        request: ConsentRequest,
        deferred_call: DeferredCall,
        answer: ConsentAnswer,
        managed_server: ManagedServer,
        definition: Any,
    ) -> Any:
        authorizer = self._host.desk
        policy_request = self._host.question(
            managed_server, "tool.call", definition.name, deferred_call.arguments, definition
        )
        if deferred_call.pending is not None:
            build_responses(deferred_call, answer)  # what does not answer it leaves it open
        elif isinstance(answer, Edit):
            authorizer.check_edited_arguments(policy_request, answer.value)
        await self._take(ticket)
        if managed_server.identity != deferred_call.identity or fingerprint(definition) != deferred_call.fingerprint:
            raise PolicyError(f"{policy_request.full_name} is not what it was when it was asked for")
        decision = authorizer.check(policy_request)
        authorizer.emit_answer(replace(policy_request, kind=request.kind), answer, decision.reason)
        if deferred_call.pending is not None:
            return await self._resume_call(managed_server, definition, policy_request, deferred_call, answer)
        if request.kind == "definition.changed":
            return await self._accept_definition(policy_request, definition, answer)
        authorization = await authorizer.apply_answer(policy_request, deferred_call.fingerprint, answer, decision)
        await authorizer.pin_definition(policy_request, definition, fingerprint(definition))
        return await self._host.perform(managed_server, definition, authorization.request, wait=request.wait)

    async def _accept_definition(self, request: PolicyRequest, definition: Any, answer: ConsentAnswer) -> Any:
        """The new definition may be used, which says nothing of the call that met it."""
        if not isinstance(answer, Allow):
            raise PolicyError(f"{request.full_name}: its definition changed, and that was not agreed to")
        await self._host.desk.pin_definition(request, definition, fingerprint(definition))
        return await self._host.call(request.full_name, request.arguments, wait=False)

    async def _take(self, ticket: str) -> None:
        if not await self._inbox.take(ticket):
            raise NotSupported(f"no question waits under {clip(ticket)} any more")

    async def _resume_call(
        self,
        managed_server: ManagedServer,
        definition: Any,
        request: PolicyRequest,
        deferred_call: DeferredCall,
        answer: ConsentAnswer,
    ) -> Any:
        pending = PendingRequest.load(deferred_call.pending or "")

        async def resume(client: Client) -> Any:
            if (
                not deferred_call.questions and pending.round > get_session(client).limits.max_input_rounds
            ):  # nobody is there to lose patience
                raise InputRequestError(f"it asked in more than {get_session(client).limits.max_input_rounds} rounds")
            return await client.resume(pending, build_responses(deferred_call, answer))

        return await self._host.perform(managed_server, definition, request, wait=False, resume=resume)


def _create_deferred_call(request: PolicyRequest, definition: Any, **extra_fields: Any) -> DeferredCall:
    return DeferredCall(
        server=request.server,
        identity=request.server_identity,
        tool=request.tool,
        arguments=dict(request.arguments or {}),
        fingerprint=fingerprint(definition),
        **extra_fields,
    )


def _build_consent_request(managed_server: ManagedServer, input_request: Mapping[str, Any]) -> ConsentRequest:
    params: Mapping[str, Any] = input_request.get("params") or {}
    details: dict[str, Any] = {"message": params.get("message", ""), "schema": params.get("requestedSchema") or {}}
    if params.get("mode") == "url":
        url = str(params.get("url", ""))
        details = {"message": params.get("message", ""), "url": url, "host": urlsplit(url).hostname or ""}
    kind = "elicitation.url" if "url" in details else "elicitation.form"
    return ConsentRequest(
        kind=kind, server=managed_server.name, details=details, wait=False, trusted=managed_server.settings.trusted
    )


def _combine_requests(managed_server: ManagedServer, forms: Mapping[str, Mapping[str, Any]]) -> ConsentRequest:
    """All that is open as one question; several stand in it by their keys."""
    requests = {key: _build_consent_request(managed_server, form) for key, form in forms.items()}
    first = next(iter(requests.values()))
    if len(requests) == 1:
        return first
    details = {key: {**request.details} for key, request in requests.items()}
    return replace(first, kind="elicitation.form", details=details, reason="several are open: answer each by its key")

"""One server of a host, as a gateway mounts it.

A request is authorized first, with the consent of the caller's own user. Then the executor of the host forwards it as
it came. A caller's credentials are never forwarded.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.errors import (
    InternalError,
    InvalidParams,
    MCPError,
    NotFound,
    NotSupported,
    PolicyError,
    PromptNotFound,
    ProtocolError,
    ResourceNotFound,
    ToolNotFound,
)
from dovetail.host.authorization import Authorization
from dovetail.host.consent.consent import ConsentAnswer, ConsentRequest, Deny, is_interactive
from dovetail.host.execution import find_denial
from dovetail.host.gateway.caller_consent import ConsentRequired, ConsentRound, SingleUseStates, find_input_required
from dovetail.host.gateway.caller_pins import ANONYMOUS
from dovetail.host.parts import HostParts
from dovetail.host.policy.policy import PolicyRequest
from dovetail.host.supervisor import ServerSupervisor
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.mountable import ChangeCallback, ItemKind
from dovetail.protocol.principal import Principal
from dovetail.server.tool import build_error_result
from dovetail.wire.base import Result, Struct, replace
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities

log = logging.getLogger("dovetail")

# Servers that sleep may have anything.
_ALL_CAPABILITIES: Final = ServerCapabilities(
    tools=ListChangedCapability(list_changed=True),
    prompts=ListChangedCapability(list_changed=True),
    resources=ResourcesCapability(subscribe=True, list_changed=True),
    completions={},
)


class PolicySubject(Struct, frozen=True):
    """What a request is about, as a policy sees it."""

    kind: str
    name: str
    arguments: dict[str, Any] | None = None
    parent_kind: str = ""  # the kind of the thing it is only a part of


class Upstream:
    """One server of a host, as a gateway mounts it."""

    is_remote = True

    def __init__(self, parts: HostParts, supervisor: ServerSupervisor, states: SingleUseStates) -> None:
        self.name = supervisor.name
        self.supervisor = supervisor
        self._servers = parts.servers
        self._catalog = parts.catalog
        self._authorizer = parts.authorizer
        self._executor = parts.executor
        self._secrets = parts.secrets
        self._states = states

    def __mountable__(self) -> "Upstream":
        """What a server mounts."""
        return self

    async def start(self) -> None:
        """Nothing is started before it is needed."""

    async def stop(self) -> None:
        """The host stops its servers."""

    def capabilities(self) -> ServerCapabilities:
        """What it may offer."""
        return _ALL_CAPABILITIES

    async def list_items(self, kind: ItemKind, exchange: Exchange) -> Mapping[str, Any]:
        """What it offers this caller; of one that is slow or gone, what it offered last."""
        supervisor = self.supervisor
        try:
            supervisor = self._server_for(exchange.caller.principal)
            async with asyncio.timeout(self._catalog.ready_timeout):
                items = await supervisor.listed(kind)
        except PolicyError:
            return {}
        except (MCPError, TimeoutError):
            items = supervisor.known.get(kind, {})
        return {name: item for name, item in items.items() if self._catalog.is_visible(supervisor, kind, name, item)}

    async def has_item(self, kind: ItemKind, name: str, exchange: Exchange) -> bool:
        """Whether it offers something of this name, or may."""
        return kind == "resource" or name in await self.list_items(kind, exchange)

    def get_known_items(self, kind: ItemKind) -> Mapping[str, Any]:
        """What it offered last, to whomever."""
        items: dict[str, Any] = {}
        for supervisor in self._servers.list_for_callers(self.supervisor):
            items |= supervisor.known.get(kind, {})
        return items

    def _server_for(self, principal: Principal | None) -> ServerSupervisor:
        return self._servers.get_for_caller(self.supervisor, principal)

    # Changes

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        """Hear of its changes."""
        return self.supervisor.follow(callback)

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Whether a caller may hear of a resource."""
        try:
            supervisor = self._server_for(principal)
        except PolicyError:
            return False
        return find_denial(self._authorizer, supervisor, "resource.read", uri) is None

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> Callable[[], None]:
        """Hear of these resources; a server that cannot tell of them keeps nobody from hearing of others."""
        allowed_uris = [uri for uri in uris if self.can_receive_updates(uri, principal)]
        if not allowed_uris:
            return lambda: None
        try:
            return await self._server_for(principal).subscribe(allowed_uris)
        except MCPError as exc:
            log.warning("%s does not tell of changes: %s", self.name, exc)
            return lambda: None

    # Requests

    async def handle(self, exchange: Exchange) -> Result | bytes:
        """Have it done, if it may be."""
        supervisor = self.supervisor
        try:
            supervisor = self._server_for(exchange.caller.principal)
            if exchange.method == "tools/call":
                return await self._call_tool(exchange, supervisor)
            return await self._handle_other(exchange, supervisor)
        except ConsentRequired as needed:
            return needed.result
        except PolicyError as exc:
            return _to_denial_result(exchange, exc)
        except ProtocolError:
            raise
        except (NotFound, NotSupported):
            raise _not_found(exchange) from None
        except MCPError as exc:
            log.warning("a request for %s failed: %s", self.name, exc)
            raise InternalError(f"{self.name} cannot be used now: {self._describe_state(supervisor)}") from None

    def _describe_state(self, supervisor: ServerSupervisor) -> str:
        """Its state, and the reason for it on one line, without what is secret or only for this machine's user."""
        error_text = (
            str(supervisor.last_error.args[0]).partition("\n")[0]
            if supervisor.last_error is not None and supervisor.last_error.args
            else ""
        )
        state = supervisor.state.replace("_", " ")
        return f"{state}: {clip(self._secrets.mask(error_text))}" if error_text else state

    async def _handle_other(self, exchange: Exchange, supervisor: ServerSupervisor) -> Result | bytes:
        subject = _find_subject(exchange)
        self._check_visible(supervisor, subject.parent_kind or subject.kind, subject.name, bool(subject.parent_kind))
        consent_round = ConsentRound(exchange, self._states, self.name)
        request = self._authorizer.create_request(supervisor, subject.kind, subject.name, subject.arguments)
        authorization = await self._authorizer.authorize(
            replace(request, caller=consent_round.caller_id or ANONYMOUS),
            limits=self._authorizer.get_limits(supervisor, subject.name),
            ask=partial(self._ask, consent_round=consent_round),
        )
        return consent_round.wrap_result(await self._forward(exchange, supervisor, authorization, consent_round))

    async def _call_tool(self, exchange: Exchange, supervisor: ServerSupervisor) -> Result | bytes:
        params = exchange.params
        name, arguments = str(params.get("name")), params.get("arguments")
        if supervisor.get_fresh("tool") is None:
            self._check_visible(supervisor, "tool.call", name)
        record = await self._catalog.get_record(supervisor, name)
        consent_round = ConsentRound(exchange, self._states, self.name, record.fingerprint)
        authorization = await self._authorizer.authorize_call(
            record,
            arguments if type(arguments) is dict else {},
            caller=consent_round.caller_id or ANONYMOUS,
            ask=partial(self._ask, consent_round=consent_round),
        )
        await self._catalog.check_unchanged(supervisor, record)
        result = await self._forward(exchange, supervisor, authorization, consent_round)
        if find_input_required(result, exchange.method) is not None:
            return consent_round.wrap_result(result)
        return await self._executor.review(authorization, result, partial(self._ask_later, consent_round=consent_round))

    async def _forward(
        self,
        exchange: Exchange,
        supervisor: ServerSupervisor,
        authorization: Authorization,
        consent_round: ConsentRound,
    ) -> Result | bytes:
        async def forward_request(_: Any, max_seconds: float | None) -> Result | bytes:
            return await (await supervisor.forwarding()).handle(exchange, max_seconds)

        with consent_round.forward_params(**_changed_arguments(authorization.request, exchange.params)):
            return await self._executor.run(supervisor, authorization, forward_request)

    def _check_visible(self, supervisor: ServerSupervisor, kind: str, name: str, is_part: bool = False) -> None:
        """Raise PolicyError for a hidden item, or for a part of one that is denied, before any server is started."""
        denial = find_denial(self._authorizer, supervisor, kind, name)
        if denial is not None and (is_part or denial.action == "hide"):
            raise denial

    async def _ask(self, request: ConsentRequest, consent_round: ConsentRound) -> ConsentAnswer:
        if consent_round.can_ask:
            return await consent_round.ask(request)
        return await self._ask_host(request, "it declares no elicitation")

    async def _ask_later(self, request: ConsentRequest, consent_round: ConsentRound) -> ConsentAnswer:
        """When it has been done: another round would do it again."""
        if consent_round.can_ask_directly:
            return await consent_round.ask(request)
        return await self._ask_host(request, "it cannot be asked about what has come back")

    async def _ask_host(self, request: ConsentRequest, reason: str) -> ConsentAnswer:
        consent_handler = self._authorizer.consent_handler
        if not is_interactive(consent_handler):
            return Deny(f"this needs the user's consent, and the client cannot ask for it: {reason}")
        return await consent_handler.ask(request)


def _changed_arguments(request: PolicyRequest, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that were judged, if they differ from those of the request."""
    sent_arguments, judged_arguments = params.get("arguments"), request.arguments
    is_same = (
        judged_arguments is None
        or judged_arguments is sent_arguments
        or (sent_arguments is None and not judged_arguments)
    )
    return {} if is_same else {"arguments": judged_arguments}


def _find_subject(exchange: Exchange) -> PolicySubject:
    params = exchange.params
    arguments = params.get("arguments")
    match exchange.method:
        case "prompts/get":
            return PolicySubject("prompt.get", str(params.get("name")), arguments if type(arguments) is dict else {})
        case "resources/read":
            return PolicySubject("resource.read", str(params.get("uri")))
        case _:
            reference: Any = params.get("ref")
            parent_kind = "prompt.get" if reference.get("type") == "ref/prompt" else "resource.read"
            return PolicySubject("completion", str(reference.get("name") or reference.get("uri")), None, parent_kind)


def _to_denial_result(exchange: Exchange, exc: PolicyError) -> Result:
    if exc.action == "hide":
        raise _not_found(exchange)
    if exchange.method == "tools/call":
        return build_error_result(f"Not allowed: {exc.args[0]}")
    raise InvalidParams(f"Not allowed: {exc.args[0]}")


def _not_found(exchange: Exchange) -> ProtocolError:
    params = exchange.params
    match exchange.method:
        case "tools/call":
            return ToolNotFound(str(params.get("name")))
        case "resources/read":
            return ResourceNotFound(str(params.get("uri")))
        case "prompts/get":
            return PromptNotFound(str(params.get("name")))
        case _:
            return InvalidParams("Invalid params: there is nothing of this name")

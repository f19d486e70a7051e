"""A server of a host that a gateway mounts.

Each request is authorized first, with the consent of the caller's user. The executor of the host then forwards the
request. Credentials of a caller are never forwarded.
"""

from collections.abc import Callable, Mapping, Sequence
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
    ToolError,
    ToolNotFound,
)
from dovetail.host.authorization import Authorization
from dovetail.host.consent.consent import ConsentAnswer, ConsentRequest, Deny, is_interactive
from dovetail.host.execution import ServerUse, find_completion_denial, find_denial
from dovetail.host.gateway.caller_consent import ConsentRequired, ConsentRound, SingleUseStates
from dovetail.host.gateway.task_ids import TaskIds, fits_into_id
from dovetail.host.parts import HostParts
from dovetail.host.supervisor import ServerSupervisor
from dovetail.log import log
from dovetail.mounts.forwarded_tasks import declares_tasks
from dovetail.mounts.mountable import ResourceWatch
from dovetail.protocol.exchange import ChangeCallback, IncomingExchange, convert_params
from dovetail.protocol.headers import HeaderPath
from dovetail.protocol.interfaces.shared_state import SharedWorker
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.principal import Principal
from dovetail.server.items.tool import build_error_result
from dovetail.tasks.task_messages import CreateTaskResult
from dovetail.wire.base import Result, Struct, replace
from dovetail.wire.completion import CompleteParams, PromptReference
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities

# The capabilities of a stopped server are unknown, so assume all of them.
_ALL_CAPABILITIES: Final = ServerCapabilities(
    tools=ListChangedCapability(list_changed=True),
    prompts=ListChangedCapability(list_changed=True),
    resources=ResourcesCapability(subscribe=True, list_changed=True),
    completions={},
)


class PolicySubject(Struct, frozen=True):
    """An item with its arguments, which the policy checks."""

    kind: str
    name: str
    arguments: dict[str, Any] | None = None


class Upstream:
    """One server behind a gateway."""

    is_remote = True

    def __init__(
        self, parts: HostParts, supervisor: ServerSupervisor, states: SingleUseStates, task_ids: TaskIds | None
    ) -> None:
        self.name = supervisor.name
        self.supervisor = supervisor
        self._servers = parts.servers
        self._catalog = parts.catalog
        self._authorizer = parts.authorizer
        self._executor = parts.executor
        self._secrets = parts.secrets
        self._states = states
        self._task_ids = task_ids  # None if the gateway does not forward tasks
        self._cluster: tuple[SharedWorker, str] | None = None

    def join_cluster(self, cluster: SharedWorker, path: str) -> None:
        """Share used consent answers and open calls with all workers. `path` identifies this server in the cluster."""
        self._cluster = cluster, path
        self._states.join_cluster(cluster)
        self._authorizer.join_cluster(cluster)
        if self._task_ids is not None:
            self._task_ids.use_keys(cluster.secret_keys)

    def __mountable__(self) -> "Upstream":
        return self

    async def start(self) -> None:
        """Do nothing, because the host starts a server when it is used."""

    async def stop(self) -> None:
        """The host stops its servers, so this method does nothing."""

    def capabilities(self) -> ServerCapabilities:
        """Return all capabilities, because the server may have any of them."""
        return _ALL_CAPABILITIES

    async def list_items(self, kind: ItemKind, exchange: IncomingExchange) -> Mapping[str, Any]:
        """Return the items that this caller sees. If the server is slow or fails, return the last known items."""
        try:
            supervisor = self._servers.get_for_caller(self.supervisor, exchange.caller.principal)
        except PolicyError:
            return {}
        items = await supervisor.list_within(kind, self._catalog.ready_timeout)
        return await self._catalog.filter_visible(supervisor, kind, items)

    async def has_item(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        """Return whether the server has this item. For a resource, always return True, because any URI may exist."""
        return kind == "resource" or name in await self.list_items(kind, exchange)

    def list_known(self, kind: ItemKind) -> Sequence[Mapping[str, Any]]:
        """Return the last known items of a kind, as one mapping for each client of the server."""
        known = (supervisor.known.get(kind) for supervisor in self._servers.list_for_callers(self.supervisor))
        return [items for items in known if items]

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call a function for each change on the server. The returned function removes the callback."""
        return self.supervisor.follow(callback)

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether a caller may receive updates of a resource."""
        try:
            supervisor = self._servers.get_for_caller(self.supervisor, principal)
        except PolicyError:
            return False
        return find_denial(self._authorizer, supervisor, "resource.read", uri) is None

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> ResourceWatch:
        """Subscribe to resources. Raise MCPError if the policy or the server refuses all of them."""
        allowed_uris = [uri for uri in uris if self.can_receive_updates(uri, principal)]
        if not allowed_uris:
            raise NotSupported("the policy does not allow the subscription")
        supervisor = self._servers.get_for_caller(self.supervisor, principal)
        return ResourceWatch(allowed_uris, await supervisor.subscribe(allowed_uris))

    async def find_header_paths(self, name: str, exchange: IncomingExchange) -> Sequence[HeaderPath]:
        """Return the headers that repeat arguments of a tool. For a tool that the policy hides, return no headers."""
        supervisor = self.supervisor
        try:
            supervisor = self._servers.get_for_caller(supervisor, exchange.caller.principal)
            if supervisor.get_fresh("tool") is None:
                self._check_visible(supervisor, "tool.call", name)
            return (await self._catalog.get_record(supervisor, name)).header_paths
        except (PolicyError, NotFound, NotSupported):
            return ()  # The call itself fails later, and `handle` then reports the reason.
        except ProtocolError:
            raise
        except MCPError as exc:
            raise self._report_unavailable(supervisor, exc) from None

    async def handle(self, exchange: IncomingExchange) -> Result | bytes:
        """Authorize a request, forward it to the server, and return the result."""
        supervisor = self.supervisor
        try:
            supervisor = self._servers.get_for_caller(supervisor, exchange.caller.principal)
            is_completion = exchange.method == "completion/complete"
            completion = convert_params(exchange, CompleteParams) if is_completion else None
            if completion is not None:
                exchange.params = _drop_completed_argument(exchange.params, completion)
            consent_round = ConsentRound(exchange, self._states, (self.name, supervisor.identity))
            if exchange.method == "tools/call":
                authorization = await self._authorize_call(exchange, supervisor, consent_round)
            else:
                authorization = await self._authorize_other(exchange, supervisor, consent_round, completion)
            # The parameters of a completion have no `arguments` field.
            arguments = authorization.request.arguments if completion is None else None
            if arguments is not exchange.params.get("arguments") or consent_round.request_state is not None:
                exchange.params = await consent_round.build_params(arguments)
            async with ServerUse(self._executor, supervisor, authorization) as use:
                forwarder = supervisor.forwarder or await supervisor.get_forwarder()
                if self._cluster is not None:
                    forwarder.join_cluster(*self._cluster)
                accepts_task = (
                    exchange.caller.client_capabilities.extensions is not None
                    and self._task_ids is not None
                    and supervisor.may_have_tasks
                    and supervisor.check_tasks()
                    and _accepts_task(exchange, authorization)
                )
                use.result = await forwarder.handle(exchange, authorization.limits.timeout, accepts_task=accepts_task)
            if accepts_task and isinstance(use.result, CreateTaskResult):
                return self._wrap_task(use.result, exchange, supervisor, authorization)
            # A result that asks for input goes to the stateless caller. The policy checks all other results of tools.
            if authorization.record is None or (
                isinstance(use.result, InputRequiredResult) and exchange.caller.is_stateless
            ):
                return consent_round.wrap_result(use.result)
            return await self._executor.review(
                authorization, use.result, partial(self._ask_later, consent_round=consent_round)
            )
        except ConsentRequired as needed:
            return needed.result
        except MCPError as exc:
            return self._answer_error(exc, exchange, supervisor)

    def _answer_error(self, exc: MCPError, exchange: IncomingExchange, supervisor: ServerSupervisor) -> Result:
        """Return the result for a denied tool call. Otherwise raise the error that the caller may see."""
        match exc:
            case PolicyError():
                return _to_denial_result(exchange, exc)
            case ProtocolError() | ToolError():
                raise exc  # The server answered, so it is available.
            case NotFound() | NotSupported():
                raise _not_found(exchange) from None
            case _:
                raise self._report_unavailable(supervisor, exc) from None

    def _wrap_task(
        self,
        task: CreateTaskResult,
        exchange: IncomingExchange,
        supervisor: ServerSupervisor,
        authorization: Authorization,
    ) -> CreateTaskResult:
        """Replace the task ID of the server with a task ID of the gateway."""
        assert self._task_ids is not None
        record, request = authorization.record, authorization.request
        id = self._task_ids.seal(
            exchange.caller.principal,
            server=self.name,
            server_identity=supervisor.identity,
            task_id=task.task_id,
            tool=request.tool,
            arguments=request.arguments if record is not None and record.result_needs_arguments else None,
        )
        return replace(task, task_id=id, meta=None)

    async def review(self, authorization: Authorization, result: Any, exchange: IncomingExchange) -> Any:
        """Check the result of a task with the policy, and return it. Raise PolicyError if the result is denied."""
        consent_round = ConsentRound(exchange, self._states, (self.name, self.supervisor.identity))
        return await self._executor.review(authorization, result, partial(self._ask_later, consent_round=consent_round))

    def _report_unavailable(self, supervisor: ServerSupervisor, exc: MCPError) -> InternalError:
        """Log why the server could not be used, and return the error for the caller."""
        log.warning("request to %s failed: %s", self.name, exc)
        error_text = (
            str(supervisor.last_error.args[0]).partition("\n")[0]
            if supervisor.last_error is not None and supervisor.last_error.args
            else ""
        )
        state = supervisor.state.replace("_", " ")
        details = f"{state}: {clip(self._secrets.mask(error_text))}" if error_text else state
        return InternalError(f"the server {self.name} is not available: {details}")

    async def _authorize_call(
        self, exchange: IncomingExchange, supervisor: ServerSupervisor, consent_round: ConsentRound
    ) -> Authorization:
        name, arguments = str(exchange.params.get("name")), exchange.params.get("arguments")
        if supervisor.get_fresh("tool") is None:
            self._check_visible(supervisor, "tool.call", name)
        record = await self._catalog.get_record(supervisor, name)
        consent_round.fingerprint = record.fingerprint
        authorization = await self._authorizer.authorize_call(
            record,
            arguments if type(arguments) is dict else {},
            caller=consent_round.caller_id,
            ask=partial(self._ask, consent_round=consent_round),
        )
        if not authorization.is_immediate:
            await self._catalog.check_unchanged(supervisor, record)
        return authorization

    async def _authorize_other(
        self,
        exchange: IncomingExchange,
        supervisor: ServerSupervisor,
        consent_round: ConsentRound,
        completion: CompleteParams | None,
    ) -> Authorization:
        if completion is not None:
            subject = _find_completion_subject(completion)
            self._check_completion(supervisor, completion, subject)
        else:
            subject = _find_subject(exchange)
            self._check_visible(supervisor, subject.kind, subject.name)
        request = self._authorizer.create_request(supervisor, subject.kind, subject.name, subject.arguments)
        return await self._authorizer.authorize(
            replace(request, caller=consent_round.caller_id),
            limits=self._authorizer.get_limits(supervisor, subject.name),
            ask=partial(self._ask, consent_round=consent_round),
        )

    def _check_visible(self, supervisor: ServerSupervisor, kind: str, name: str) -> None:
        """Raise PolicyError if the policy hides an item. The server does not have to run for this check."""
        denial = find_denial(self._authorizer, supervisor, kind, name)
        if denial is not None and denial.action == "hide":
            raise denial

    def _check_completion(
        self, supervisor: ServerSupervisor, completion: CompleteParams, subject: PolicySubject
    ) -> None:
        prompt = subject.name if isinstance(completion.ref, PromptReference) else None
        denial = find_completion_denial(self._authorizer, supervisor, prompt, subject.name, subject.arguments or {})
        if denial is not None:
            raise denial

    async def _ask(self, request: ConsentRequest, consent_round: ConsentRound) -> ConsentAnswer:
        if consent_round.can_ask:
            return await consent_round.ask(request)
        return await self._ask_host(request, consent_round, "the client does not support elicitation")

    async def _ask_later(self, request: ConsentRequest, consent_round: ConsentRound) -> ConsentAnswer:
        """Ask a user whether the result of a finished call may be used.

        If the caller cannot be asked directly, ask the host's user. Repeating the request would repeat the call.
        """
        if consent_round.can_ask_directly:
            return await consent_round.ask(request)
        return await self._ask_host(request, consent_round, "the client cannot be asked after a call")

    async def _ask_host(self, request: ConsentRequest, consent_round: ConsentRound, reason: str) -> ConsentAnswer:
        if not is_interactive(self._authorizer.consent_handler):
            return Deny(
                f"this request needs the consent of a user, but {reason}. A rule in the policy of the gateway can "
                "allow it (dovetail gateway --policy FILE)"
            )
        return await self._authorizer.ask_for_caller(consent_round.owner, request)


def _accepts_task(exchange: IncomingExchange, authorization: Authorization) -> bool:
    """Return whether the server may run a call as a task.

    A policy can limit the time and the concurrency of calls in the foreground only.
    """
    record, request, limits = authorization.record, authorization.request, authorization.limits
    return (
        record is not None
        and not exchange.mount_path
        and exchange.parent is None
        and declares_tasks(exchange.caller)
        and limits.timeout is None
        and limits.max_concurrency is None
        and (not record.result_needs_arguments or fits_into_id(request.arguments or {}))
    )


def _find_subject(exchange: IncomingExchange) -> PolicySubject:
    params = exchange.params
    if exchange.method == "resources/read":
        return PolicySubject("resource.read", str(params.get("uri")))
    assert exchange.method == "prompts/get"
    arguments = params.get("arguments")
    return PolicySubject("prompt.get", str(params.get("name")), arguments if type(arguments) is dict else {})


def _find_completion_subject(completion: CompleteParams) -> PolicySubject:
    reference, argument = completion.ref, completion.argument
    name = reference.name if isinstance(reference, PromptReference) else reference.uri
    return PolicySubject("completion", name, {**_get_context_arguments(completion), argument.name: argument.value})


def _get_context_arguments(completion: CompleteParams) -> dict[str, str]:
    return (completion.context.arguments if completion.context is not None else None) or {}


def _drop_completed_argument(params: dict[str, Any], completion: CompleteParams) -> dict[str, Any]:
    arguments = _get_context_arguments(completion)
    if completion.argument.name not in arguments:
        return params
    other_arguments = {name: value for name, value in arguments.items() if name != completion.argument.name}
    return params | {"context": params["context"] | {"arguments": other_arguments}}


def _to_denial_result(exchange: IncomingExchange, exc: PolicyError) -> Result:
    if exc.action == "hide":
        raise _not_found(exchange)
    if exchange.method == "tools/call":
        return build_error_result(f"Not allowed: {exc.args[0]}")
    raise InvalidParams(f"Not allowed: {exc.args[0]}")


def _not_found(exchange: IncomingExchange) -> ProtocolError:
    params = exchange.params
    match exchange.method:
        case "tools/call":
            return ToolNotFound(str(params.get("name")))
        case "resources/read":
            return ResourceNotFound(str(params.get("uri")))
        case "prompts/get":
            return PromptNotFound(str(params.get("name")))
        case _:
            return InvalidParams("Invalid params: ref names an unknown prompt or resource")

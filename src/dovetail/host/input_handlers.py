"""Handlers for the input requests of one server: forms, URLs, sampling and roots.

Each server has separate handlers, so an answer goes only to the server that asked. The policy decides
before the user is asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.errors import (
    ConsentDeferred,
    ElicitationCancelled,
    ElicitationDeclined,
    InputRequestError,
    InvalidParams,
    MCPError,
    ModelError,
    PolicyError,
)
from dovetail.host.authorization import RequestAuthorizer
from dovetail.host.consent.consent import AllowWithChanges, AnswerLater, Deny, build_consent_request
from dovetail.host.policy.policy import PolicyRequest
from dovetail.protocol.client_messages import get_required_capabilities
from dovetail.protocol.interfaces.language_model import Model, ModelReply
from dovetail.wire.base import replace
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.elicitation import ElicitRequestParams, ElicitResult
from dovetail.wire.sampling import CreateMessageRequestParams, CreateMessageResult

_KIND_BY_METHOD: Final = {
    "elicitation/create": "elicitation.form",
    "sampling/createMessage": "sampling.request",
    "roots/list": "roots.list",
}
_MAX_REPLY_TOKENS: Final = 8192  # the maximum number of tokens in one sampling response


class RequestRejected(InvalidParams):
    """Raised if the user or the policy rejected a request from the server. spec: sampling#error-handling"""

    code = -1


class HostInputHandlers:
    """Answers the input requests from one server."""

    def __init__(
        self,
        server_name: str,
        authorizer: RequestAuthorizer,
        model: Model | None,
        roots_provider: Sequence[Any] | Callable[[], Any],
        *,
        is_trusted: bool = False,
        server_identity: str = "",
        check_rate: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        self._server_name = server_name
        self._authorizer = authorizer
        self._model = model
        self._roots_provider = roots_provider
        self._is_trusted = is_trusted
        self._server_identity = server_identity
        self._check_rate = check_rate  # a function that applies the server's rate limit
        self._user_lock = asyncio.Lock()  # This lock lets a server ask the user only one question at a time.

    def client_options(self) -> dict[str, Any]:
        """Return the handlers for input requests, as options of a client.

        The client declares only the capabilities that have a handler.
        """
        options: dict[str, Any] = {
            "elicitation_handler": self.elicit,
            "url_elicitation_handler": self.elicit_url,
        }
        if self._model is not None:
            options["sampling_handler"] = self.create_message
        if self._roots_provider:
            options["roots"] = self.list_roots
        return options

    def _policy_request(self, kind: str, arguments: dict[str, Any] | None = None) -> PolicyRequest:
        return PolicyRequest(
            server=self._server_name,
            kind=kind,
            arguments=arguments,
            trusted=self._is_trusted,
            server_identity=self._server_identity,
        )

    def filter_request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """If the policy denies an input request, return a response that declines it. Otherwise return None.

        The input request is for the user of a gateway caller. None means that this user decides.
        """
        kind = _KIND_BY_METHOD.get(method, method)
        if method == "elicitation/create" and params.get("mode") == "url":
            kind = "elicitation.url"
        decision = self._authorizer.policy.decide(self._policy_request(kind))
        if decision.action not in ("deny", "hide"):
            return None
        self._authorizer.emit_answer(self._policy_request(kind), Deny(decision.reason), decision.reason)
        match method:
            case "elicitation/create":
                return {"action": "decline"}
            case "roots/list":
                return {"roots": []}
            case _:
                raise RequestRejected(f"The request was rejected: {decision.reason}")

    async def elicit(self, params: ElicitRequestParams) -> Any:
        """Ask the user to fill in a form."""
        details = {"message": params.message, "schema": params.requested_schema or {}}
        return await self._ask_user("elicitation.form", details)

    async def elicit_url(self, params: ElicitRequestParams) -> Any:
        """Ask the user for consent to open a web page."""
        host = urlsplit(params.url or "").hostname or ""
        return await self._ask_user("elicitation.url", {"message": params.message, "url": params.url, "host": host})

    async def _ask_user(self, kind: str, details: dict[str, Any]) -> Any:
        """Ask the user for input, unless the policy denies the request. An "allow" rule is not an answer."""
        decision = self._authorizer.policy.decide(self._policy_request(kind))
        if decision.action in ("deny", "hide"):
            return ElicitResult(action="decline")
        async with self._user_lock:
            answer = await self._authorizer.consent_handler.ask(
                build_consent_request(self._policy_request(kind), decision.reason, details)
            )
        self._authorizer.emit_answer(self._policy_request(kind), answer, decision.reason)
        match answer:
            case AllowWithChanges():
                return answer.value
            case Deny(cancelled=True):
                raise ElicitationCancelled
            case AnswerLater():
                raise ConsentDeferred(answer.ticket)
            case Deny():
                raise ElicitationDeclined
            case _:
                if kind == "elicitation.url":
                    return True
                raise InputRequestError(
                    "a consent handler must answer a form with Deny(), a dict of values, or AllowWithChanges({...})"
                )

    async def create_message(self, params: CreateMessageRequestParams) -> CreateMessageResult:
        """Return a reply from the host's model, unless the server has reached its rate limit.

        The model sees no data from other servers.
        """
        assert self._model is not None
        params = replace(params, include_context="none", max_tokens=min(params.max_tokens, _MAX_REPLY_TOKENS))
        try:
            if self._check_rate is not None:
                await self._check_rate(self._server_name, "sampling.request")
            async with self._user_lock:
                authorization = await self._authorizer.authorize(
                    self._policy_request("sampling.request"),
                    details={"messages": to_plain(params.messages), **_describe_params(params)},
                )
            if authorization.edited_value is not None:
                params = _apply_edit(params, authorization.edited_value)
            reply = await self._request_reply(params, self._model)
            if reply.invalid_calls:
                raise ModelError(f"the model sent an invalid tool call: {next(iter(reply.invalid_calls.values()))}")
            return await self._review_reply(reply)
        except PolicyError as exc:
            raise RequestRejected(f"The sampling request was rejected: {exc.args[0]}") from None

    async def _request_reply(self, params: CreateMessageRequestParams, model: Model) -> ModelReply:
        return await model.create_message(
            params.messages,
            params.tools or (),
            max_tokens=params.max_tokens,
            system_prompt=params.system_prompt,
            temperature=params.temperature,
            stop_sequences=params.stop_sequences or (),
            tool_choice=params.tool_choice,
            model_preferences=params.model_preferences,
        )

    async def _review_reply(self, reply: ModelReply) -> CreateMessageResult:
        content: Any = reply.content[0] if len(reply.content) == 1 else reply.content
        result = CreateMessageResult(
            role="assistant", content=content, model=reply.model, stop_reason=reply.stop_reason
        )
        async with self._user_lock:
            authorization = await self._authorizer.authorize(
                self._policy_request("sampling.response"),
                details={"content": to_plain(result.content), "model": reply.model},
            )
        if authorization.edited_value is None:
            return result
        return convert(
            to_plain(result) | {"content": _to_content(authorization.edited_value)},
            CreateMessageResult,
            label="an edited response",
        )

    async def list_roots(self) -> Sequence[Any]:
        """Return the roots that the server may see."""
        roots: Any = self._roots_provider() if callable(self._roots_provider) else self._roots_provider
        roots = await roots if asyncio.iscoroutine(roots) else roots
        try:
            authorization = await self._authorizer.authorize(
                self._policy_request("roots.list"), details={"roots": [*map(str, roots)]}
            )
        except PolicyError:
            return []
        return roots if authorization.edited_value is None else authorization.edited_value


def _describe_params(params: CreateMessageRequestParams) -> dict[str, Any]:
    details = {
        "system": params.system_prompt,
        "preferences": params.model_preferences,
        "tools": params.tools or None,
        "tool_choice": params.tool_choice,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "stop_sequences": params.stop_sequences or None,
    }
    return {name: to_plain(value) for name, value in details.items() if value is not None}


def _to_content(edited: Any) -> Any:
    return {"type": "text", "text": edited} if isinstance(edited, str) else to_plain(edited)


def _apply_edit(params: CreateMessageRequestParams, edited: Any) -> CreateMessageRequestParams:
    if isinstance(edited, str):
        edited = [{"role": "user", "content": _to_content(edited)}]
    changes = {"messages": to_plain(edited)} if isinstance(edited, list) else to_plain(edited)
    return convert(to_plain(params) | changes, CreateMessageRequestParams, label="an edited request")


_HANDLER_HINTS: Final = {"sampling": "Host(model=...)", "roots": "Host(roots=[...])"}


def add_handler_hints(exc: MCPError) -> None:
    """If capabilities are missing, add a hint to the error with the options that enable them."""
    required_capabilities = get_required_capabilities(getattr(exc, "data", None))
    hints = [_HANDLER_HINTS[name] for name in required_capabilities if name in _HANDLER_HINTS]
    if hints:
        exc.hint = f"pass {' and '.join(hints)}, which the server requires"

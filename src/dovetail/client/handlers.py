"""Handlers of the user that answer input requests: forms, URLs, sampling and roots.

The client declares a capability for each handler. It checks each answer against the requested schema before it sends
the answer. The client never opens a URL. It passes a URL to the handler only if a browser may open the URL safely.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from dovetail.callbacks import run_callback, type_name
from dovetail.client.option_checks import is_file_uri
from dovetail.error_context import add_context, clip
from dovetail.errors import (
    ElicitationCancelled,
    ElicitationDeclined,
    InputRequestError,
    InvalidParams,
    InvalidResult,
    MethodNotFound,
    ProtocolError,
)
from dovetail.protocol.http_checks import is_safe_url
from dovetail.schemas.validator import UnusableSchema, apply_defaults, compile_schema
from dovetail.wire.codec import convert, encode, to_plain
from dovetail.wire.content import TextContent
from dovetail.wire.elicitation import ElicitRequestParams, ElicitResult
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import ClientCapabilities, ElicitationCapability, RootsCapability, SamplingCapability
from dovetail.wire.logs import LoggingMessageNotificationParams
from dovetail.wire.raw_message import decode_body
from dovetail.wire.raw_message import to_plain as raw_plain
from dovetail.wire.roots import ListRootsResult, Root
from dovetail.wire.sampling import CreateMessageRequestParams, CreateMessageResult, check_tool_results

_MAX_ERROR_CHARS: Final = 300
_USER_REJECTED: Final = -1  # spec: handshake/sampling#error-handling

# An elicitation handler returns an ElicitResult, a dict of the fields, or None to decline. It may be async.
ElicitationHandler: TypeAlias = Callable[[ElicitRequestParams], object]
# A sampling handler answers a request with a CreateMessageResult or a string. It may be async.
SamplingHandler: TypeAlias = Callable[
    [CreateMessageRequestParams], CreateMessageResult | str | Awaitable[CreateMessageResult | str]
]
# Roots are paths or file:// URIs, or a function that returns them. The function may be async.
RootsProvider: TypeAlias = (
    Sequence[str | Path | Root] | Callable[[], Iterable[str | Path | Root] | Awaitable[Iterable[str | Path | Root]]]
)
# A log handler receives the server's log messages. It may be async.
LogHandler: TypeAlias = Callable[[LoggingMessageNotificationParams], object]

# A notification handler receives the method and params of notifications that no other option handles.
# Notification handlers may be async.
NotificationHandler: TypeAlias = Callable[[str, dict[str, Any]], object]

InputRelay: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]

ALL_CAPABILITIES: Final = ClientCapabilities(
    elicitation=ElicitationCapability(form={}, url={}),
    sampling=SamplingCapability(tools={}),
    roots=RootsCapability(list_changed=True),
)


class UndeclaredMode(InvalidParams):
    """Raised if the server uses an elicitation mode that the client did not declare."""


class InputHandlers:
    """Answers the server's input requests with the user's handlers."""

    def __init__(
        self,
        *,
        elicitation_handler: ElicitationHandler | None = None,
        url_elicitation_handler: ElicitationHandler | None = None,
        sampling_handler: SamplingHandler | None = None,
        roots: RootsProvider | None = None,
    ) -> None:
        self._elicitation_handler = elicitation_handler
        self._url_elicitation_handler = url_elicitation_handler
        self._sampling_handler = sampling_handler
        self._roots_provider = roots
        self.relay: InputRelay | None = None  # answers input requests for which the client has no handler
        # Returns True for a request that the client's handlers must answer instead of the relay.
        self.is_own_request: Callable[[], bool] | None = None
        self.open = 0  # Number of input requests without an answer.

    def capabilities(self) -> ClientCapabilities:
        """Return the client capabilities that the handlers provide."""
        if (
            self.relay is not None
            and self.is_own_request is None
            and not any(
                (self._elicitation_handler, self._url_elicitation_handler, self._sampling_handler, self._roots_provider)
            )
        ):
            return ALL_CAPABILITIES
        elicitation = None
        if self._elicitation_handler is not None or self._url_elicitation_handler is not None:
            elicitation = ElicitationCapability(
                form={} if self._elicitation_handler is not None else None,
                url={} if self._url_elicitation_handler is not None else None,
            )
        return ClientCapabilities(
            elicitation=elicitation,
            sampling=SamplingCapability(tools={}) if self._sampling_handler is not None else None,
            roots=RootsCapability(list_changed=True) if self._roots_provider is not None else None,
        )

    async def answer(self, method: str, params: Any) -> Any:
        """Answer one input request. Raise ProtocolError if the client does not accept the request."""
        relay = self.relay if self.relay is not None and self._should_relay() else None
        return await self._answer(method, params, relay)

    async def _answer(self, method: str, params: Any, relay: InputRelay | None) -> Any:
        self.open += 1
        try:
            if relay is not None:
                return await relay(method, to_plain(params) if isinstance(params, dict) else raw_plain(params))
            return await self._handle_request(method, params)
        finally:
            self.open -= 1

    def _should_relay(self) -> bool:
        return self.capabilities() is ALL_CAPABILITIES if self.is_own_request is None else not self.is_own_request()

    async def _handle_request(self, method: str, params: Any) -> Any:
        match method:
            case "elicitation/create" | "elicitation/createDialog":
                return _check_encodable(
                    "elicitation_handler", await self.elicit(_decode_params(params, ElicitRequestParams, method))
                )
            case "sampling/createMessage" if self._sampling_handler is not None:
                request = _decode_params(params, CreateMessageRequestParams, method)
                _check_conversation(request)
                return _check_encodable("sampling_handler", await self._create_message(request, self._sampling_handler))
            case "roots/list" if self._roots_provider is not None:
                return _check_encodable("roots", await self._list_roots(self._roots_provider))
            case _:
                raise MethodNotFound(method)

    async def answer_all(self, requests: Mapping[str, InputRequest]) -> dict[str, Any]:
        """Answer all input requests of a result.

        The same user answers them, so they are answered one after the other.
        """
        responses: dict[str, Any] = {}
        respond = self.answer if self.is_own_request is None else partial(self._answer, relay=None)
        for key, request in requests.items():
            try:
                responses[key] = to_plain(await respond(request.method, request.params))
            except (MethodNotFound, UndeclaredMode):
                raise add_context(
                    InputRequestError(f"the client has no handler for {clip(request.method)}"),
                    hint=_handler_hint(request),
                ) from None
            except ProtocolError as exc:
                raise InputRequestError(exc.message) from None
        return responses

    async def elicit(self, request: ElicitRequestParams) -> ElicitResult:
        handler = self._elicitation_handler if request.mode == "form" else self._url_elicitation_handler
        if handler is None:
            if self._elicitation_handler is None and self._url_elicitation_handler is None:
                raise MethodNotFound("elicitation/create")
            # spec: handshake/elicitation#error-handling
            raise UndeclaredMode(f"Invalid params: this client does not support elicitation in {request.mode} mode")
        if request.mode == "url" and not is_safe_url(request.url or ""):
            raise InvalidParams("Invalid params: `url` must use https. http is allowed only for this machine")
        try:
            answer = await _call_handler(
                "elicitation_handler" if request.mode == "form" else "url_elicitation_handler", handler, request
            )
        except ElicitationDeclined:
            return ElicitResult(action="decline")
        except ElicitationCancelled:
            return ElicitResult(action="cancel")
        return _build_elicit_result(request, answer)

    async def _create_message(
        self, request: CreateMessageRequestParams, handler: SamplingHandler
    ) -> CreateMessageResult:
        result = await _call_handler("sampling_handler", handler, request)
        if isinstance(result, str):
            return CreateMessageResult(role="assistant", content=TextContent(text=result), model="unknown")
        if not isinstance(result, CreateMessageResult):
            raise InputRequestError(
                f"sampling_handler must return a CreateMessageResult or a string, not {type_name(result)}"
            )
        return result

    async def _list_roots(self, provider: RootsProvider) -> ListRootsResult:
        roots: Any = await _call_handler("roots", provider) if callable(provider) else provider
        if isinstance(roots, str | Path | Root):
            roots = [roots]  # The function returned a single root.
        if not isinstance(roots, Iterable):
            raise InputRequestError(
                f"the roots function must return a list of paths, URIs or Root objects, not {type_name(roots)}"
            )
        try:
            return ListRootsResult(roots=[_parse_root(root) for root in roots])
        except InputRequestError:
            raise
        except Exception as exc:
            raise _handler_error("roots", exc) from exc


def _decode_params(params: Any, params_type: type[Any], method: str) -> Any:
    try:
        if params is None or isinstance(params, dict):
            return convert(params or {}, params_type)
        return decode_body(params, params_type, method)
    except InvalidResult as exc:
        raise InvalidParams(f"Invalid params: {exc}") from None


def _check_conversation(request: CreateMessageRequestParams) -> None:
    try:
        check_tool_results(request.messages)
    except ValueError as exc:  # spec: handshake/sampling#error-handling
        raise InvalidParams(f"Invalid params: {exc}") from None


def _build_elicit_result(request: ElicitRequestParams, answer: Any) -> ElicitResult:
    if isinstance(answer, ElicitResult) and answer.action != "accept":
        return answer
    if answer is None and request.mode == "form":
        return ElicitResult(action="decline")
    if request.mode == "url":
        return ElicitResult(action="decline" if answer is False else "accept")
    content = to_plain(
        _check_encodable("elicitation_handler", answer.content or {} if isinstance(answer, ElicitResult) else answer)
    )
    if not isinstance(content, dict):
        raise InputRequestError(f"elicitation_handler must return the fields of the form, not {type_name(answer)}")
    schema = request.requested_schema or {}
    full_content = apply_defaults(schema, content)
    _validate_content(schema, full_content)
    return ElicitResult(action="accept", content=full_content)


def _validate_content(schema: dict[str, Any], content: dict[str, Any]) -> None:
    try:
        problem = compile_schema(schema).find_error(content)
    except UnusableSchema:
        return  # The form's schema is invalid, so the answer cannot be checked.
    if problem is not None:
        raise InputRequestError(f"the answer does not match the form: {problem}")


async def _call_handler(name: str, handler: Callable[..., Any], *args: Any) -> Any:
    """Call a handler and return its result. Convert an exception to an InputRequestError with the handler's name."""
    try:
        return await run_callback(handler, *args)
    except (ElicitationDeclined, ElicitationCancelled) as exc:
        if name == "sampling_handler":
            rejection = ProtocolError("User rejected sampling request")
            rejection.code = _USER_REJECTED
            raise rejection from None
        if name.endswith("elicitation_handler"):
            raise
        raise InputRequestError(f"{name} refused: {exc}") from None
    except (InputRequestError, ProtocolError):
        raise
    except Exception as exc:
        raise _handler_error(name, exc) from exc


def _handler_error(name: str, exc: Exception) -> InputRequestError:
    detail = f"{type_name(exc)}: {clip(str(exc), _MAX_ERROR_CHARS)}" if str(exc) else type_name(exc)
    return InputRequestError(f"{name} failed: {detail}")


def _check_encodable(name: str, answer: Any) -> Any:
    try:
        encode(answer)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InputRequestError(
            f"the handler {name} returned a value that cannot be sent as JSON: {clip(str(exc), _MAX_ERROR_CHARS)}"
        ) from exc
    return answer


def _parse_root(root: Any) -> Root:
    match root:
        case Root():
            if not is_file_uri(root.uri):
                raise InputRequestError(f"roots must be paths or file:// URIs, not {clip(root.uri)!r}")
            return root
        case Path():
            return Root(uri=root.absolute().as_uri(), name=root.name or None)
        case str() if "://" in root:
            return _parse_root(Root(uri=root))
        case str():
            return _parse_root(Path(root))
        case _:
            raise InputRequestError(f"a root must be a path, a URI or a Root, not {type_name(root)}")


def _handler_hint(request: InputRequest) -> str:
    name = {
        "elicitation/create": "url_elicitation_handler"
        if (request.params or {}).get("mode") == "url"
        else "elicitation_handler",
        "sampling/createMessage": "sampling_handler",
        "roots/list": "roots",
    }.get(request.method)
    return f"pass {name}= to the client" if name else "ask the author of the server what this request needs"

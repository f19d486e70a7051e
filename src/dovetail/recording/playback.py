"""Play a recording as a server: each request gets the response that was recorded for the same request.

`read_exchanges` pairs each recorded request with its response and the notifications in between. `Playback` serves these
exchanges. A recording never changes, so the server declares no change notifications.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dovetail.errors import MethodNotFound
from dovetail.protocol.redaction import MASK, REQUEST_STATE_KEY, mask_secrets
from dovetail.recording.recording_format import Frame
from dovetail.wire.base import UNSET, Struct
from dovetail.wire.meta import PROGRESS_TOKEN, PROTOCOL_VERSION
from dovetail.wire.methods import METHODS
from dovetail.wire.revisions import NEWEST_REVISION, is_stateless

Message = dict[str, Any]

OPENING_METHODS: Final = ("initialize", "server/discover")
# `dovetail replay` skips requests with these methods. A playback answers them without the recording.
IGNORED_METHODS: Final = (
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
    "subscriptions/listen",
)
_NOTIFICATION_METHODS: Final = ("notifications/progress", "notifications/message")
_NOT_RECORDED_CODE: Final = -32602


class RecordedExchange(Struct, kw_only=True):
    """A recorded request and its response."""

    method: str
    params: dict[str, Any]
    progress_token: Any = None
    revision: str | None = None
    response: Message | None = None
    notifications: list[Message]


class RecordedExtension(Struct, kw_only=True):
    """An extension that the recorded server declared."""

    identifier: str
    settings: dict[str, Any]
    methods: list[str]


def read_exchanges(parts: Iterable[Any]) -> list[RecordedExchange]:
    """Return the recorded requests to the server in their original order, with their responses."""
    exchanges: list[RecordedExchange] = []
    pending: dict[tuple[int | None, str], RecordedExchange] = {}
    for frame in _iter_frames(parts):
        for message in _list_messages(frame):
            id = _encode_id(message)
            key = (frame.exchange, id)
            if frame.to == "server" and "method" in message and message.get("id") is not None:
                recorded = _parse_request(message)
                exchanges.append(recorded)
                pending[key] = recorded
            elif frame.to == "client" and message.get("method") in _NOTIFICATION_METHODS:
                same_http_exchange = {
                    request_key: recorded
                    for request_key, recorded in pending.items()
                    if request_key[0] == frame.exchange
                }
                _attach_notification(message, same_http_exchange or pending)
            elif (
                frame.to == "client"
                and "method" not in message
                and (answered_key := _find_request_key(key, pending)) is not None
            ):
                pending.pop(answered_key).response = message
    return exchanges


def _find_request_key(
    key: tuple[int | None, str], pending: Iterable[tuple[int | None, str]]
) -> tuple[int | None, str] | None:
    """Return the recorded request that belongs to a recorded response.

    The request belongs to the same HTTP exchange. If the stream was resumed, it is the only request with the same ID.
    """
    if key in pending:
        return key
    candidates = [candidate for candidate in pending if candidate[1] == key[1]]
    return candidates[0] if len(candidates) == 1 else None


def _encode_id(message: Message) -> str:
    return json.dumps(message.get("id"))


def iter_messages(parts: Iterable[Any]) -> Iterator[tuple[str, Message]]:
    """Yield the receiver ("client" or "server") and the content of each recorded message."""
    for frame in _iter_frames(parts):
        yield from ((frame.to, message) for message in _list_messages(frame))


def _iter_frames(parts: Iterable[Any]) -> Iterator[Frame]:
    return (part for part in parts if isinstance(part, Frame) and part.message is not UNSET)


def _list_messages(frame: Frame) -> list[Message]:
    items: list[Any] = frame.message if isinstance(frame.message, list) else [frame.message]
    return [item for item in items if isinstance(item, dict)]


def read_client_results(parts: Iterable[Any], method: str) -> list[Any]:
    """Return the client's results for all server requests with this method. The oldest result comes first."""
    request_ids: dict[str, None] = {}
    results: list[Any] = []
    for to, message in iter_messages(parts):
        id = _encode_id(message)
        if to == "client" and message.get("method") == method:
            request_ids[id] = None
        elif to == "server" and "method" not in message and id in request_ids:
            results.append(message.get("result"))
    return results


def find_revision(exchanges: Iterable[RecordedExchange]) -> str:
    """Return the protocol version of a recording."""
    revision: str | None = None
    for recorded in exchanges:
        result = (recorded.response or {}).get("result")
        if recorded.method == "initialize" and isinstance(result, dict):
            return str(result.get("protocolVersion"))
        revision = revision or recorded.revision
    return revision or NEWEST_REVISION


def _parse_request(message: Message) -> RecordedExchange:
    params = _as_object(message.get("params"))
    meta = _as_object(params.pop("_meta", None))
    return RecordedExchange(
        method=str(message["method"]),
        params=params,
        progress_token=meta.get(PROGRESS_TOKEN),
        revision=meta.get(PROTOCOL_VERSION),
        notifications=[],
    )


def _as_object(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _attach_notification(message: Message, pending: Mapping[Any, RecordedExchange]) -> None:
    progress_token = _as_object(message.get("params")).get(PROGRESS_TOKEN)
    for recorded in pending.values():
        if recorded.progress_token == progress_token or message["method"] != _NOTIFICATION_METHODS[0]:
            recorded.notifications.append(message)
            return


class Playback:
    """A server that answers requests from a recording."""

    def __init__(self, parts: Iterable[Any], *, any_arguments: bool = False) -> None:
        self._exchanges = [recorded for recorded in read_exchanges(parts) if recorded.response is not None]
        if not self._exchanges:
            raise ValueError("the recording contains no responses from a server")
        self._any_arguments = any_arguments
        self._next_index: dict[str, int] = {}
        self._exchanges_by_key: dict[str, list[RecordedExchange]] = {}
        for recorded in self._exchanges:
            self._exchanges_by_key.setdefault(_request_key(recorded.method, recorded.params), []).append(recorded)
        self.revision = find_revision(self._exchanges)
        opening_result = self._find_opening_result()
        meta: Mapping[str, Any] = opening_result.get("_meta") or {}
        self.server_info: Mapping[str, Any] = opening_result.get("serverInfo") or meta.get(_SERVER_INFO_KEY) or {}
        self.name = str(self.server_info.get("name") or "recording")
        self.instructions: str | None = opening_result.get("instructions")

    def list_extensions(self) -> list[RecordedExtension]:
        """Return the extensions that the server declared, with their recorded methods."""
        capabilities = _as_object(self._find_opening_result().get("capabilities"))
        extensions = [
            RecordedExtension(identifier=identifier, settings=_as_object(settings), methods=[])
            for identifier, settings in _as_object(capabilities.get("extensions")).items()
        ]
        # Methods that the server refused as unknown are left out. Their names may even be invalid.
        served = (recorded.method for recorded in self._exchanges if not _is_unknown_method(recorded))
        for method in dict.fromkeys(served):
            if method not in METHODS and extensions:
                _find_extension(method, extensions).methods.append(method)
        return extensions

    def _find_opening_result(self) -> Mapping[str, Any]:
        method = "server/discover" if is_stateless(self.revision) else "initialize"
        for recorded in self._exchanges:
            result = (recorded.response or {}).get("result")
            if recorded.method == method and isinstance(result, dict):
                return result
        return {}

    async def start(self, _: object = None) -> None:
        pass

    async def stop(self, _: object = None) -> None:
        pass

    def open_connection(self, send: Callable[[bytes], None]) -> "PlaybackConnection":
        return PlaybackConnection(self, send)

    def respond(self, message: Message) -> Iterator[Message]:
        """Yield the recorded notifications and the response for a request."""
        request = _parse_request(message)
        envelope: Message = {"jsonrpc": "2.0", "id": message.get("id")}
        if request.method in OPENING_METHODS:
            yield envelope | self._build_opening(request.method)
        elif request.method in IGNORED_METHODS[:-1]:
            yield envelope | {"result": {}}
        elif request.method != IGNORED_METHODS[-1]:
            recorded = self._find_recorded(request)
            if recorded is None:
                yield envelope | {"error": {"code": _NOT_RECORDED_CODE, "message": self._describe_unmatched(request)}}
                return
            yield from (_replace_token(notification, request.progress_token) for notification in recorded.notifications)
            yield envelope | {
                name: member for name, member in (recorded.response or {}).items() if name in ("result", "error")
            }

    def _build_opening(self, method: str) -> Message:
        if is_stateless(self.revision) != (method == "server/discover"):
            return {"error": {"code": -32601, "message": "Method not found"}}
        result = dict(self._find_opening_result()) or {"supportedVersions": [self.revision], "resultType": "complete"}
        capabilities: dict[str, Any] = dict(result.get("capabilities") or self._infer_capabilities())
        return {
            "result": result
            | {"capabilities": {name: _without_change_flags(capability) for name, capability in capabilities.items()}}
        }

    def _infer_capabilities(self) -> dict[str, Any]:
        names = {recorded.method.partition("/")[0] for recorded in self._exchanges}
        return {name: {} for name in ("tools", "resources", "prompts") if name in names}

    def _find_recorded(self, request: RecordedExchange) -> RecordedExchange | None:
        key = _request_key(request.method, request.params)
        candidates = self._exchanges_by_key.get(key)
        if candidates is None:
            masked_params = mask_secrets(_comparable_params(request.params))
            candidates = [
                recorded
                for recorded in self._exchanges
                if recorded.method == request.method
                and matches_recording(_comparable_params(recorded.params), masked_params)
            ]
        if not candidates and self._any_arguments:
            candidates = [
                recorded
                for recorded in self._exchanges
                if recorded.method == request.method and _target_name(recorded) == _target_name(request)
            ]
        if not candidates:
            return None
        index = self._next_index.get(key, 0)
        self._next_index[key] = index + 1
        return candidates[min(index, len(candidates) - 1)]

    def _describe_unmatched(self, request: RecordedExchange) -> str:
        recorded_names = sorted(
            {
                f"{recorded.method} {_target_name(recorded)}".strip()
                for recorded in self._exchanges
                if recorded.method not in OPENING_METHODS
            }
        )
        description = f"{request.method} {_target_name(request)}".strip()
        if description in recorded_names:
            return f"The recording contains {description} only with other arguments"
        return f"The recording does not contain {description}. Recorded: {', '.join(recorded_names[:20])}"


_SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"


class PlaybackConnection:
    """A client's connection to a recording."""

    def __init__(self, playback: Playback, send: Callable[[bytes], None]) -> None:
        self._playback = playback
        self._send = send

    def receive(self, data: bytes) -> None:
        """Answer a message from the client."""
        message = json.loads(data)
        for request in message if isinstance(message, list) else [message]:
            if "method" in request and "id" in request:
                for response in self._playback.respond(request):
                    self._send(json.dumps(response, ensure_ascii=False).encode())

    async def close(self, grace: float = 0.0) -> None:
        pass


def _is_unknown_method(recorded: RecordedExchange) -> bool:
    return _as_object((recorded.response or {}).get("error")).get("code") == MethodNotFound.code


def _find_extension(method: str, extensions: Sequence[RecordedExtension]) -> RecordedExtension:
    """Return the extension whose name the method starts with. If there is none, return the first extension."""
    for extension in extensions:
        prefix, _, name = extension.identifier.rpartition("/")
        if method.startswith((f"{prefix}/{name}/", f"{name}/")):
            return extension
    return extensions[0]


def _request_key(method: str, params: Mapping[str, Any]) -> str:
    return f"{method} {json.dumps(_comparable_params(params), sort_keys=True)}"


def _comparable_params(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != REQUEST_STATE_KEY and value not in ({}, None)}


def matches_recording(recorded: Any, actual: Any) -> bool:
    """Compare a value with the recorded value. A masked value in the recording matches any value."""
    if recorded in (MASK, actual):
        return True
    if isinstance(recorded, str) and isinstance(actual, str) and MASK in recorded:
        return re.fullmatch(".*".join(map(re.escape, recorded.split(MASK))), actual, re.DOTALL) is not None
    if isinstance(recorded, dict) and isinstance(actual, dict):
        return recorded.keys() == actual.keys() and all(
            matches_recording(recorded[name], actual[name]) for name in recorded
        )
    if isinstance(recorded, list) and isinstance(actual, list):
        return len(recorded) == len(actual) and all(map(matches_recording, recorded, actual))
    return False


def has_mask(value: Any) -> bool:
    """Return whether a recorded value contains a masked secret."""
    if isinstance(value, dict):
        return any(map(has_mask, value.values()))
    return any(map(has_mask, value)) if isinstance(value, list) else isinstance(value, str) and MASK in value


def _target_name(recorded: RecordedExchange) -> str:
    return str(recorded.params.get("name") or recorded.params.get("uri") or "")


def _replace_token(notification: Message, token: Any) -> Message:
    params = _as_object(notification.get("params"))
    if notification["method"] == _NOTIFICATION_METHODS[0]:
        params[PROGRESS_TOKEN] = token
    return {"jsonrpc": "2.0", "method": notification["method"], "params": params}


def _without_change_flags(capability: Any) -> Any:
    if not isinstance(capability, dict):
        return capability
    return {name: value for name, value in capability.items() if name not in ("listChanged", "subscribe")}

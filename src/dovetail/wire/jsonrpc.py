"""Classify and encode JSON-RPC messages.

This module does not depend on MCP methods. Every message that it encodes is one line of compact JSON.
"""

from typing import Any, Final, Literal

from dovetail.errors import InvalidRequest, ProtocolError
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode

RequestId = int | str
MessageKind = Literal["request", "notice", "result", "error"]

MAX_ID_BYTES: Final = 256
MAX_METHOD_CHARS: Final = 128

_NOTIFICATION_PREFIX: Final = b'{"jsonrpc":"2.0","method":'
RESPONSE_PREFIX: Final = b'{"jsonrpc":"2.0","id":'


class Response(Struct, tag_field="jsonrpc", tag="2.0"):
    """A response with its result. Encoding both in one step avoids copying a large result."""

    id: RequestId
    result: Any


def classify(message: Any) -> MessageKind:
    """Return the kind of a decoded message, such as "request" or "notice". Raise InvalidRequest if it is invalid.

    spec: basic#requests, basic#responses, basic#notifications
    """
    if type(message) is not dict or message.get("jsonrpc") != "2.0":
        raise InvalidRequest('Invalid request: not a JSON-RPC 2.0 object ("jsonrpc": "2.0" is required)')
    if "method" not in message:
        return _classify_response(message)
    method = message["method"]
    if type(method) is not str or not method or len(method) > MAX_METHOD_CHARS:
        raise InvalidRequest(f"Invalid request: method must be a string of 1 to {MAX_METHOD_CHARS} characters")
    if "result" in message or "error" in message:
        raise InvalidRequest("Invalid request: a message cannot have both a method and a result")
    params = message.get("params")
    if params is not None and type(params) is not dict:
        raise InvalidRequest("Invalid request: params must be an object")
    if "id" not in message:
        return "notice"
    if type(message["id"]) is not int:
        _check_id(message["id"])
    return "request"


def read_id(message: Any) -> RequestId | None:
    """Return the ID of a message that may be invalid. If the ID is invalid, return None."""
    value = message.get("id") if type(message) is dict else None
    return value if type(value) in (int, str) and _is_small_id(value) else None


def encode_request(id: RequestId, method: str, params: Any = None) -> bytes:
    """Encode a request."""
    head = RESPONSE_PREFIX + encode(id) + b',"method":' + encode(method)
    return head + b"}" if params is None else head + b',"params":' + encode(params) + b"}"


def encode_notification(method: str, params: Any = None) -> bytes:
    """Encode a notification."""
    head = _NOTIFICATION_PREFIX + encode(method)
    return head + b"}" if params is None else head + b',"params":' + encode(params) + b"}"


def encode_result(id: RequestId, body: bytes) -> bytes:
    """Put an encoded result into a response."""
    return b"".join((RESPONSE_PREFIX, encode(id), b',"result":', body, b"}"))


def encode_error(id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """Encode an error response. `id` is None if the ID of the request is unknown."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    envelope: dict[str, Any] = {"jsonrpc": "2.0", "error": error}
    if id is not None:
        envelope["id"] = id
    return encode(envelope)


def encode_protocol_error(id: RequestId | None, exc: ProtocolError) -> bytes:
    """Encode the error response for a ProtocolError."""
    return encode_error(id, exc.code, exc.message, exc.data)


def _check_id(id: Any) -> None:
    # Exact types are compared, because True and False are ints, too.
    if type(id) is int:
        return
    if type(id) is not str:
        raise InvalidRequest("Invalid request: id must be a string or an integer, not null")
    if not _is_small_id(id):
        raise InvalidRequest(f"Invalid request: the id is longer than {MAX_ID_BYTES} bytes")


def _is_small_id(id: Any) -> bool:
    return len(id.encode()) <= MAX_ID_BYTES if type(id) is str else True


def _classify_response(message: dict[str, Any]) -> MessageKind:
    has_result, has_error = "result" in message, "error" in message
    if has_result == has_error:
        raise InvalidRequest("Invalid request: the message must have a method, or exactly one of result and error")
    if has_result:
        _check_id(message.get("id"))
        return "result"
    error = message["error"]
    if type(error) is not dict or type(error.get("code")) is not int or type(error.get("message")) is not str:
        raise InvalidRequest("Invalid request: error must have an integer code and a message")
    if message.get("id") is not None:
        _check_id(message["id"])
    return "error"

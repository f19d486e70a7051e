"""Send calls of an operation as HTTP requests, and return the responses as values.

All arguments are encoded. An argument cannot leave its path segment, add a parameter or a header, or change the host.
"""

import base64
import inspect
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote, urlencode

from dovetail.error_context import clip
from dovetail.errors import ToolError, TransportError
from dovetail.openapi.document import OpenAPIOperation, Parameter
from dovetail.protocol.interfaces.http_types import HTTPRequest, HTTPResponse, SendRequest
from dovetail.server.context import Context
from dovetail.server.media import File, Image
from dovetail.wire.codec import encode

MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
_IMAGE_MIME_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_BOUNDARY: Final = "dovetail-9f1c2b7ae64d"


HeaderFactory: TypeAlias = Callable[[Context], Mapping[str, str] | Awaitable[Mapping[str, str]]]
Credentials: TypeAlias = Mapping[str, str] | HeaderFactory


class OperationCall:
    """A tool function that calls one operation of a web service."""

    def __init__(
        self,
        operation: OpenAPIOperation,
        base_url: str,
        send: SendRequest,
        headers: Credentials,
        max_response_bytes: int,
        *,
        promises_json: bool = False,
    ) -> None:
        self._operation = operation
        self._base_url = base_url.rstrip("/")
        self._send = send
        self._headers = headers
        self._max_response_bytes = max_response_bytes
        self._promises_json = promises_json  # True if the output schema requires a JSON response
        self.__name__ = operation.name

    async def __call__(self, arguments: dict[str, Any], ctx: Context) -> Any:
        request = self.build_request(arguments)
        extra_headers = await self._get_headers(ctx)
        names = {name.lower() for name in extra_headers}
        for name in [header_name for header_name in request.headers if header_name.lower() in names]:
            # Headers that the author passes replace generated headers. Header names are case-insensitive.
            del request.headers[name]
        request.headers.update(extra_headers)
        try:
            response = await self._send(request)
        except TransportError as exc:
            raise ToolError(f"The service could not be reached: {type(exc).__name__}") from exc
        return self._read_response(response)

    async def _get_headers(self, ctx: Context) -> Mapping[str, str]:
        if not callable(self._headers):
            return self._headers
        headers = self._headers(ctx)
        return await headers if inspect.isawaitable(headers) else headers

    def build_request(self, arguments: Mapping[str, Any]) -> HTTPRequest:
        operation, path = self._operation, self._operation.path
        query: list[tuple[str, str]] = []
        headers: dict[str, str] = {"Accept": "application/json, */*;q=0.5"}
        cookies: list[str] = []
        body: dict[str, Any] = {}
        for parameter in operation.parameters:
            value = arguments.get(parameter.argument)
            if value is None and parameter.location != "body":
                continue
            match parameter.location:
                case "path":
                    path = path.replace("{" + parameter.name + "}", _encode_segment(parameter, value))
                case "query":
                    pairs = _encode_pairs(parameter, value)
                    self._check_no_overlap(parameter, pairs)
                    query += pairs
                case "header":
                    headers[parameter.name] = _encode_header(parameter, value)
                case "cookie":
                    cookies.append(f"{quote(parameter.name, safe='')}={quote(_to_text(value), safe='')}")
                case _:
                    if parameter.argument in arguments:
                        body[parameter.name] = value
        _check_path(path)
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        data = self._encode_body(arguments, body, headers)
        url = self._base_url + path + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        return HTTPRequest(operation.method, url, headers, data)

    def _check_no_overlap(self, parameter: Parameter, pairs: list[tuple[str, str]]) -> None:
        """Raise ToolError if the properties of an object would overwrite another parameter."""
        others = {other.name for other in self._operation.parameters if other.location == "query"} - {parameter.name}
        if parameter.explode and parameter.style == "form" and not others.isdisjoint(name for name, _ in pairs):
            raise ToolError(f"Invalid arguments. {parameter.argument} contains the name of another parameter.")

    def _encode_body(self, arguments: Mapping[str, Any], members: dict[str, Any], headers: dict[str, str]) -> bytes:
        operation = self._operation
        if operation.body_media_type is None or (
            operation.body_argument is not None and operation.body_argument not in arguments
        ):
            return b""
        value: Any = members if operation.body_argument is None else arguments[operation.body_argument]
        headers["Content-Type"] = operation.body_media_type
        if "json" in operation.body_media_type:
            return encode(value)
        if operation.body_media_type == "application/x-www-form-urlencoded":
            fields = dict(value) if isinstance(value, Mapping) else {"value": value}
            return urlencode([(name, _to_text(field_value)) for name, field_value in fields.items()]).encode()
        if operation.body_media_type.startswith("multipart/"):
            headers["Content-Type"] = f"multipart/form-data; boundary={_BOUNDARY}"
            files = {parameter.name for parameter in operation.parameters if parameter.is_file}
            return _encode_multipart(value if isinstance(value, Mapping) else {"value": value}, files)
        return value.encode() if isinstance(value, str) else encode(value)

    def _read_response(self, response: HTTPResponse) -> Any:
        content_type = next((value for name, value in response.headers.items() if name.lower() == "content-type"), "")
        content_type = content_type.partition(";")[0].strip().lower()
        if len(response.body) > self._max_response_bytes:
            raise ToolError(
                f"The response has {len(response.body)} bytes, more than the limit of {self._max_response_bytes}. "
                "Request less data."
            )
        if 300 <= response.status_code < 400:
            raise ToolError(f"The service answered with status {response.status_code}. Redirects are not followed")
        if response.status_code >= 400:
            text = clip(response.body[:2000].decode("utf-8", "replace"), 600)
            raise ToolError(f"The service answered with status {response.status_code}{': ' + text if text else ''}")
        if self._promises_json and "json" not in content_type:
            raise ToolError(
                f"The service answered with status {response.status_code}, but the response is not "
                "JSON. The OpenAPI document declares a JSON response"
            )
        if not response.body:
            return f"Done ({response.status_code})"
        if "json" in content_type:
            try:
                return json.loads(response.body)
            except ValueError:
                raise ToolError("The service answered with invalid JSON") from None
        if content_type.startswith("text/") or not content_type:
            return response.body.decode("utf-8", "replace")
        return (Image if content_type in _IMAGE_MIME_TYPES else File)(response.body, mime_type=content_type)


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return encode(value).decode() if isinstance(value, dict | list) else str(value)


def _encode_segment(parameter: Parameter, value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    texts = [_to_text(part) for part in parts]
    # Many servers decode a path before they split it, so encoded slashes are rejected, too.
    if any("/" in text or "\\" in text for text in texts):
        raise ToolError(
            f"Invalid arguments. {parameter.argument} is one segment of a path and must not contain '/' or '\\'."
        )
    text = ",".join(quote(text, safe="") for text in texts)
    if not text:
        raise ToolError(f"Invalid arguments. {parameter.argument} is part of a path and must not be empty.")
    return text


def _check_path(path: str) -> None:
    """Reject `.` and `..` segments in any encoding. Servers and proxies would resolve them."""
    if any(unquote(part).replace("\\", "/").strip() in (".", "..") for part in path.split("/")):
        raise ToolError("Invalid arguments. A path segment must not be '.' or '..'.")
    if "{" in path:
        raise ToolError("Invalid arguments. The path contains an empty segment.")


def _encode_pairs(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, list):
        if parameter.explode:
            return [(parameter.name, _to_text(part)) for part in value]
        delimiter = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(parameter.style, ",")
        return [(parameter.name, delimiter.join(_to_text(part) for part in value))]
    if isinstance(value, dict) and parameter.style == "deepObject":
        return [(f"{parameter.name}[{name}]", _to_text(part)) for name, part in value.items()]
    if isinstance(value, dict) and parameter.explode:
        return [(str(name), _to_text(part)) for name, part in value.items()]
    return [(parameter.name, _to_text(value))]


def _encode_header(parameter: Parameter, value: Any) -> str:
    text = ",".join(_to_text(part) for part in value) if isinstance(value, list) else _to_text(value)
    if not text.isascii() or not text.isprintable():
        raise ToolError(f"Invalid arguments. {parameter.argument} is a header and must be printable ASCII.")
    return text


def _encode_multipart(fields: Mapping[str, Any], files: Collection[str]) -> bytes:
    """Encode a multipart form. The content of files is decoded from base64."""
    parts: list[bytes] = []
    for name, value in fields.items():
        part_header = f'Content-Disposition: form-data; name="{quote(name, safe=" ")}"'
        file = {"data": value} if name in files and isinstance(value, str) else value
        if isinstance(file, dict) and isinstance(file.get("data"), str):
            file_name = quote(str(file.get("filename", "file")), safe=" ")
            part_header += f'; filename="{file_name}"\r\nContent-Type: application/octet-stream'
            data = _decode_file(name, file["data"])
        else:
            data = _to_text(value).encode()
        if _BOUNDARY.encode() in data:
            raise ToolError("Invalid arguments. The value of a field contains the boundary of the multipart form.")
        parts.append(f"--{_BOUNDARY}\r\n{part_header}\r\n\r\n".encode() + data + b"\r\n")
    return b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()


def _decode_file(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ToolError(f"Invalid arguments. {clip(name)} is a file and must be base64.") from None

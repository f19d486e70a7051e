"""Calls of an operation as HTTP requests, and replies as values. Everything a caller gives is encoded for its place.

No value can leave its segment of the path, add a parameter or a header, or reach another host.
"""

import base64
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote, urlencode

from dovetail.errors import ToolError, TransportError, clip
from dovetail.protocol.web import Send, WebReply, WebRequest
from dovetail.server.context import Context
from dovetail.server.media import File, Image
from dovetail.server.specification import Operation, Parameter
from dovetail.wire.codec import encode

MAX_REPLY: Final = 4 * 1024 * 1024
_PICTURES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_BOUNDARY: Final = "dovetail-9f1c2b7ae64d"


Credentials: TypeAlias = Mapping[str, str] | Callable[[Context], Any]


class Operating:
    """One operation as the function of a tool."""

    def __init__(
        self, operation: Operation, base: str, send: Send, headers: Credentials, most: int, *, promises: bool = False
    ) -> None:
        self._operation = operation
        self._base = base.rstrip("/")
        self._send = send
        self._headers = headers
        self._most = most
        self._promises = promises  # whether every result is JSON of a certain shape
        self.__name__ = operation.name

    async def __call__(self, arguments: dict[str, Any], ctx: Context) -> Any:
        request = self.request(arguments)
        own = await self._credentials(ctx)
        names = {name.lower() for name in own}
        for name in [one for one in request.headers if one.lower() in names]:
            del request.headers[name]  # what the author says of a header holds, however it is written
        request.headers.update(own)
        try:
            reply = await self._send(request)
        except TransportError as exc:
            raise ToolError(f"The service could not be reached: {type(exc).__name__}") from exc
        return self._value(reply)

    async def _credentials(self, ctx: Context) -> Mapping[str, str]:
        if not callable(self._headers):
            return self._headers
        given = self._headers(ctx)
        return await given if inspect.isawaitable(given) else given

    def request(self, arguments: Mapping[str, Any]) -> WebRequest:
        """The request a call stands for; ToolError for values that cannot be put where they belong."""
        operation, path = self._operation, self._operation.path
        query: list[tuple[str, str]] = []
        headers: dict[str, str] = {"Accept": "application/json, */*;q=0.5"}
        cookies: list[str] = []
        body: dict[str, Any] = {}
        for one in operation.parameters:
            value = arguments.get(one.argument)
            if value is None and one.place != "body":
                continue
            match one.place:
                case "path":
                    path = path.replace("{" + one.name + "}", _segment(one, value))
                case "query":
                    pairs = _pairs(one, value)
                    self._check_own(one, pairs)
                    query += pairs
                case "header":
                    headers[one.name] = _header(one, value)
                case "cookie":
                    cookies.append(f"{quote(one.name, safe='')}={quote(_text(value), safe='')}")
                case _:
                    if one.argument in arguments:
                        body[one.name] = value
        _check_path(path)
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        data = self._body(arguments, body, headers)
        url = self._base + path + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        return WebRequest(operation.method, url, headers, data)

    def _check_own(self, one: Parameter, pairs: list[tuple[str, str]]) -> None:
        """An object written out as parameters must not pass for another one."""
        others = {other.name for other in self._operation.parameters if other.place == "query"} - {one.name}
        if one.explode and one.style == "form" and not others.isdisjoint(name for name, _ in pairs):
            raise ToolError(f"Invalid arguments. {one.argument} holds a name that is a parameter of its own.")

    def _body(self, arguments: Mapping[str, Any], members: dict[str, Any], headers: dict[str, str]) -> bytes:
        operation = self._operation
        if operation.body is None or (operation.whole is not None and operation.whole not in arguments):
            return b""
        value: Any = members if operation.whole is None else arguments[operation.whole]
        headers["Content-Type"] = operation.body
        if "json" in operation.body:
            return encode(value)
        if operation.body == "application/x-www-form-urlencoded":
            flat = dict(value) if isinstance(value, Mapping) else {"value": value}
            return urlencode([(name, _text(one)) for name, one in flat.items()]).encode()
        if operation.body.startswith("multipart/"):
            headers["Content-Type"] = f"multipart/form-data; boundary={_BOUNDARY}"
            files = {one.name for one in operation.parameters if one.file}
            return _multipart(value if isinstance(value, Mapping) else {"value": value}, files)
        return value.encode() if isinstance(value, str) else encode(value)

    def _value(self, reply: WebReply) -> Any:
        kind = next((value for name, value in reply.headers.items() if name.lower() == "content-type"), "")
        kind = kind.partition(";")[0].strip().lower()
        if len(reply.body) > self._most:
            raise ToolError(f"The reply has {len(reply.body)} bytes; at most {self._most} are taken. Ask for less.")
        if 300 <= reply.status < 400:
            raise ToolError(f"The service answered {reply.status}: it points elsewhere, and redirects are not followed")
        if reply.status >= 400:
            text = clip(reply.body[:2000].decode("utf-8", "replace"), 600)
            raise ToolError(f"The service answered {reply.status}{': ' + text if text else ''}")
        if self._promises and "json" not in kind:
            raise ToolError(f"The service answered {reply.status}, but not with the JSON its document promises")
        if not reply.body:
            return f"Done ({reply.status})"
        if "json" in kind:
            try:
                return json.loads(reply.body)
            except ValueError:
                raise ToolError("The service answered with something that is not the JSON it announces") from None
        if kind.startswith("text/") or not kind:
            return reply.body.decode("utf-8", "replace")
        return (Image if kind in _PICTURES else File)(reply.body, mime_type=kind)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return encode(value).decode() if isinstance(value, dict | list) else str(value)


def _segment(one: Parameter, value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    texts = [_text(part) for part in parts]
    if any("/" in text or "\\" in text for text in texts):  # encoded or not: many servers split after decoding
        raise ToolError(f"Invalid arguments. {one.argument} is one part of a path and must not contain '/' or '\\'.")
    text = ",".join(quote(text, safe="") for text in texts)
    if not text:
        raise ToolError(f"Invalid arguments. {one.argument} is part of a path and must not be empty.")
    return text


def _check_path(path: str) -> None:
    """A dot segment, however it is written, is walked up by servers and proxies."""
    if any(unquote(part).replace("\\", "/").strip() in (".", "..") for part in path.split("/")):
        raise ToolError("Invalid arguments. A part of a path must not be '.' or '..'.")
    if "{" in path:
        raise ToolError("Invalid arguments. A part of the path is missing.")


def _pairs(one: Parameter, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, list):
        if one.explode:
            return [(one.name, _text(part)) for part in value]
        between = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(one.style, ",")
        return [(one.name, between.join(_text(part) for part in value))]
    if isinstance(value, dict) and one.style == "deepObject":
        return [(f"{one.name}[{name}]", _text(part)) for name, part in value.items()]
    if isinstance(value, dict) and one.explode:
        return [(str(name), _text(part)) for name, part in value.items()]
    return [(one.name, _text(value))]


def _header(one: Parameter, value: Any) -> str:
    text = ",".join(_text(part) for part in value) if isinstance(value, list) else _text(value)
    if not text.isascii() or not text.isprintable():
        raise ToolError(f"Invalid arguments. {one.argument} is a header: printable ASCII only.")
    return text


def _multipart(fields: Mapping[str, Any], files: Collection[str]) -> bytes:
    """A form; some fields are files in base64, and so is one with `data`."""
    parts: list[bytes] = []
    for name, value in fields.items():
        head = f'Content-Disposition: form-data; name="{quote(name, safe=" ")}"'
        file = {"data": value} if name in files and isinstance(value, str) else value
        if isinstance(file, dict) and isinstance(file.get("data"), str):
            called = quote(str(file.get("filename", "file")), safe=" ")
            head += f'; filename="{called}"\r\nContent-Type: application/octet-stream'
            data = _decoded(name, file["data"])
        else:
            data = _text(value).encode()
        if _BOUNDARY.encode() in data:
            raise ToolError("Invalid arguments. A field holds the mark that separates fields.")
        parts.append(f"--{_BOUNDARY}\r\n{head}\r\n\r\n".encode() + data + b"\r\n")
    return b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()


def _decoded(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ToolError(f"Invalid arguments. {clip(name)} is a file: write it in base64.") from None

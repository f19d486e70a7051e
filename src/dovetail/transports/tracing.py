"""Tracing: every message of a server or a client, with its time and direction, in a file of the recording format.

Secrets are masked before they are written. Where nobody asked for a trace, nothing here is loaded.
"""

import datetime
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dovetail.protocol.channel import Headers
from dovetail.protocol.recording import EXCHANGE, FORMAT, Heading, Tap, To, frame, line
from dovetail.protocol.sse import EventTooLarge, Parser

log = logging.getLogger("dovetail")

_last: dict[str, object] = {}  # whose frames were written to a file last
_lock: Final = threading.Lock()


class Trace:
    """Writes what it is told of to a file; several may share one, each with a heading wherever it goes on."""

    def __init__(self, file: str | Path, name: str) -> None:
        self._file = str(file).replace("{name}", _plain(name))
        self._failed = False
        self._began = time.perf_counter()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._heading = line(Heading(recording=FORMAT, began=now, server=name))
        self._try()

    @property
    def _path(self) -> str:
        return self._file.replace("{pid}", str(os.getpid()))  # asked anew: a server's workers come from one process

    def _try(self) -> None:
        """Fail now, in words, if nothing can be written there; OSError."""
        try:
            os.close(_opened(self._path))
        except OSError as exc:
            why = exc.strerror or type(exc).__name__
            raise type(exc)(exc.errno, f"no trace can be written to {self._path!r}: {why}") from None
        if self._path != self._file and not os.path.getsize(self._path):
            os.unlink(self._path)  # another process may be the one that writes

    def tap(self, to: To, data: bytes, headers: Headers = ()) -> None:
        """Note one message; if that becomes impossible, the server goes on without."""
        if self._failed:
            return
        text = line(frame(time.perf_counter() - self._began, to, data, headers))
        with _lock:
            path = self._path
            if _last.get(path) is not self:
                _last[path] = self
                text = self._heading + text
            try:
                _append(path, text)
            except OSError as exc:
                self._failed = True
                log.error("the trace ends here, %s cannot be written any more: %s", path, exc)


def _append(path: str, text: bytes) -> None:
    file = _opened(path)  # anew each time: the file may be moved away, and holds all there is at any moment
    try:
        os.write(file, text)
    finally:
        os.close(file)


def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in name)


def tapped(receive: Callable[[bytes], None], write: Callable[[bytes], None], tap: Tap) -> tuple[Any, Any]:
    """Both directions of a server's connection, noted."""

    def receiving(data: bytes) -> None:
        tap("server", data, ())
        receive(data)

    def writing(data: bytes) -> None:
        tap("client", data, ())
        write(data)

    return receiving, writing


def exchanges(tap: Tap) -> Callable[[], Tap]:
    """A function that makes a tap for each HTTP request: it tells the number of it with all that is said there."""
    numbers = itertools.count(1)

    def begun() -> Tap:
        number = (EXCHANGE, str(next(numbers)).encode())
        return lambda to, data, headers: tap(to, data, [*headers, number])

    return begun


class Traced:
    """An HTTP endpoint whose messages are noted."""

    def __init__(self, endpoint: Any, application: Any, tap: Tap) -> None:
        self._endpoint = endpoint
        self._application = application
        self._begun = exchanges(tap)
        self.close = endpoint.close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] != "http" or not self._endpoint.here(scope):
            await self._application(scope, receive, send)
            return
        tap = self._begun()
        body, reply = bytearray(), Replies(tap)

        async def receiving() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if body and not message.get("more_body"):
                    tap("server", bytes(body), scope["headers"])
                    body.clear()
            return message

        async def sending(message: Any) -> None:
            reply.note(message)
            await send(message)

        await self._application(scope, receiving, sending)


class Replies:
    """The messages of one HTTP reply: a body, or events."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._headers: Headers = ()
        self._events: Parser | None = None
        self._body = bytearray()

    def note(self, message: Any) -> None:
        """Take in a message of ASGI on its way to the client."""
        if message["type"] == "http.response.start":
            self._headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            kinds = [value for name, value in self._headers if name.lower() == b"content-type"]
            self._events = Parser() if kinds and kinds[0].startswith(b"text/event-stream") else None
            return
        piece = bytes(message.get("body", b""))
        if self._events is not None:
            self._stream(self._events, piece)
            return
        self._body += piece
        if self._body and not message.get("more_body"):
            self._tap("client", bytes(self._body), self._headers)

    def _stream(self, events: Parser, piece: bytes) -> None:
        try:
            found = events.feed(piece)
        except EventTooLarge:
            return
        for event in found:
            if event.data:
                self._tap("client", event.data.encode(), self._headers)
                self._headers = ()

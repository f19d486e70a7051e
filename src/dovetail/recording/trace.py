"""Record every message of a server or a client to a file, with time and direction.

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

from dovetail.protocol.client_transport import Headers
from dovetail.protocol.recording_format import (
    EXCHANGE_HEADER,
    FORMAT_VERSION,
    Receiver,
    Recorder,
    RecordingHeader,
    create_frame,
    encode_line,
)
from dovetail.protocol.sse import EventTooLarge, SSEParser

log = logging.getLogger("dovetail")

_last_writers: dict[str, object] = {}  # whose frames were written to a file last
_lock: Final = threading.Lock()


class RecordingWriter:
    """Writes what it is told of to a file; several may share one, each with a heading wherever it goes on."""

    def __init__(self, file: str | Path, name: str) -> None:
        self._file = str(file).replace("{name}", _sanitize_name(name))
        self._has_failed = False
        self._started_at = time.perf_counter()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._heading = encode_line(RecordingHeader(recording=FORMAT_VERSION, started_at=now, server=name))
        self._check_writable()

    @property
    def _path(self) -> str:
        return self._file.replace("{pid}", str(os.getpid()))  # asked anew: a server's workers come from one process

    def _check_writable(self) -> None:
        """Fail now, in words, if nothing can be written there; OSError."""
        try:
            os.close(_open_for_append(self._path))
        except OSError as exc:
            reason = exc.strerror or type(exc).__name__
            raise type(exc)(exc.errno, f"cannot write the recording {self._path!r}: {reason}") from None
        if self._path != self._file and not os.path.getsize(self._path):
            os.unlink(self._path)  # another process may be the one that writes

    def record(self, to: Receiver, data: bytes, headers: Headers = ()) -> None:
        """Note one message; if that becomes impossible, the server goes on without."""
        if self._has_failed:
            return
        text = encode_line(create_frame(time.perf_counter() - self._started_at, to, data, headers))
        with _lock:
            path = self._path
            if _last_writers.get(path) is not self:
                _last_writers[path] = self
                text = self._heading + text
            try:
                _append(path, text)
            except OSError as exc:
                self._has_failed = True
                log.error("the trace ends here, %s cannot be written any more: %s", path, exc)


def _append(path: str, text: bytes) -> None:
    file = _open_for_append(path)  # anew each time: the file may be moved away, and holds all there is at any moment
    try:
        os.write(file, text)
    finally:
        os.close(file)


def _open_for_append(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _sanitize_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-." else "_" for char in name)


def number_exchanges(recorder: Recorder) -> Callable[[], Recorder]:
    """A function that makes a tap for each HTTP request: it tells the number of it with all that is said there."""
    numbers = itertools.count(1)

    def create_recorder() -> Recorder:
        number = (EXCHANGE_HEADER, str(next(numbers)).encode())
        return lambda to, data, headers: recorder(to, data, [*headers, number])

    return create_recorder


class RecordedEndpoint:
    """An HTTP endpoint whose messages are noted."""

    def __init__(self, endpoint: Any, application: Any, recorder: Recorder) -> None:
        self._endpoint = endpoint
        self._application = application
        self._create_recorder = number_exchanges(recorder)
        self.close = endpoint.close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] != "http" or not self._endpoint.is_mcp_path(scope):
            await self._application(scope, receive, send)
            return
        recorder = self._create_recorder()
        body, response_recorder = bytearray(), ResponseRecorder(recorder)

        async def record_request() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if body and not message.get("more_body"):
                    recorder("server", bytes(body), scope["headers"])
                    body.clear()
            return message

        async def record_response(message: Any) -> None:
            response_recorder.record(message)
            await send(message)

        await self._application(scope, record_request, record_response)


class ResponseRecorder:
    """The messages of one HTTP reply: a body, or events."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._headers: Headers = ()
        self._parser: SSEParser | None = None
        self._body = bytearray()

    def record(self, message: Any) -> None:
        """Take in a message of ASGI on its way to the client."""
        if message["type"] == "http.response.start":
            self._headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            content_types = [value for name, value in self._headers if name.lower() == b"content-type"]
            self._parser = SSEParser() if content_types and content_types[0].startswith(b"text/event-stream") else None
            return
        piece = bytes(message.get("body", b""))
        if self._parser is not None:
            self._record_events(self._parser, piece)
            return
        self._body += piece
        if self._body and not message.get("more_body"):
            self._recorder("client", bytes(self._body), self._headers)

    def _record_events(self, parser: SSEParser, piece: bytes) -> None:
        try:
            parsed = parser.feed(piece)
        except EventTooLarge:
            return
        for event in parsed:
            if event.data:
                self._recorder("client", event.data.encode(), self._headers)
                self._headers = ()

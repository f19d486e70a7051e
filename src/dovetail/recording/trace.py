"""Record every message of a server or a client in a file, with its time and receiver.

The recorder masks secrets before it writes a message. This module is imported only for recordings.
"""

import datetime
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dovetail.log import log
from dovetail.protocol.interfaces.client_transport import Headers
from dovetail.protocol.interfaces.message_tap import Receiver, Recorder
from dovetail.protocol.redaction import strip_url
from dovetail.protocol.sse import EventTooLarge, SSEParser
from dovetail.recording.recording_format import EXCHANGE_HEADER, create_frame, create_header, encode_line, read_version
from dovetail.storage import append, open_for_append, read_first_line

_last_writers: dict[str, object] = {}  # Maps each file to the object that wrote its last message.
_lock: Final = threading.Lock()


class RecordingWriter:
    """Writes messages to a recording file.

    Several writers can share a file. A writer repeats its header after another writer has written.
    """

    def __init__(self, file: str | Path, name: str) -> None:
        self._file = str(file).replace("{name}", _sanitize_name(strip_url(name)))
        self._has_failed = False
        self._started_at = time.perf_counter()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._heading = encode_line(create_header(name, now))
        self._check_writable()

    @property
    def _path(self) -> str:
        # The path may contain the process ID, which changes in a forked worker. So the path is not stored.
        return self._file.replace("{pid}", str(os.getpid()))

    def _check_writable(self) -> None:
        try:
            os.close(open_for_append(self._path))
        except OSError as exc:
            reason = exc.strerror or type(exc).__name__
            raise type(exc)(exc.errno, f"cannot write the recording {self._path!r}: {reason}") from None
        read_version(read_first_line(self._path), self._path)
        if self._path != self._file and not os.path.getsize(self._path):
            # The check created an empty file. It is deleted, because each worker process writes to its own file.
            os.unlink(self._path)

    def record(self, to: Receiver, data: bytes, headers: Headers = ()) -> None:
        """Record one message. If the file cannot be written, the server continues without a recording."""
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
                log.error("recording stopped because %s cannot be written: %s", path, exc)


def _append(path: str, text: bytes) -> None:
    # The file is opened for each message, because another program may move the file.
    descriptor = open_for_append(path)
    try:
        append(descriptor, text)
    finally:
        os.close(descriptor)


def _sanitize_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-." else "_" for char in name)


def number_exchanges(recorder: Recorder) -> Callable[[], Recorder]:
    """Return a function that creates a separate recorder for each HTTP request.

    Each recorder adds the number of its request to the messages.
    """
    numbers = itertools.count(1)

    def create_recorder() -> Recorder:
        number = (EXCHANGE_HEADER, str(next(numbers)).encode())
        return lambda to, data, headers: recorder(to, data, [*headers, number])

    return create_recorder


class RecordedEndpoint:
    """An HTTP endpoint that records all messages in both directions."""

    def __init__(self, endpoint: Any, application: Any, recorder: Recorder) -> None:
        self._endpoint = endpoint
        self._application = application
        self._create_recorder = number_exchanges(recorder)
        self.close = endpoint.close
        self.begin_drain = endpoint.begin_drain
        self.end_streams = endpoint.end_streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle an ASGI request."""
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
    """Records the messages in one HTTP response. The body is JSON or an event stream."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._headers: Headers = ()
        self._parser: SSEParser | None = None
        self._body = bytearray()

    def record(self, message: Any) -> None:
        """Record the MCP messages in an ASGI message to the client."""
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

"""The client side of the Streamable HTTP transport, for all protocol versions.

The client sends each message as a POST. The server answers with JSON or an event stream. In protocol versions with a
handshake, the client also keeps the session, opens a GET stream for other messages from the server, and resumes broken
streams. Errors explain an unexpected status or web page.
"""

import asyncio
import contextlib
import random
import re
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from dovetail.backoff import compute_backoff
from dovetail.error_context import add_context, clip
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    HTTPStatusError,
    InvalidResult,
    MCPError,
    NotMCPServer,
    ParseError,
    TransportError,
)
from dovetail.log import log, log_and_suppress
from dovetail.protocol.client_messages import create_error
from dovetail.protocol.headers import LAST_EVENT_HEADER, SESSION_HEADER, VERSION_HEADER
from dovetail.protocol.http_checks import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, parse_media_type
from dovetail.protocol.interfaces.client_transport import ClientTransport, EncodedRequest, Headers, MessageReceiver
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.negotiation import DISCOVER, INITIALIZE
from dovetail.protocol.sse import EventTooLarge, ServerSentEvent, SSEParser
from dovetail.transports.duplex_client import build_response_error
from dovetail.transports.http_client.cookies import CookieJar
from dovetail.transports.http_client.http1_connection import ClientResponse, ConnectionBroken
from dovetail.transports.http_client.remote_server import (
    RemoteServer,
    convert_error,
    read_body,
    read_events,
    read_refusal,
)
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.raw_message import RawMessage, find_answered_ids, read_messages

_ACCEPT_JSON_OR_SSE: Final = (b"accept", b"application/json, text/event-stream")
_ACCEPT_SSE: Final = (b"accept", SSE_MEDIA_TYPE)
_CONTENT_TYPE_JSON: Final = (b"content-type", JSON_MEDIA_TYPE)
# Some servers report an expired session with status 400 and a message that matches this pattern.
_SESSION_GONE_PATTERN: Final = re.compile(
    r"(?:bad request: *)?(?:(?:no valid|invalid|unknown|missing) (?:mcp-)?session\b|"
    r"(?:mcp-)?session(?:[ -]id)?(?: header)?(?: is)? (?:not found|required|unknown|invalid|missing|expired))",
    re.IGNORECASE,
)
_SESSION_GONE_CODES: Final = frozenset({-32000, -32001, -32600})
_UNRELATED_IDS: Final = (None, "server-error")  # Servers use these IDs for errors that belong to no request.
# After one of these status codes, the client opens the stream again.
_RETRYABLE_STATUS_CODES: Final = frozenset({408, 425, 429})
# After one of these status codes, the client tries again to resume the stream of a call.
_TRANSIENT_RESUME_CODES: Final = _RETRYABLE_STATUS_CODES | {502, 503, 504}
_PATH_HINT: Final = "is the path right? MCP servers are often at /mcp"


class StreamableHTTPClient:
    """The client side of Streamable HTTP for one URL."""

    has_headers = True

    def __init__(
        self, url: str, limits: ClientLimits, timeouts: Timeouts, *, cookies: bool = True, **options: Any
    ) -> None:
        self._limits = limits
        self._create_fallback = lambda: _create_sse_2024_client(url, limits, timeouts, {"cookies": cookies, **options})
        self._remote = RemoteServer(
            url,
            max_response_bytes=limits.max_response_bytes,
            connect_timeout=timeouts.connect,
            cookie_jar=CookieJar() if cookies else None,
            **options,
        )
        self._receiver: MessageReceiver | None = None
        self._revision: str | None = None
        self._session: bytes | None = None
        self._session_headers: list[tuple[bytes, bytes]] = []  # the headers for every request in the session
        self._tasks: set[asyncio.Task[Any]] = set()
        self._end_error: TransportError | None = None
        self._listen_timeout = timeouts.discover
        self._close_timeout = timeouts.close
        self._listen_settled = asyncio.Event()  # set when the GET stream is open or has failed
        self._has_no_stream = False  # True if the server does not offer a GET stream
        self._unsolicited_count = 0  # the number of messages that arrived on the GET stream

    async def open(self, receiver: MessageReceiver) -> None:
        """Store the object that receives messages from the server. The first request opens the connection."""
        self._receiver = self._remote.receiver = receiver

    def get_diagnostics(self, since: float | None = None) -> dict[str, Any]:
        return {}

    def suggest_fix(self) -> str | None:
        return None

    def create_fallback(self) -> ClientTransport | None:
        """Return an HTTP+SSE transport for this server's URL."""
        return self._create_fallback()

    async def exchange(self, request: EncodedRequest) -> RawMessage:
        """Send a request and return its response."""
        headers = [
            _ACCEPT_JSON_OR_SSE,
            _CONTENT_TYPE_JSON,
            *(request.headers if request.is_stateless else self._session_headers),
        ]
        response = await self._remote.send("POST", headers, request.body)
        try:
            return await self._read_response(response, request)
        except BaseException:
            response.close()
            raise

    async def _read_response(self, response: ClientResponse, request: EncodedRequest) -> RawMessage:
        if response.status >= 300:
            return await self._handle_refusal(response, request)
        content_type = parse_media_type(response.headers.get(b"content-type"))
        if request.method == "initialize":
            self._session = response.headers.get(SESSION_HEADER)
            self._session_headers = [(SESSION_HEADER, self._session)] if self._session else []
        if content_type == SSE_MEDIA_TYPE:
            return await self._follow_stream(response, request)
        data = await self._read_body(response)
        if content_type != JSON_MEDIA_TYPE:
            raise add_context(
                NotMCPServer(f"the response is {_describe_content(content_type, data)}, not JSON"),
                status_code=response.status,
                hint=_PATH_HINT,
            )
        try:
            message = self._dispatch(read_messages(data), request)
        except ParseError as exc:
            if request.id in find_answered_ids(data):
                raise add_context(build_response_error(data, str(exc)), status_code=response.status) from None
            reason = f"not JSON: {exc}" if data else "empty, not JSON"
            raise add_context(
                NotMCPServer(f"the response is {reason}"), status_code=response.status, hint=_PATH_HINT
            ) from None
        if message is None and request.method in (DISCOVER, INITIALIZE):
            excerpt = clip(data[:400].decode("utf-8", "replace"), 200)
            reason = f"the response is JSON, but not an MCP message: {excerpt!r}"
            raise add_context(NotMCPServer(reason), status_code=response.status, hint=_PATH_HINT)
        if message is None:
            raise add_context(
                InvalidResult("the response contains no result for the request"), status_code=response.status
            )
        return message

    async def _handle_refusal(self, response: ClientResponse, request: EncodedRequest) -> RawMessage:
        refused_message = await read_refusal(response, self._remote.url)
        if (
            self._session is not None
            and not request.is_stateless
            and _is_session_gone(response.status, refused_message)
        ):
            self._end_session("the session has expired on the server")
            raise _unsent_error("the session has expired on the server")
        if isinstance(refused_message, MCPError):
            raise refused_message
        if refused_message.error is None:
            return refused_message
        raise add_context(
            create_error(self._revision, request.method, refused_message.error), status_code=response.status
        )

    async def _read_body(self, response: ClientResponse) -> bytes:
        return await read_body(response, self._remote.url)

    def _dispatch(self, messages: list[RawMessage], request: EncodedRequest | None) -> RawMessage | None:
        """Return the response to a request from a list of messages. Pass all other messages to the receiver."""
        answer = None
        for message in messages:
            if message.is_response:
                if request is not None and message.id in (request.id, None):
                    answer = message
                elif request is not None and message.id == str(request.id):
                    raise build_response_error(message.encode(), f"its id is the string {message.id!r}")
            elif message.method is None and request is not None and message.id == request.id:
                raise build_response_error(message.encode(), "the message has neither a result nor an error")
            elif self._receiver is not None:
                if request is not None:
                    self._receiver.record_activity(request.id)
                else:
                    self._unsolicited_count += 1
                self._receiver.receive(message, None if request is None else request.id)
        return answer

    async def _follow_stream(self, response: ClientResponse, request: EncodedRequest) -> RawMessage:
        """Read the response from an event stream. In protocol versions with a handshake, resume a broken stream."""
        parser = SSEParser(self._limits.max_response_bytes)
        failed_attempts = 0
        try:
            while True:
                last_event_id = parser.last_event_id
                answer = await self._read_until_response(response, parser, request)
                if answer is not None:
                    return answer
                failed_attempts = 0 if parser.last_event_id != last_event_id else failed_attempts + 1
                if request.is_stateless or parser.last_event_id is None:
                    raise ConnectionLost("the server closed the stream before it sent the response")
                response.close()
                response, failed_attempts = await self._resume_stream(parser, failed_attempts)
                parser = _continue_parser(parser)
        finally:
            response.release()

    async def _resume_stream(self, parser: SSEParser, failed_attempts: int) -> tuple[ClientResponse, int]:
        """Open the stream of a call again. Return the response, and the number of failed attempts in a row.

        The server has received the call, so every failure is raised as ConnectionLost. The call must not be repeated.
        """
        error = ConnectionLost("the server closed the stream before it sent the response")
        while failed_attempts <= self._limits.max_reconnects and self._end_error is None:
            await asyncio.sleep(self._get_reconnect_delay(parser.retry, failed_attempts))
            try:
                return await self._open_stream(parser.last_event_id), failed_attempts
            except TransportError as exc:
                error = exc if isinstance(exc, ConnectionLost) else ConnectionLost(exc.args[0])
                error.maybe_sent = True
                # Try again after a transient status. A proxy may have sent it, or another worker may answer.
                if exc.status_code is not None and exc.status_code not in _TRANSIENT_RESUME_CODES:
                    break
            failed_attempts += 1
        raise error

    async def _read_until_response(
        self, response: ClientResponse, parser: SSEParser, request: EncodedRequest | None
    ) -> RawMessage | None:
        try:
            return await read_events(response, parser, lambda event: self._handle_event(event, request))
        except EventTooLarge as exc:
            raise add_context(
                InvalidResult(f"the response is too large: {exc}"), hint="raise ClientLimits(max_response_bytes=...)"
            ) from None
        except TransportError as exc:
            if not isinstance(exc, ConnectionBroken):
                raise convert_error(exc, self._remote.url) from None
            if request is not None and (request.is_stateless or parser.last_event_id is None):
                raise ConnectionLost("the connection was lost before the response arrived") from None
        return None

    def _handle_event(self, event: ServerSentEvent, request: EncodedRequest | None) -> RawMessage | None:
        """Handle the messages of an event. Return the response to the request, if the event contains it."""
        if event.event != "message" or not event.data:
            return None
        return self._dispatch(self._parse_messages(event.data, request), request)

    def _parse_messages(self, data: str, request: EncodedRequest | None) -> list[RawMessage]:
        try:
            return read_messages(data)
        except ParseError as exc:
            if self._receiver is not None:
                self._receiver.record_invalid_message(data[:400])
            if request is not None and request.id in find_answered_ids(text := data.encode()):
                raise build_response_error(text, str(exc)) from None
            return []

    async def _open_stream(self, last_event_id: str | None) -> ClientResponse:
        headers = [_ACCEPT_SSE, *self._session_headers]
        if last_event_id is not None:
            headers.append((LAST_EVENT_HEADER, last_event_id.encode()))
        response = await self._remote.send("GET", headers)
        if response.status >= 300 or parse_media_type(response.headers.get(b"content-type")) != SSE_MEDIA_TYPE:
            status = response.status
            response.close()
            raise add_context(ConnectionLost(f"the stream could not be resumed: status {status}"), status_code=status)
        return response

    def _get_reconnect_delay(self, retry_ms: int | None, failed_attempts: int) -> float:
        """Return the delay before the client reopens a stream. A server can make the delay longer, but not shorter."""
        limits = self._limits
        delay = max(
            compute_backoff(limits.reconnect_delay, failed_attempts, limits.max_reconnect_delay), (retry_ms or 0) / 1000
        )
        return min(delay, limits.max_reconnect_delay) * random.uniform(1.0, 1.2)

    async def _listen(self) -> None:
        """Receive messages from the server on the GET stream, until the session ends.

        spec: handshake/transports#listening-for-messages-from-the-server
        """
        parser = SSEParser(self._limits.max_response_bytes)
        loop = asyncio.get_running_loop()
        failed_attempts = 0
        was_opened = False
        while self._end_error is None:
            last_event_id, unsolicited_count, started_at = parser.last_event_id, self._unsolicited_count, loop.time()
            cause: MCPError = ConnectionLost("the server ended the stream")
            try:
                await self._listen_once(parser, was_opened)
                was_opened = True
            except MCPError as exc:
                cause = exc
                if self._should_stop_listening(exc, was_opened):
                    return
            finally:
                self._listen_settled.set()
            # If a stream was open for a while, its end does not count as a failure, because proxies close idle streams.
            was_stable = loop.time() - started_at >= self._limits.max_reconnect_delay
            has_received = parser.last_event_id != last_event_id or self._unsolicited_count != unsolicited_count
            failed_attempts = 0 if was_stable or has_received else failed_attempts + 1
            if failed_attempts == self._limits.max_reconnects + 1 and self._should_give_up(cause):
                return
            await asyncio.sleep(self._get_reconnect_delay(parser.retry, failed_attempts))
            parser = _continue_parser(parser)

    async def _listen_once(self, parser: SSEParser, is_repeated: bool) -> None:
        """Read the GET stream until it ends.

        If the stream has no event IDs, messages may be lost between two attempts.
        """
        response = await self._open_stream(parser.last_event_id)
        self._listen_settled.set()
        try:
            if is_repeated and parser.last_event_id is None and self._receiver is not None:
                self._receiver.record_gap()
            await self._read_until_response(response, parser, None)
        finally:
            response.close()

    def _should_stop_listening(self, exc: MCPError, was_opened: bool) -> bool:
        if exc.status_code == 404 and self._session is not None and was_opened:
            self._end_session("the session has expired on the server")
            return True
        self._has_no_stream = (
            not was_opened
            and exc.status_code is not None
            and exc.status_code < 500
            and exc.status_code not in _RETRYABLE_STATUS_CODES
        )
        return self._has_no_stream  # True if the server does not offer a GET stream

    def _should_give_up(self, cause: MCPError) -> bool:
        """Return whether the client should give up after many failed attempts.

        If the server answers, the client continues, but tries less often.
        """
        if isinstance(cause, ConnectError):
            self._end_session("the server can no longer be reached")
            return True
        max_delay = self._limits.max_reconnect_delay
        log.warning(
            "%s: the listening stream keeps failing (%s). The client reopens the stream every %g s",
            self._remote.address,
            cause.args[0],
            max_delay,
        )
        return False

    async def send_message(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification or a response."""
        response = await self._remote.send(
            "POST", [_ACCEPT_JSON_OR_SSE, _CONTENT_TYPE_JSON, *self._session_headers, *headers], body
        )
        try:
            if response.status >= 300:
                refused_message = await read_refusal(response, self._remote.url)
                if isinstance(refused_message, MCPError):
                    raise refused_message
                reason = clip(refused_message.error.message if refused_message.error else "")
                if response.status == 503:  # The server asks the client to send the message again.
                    raise add_context(
                        HTTPStatusError(f"the server answered with status 503: {reason}"), status_code=503
                    )
                log.warning("the server rejected a notification: %s", reason)
            else:
                await self._read_body(response)
        finally:
            response.close()

    def is_answered(self, id: RequestId) -> bool:
        """Return False, because this transport delivers each response at once."""
        return False

    def cancel(self, request: EncodedRequest, reason: str) -> bytes | None:
        """Cancel a request with a notification.

        In stateless protocol versions, closing the stream cancels the request.
        """
        if request.is_stateless or request.method == "initialize" or self._end_error is not None:
            return None
        notice = request.encode_cancellation(reason)
        self._spawn(self._send_quietly(notice))
        return notice

    async def complete_handshake(self, revision: str) -> None:
        """Use the negotiated protocol version for all further requests."""
        self._revision = revision
        self._session_headers.append((VERSION_HEADER, revision.encode()))
        self._spawn(self._listen())

    async def wait_until_listening(self) -> bool:
        """Wait until the GET stream is open. Return whether the server offers one.

        The wait has a timeout, because some servers send no headers before the first message.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._listen_timeout):
                await self._listen_settled.wait()
        return not self._has_no_stream

    async def close(self) -> None:
        """End the session and close every connection."""
        try:
            if self._end_error is None:
                self._end_error = ConnectionLost("the client was closed")
                if self._session is not None:
                    with contextlib.suppress(MCPError, TimeoutError):
                        async with asyncio.timeout(self._close_timeout):
                            (await self._remote.send("DELETE", [_ACCEPT_JSON_OR_SSE, *self._session_headers])).close()
        finally:  # The connections are closed even if this task is cancelled.
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._remote.close()

    def _end_session(self, reason: str) -> None:
        if self._end_error is None:
            self._end_error = ConnectionLost(reason)
            if self._receiver is not None:
                self._receiver.handle_connection_lost(self._end_error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_quietly(self, body: bytes) -> None:
        with log_and_suppress(MCPError):
            await self.send_message(body)


def _is_session_gone(status: int, refused_message: RawMessage | MCPError) -> bool:
    """Return whether the server refused to run a request because the session has expired.

    Status 404 means an expired session. Some servers send 400 and explain the expiry in the error message. The client
    accepts such an error only if it has another ID, because an answered request may have run. spec:
    handshake/transports#session-management
    """
    if status != 400 or not isinstance(refused_message, RawMessage) or refused_message.error is None:
        return status == 404
    error = refused_message.error
    return (
        refused_message.id in _UNRELATED_IDS
        and error.code in _SESSION_GONE_CODES
        and _SESSION_GONE_PATTERN.match(error.message) is not None
    )


def _unsent_error(reason: str) -> ConnectionLost:
    error = ConnectionLost(reason)
    error.maybe_sent = False
    return error


def _continue_parser(parser: SSEParser) -> SSEParser:
    continued = SSEParser(parser.max_event_bytes)
    continued.last_event_id = parser.last_event_id
    continued.retry = parser.retry
    return continued


def _describe_content(content_type: bytes, data: bytes) -> str:
    if b"html" in content_type:
        return "a web page"
    return (
        "empty"
        if not data
        else f"of type {clip(content_type.decode('latin-1'))}"
        if content_type
        else "of unknown type"
    )


def _create_sse_2024_client(
    url: str, limits: ClientLimits, timeouts: Timeouts, options: Mapping[str, Any]
) -> ClientTransport:
    from dovetail.transports.http_client.sse_2024_client import SSE2024Client

    return SSE2024Client(url, limits, timeouts, **options)

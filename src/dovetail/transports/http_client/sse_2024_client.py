"""The client side of the deprecated HTTP+SSE transport of 2024.

This file contains the whole transport, so that the transport is easy to remove.
"""

import asyncio
from typing import Any

from dovetail.errors import ConnectionLost, InvalidResult, MCPError, NotMCPServer, TransportError
from dovetail.log import log_and_suppress, log_failure
from dovetail.protocol.http_checks import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, parse_media_type
from dovetail.protocol.interfaces.client_transport import EncodedRequest, Headers, MessageReceiver
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.sse import EventTooLarge, ServerSentEvent, SSEParser
from dovetail.transports.duplex_client import DuplexClient, PendingRequest
from dovetail.transports.http_client.cookies import CookieJar
from dovetail.transports.http_client.http1_connection import ClientResponse
from dovetail.transports.http_client.remote_server import RemoteServer, read_events, read_refusal
from dovetail.wire.raw_message import RawMessage


class SSE2024Client(DuplexClient):
    """A client connection over HTTP+SSE.

    It reads an event stream. The first event contains the URL for messages.
    """

    def __init__(
        self, url: str, limits: ClientLimits, timeouts: Timeouts, *, cookies: bool = True, **options: Any
    ) -> None:
        super().__init__()
        self._limits = limits
        self._connect_timeout = timeouts.connect
        self._options: dict[str, Any] = {
            "max_response_bytes": limits.max_response_bytes,
            "connect_timeout": timeouts.connect,
            "cookie_jar": CookieJar() if cookies else None,  # The stream and the messages must reach the same machine.
            **options,
        }
        self._stream_remote = RemoteServer(url, **self._options)
        self._post_remote: RemoteServer | None = None
        self._read_task: asyncio.Task[None] | None = None
        self._post_tasks: set[asyncio.Task[None]] = set()
        self._post_address: asyncio.Future[str] = self._loop.create_future()

    async def open(self, receiver: MessageReceiver) -> None:
        """Open the event stream. Wait until the server sends the URL for the client's messages."""
        self._receiver = self._stream_remote.receiver = receiver
        response = await self._stream_remote.send("GET", [(b"accept", SSE_MEDIA_TYPE)])
        if response.status >= 300:
            refused_message = await read_refusal(response, self._stream_remote.url)
            response.close()
            raise (
                refused_message
                if isinstance(refused_message, MCPError)
                else NotMCPServer("the server refused to open an event stream")
            )
        if parse_media_type(response.headers.get(b"content-type")) != SSE_MEDIA_TYPE:
            response.close()
            raise NotMCPServer("the response is not an event stream")
        self._read_task = self._loop.create_task(self._read_stream(response))
        try:
            async with asyncio.timeout(self._connect_timeout):
                address = await asyncio.shield(self._post_address)
        except TimeoutError:
            raise NotMCPServer("the event stream did not start with the URL for messages") from None
        self._post_remote = RemoteServer(self._stream_remote.resolve_endpoint(address, response.url), **self._options)

    async def _read_stream(self, response: ClientResponse) -> None:
        parser = SSEParser(self._limits.max_response_bytes)
        error = ConnectionLost("the server ended the stream")
        try:
            await read_events(response, parser, self._handle_event)
        except EventTooLarge as exc:
            error = ConnectionLost(f"the server sent a message that is too large: {exc}")
        except TransportError:
            error = ConnectionLost("the stream was lost")
        finally:
            response.close()
            if not self._post_address.done():
                self._post_address.set_exception(
                    NotMCPServer("the event stream ended before it sent the URL for messages")
                )
                log_failure(self._post_address)
            self.end(error)

    def _handle_event(self, event: ServerSentEvent) -> None:
        if event.event == "endpoint":
            if not self._post_address.done():
                self._post_address.set_result(event.data)
        elif event.event == "message":
            self.receive_message(event.data.encode())

    async def exchange(self, request: EncodedRequest) -> RawMessage:
        """Post a request and wait for its response on the event stream."""
        if self._end_error is not None:
            error = ConnectionLost("the stream is closed")
            error.maybe_sent = False
            raise error
        self._pending[request.id] = pending = PendingRequest(request)
        try:
            await self._post(request.body)
            return await pending.wait()
        finally:
            self._pending.pop(request.id, None)

    async def send_message(self, body: bytes, headers: Headers = ()) -> None:
        """Post a notification or a response."""
        await self._post(body)

    def write(self, data: bytes) -> None:
        """Post a message without waiting for the server."""
        task = self._loop.create_task(self._post_quietly(data))
        self._post_tasks.add(task)
        task.add_done_callback(self._post_tasks.discard)

    async def _post_quietly(self, data: bytes) -> None:
        with log_and_suppress(MCPError):
            await self._post(data)

    async def _post(self, data: bytes) -> None:
        assert self._post_remote is not None
        response = await self._post_remote.send("POST", [(b"content-type", JSON_MEDIA_TYPE)], data)
        try:
            if response.status >= 300:
                refused_message = await read_refusal(response, self._post_remote.url)
                if isinstance(refused_message, MCPError):
                    raise refused_message
                raise InvalidResult(
                    f"the server refused the message: {refused_message.error.message if refused_message.error else ''}"
                )
        finally:
            response.close()

    async def disconnect(self) -> None:
        """Close the event stream and every connection."""
        tasks = [task for task in (self._read_task, *self._post_tasks) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._post_remote is not None:
            await self._post_remote.close()
        await self._stream_remote.close()

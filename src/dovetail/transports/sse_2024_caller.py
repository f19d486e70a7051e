"""A client's end of the deprecated HTTP+SSE transport of 2024: a stream to read, an address to post to.

Quarantined in this file: when that revision dies, it is deleted.
"""

import asyncio
import contextlib
from typing import Any

from dovetail.errors import Disconnected, MCPError, NotMCP, ResultError, TransportError
from dovetail.protocol.channel import Headers, Inbox, Request
from dovetail.protocol.http import JSON, SSE, media_type
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.sse import EventTooLarge, Parser
from dovetail.transports.door import Door, refusal
from dovetail.transports.http1 import Reply
from dovetail.transports.talking import Talking
from dovetail.wire.incoming import Incoming


class OldCaller(Talking):
    """One server, by its stream and the address the stream names."""

    def __init__(self, url: str, limits: ClientLimits, timeouts: Timeouts, **options: Any) -> None:
        super().__init__()
        self._limits = limits
        self._patience = timeouts.connect
        self._options: dict[str, Any] = {"answer": limits.answer, "connect_time": timeouts.connect, **options}
        self._door = Door(url, **self._options)
        self._posting: Door | None = None
        self._reading: asyncio.Task[None] | None = None
        self._quiet: set[asyncio.Task[None]] = set()
        self._found: asyncio.Future[str] = self._loop.create_future()

    async def open(self, inbox: Inbox) -> None:
        """Open the stream and wait for the address."""
        self._inbox = self._door.inbox = inbox
        reply = await self._door.send("GET", [(b"accept", SSE)])
        if reply.status >= 300:
            told = await refusal(reply, self._door.url)
            reply.close()
            raise told if isinstance(told, MCPError) else NotMCP("the server refuses to open a stream")
        if media_type(reply.headers.get(b"content-type")) != SSE:
            reply.close()
            raise NotMCP("what is there is no stream of events")
        self._reading = self._loop.create_task(self._read(reply))
        try:
            async with asyncio.timeout(self._patience):
                address = await asyncio.shield(self._found)
        except TimeoutError:
            raise NotMCP("the stream does not name an address to post to") from None
        self._posting = Door(self._door.at(address, reply.url), **self._options)

    async def _read(self, reply: Reply) -> None:
        parser = Parser(self._limits.answer)
        why = Disconnected("the server ended the stream")
        try:
            async for chunk in reply:
                for event in parser.feed(chunk):
                    if event.event == "endpoint":
                        if not self._found.done():
                            self._found.set_result(event.data)
                    elif event.event == "message":
                        self.take(event.data.encode())
        except EventTooLarge as exc:
            why = Disconnected(f"the server sent something too large: {exc}")
        except TransportError:
            why = Disconnected("the stream was lost")
        finally:
            reply.close()
            if not self._found.done():
                self._found.set_exception(NotMCP("the stream ended without naming an address to post to"))
                self._found.exception()
            self.end(why)

    async def exchange(self, request: Request) -> Incoming:
        """Post a request; its response comes on the stream."""
        if self._ended is not None:
            error = Disconnected("the stream is gone")
            error.sent = False
            raise error
        waiting: asyncio.Future[Incoming] = self._loop.create_future()
        self._waiting[request.id] = waiting, request
        try:
            await self._post(request.body)
            return await waiting
        finally:
            self._waiting.pop(request.id, None)
            if waiting.done() and not waiting.cancelled():
                waiting.exception()

    async def tell(self, body: bytes, headers: Headers = ()) -> None:
        """Post a notification or an answer."""
        await self._post(body)

    def write(self, data: bytes) -> None:
        """Post without waiting."""
        task = self._loop.create_task(self._post_quietly(data))
        self._quiet.add(task)
        task.add_done_callback(self._quiet.discard)

    async def _post_quietly(self, data: bytes) -> None:
        with contextlib.suppress(MCPError):
            await self._post(data)

    async def _post(self, data: bytes) -> None:
        assert self._posting is not None
        reply = await self._posting.send("POST", [(b"content-type", JSON)], data)
        try:
            if reply.status >= 300:
                told = await refusal(reply, self._posting.url)
                if isinstance(told, MCPError):
                    raise told
                raise ResultError(f"the server refused the message: {told.error.message if told.error else ''}")
        finally:
            reply.close()

    async def disconnect(self) -> None:
        """Close the stream and every connection."""
        tasks = [task for task in (self._reading, *self._quiet) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._posting is not None:
            await self._posting.close()
        await self._door.close()

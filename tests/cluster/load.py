"""Clients that use every feature of a handshake session at random workers, and record their history."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from cluster.history import LEVELS, ClientHistory, History, Operation
from cluster.raw_client import IDLE_TIMEOUT_S, ConnectionPool, Event, RawSession, Response
from cluster.server_pool import Address

RETRY_DELAY_S = 0.05
MAX_RETRY_S = 15.0  # how long a client repeats a request that got 503, 409 or no connection
NOTICE_TIMEOUT_S = 15.0
WORKER_LOST = -32603

Closed = (asyncio.IncompleteReadError, OSError)  # the connection closed before the end of the response


class Refused(Exception):
    """Raised if a worker refuses a request with an unexpected status."""


class LoadClient:
    """One session. Its operations run one after the other, beside its GET stream."""

    def __init__(
        self,
        addresses: Sequence[Address],
        history: History,
        name: str,
        seed: int,
        *,
        expects_loss: bool = False,
        repeats: bool = True,
    ) -> None:
        self.chance = random.Random(seed)
        self.pool = ConnectionPool(addresses, self.chance, keeps_connections=not expects_loss)
        self.session = RawSession(self.pool, name)
        self.history = history
        self.record: ClientHistory = history.add_client(name)
        self.expects_loss = expects_loss
        self.repeats = repeats  # whether it repeats requests that got 503 or 409
        self.resume_count = 0
        self.foreign_answers = 0  # answers that went to a worker that did not ask
        self._numbers = 0
        self._stream_task: asyncio.Task[None] | None = None
        self._last_notice_id: str | None = None
        self._noticed = asyncio.Event()
        self._stream_opened = asyncio.Event()

    def create_token(self) -> str:
        self._numbers += 1
        return f"{self.session.name}-{self._numbers}"

    async def open(self) -> None:
        await self._repeat(self.session.open)
        self._stream_task = asyncio.get_running_loop().create_task(self._read_notices())
        await self._stream_opened.wait()

    async def close(self) -> None:
        if self._stream_task is not None:
            self._stream_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stream_task
        await self.pool.close()

    # Operations

    async def run_random_operation(self) -> None:
        operation = self.chance.choices(
            (self.echo, self.climb, self.ask, self.sample, self.narrate, self.burst, self.hang),
            (30, 15, 15, 8, 10, 10, 3),
        )[0]
        await operation()

    async def echo(self) -> Operation:
        return await self._call("echo")

    async def burst(self) -> None:
        """Run several calls of one session at the same time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(self._call("echo"))

    async def wait(self, seconds: float) -> Operation:
        return await self._call("wait", seconds=seconds)

    async def climb(self, pause: float = 0.0) -> Operation:
        steps = self.chance.randint(1, 5)
        close_at = self.chance.choice((0, 0, 2))
        return await self._call("climb", progress=True, steps=steps, pause=pause, close_at=close_at)

    async def ask(self) -> Operation:
        return await self._call("ask")

    async def sample(self) -> Operation:
        return await self._call("sample")

    async def narrate(self) -> Operation:
        if self.chance.random() < 0.3:
            await self.set_level(self.chance.choice(LEVELS))
        return await self._call("narrate")

    async def hang(self) -> Operation:
        """Start a call and cancel it at a random worker."""
        token = self.create_token()
        operation = self.history.begin(self.record, "hang", token)
        try:
            number, response = await self._repeat_sending("hang", token, {}, progress=True)
            async for event in response.read_events():  # The stream ends without a response.
                self._record_event(operation, event)
                if event.data is not None and "method" in event.data:
                    await self._repeat(lambda: self._cancel(number))
            self.history.end(operation, "cancelled")
        except Closed:
            self.history.end(operation, "lost" if self.expects_loss else "open")
        return operation

    async def _cancel(self, number: int) -> None:
        status = await self.session.notify("notifications/cancelled", {"requestId": number})
        _check_status(status, 202)

    async def set_level(self, level: str) -> None:
        operation = self.history.begin(self.record, "set_level", self.create_token(), level=level)
        await self._repeat(lambda: self._request("logging/setLevel", {"level": level}))
        self.history.end(operation, "answered")

    async def subscribe(self, uri: str) -> None:
        operation = self.history.begin(self.record, "subscribe", self.create_token(), uri=uri)
        await self._repeat(lambda: self._request("resources/subscribe", {"uri": uri}))
        self.history.end(operation, "answered")

    async def unsubscribe(self, uri: str) -> None:
        operation = self.history.begin(self.record, "unsubscribe", self.create_token(), uri=uri)
        await self._repeat(lambda: self._request("resources/unsubscribe", {"uri": uri}))
        self.history.end(operation, "answered")

    async def touch(self, uri: str) -> Operation:
        return await self._call("touch", uri=uri)

    async def change_tools(self) -> Operation:
        return await self._call("change_tools")

    async def wait_for_notice(self, uri: str) -> bool:
        """Wait until a notice for a URI has arrived."""
        try:
            async with asyncio.timeout(NOTICE_TIMEOUT_S):
                while not any(
                    notice["params"].get("uri") == uri for notice in self.record.notices if "params" in notice
                ):
                    self._noticed.clear()
                    await self._noticed.wait()
        except TimeoutError:
            return False
        return True

    # Requests

    async def _request(self, method: str, params: dict[str, Any]) -> None:
        number, response = await self.session.send_request(method, params)
        reply = await self.session.read_reply(response)
        _check_status(response.status, 200, reply)
        assert reply["id"] == number
        if "result" not in reply:
            raise Refused(f"{method}: {reply}")

    async def _call(self, tool: str, *, progress: bool = False, **arguments: Any) -> Operation:
        token = self.create_token()
        operation = self.history.begin(self.record, tool, token, **arguments)
        try:
            number, response = await self._repeat_sending(tool, token, arguments, progress=progress)
            reply = await self._read_reply(operation, response)
        except Closed:
            self.history.end(operation, "lost" if self.expects_loss else "open")
            return operation
        assert reply["id"] == number, (reply, number)
        if "error" in reply:
            is_lost = self.expects_loss and reply["error"]["code"] == WORKER_LOST
            self.history.end(operation, "lost" if is_lost else "open", str(reply["error"]))
        else:
            self.history.end(operation, "answered", reply["result"]["content"][0]["text"])
        return operation

    async def _repeat_sending(
        self, tool: str, token: str, arguments: dict[str, Any], *, progress: bool
    ) -> tuple[int, Response]:
        async def send() -> tuple[int, Response]:
            number, response = await self.session.send_call(tool, progress=progress, token=token, **arguments)
            if response.status != 200:
                _check_status(response.status, 200, await response.read())
            return number, response

        return await self._repeat(send, repeats_closed=False)

    async def _read_reply(self, operation: Operation, response: Response) -> Any:
        """Read a reply to its end. If it is a stream, sometimes cut it and continue at another worker."""
        if not response.is_stream:
            return await response.read()
        cuts = self.chance.choice((0, 0, 0, 1, 2))
        while True:
            try:
                reply = await self._read_stream(operation, response, can_cut=cuts > 0)
                if reply is not None:
                    return reply
                cuts -= 1
            except Closed:
                if not operation.event_ids or not self.expects_loss:
                    raise
            if not operation.event_ids:
                raise ConnectionResetError
            self.resume_count += 1
            response = await self._repeat(lambda: self._resume(operation.event_ids[-1]))

    async def _resume(self, event_id: str) -> Response:
        response = await self.session.get(event_id)
        if response.status != 200:
            _check_status(response.status, 200, await response.read())
        return response

    async def _read_stream(self, operation: Operation, response: Response, *, can_cut: bool) -> Any:
        """Return the reply, or None if the stream was cut or ended before it."""
        reply: Any = None
        try:
            async with contextlib.aclosing(response.read_events()) as events:
                async for event in events:
                    message = self._record_event(operation, event)
                    if message is not None:
                        if message.get("method") in ("elicitation/create", "sampling/createMessage"):
                            await self._answer(operation, message)
                        elif "id" in message and "method" not in message:
                            reply = message
                    if reply is None and can_cut and event.id is not None and self.chance.random() < 0.5:
                        break
        except Closed:
            if reply is None:
                raise
        finally:
            response.close()
        return reply

    def _record_event(self, operation: Operation, event: Event) -> Any:
        if event.id is not None:
            operation.event_ids.append(event.id)
        if event.data is not None and "method" in event.data:
            operation.messages.append(event.data)
        return event.data

    async def _answer(self, operation: Operation, question: Any) -> None:
        answer = f"answer-{operation.token}"
        if question["method"] == "elicitation/create":
            result: Any = {"action": "accept", "content": {"value": answer}}
        else:
            result = {"role": "assistant", "model": "m", "content": {"type": "text", "text": answer}}

        async def send() -> None:
            _check_status(await self.session.answer(question, result), 202)

        await self._repeat(send)

    async def _repeat(self, attempt: Callable[[], Awaitable[Any]], *, repeats_closed: bool = True) -> Any:
        """Repeat a request that got 503 or 409, and a harmless one whose connection closed."""
        deadline = asyncio.get_running_loop().time() + MAX_RETRY_S
        while True:
            try:
                return await attempt()
            except _Again as exc:
                if not self.repeats or asyncio.get_running_loop().time() > deadline:
                    raise Refused(f"repeated for {MAX_RETRY_S} s: {exc}") from exc
            except ConnectionRefusedError:  # No worker has received it.
                if asyncio.get_running_loop().time() > deadline:
                    raise
            except Closed:
                if not repeats_closed or not self.expects_loss:
                    raise
            await asyncio.sleep(RETRY_DELAY_S)

    # The GET stream

    async def _read_notices(self) -> None:
        while True:
            try:
                response = await self._repeat(lambda: self._open_stream())
                self._stream_opened.set()
                await self._read_notice_stream(response)
            except Closed:
                continue

    async def _open_stream(self) -> Response:
        response = await self.session.get(self._last_notice_id)
        if response.status != 200:
            _check_status(response.status, 200, await response.read())
        return response

    async def _read_notice_stream(self, response: Response) -> None:
        events = response.read_events()
        response.silence_timeout = IDLE_TIMEOUT_S
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    if event.id is not None:
                        self._last_notice_id = event.id
                    if event.data is not None:
                        self.record.notices.append(event.data)
                        if event.id is not None:
                            self.record.notice_ids.append(event.id)
                        self._noticed.set()
                        if self.chance.random() < 0.1:  # Continue at another worker.
                            self.resume_count += 1
                            return
        finally:
            response.close()


class _Again(Exception):
    pass


def _check_status(status: int, expected: int, body: Any = None) -> None:
    if status in (409, 503):
        raise _Again(status, body)
    if status != expected:
        raise Refused(f"status {status} instead of {expected}: {body}")


@contextlib.asynccontextmanager
async def open_clients(
    addresses: Sequence[Address], history: History, count: int, *, seed: int = 1, **options: bool
) -> AsyncGenerator[list[LoadClient]]:
    """Open sessions, and close them at the end."""
    clients = [LoadClient(addresses, history, f"c{number}", seed * 1000 + number, **options) for number in range(count)]
    try:
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.open())
        yield clients
    finally:
        for client in clients:
            await client.close()


async def run_load(clients: list[LoadClient], is_done: Callable[[], bool], pause: float = 0.0) -> None:
    """Let all clients run operations until the condition is true, and wait for all notices.

    With `pause`, some calls take up to ten times this time, so that they are open when a worker is killed.
    """

    async def run_client(client: LoadClient, others: list[LoadClient]) -> None:
        chance, number = client.chance, 0
        uris: list[str] = []
        while not is_done():
            number += 1
            for _ in range(chance.randint(1, 6)):
                await client.run_random_operation()
            if pause:
                await client.wait(chance.choice((pause, 10 * pause)))
                await client.climb(pause)
            uri = f"item://{client.session.name}.{number}"
            await client.subscribe(uri)
            uris.append(uri)
            if chance.random() < 0.3:
                await client.unsubscribe(uris.pop(chance.randrange(len(uris))))
            if uris and chance.random() < 0.8:
                await chance.choice(others).touch(uris.pop(chance.randrange(len(uris))))
            if chance.random() < 0.05:
                await client.change_tools()

    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(run_client(client, clients))
    # Notices have an order. When the last one has arrived, all others must have arrived.
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(_wait_for_last_notice(client, clients[0]))


async def _wait_for_last_notice(client: LoadClient, sender: LoadClient) -> None:
    for attempt in range(5):  # The call that sends the last notice may be lost.
        uri = f"item://{client.session.name}.last{attempt}"
        await client.subscribe(uri)
        operation = await sender.touch(uri)
        if operation.outcome == "answered":
            await client.wait_for_notice(uri)
            return


async def count_operations(clients: list[LoadClient]) -> int:
    return sum(client.session.request_count for client in clients)

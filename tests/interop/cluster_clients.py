"""Handshake clients of three libraries with one interface, which record their history for the model in `cluster`."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import fastmcp
import mcp
import mcp_types as types
from fastmcp.client.transports import StreamableHttpTransport

import dovetail
from cluster.history import ClientHistory, History, Operation

TIMEOUT_S = 20.0

Progress = Callable[[str], None]


class ClusterClient:
    """One session. Subclasses connect a client of one library."""

    library = ""

    def __init__(self, url: str, history: History, name: str, seed: int) -> None:
        self.url = url
        self.name = name
        self.chance = random.Random(seed)
        self.history = history
        self.record: ClientHistory = history.add_client(name)
        self.call_count = 0
        self._current: dict[str, Operation] = {}  # by token
        self._changed = asyncio.Event()
        self._numbers = 0

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        raise NotImplementedError

    async def call_tool(self, tool: str, arguments: dict[str, Any], progress: Progress) -> str:
        raise NotImplementedError

    async def subscribe_resource(self, uri: str) -> None:
        raise NotImplementedError

    # Handlers of the client

    def answer(self, kind: str, token: str) -> str:
        """Record a question, and return the answer to it."""
        params: Any = {"message": token}
        if kind == "sampling/createMessage":
            params = {"messages": [{"content": {"text": token}}]}
        operation = self._current.get(token)
        assert operation is not None, f"{self.name} was asked {token!r}"
        operation.messages.append({"method": kind, "params": params})
        return f"answer-{token}"

    def add_notice(self, method: str, **params: Any) -> None:
        self.record.notices.append({"method": method, "params": params})
        self._changed.set()

    # Operations

    async def call(self, tool: str, **arguments: Any) -> Operation:
        self._numbers += 1
        token = f"{self.name}-{self._numbers}"
        operation = self._current[token] = self.history.begin(self.record, tool, token, **arguments)

        def record_progress(message: str) -> None:
            params = {"message": message, "progressToken": token}
            operation.messages.append({"method": "notifications/progress", "params": params})
            self._changed.set()

        text = await self.call_tool(tool, {"token": token, **arguments}, record_progress)
        self.call_count += 1
        if tool == "climb":  # Some clients handle progress after the result.
            await self.wait_until(lambda: len(operation.messages) >= arguments["steps"])
        self.history.end(operation, "answered", text)
        return operation

    async def subscribe(self, uri: str) -> None:
        operation = self.history.begin(self.record, "subscribe", f"subscribe {uri}", uri=uri)
        await self.subscribe_resource(uri)
        self.history.end(operation, "answered")

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):  # The model reports what is missing.
            async with asyncio.timeout(TIMEOUT_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    def has_notice(self, uri: str) -> bool:
        return any(notice["params"].get("uri") == uri for notice in self.record.notices)

    async def run(self, call_count: int, others: "list[ClusterClient]") -> None:
        """Make calls of all kinds, and check some notices."""
        number = 0
        while self.call_count < call_count:
            number += 1
            for _ in range(12):
                await self._call_at_random()
            uri = f"item://{self.name}.{number}"
            await self.subscribe(uri)
            await self.chance.choice(others).call("touch", uri=uri)
            await self.wait_until(lambda uri=uri: self.has_notice(uri))
            if self.chance.random() < 0.1:
                await self.call("change_tools")

    async def _call_at_random(self) -> None:
        kind = self.chance.choices(("echo", "burst", "climb", "resume", "ask", "sample"), (35, 10, 20, 10, 15, 10))[0]
        if kind == "burst":
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(self.call("echo"))
        elif kind in ("climb", "resume"):
            steps = self.chance.randint(2, 4)
            await self.call("climb", steps=steps, close_at=2 if kind == "resume" else 0)
        else:
            await self.call(kind)


class OfficialClient(ClusterClient):
    library = "mcp"

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        async def elicit(context: Any, params: Any) -> Any:
            return types.ElicitResult(
                action="accept", content={"value": self.answer("elicitation/create", params.message)}
            )

        async def sample(context: Any, params: Any) -> Any:
            text = self.answer("sampling/createMessage", params.messages[0].content.text)
            return types.CreateMessageResult(
                role="assistant", model="m", content=types.TextContent(type="text", text=text)
            )

        async def handle(message: Any) -> None:
            _record_notice(self, message)

        client = mcp.Client(
            self.url, mode="legacy", elicitation_callback=elicit, sampling_callback=sample, message_handler=handle
        )
        self._client = await stack.enter_async_context(client)

    async def call_tool(self, tool: str, arguments: dict[str, Any], progress: Progress) -> str:
        async def report(value: float, total: float | None, message: str | None) -> None:
            progress(str(message))

        result = await self._client.call_tool(tool, arguments, progress_callback=report)
        return result.content[0].text

    async def subscribe_resource(self, uri: str) -> None:
        await self._client.subscribe_resource(uri)


class FastMCPClient(ClusterClient):
    library = "fastmcp"

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        async def elicit(message: str, kind: Any, params: Any, context: Any) -> Any:
            return kind(value=self.answer("elicitation/create", message))

        def sample(messages: Any, params: Any, context: Any) -> str:
            return self.answer("sampling/createMessage", messages[0].content.text)

        async def handle(message: Any) -> None:
            _record_notice(self, message)

        client = fastmcp.Client(
            StreamableHttpTransport(self.url),
            mode="legacy",
            elicitation_handler=elicit,
            sampling_handler=sample,
            message_handler=handle,
        )
        self._client = await stack.enter_async_context(client)

    async def call_tool(self, tool: str, arguments: dict[str, Any], progress: Progress) -> str:
        async def report(value: float, total: float | None, message: str | None) -> None:
            progress(str(message))

        result = await self._client.call_tool(tool, arguments, progress_handler=report)
        return result.content[0].text

    async def subscribe_resource(self, uri: str) -> None:
        await self._client.session.subscribe_resource(uri)


class DovetailClient(ClusterClient):
    library = "dovetail"

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        async def elicit(params: Any) -> Any:
            return {"value": self.answer("elicitation/create", params.message)}

        async def sample(params: Any) -> Any:
            return self.answer("sampling/createMessage", params.messages[0].content.text)

        client = dovetail.Client(
            self.url, protocol_version="handshake", elicitation_handler=elicit, sampling_handler=sample
        )
        self._tasks = await stack.enter_async_context(_BackgroundTasks())
        self._client = await stack.enter_async_context(client)
        await self._listen(tools=True)

    async def _listen(self, **options: Any) -> None:
        subscription = self._client.listen(**options)
        await subscription.__aenter__()

        async def read() -> None:
            async for change in subscription:
                if change.uri is not None:
                    self.add_notice("notifications/resources/updated", uri=change.uri)
                else:
                    self.add_notice("notifications/tools/list_changed")

        self._tasks.start(read())

    async def call_tool(self, tool: str, arguments: dict[str, Any], progress: Progress) -> str:
        async def report(value: float, total: float | None, message: str | None) -> None:
            progress(str(message))

        result = await self._client.call_tool(tool, arguments, progress_handler=report)
        return result.content[0].text

    async def subscribe_resource(self, uri: str) -> None:
        await self._listen(uris=[uri])


class _BackgroundTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Any) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(coroutine))

    async def __aenter__(self) -> "_BackgroundTasks":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _record_notice(client: ClusterClient, message: Any) -> None:
    if isinstance(message, types.ResourceUpdatedNotification):
        client.add_notice("notifications/resources/updated", uri=str(message.params.uri))
    elif isinstance(message, types.ToolListChangedNotification):
        client.add_notice("notifications/tools/list_changed")
    elif isinstance(message, Exception):
        client.add_notice("exception", text=str(message))


# The share of all calls that each library makes. Clients of the first two libraries need most of the time.
LIBRARIES: dict[type[ClusterClient], float] = {OfficialClient: 0.1, FastMCPClient: 0.1, DovetailClient: 0.8}


async def run_clients(url: str, history: History, call_count: int, sessions: int = 3) -> dict[str, int]:
    """Run sessions of each library until all calls are made. Return the number of calls by library."""
    clients = [
        library(url, history, f"{library.library}{number}", seed=number)
        for library in LIBRARIES
        for number in range(sessions)
    ]
    async with contextlib.AsyncExitStack() as stack:
        for client in clients:
            await client.open(stack)
        async with asyncio.TaskGroup() as group:
            for client in clients:
                share = int(call_count * LIBRARIES[type(client)] / sessions) + 1
                group.create_task(client.run(share, clients))
    counts: dict[str, int] = {}
    for client in clients:
        counts[client.library] = counts.get(client.library, 0) + client.call_count
    return counts

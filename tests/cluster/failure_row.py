"""One row of the failure table, and readers for the responses that rows check."""

import asyncio
import contextlib
from typing import Any

from cluster.failures import EQUAL_CASES, FailingCluster
from cluster.raw_client import IDLE_TIMEOUT_S, Event, RawSession, Response, create_stateless_request
from cluster.server_pool import Address

LOSSES = ("flushed", "failed over", "restored")  # cases in which Redis loses data


class Row:
    """One row of the table. It uses its own session."""

    features: tuple[str, ...] = ()  # the servers of `feature_servers.py` that the row needs

    def __init__(self, cluster: FailingCluster, session: RawSession) -> None:
        self.cluster = cluster
        self.session = session

    @property
    def case(self) -> str:
        """Return the case, or another one in which callers see the same."""
        return EQUAL_CASES.get(self.cluster.case, self.cluster.case)

    async def send_stateless(
        self,
        method: str,
        params: dict[str, Any],
        address: Address,
        *,
        path: str = "/mcp",
        headers: dict[str, str] | None = None,
        **meta: Any,
    ) -> Response:
        """Send a stateless request of a client that can answer questions and wait for tasks."""
        capabilities = {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        own_headers, body = create_stateless_request(method, params, capabilities, **meta)
        return await self.session.pool.send("POST", own_headers | (headers or {}), body, address, path)

    async def prepare(self) -> None:
        """Start calls and streams before the failure."""

    async def check_during(self) -> None:
        """Check what callers see during the failure."""

    async def check_after(self) -> None:
        """Check what callers see when the failure has ended and the time for recovery is over."""


async def read_status(response: Response) -> int:
    """Read and drop the body, and return the status. A 503 must say when to try again."""
    if response.is_stream:
        response.close()
    else:
        await response.read()
    if response.status == 503:
        assert response.headers["retry-after"] == "1"
    return response.status


async def read_messages(response: Response) -> list[Any]:
    """Return all messages of a stream, to its end."""
    return [event.data async for event in response.read_events() if event.data is not None]


class StreamReader:
    """Reads an event stream in the background."""

    def __init__(self, response: Response) -> None:
        self.response = response
        response.silence_timeout = IDLE_TIMEOUT_S
        self.events: list[Event] = []
        self.is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            async for event in self.response.read_events():
                self.events.append(event)
        except (OSError, asyncio.IncompleteReadError):
            pass
        self.is_closed = True

    @property
    def messages(self) -> list[Any]:
        return [event.data for event in self.events if event.data is not None]

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.events if event.id is not None]

    @property
    def reply(self) -> Any:
        """Return the response to the request, or None if it has not arrived."""
        return next((message for message in self.messages if "method" not in message), None)

    def count(self, method: str, **params: Any) -> int:
        wanted = [message for message in self.messages if message.get("method") == method]
        return sum(params.items() <= message.get("params", {}).items() for message in wanted)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.response.close()

"""A listener that records messages, and helpers that wait for something to happen."""

import asyncio
from collections.abc import Awaitable, Callable

from dovetail.protocol.interfaces.shared_state import Message

WAIT_S = 10.0


class Recorder:
    """Records the messages and gaps of one worker."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.gaps = 0

    def receive(self, message: Message) -> None:
        self.messages.append(message)

    def handle_gap(self) -> None:
        self.gaps += 1

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def wait_until(is_done: Callable[[], object], seconds: float = WAIT_S) -> None:
    async with asyncio.timeout(seconds):
        while not is_done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def wait_for(check: Callable[[], Awaitable[object]], seconds: float = WAIT_S) -> None:
    async with asyncio.timeout(seconds):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

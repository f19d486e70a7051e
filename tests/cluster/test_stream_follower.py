"""Test a reader of a stream without a back end."""

import asyncio

import pytest

from dovetail.cluster.stream_follower import follow_stream
from dovetail.protocol.interfaces.shared_state import StreamPart, WorkerLost


async def test_a_reader_that_is_woken_all_the_time_notices_a_lost_writer() -> None:
    wakeup = asyncio.Event()

    async def read(after: int) -> StreamPart:
        asyncio.get_running_loop().call_soon(wakeup.set)  # Another stream wakes the reader.
        await asyncio.sleep(0.01)
        return StreamPart("writer", b"header", [], is_ended=False)

    async def is_true(*_: object) -> bool:
        return True

    async with asyncio.timeout(10):
        with pytest.raises(WorkerLost):
            async for _ in follow_stream(0, wakeup, read=read, is_lost=is_true, exists=is_true, writer=None):
                pass

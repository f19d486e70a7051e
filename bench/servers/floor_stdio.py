"""The stdio floors. style=inline: in the pipe's callback; task: a task for each request; uvloop: inline, on uvloop;
blocking: no event loop at all, one line after another."""

import asyncio
import sys
from typing import Any

from floor import create_floor
from workload import ServerOptions

order = ServerOptions()
floor = create_floor(order)


def at_once(data: bytes) -> bytes | None:
    """The answer, from a coroutine that never waits."""
    try:
        floor.answer(data).send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the floor waited")


class Pipe(asyncio.Protocol):
    """Standard input: lines in, all answers of one read out in one write."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._held: list[bytes] = []
        self._out: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.writer: Any = None

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        *lines, rest = data.split(b"\n")
        if lines and self._held:
            lines[0] = b"".join([*self._held, lines[0]])
            self._held.clear()
        for line in lines:
            self.take(line)
        if rest:
            self._held.append(rest)
        if self._out:
            self._flush()

    def take(self, line: bytes) -> None:
        """Answer a line."""
        self._say(at_once(line))

    def _say(self, answer: bytes | None) -> None:
        if answer is not None:
            self._out.append(answer)

    def _flush(self) -> None:
        self._out.append(b"")
        self.writer.write(b"\n".join(self._out))
        self._out.clear()

    def eof_received(self) -> None:
        """The client is done."""
        self._ended.set()


class TaskPipe(Pipe):
    """The same with a task for each request."""

    def take(self, line: bytes) -> None:
        """Answer a line, later."""
        task = self._loop.create_task(self._work(line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, line: bytes) -> None:
        answer = await floor.answer(line)
        if answer is not None and not self._out:
            self._loop.call_soon(self._flush)
        self._say(answer)


async def serve() -> None:
    """Until standard input ends."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    pipe = TaskPipe(ended) if order.style == "task" else Pipe(ended)
    pipe.writer, _ = await loop.connect_write_pipe(asyncio.Protocol, sys.stdout.buffer)
    await loop.connect_read_pipe(lambda: pipe, sys.stdin.buffer)
    await ended.wait()


def block() -> None:
    """Line by line."""
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        answer = at_once(line)
        if answer is not None:
            out.write(answer + b"\n")
            out.flush()


if order.style == "blocking":
    block()
elif order.style == "uvloop":
    import uvloop

    uvloop.run(serve())
else:
    asyncio.run(serve())

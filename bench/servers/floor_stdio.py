"""The stdio floors.

- style=inline answers in the callback of the pipe
- style=task starts a task for each request
- style=uvloop is inline on uvloop
- style=blocking reads one line at a time without an event loop
"""

import asyncio
import sys
from typing import Any

from floor import create_floor
from workload import ServerOptions

options = ServerOptions()
floor = create_floor(options)


def answer_inline(data: bytes) -> bytes | None:
    """Return the response. The coroutine never waits, so it needs no event loop."""
    try:
        floor.answer(data).send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the floor must not wait")


class Pipe(asyncio.Protocol):
    """Reads lines from standard input, and writes all responses to one read at once."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._buffer: list[bytes] = []
        self._answers: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.writer: Any = None

    def data_received(self, data: bytes) -> None:
        """Process the lines that are complete."""
        *lines, rest = data.split(b"\n")
        if lines and self._buffer:
            lines[0] = b"".join([*self._buffer, lines[0]])
            self._buffer.clear()
        for line in lines:
            self.handle_line(line)
        if rest:
            self._buffer.append(rest)
        if self._answers:
            self._flush()

    def handle_line(self, line: bytes) -> None:
        """Answer a line."""
        self._queue_answer(answer_inline(line))

    def _queue_answer(self, answer: bytes | None) -> None:
        if answer is not None:
            self._answers.append(answer)

    def _flush(self) -> None:
        self._answers.append(b"")
        self.writer.write(b"\n".join(self._answers))
        self._answers.clear()

    def eof_received(self) -> None:
        """Stop serving."""
        self._ended.set()


class TaskPipe(Pipe):
    """A `Pipe` with a task for each request."""

    def handle_line(self, line: bytes) -> None:
        """Answer a line in a task."""
        task = self._loop.create_task(self._answer_line(line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_line(self, line: bytes) -> None:
        answer = await floor.answer(line)
        if answer is not None and not self._answers:
            self._loop.call_soon(self._flush)
        self._queue_answer(answer)


async def serve() -> None:
    """Serve until standard input ends."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    pipe = TaskPipe(ended) if options.style == "task" else Pipe(ended)
    pipe.writer, _ = await loop.connect_write_pipe(asyncio.Protocol, sys.stdout.buffer)
    await loop.connect_read_pipe(lambda: pipe, sys.stdin.buffer)
    await ended.wait()


def serve_blocking() -> None:
    """Answer one line at a time."""
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        answer = answer_inline(line)
        if answer is not None:
            out.write(answer + b"\n")
            out.flush()


if options.style == "blocking":
    serve_blocking()
elif options.style == "uvloop":
    import uvloop

    uvloop.run(serve())
else:
    asyncio.run(serve())

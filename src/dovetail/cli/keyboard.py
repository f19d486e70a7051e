"""The keyboard, read line by line without holding up anything else; an interrupt ends the waiting at once."""

import asyncio
import os
import sys


class Keyboard:
    """Whoever sits at standard input."""

    def __init__(self) -> None:
        self._typed = b""
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def here(self) -> None:
        """What is read in other threads is read on this loop."""
        self._loop = asyncio.get_running_loop()

    async def line(self, prompt: str = "") -> str:
        """What was typed, with its end; nothing when the input has ended."""
        sys.stderr.write(prompt)
        sys.stderr.flush()
        if sys.platform == "win32":
            return await asyncio.to_thread(sys.stdin.readline)
        while b"\n" not in self._typed and not self._ended:
            await self._more()
        line, end, self._typed = self._typed.partition(b"\n")
        return (line + end).decode("utf-8", "replace")

    def read(self) -> str:
        """The same, for another thread than the loop's."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self.line(), self._loop).result()

    async def _more(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(sys.stdin.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(sys.stdin.fileno())
        piece = os.read(sys.stdin.fileno(), 65536)
        self._typed += piece
        self._ended = not piece

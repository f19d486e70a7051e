"""The keyboard, read line by line without holding up anything else; an interrupt ends the waiting at once."""

import asyncio
import os
import sys


class Keyboard:
    """Whoever sits at standard input. Within its context it is read on this loop; after that nothing comes any more."""

    def __init__(self) -> None:
        self._typed = b""
        self._ended = False
        self._ready = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._ready.set()

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
        loop, place = asyncio.get_running_loop(), sys.stdin.fileno()
        self._ready.clear()
        loop.add_reader(place, self._ready.set)
        try:
            await self._ready.wait()
        finally:
            loop.remove_reader(place)
        if not self._ended:
            piece = os.read(place, 65536)
            self._typed += piece
            self._ended = not piece

"""ResponseLimit: results beyond a size are cut where that makes sense, and refused where it does not."""

from typing import Any

from dovetail.errors import InternalError
from dovetail.protocol.around import Call
from dovetail.protocol.exchange import Exchange
from dovetail.wire.codec import encode
from dovetail.wire.content import TextContent
from dovetail.wire.shape import UNSET, Result, replace
from dovetail.wire.tools import CallToolResult


class ResponseLimit:
    """Keeps what a model is made to read below `size` bytes.

    The text of a tool is cut, and says so; structured content, media and everything but tools cannot be cut and become
    an error that names the size.
    """

    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or isinstance(size, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"size must be a number of bytes, not {size!r}")
        if size < 256:
            raise ValueError("a limit below 256 bytes leaves no room to say what was cut")
        self._size = size

    async def __call__(self, exchange: Exchange, proceed: Call) -> Any:
        result = await proceed(exchange)
        if not isinstance(result, Result):
            return result  # lists are encoded already, and have pages
        size = len(encode(result))
        if size <= self._size:
            return result
        if isinstance(result, CallToolResult):
            return self._cut(result, size)
        raise InternalError(f"The result has {size} bytes; at most {self._size} are sent")

    def _cut(self, result: CallToolResult, size: int) -> CallToolResult:
        if result.structured_content is not UNSET or not all(isinstance(one, TextContent) for one in result.content):
            text = f"The result has {size} bytes, more than the {self._size} that are sent. Ask for less."
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        whole = "\n".join(one.text for one in result.content if isinstance(one, TextContent))
        room = self._size - 200
        while len(encode(whole[:room])) > self._size - 200:  # what JSON escapes takes more room
            room = room * 3 // 4
        note = f"\n… cut here: {len(whole) - room} of {len(whole)} characters are left out."
        return replace(result, content=[TextContent(text=whole[:room] + note)])

"""ResponseLimit: truncate text results above a size, and refuse other results above it."""

from typing import Any

from dovetail.errors import InternalError
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.middleware import CallNext
from dovetail.wire.base import UNSET, Result, replace
from dovetail.wire.codec import encode
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult


class ResponseLimit:
    """Keeps what a model is made to read below `size` bytes.

    The text of a tool is cut, and says so; structured content, media and everything but tools cannot be cut and become
    an error that names the size.
    """

    def __init__(self, max_bytes: int) -> None:
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"max_bytes must be a number of bytes, not {max_bytes!r}")
        if max_bytes < 256:
            raise ValueError("a limit below 256 bytes leaves no room to say what was cut")
        self._max_bytes = max_bytes

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> Any:
        result = await call_next(exchange)
        if not isinstance(result, Result):
            return result  # lists are encoded already, and have pages
        size = len(encode(result))
        if size <= self._max_bytes:
            return result
        if isinstance(result, CallToolResult):
            return self._truncate(result, size)
        raise InternalError(f"The result has {size} bytes; at most {self._max_bytes} are sent")

    def _truncate(self, result: CallToolResult, size: int) -> CallToolResult:
        if result.structured_content is not UNSET or not all(
            isinstance(block, TextContent) for block in result.content
        ):
            text = f"The result has {size} bytes, more than the {self._max_bytes} that are sent. Ask for less."
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        full_text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
        max_chars = self._max_bytes - 200
        while len(encode(full_text[:max_chars])) > self._max_bytes - 200:  # what JSON escapes takes more room
            max_chars = max_chars * 3 // 4
        note = f"\n… cut here: {len(full_text) - max_chars} of {len(full_text)} characters are left out."
        return replace(result, content=[TextContent(text=full_text[:max_chars] + note)])

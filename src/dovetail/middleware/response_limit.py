"""Middleware that shortens text results above a size limit, and rejects other results above the limit."""

from dovetail.errors import InternalError
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.middleware import CallNext
from dovetail.wire.base import UNSET, Result, replace
from dovetail.wire.codec import encode
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult


class ResponseLimit:
    """Middleware that limits the size of results.

    Text that is too long is shortened, with a note at the end. Other results that are too large, such as media, become
    an error.

    Args:
        max_bytes: The maximum size of a result in bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"max_bytes must be a number of bytes, not {max_bytes!r}")
        if max_bytes < 256:
            raise ValueError(
                "max_bytes must be at least 256, so that a shortened result has room for a note at its end"
            )
        self._max_bytes = max_bytes

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
        result = await call_next(exchange)
        if not isinstance(result, Result):
            # This is an encoded list, whose length is limited by the page size.
            return result
        size = len(encode(result))
        if size <= self._max_bytes:
            return result
        if isinstance(result, CallToolResult):
            return self._truncate(result, size)
        raise InternalError(f"The result has {size} bytes, more than the limit of {self._max_bytes}")

    def _truncate(self, result: CallToolResult, size: int) -> CallToolResult:
        if result.structured_content is not UNSET or not all(
            isinstance(block, TextContent) for block in result.content
        ):
            text = f"The result has {size} bytes, but the limit is {self._max_bytes}. Request less data."
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        full_text = result.text
        max_chars = self._max_bytes - 200
        # One character can need several bytes in JSON.
        while len(encode(full_text[:max_chars])) > self._max_bytes - 200:
            max_chars = max_chars * 3 // 4
        note = f"\n… truncated: {len(full_text) - max_chars} of {len(full_text)} characters are left out."
        return replace(result, content=[TextContent(text=full_text[:max_chars] + note)])

"""Middleware that hides the text of errors from callers, including errors that tools raise on purpose."""

import secrets

from dovetail.error_context import clip
from dovetail.errors import (
    ElicitationCancelled,
    ElicitationDeclined,
    InternalError,
    InvalidParams,
    MethodNotFound,
    ProtocolError,
)
from dovetail.log import log
from dovetail.middleware.caller_and_outcome import has_failed
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.middleware import CallNext, get_target_name
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult

# Models need these errors to correct their calls, so the errors are not masked.
_ARGUMENT_ERROR_PREFIX = "Invalid arguments"


class MaskErrors:
    """Middleware that replaces error messages with a fixed sentence and a reference number.

    The log contains the original message with the same number.

    Protocol errors keep their messages. These are errors for invalid arguments, unknown names, missing scopes and a
    busy server.

    Args:
        message: The sentence that callers see.
        allow: Types of exceptions whose text callers may see.
    """

    def __init__(
        self,
        message: str = "The call failed.",
        *,
        allow: tuple[type[BaseException], ...] = (ElicitationDeclined, ElicitationCancelled),
    ) -> None:
        self._message = message
        self._allowed = allow

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
        try:
            result = await call_next(exchange)
        except ProtocolError as exc:
            if _is_protocol_refusal(exc) or isinstance(exc, self._allowed):
                raise
            raise InternalError(self._mask(exchange, exc.message)) from None
        except Exception as exc:
            if isinstance(exc, self._allowed):
                raise
            raise InternalError(self._mask(exchange, f"{type(exc).__name__}: {exc}")) from None
        if not has_failed(result) or isinstance(exchange.exception, self._allowed):
            return result
        text = " ".join(block.text for block in result.content if isinstance(block, TextContent))
        if text.startswith(_ARGUMENT_ERROR_PREFIX):
            return result
        return CallToolResult(content=[TextContent(text=self._mask(exchange, text))], is_error=True)

    def _mask(self, exchange: Exchange, text: str) -> str:
        reference = secrets.token_hex(4)
        log.warning("%s %s [%s]: %s", exchange.method, get_target_name(exchange), reference, clip(text, 1000))
        return f"{self._message} [{reference}]"


def _is_protocol_refusal(exc: ProtocolError) -> bool:
    """Return whether the caller needs the details of an error, such as missing scopes or an unknown name.

    For an error from another server, only the code is known.
    """
    if type(exc) is ProtocolError:
        return exc.code in (InvalidParams.code, MethodNotFound.code)
    return not isinstance(exc, InternalError)

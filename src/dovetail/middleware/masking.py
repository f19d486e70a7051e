"""MaskErrors: for servers whose callers are to learn nothing of what went wrong, not even what authors meant to say."""

import logging
import secrets
from typing import Any

from dovetail.errors import Declined, Dismissed, InternalError, InvalidParams, MethodNotFound, ProtocolError, clip
from dovetail.middleware.seeing import about, failed
from dovetail.protocol.around import Call
from dovetail.protocol.exchange import Exchange
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult

log = logging.getLogger("dovetail")

_OWN_FAULT = "Invalid arguments"  # what a model can repair it must be told


class MaskErrors:
    """Replaces the text of failures by a fixed sentence and a reference; the log has the text under it.

    Kept: what the protocol tells a caller (arguments that do not fit, unknown names, scopes that are missing, being
    busy), and exceptions of the types in `keep`.
    """

    def __init__(
        self,
        say: str = "The call failed.",
        *,
        keep: tuple[type[BaseException], ...] = (Declined, Dismissed),
    ) -> None:
        self._say = say
        self._keep = keep

    async def __call__(self, exchange: Exchange, proceed: Call) -> Any:
        try:
            result = await proceed(exchange)
        except ProtocolError as exc:
            if _is_of_the_protocol(exc) or isinstance(exc, self._keep):
                raise
            raise InternalError(self._masked(exchange, exc.message)) from None
        except Exception as exc:
            if isinstance(exc, self._keep):
                raise
            raise InternalError(self._masked(exchange, f"{type(exc).__name__}: {exc}")) from None
        if not failed(result) or isinstance(exchange.fault, self._keep):
            return result
        text = " ".join(one.text for one in result.content if isinstance(one, TextContent))
        if text.startswith(_OWN_FAULT):
            return result
        return CallToolResult(content=[TextContent(text=self._masked(exchange, text))], is_error=True)

    def _masked(self, exchange: Exchange, text: str) -> str:
        reference = secrets.token_hex(4)
        log.warning("%s %s [%s]: %s", exchange.method, about(exchange), reference, clip(text, 1000))
        return f"{self._say} [{reference}]"


def _is_of_the_protocol(exc: ProtocolError) -> bool:
    """Whether it tells a caller what to do: which scopes are missing, what is not there, when to come again.

    Of what another server refused only the code is known.
    """
    if type(exc) is ProtocolError:
        return exc.code in (InvalidParams.code, MethodNotFound.code)
    return not isinstance(exc, InternalError)

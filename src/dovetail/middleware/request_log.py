"""Middleware that logs one line for each request, as text or as JSON."""

import asyncio
import logging
import time
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.errors import MCPError
from dovetail.middleware.caller_and_outcome import get_caller_key, has_failed
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.middleware import CallNext, get_target_name
from dovetail.protocol.redaction import mask_secrets
from dovetail.protocol.safe_text import escape_json
from dovetail.wire.codec import encode

_MAX_ARGUMENTS_CHARS: Final = 4000  # Arguments above this length are replaced by the beginning of their JSON text.


class LogRequests:
    """Middleware that logs the method, name, caller, address, outcome and duration of each request.

    The address is the IP address of the client over HTTP.

    The log record has the same values as attributes.

    Args:
        logger: The name of the logger.
        level: The level of the log records.
        json: Whether to write each line as JSON.
        include_arguments: Whether to log the arguments of tools, with secrets masked.
    """

    def __init__(
        self,
        logger: str = "dovetail.requests",
        *,
        level: int = logging.INFO,
        json: bool = False,
        include_arguments: bool = False,
    ) -> None:
        self._logger = logging.getLogger(logger)
        self._level = level
        self._writes_json = json
        self._include_arguments = include_arguments

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
        if not self._logger.isEnabledFor(self._level):
            return await call_next(exchange)
        started, outcome = time.perf_counter(), "cancelled"
        try:
            result = await call_next(exchange)
            outcome = "failed" if has_failed(result) else "ok"
            return result
        except asyncio.CancelledError:
            raise
        except MCPError as exc:
            outcome = f"refused {code}" if (code := getattr(exc, "code", None)) else type(exc).__name__
            raise
        except BaseException as exc:
            outcome = type(exc).__name__
            raise
        finally:
            self._write(exchange, outcome, 1000 * (time.perf_counter() - started))

    def _write(self, exchange: Exchange, outcome: str, ms: float) -> None:
        address = exchange.client_address
        # Without a principal, the key of the caller is the address, or a part of it.
        caller = get_caller_key(exchange) if address is None else exchange.caller.principal or ""
        fields: dict[str, Any] = {
            "method": clip(exchange.method),
            "about": get_target_name(exchange),
            "caller": clip(caller, 200),
            "address": clip(address or "", 200),
            "outcome": outcome,
            "ms": round(ms, 1),
        }
        if self._include_arguments:
            fields["arguments"] = _shorten(mask_secrets(exchange.params.get("arguments") or {}))
        if self._writes_json:
            text = escape_json(encode(fields).decode())
        else:
            parts = (fields["method"], fields["about"], outcome, f"{ms:.1f} ms", fields["caller"], fields["address"])
            text = " ".join(part for part in parts if part)
            if self._include_arguments:
                text += " " + escape_json(encode(fields["arguments"]).decode())
        self._logger.log(self._level, "%s", text, extra={"request": fields})


def _shorten(arguments: Any) -> Any:
    text = encode(arguments).decode()
    return arguments if len(text) <= _MAX_ARGUMENTS_CHARS else clip(text, _MAX_ARGUMENTS_CHARS)

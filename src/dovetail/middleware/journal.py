"""LogRequests: one line in the log for each request, as text or as JSON."""

import asyncio
import logging
import time
from typing import Any

from dovetail.errors import MCPError
from dovetail.middleware.seeing import about, failed, whose
from dovetail.protocol.around import Call
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.recording import masked
from dovetail.wire.codec import encode


class LogRequests:
    """Logs each request when it is done: method, name, caller, outcome, milliseconds.

    The same facts are attributes of the record. `json=True` makes the line JSON; `arguments=True` adds the arguments,
    secrets masked.
    """

    def __init__(
        self,
        logger: str = "dovetail.requests",
        *,
        level: int = logging.INFO,
        json: bool = False,
        arguments: bool = False,
    ) -> None:
        self._log = logging.getLogger(logger)
        self._level = level
        self._json = json
        self._arguments = arguments

    async def __call__(self, exchange: Exchange, proceed: Call) -> Any:
        if not self._log.isEnabledFor(self._level):
            return await proceed(exchange)
        started, outcome = time.perf_counter(), "cancelled"
        try:
            result = await proceed(exchange)
            outcome = "failed" if failed(result) else "ok"
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
        facts: dict[str, Any] = {
            "method": exchange.method,
            "about": about(exchange),
            "caller": whose(exchange),
            "outcome": outcome,
            "ms": round(ms, 1),
        }
        if self._arguments:
            facts["arguments"] = masked(exchange.params.get("arguments") or {})
        if self._json:
            text = encode(facts).decode()
        else:
            words = (exchange.method, facts["about"], outcome, f"{ms:.1f} ms", facts["caller"])
            text = " ".join(word for word in words if word)
            if self._arguments:
                text += " " + encode(facts["arguments"]).decode()
        self._log.log(self._level, "%s", text, extra={"request": facts})

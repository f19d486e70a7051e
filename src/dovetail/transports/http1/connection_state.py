"""The states of a server connection, and the legal transitions between them.

A connection starts in HEAD, because a new client must send a request before `header_timeout` ends. Requests run beside
these states: while one runs, the connection reads the next one.

| state | the server | deadline |
|---|---|---|
| IDLE | has read whole requests only | the idle timeout, if no request runs |
| HEAD | waits for the rest of a head | `header_timeout` |
| BODY | waits for the rest of a body | `body_timeout` |
| FAILED | has read invalid data, and sends an error after the responses to earlier requests | none |
| LINGERING | has sent its last response, and discards what it reads | a short time to read the response |
| CLOSED | has lost the connection | none |

If no request runs and no turn is scheduled, a connection has a deadline, reads, and has nothing left to handle.
"""

from enum import Enum, auto
from typing import Final


class ConnectionState(Enum):
    """What a connection reads."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    FAILED = auto()
    LINGERING = auto()
    CLOSED = auto()


_IDLE, _HEAD, _BODY, _FAILED, _LINGERING, _CLOSED = ConnectionState

TRANSITIONS: Final = {
    _IDLE: {_HEAD, _FAILED, _LINGERING, _CLOSED},
    _HEAD: {_BODY, _FAILED, _LINGERING, _CLOSED},
    _BODY: {_IDLE, _FAILED, _LINGERING, _CLOSED},
    _FAILED: {_LINGERING, _CLOSED},
    _LINGERING: {_CLOSED},
    _CLOSED: set[ConnectionState](),
}

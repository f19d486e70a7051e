"""The buffers that the operating system has for a connection. A client that does not read keeps one of them full."""

import contextlib
import socket
import struct
import sys
from typing import Any, Final

_LINGER: Final = struct.Struct("hh" if sys.platform == "win32" else "ii")


def set_reset_on_close(transport: Any) -> None:
    """Make the system reset the connection when it is closed, and free the data that the client has not received."""
    connection = transport.get_extra_info("socket")
    with contextlib.suppress(AttributeError, OSError):  # The connection is closed, or is not a socket.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))


def has_unread_output(transport: Any) -> bool:
    """Return whether the client has not yet received all data. Return False if the system cannot report this."""
    return _has_bytes(transport, "TIOCOUTQ")


def has_unread_input(transport: Any) -> bool:
    """Return whether the event loop has not yet read all data. Return False if the system cannot report this."""
    return _has_bytes(transport, "FIONREAD")


def _has_bytes(transport: Any, request: str) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl
    import termios

    try:
        connection = transport.get_extra_info("socket")
        return any(fcntl.ioctl(connection.fileno(), getattr(termios, request), bytes(4)))
    except (AttributeError, OSError):
        return False

"""Prepare to close a listening socket without losing connections.

Closing the socket resets the connections that the server has not accepted yet. So the system must first stop opening
connections. A client whose connection is not opened tries again after a second. Then the socket is closed, and the
client or its proxy uses another server.
"""

import contextlib
import ctypes
import socket
import struct
import sys
from typing import Final

_SO_ATTACH_FILTER: Final = 26  # The module `socket` does not have this option of Linux.
_INSTRUCTION: Final = struct.Struct("HBBI")
# A program for the Berkeley Packet Filter. It drops each packet that begins a connection. Packets with the flag ACK
# belong to a connection that is being opened.
_FILTER: Final = b"".join(
    _INSTRUCTION.pack(*instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # Load the flags of the TCP header.
        (0x45, 0, 1, 0x10),  # If ACK is not set, skip the next instruction.
        (0x06, 0, 0, 0xFFFFFFFF),  # Keep the packet.
        (0x06, 0, 0, 0),  # Drop the packet.
    )
)


def stop_opening_connections(listener: socket.socket) -> None:
    """Let no client open a connection any more. This also affects other processes that share the socket.

    Only Linux can do this. Other systems lose the connections that are opened while the socket is closed.
    """
    if sys.platform != "linux":
        return
    instructions = ctypes.create_string_buffer(_FILTER, len(_FILTER))
    program = struct.pack("HP", len(_FILTER) // _INSTRUCTION.size, ctypes.addressof(instructions))
    with contextlib.suppress(OSError):  # The socket is closed or is a Unix socket, or a sandbox does not allow this.
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

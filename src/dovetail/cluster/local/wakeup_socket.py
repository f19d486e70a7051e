"""Wake other processes on the same machine. Each process has a Unix socket in a private folder.

A wake-up is a datagram with the key of a stream, or an empty one for messages and changes. A lost or repeated wake-up
does no harm, because every worker also checks for news at an interval.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

_MAX_PATH_BYTES: Final = 100  # Linux allows 107 bytes in the path of a socket. Other systems allow fewer.
_MAX_DATAGRAM_BYTES: Final = 64
SOCKET_SUFFIX: Final = ".sock"
# The queue of a socket has at least 10 datagrams on Linux. With so many unread ones, others may have been dropped.
_MANY_DATAGRAMS: Final = 8


class WakeupSocket:
    """The socket of one worker. Create it in the event loop that should be woken.

    `wake` gets the keys of streams with new events, or None if any stream may have some, and whether there may be new
    messages.
    """

    def __init__(self, folder: Path, worker: str, wake: Callable[[set[str] | None, bool], None]) -> None:
        self._folder = folder
        self._path = str(folder / f"{worker}{SOCKET_SUFFIX}")
        if len(os.fsencode(self._path)) > _MAX_PATH_BYTES:
            raise ValueError(f"the path {self._path} is too long for a socket. Choose a folder with a shorter path")
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._receiver = _create_socket()
        self._sender = _create_socket()
        self._receiver.bind(self._path)
        self._loop.add_reader(self._receiver, self._receive)

    def _receive(self) -> None:
        datagrams: list[bytes] = []
        with contextlib.suppress(OSError):
            while len(datagrams) <= _MANY_DATAGRAMS:
                datagrams.append(self._receiver.recv(_MAX_DATAGRAM_BYTES))
        if len(datagrams) >= _MANY_DATAGRAMS:
            self._wake(None, True)
        elif datagrams:
            streams = {datagram.decode("ascii", "replace") for datagram in datagrams if datagram}
            self._wake(streams, b"" in datagrams)

    def wake(self, worker: str, stream: str = "") -> bool:
        """Wake a worker. Return False if its socket is closed, so that it will not hear of later events either."""
        path = str(self._folder / f"{worker}{SOCKET_SUFFIX}")
        try:
            self._sender.sendto(stream.encode("ascii"), path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(OSError):
                os.unlink(path)
            return False
        except OSError:
            pass  # The queue of the worker is full, so it will wake. Or the file is not the socket of a worker.
        return True

    def close(self) -> None:
        """Close and remove the socket."""
        self._loop.remove_reader(self._receiver)
        self._receiver.close()
        self._sender.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def _create_socket() -> socket.socket:
    created = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    created.setblocking(False)
    return created

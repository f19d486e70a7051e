"""Wake other processes on the same machine. Each process has a Unix socket in a private folder.

A wake-up is an empty datagram, so a lost or repeated one does no harm. The kernel refuses datagrams to a process that
has ended, so the sender notices a lost process at once.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

_MAX_PATH_BYTES: Final = 100  # Linux allows 107 bytes in the path of a socket. Other systems allow fewer.
_SUFFIX: Final = ".sock"


class WakeupSocket:
    """The socket of one worker. Create it in the event loop that should be woken."""

    def __init__(self, folder: Path, worker: str, wake: Callable[[], None]) -> None:
        self._folder = folder
        self._path = str(folder / f"{worker}{_SUFFIX}")
        if len(os.fsencode(self._path)) > _MAX_PATH_BYTES:
            raise ValueError(f"the path {self._path} is too long for a socket. Choose a folder with a shorter path")
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._receiver = _create_socket()
        self._sender = _create_socket()
        self._receiver.bind(self._path)
        self._loop.add_reader(self._receiver, self._receive)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._receiver.recv(16)
        self._wake()

    def wake(self, worker: str) -> bool:
        """Wake a worker. Return False if the worker has ended."""
        path = str(self._folder / f"{worker}{_SUFFIX}")
        try:
            self._sender.sendto(b"", path)
        except BlockingIOError:
            return True  # The worker has unread datagrams, so it is alive and will wake.
        except (ConnectionRefusedError, FileNotFoundError):
            _remove(path)
            return False
        return True

    def is_alive(self, worker: str) -> bool:
        """Return whether a worker is alive, without waking it."""
        path = str(self._folder / f"{worker}{_SUFFIX}")
        with _create_socket() as probe:
            try:
                probe.connect(path)
            except (ConnectionRefusedError, FileNotFoundError):
                _remove(path)
                return False
        return True

    def list_workers(self) -> frozenset[str]:
        """Return the names of the workers that are alive."""
        names = (path.name.removesuffix(_SUFFIX) for path in self._folder.glob(f"*{_SUFFIX}"))
        return frozenset(name for name in names if self.is_alive(name))

    def close(self) -> None:
        """Close and remove the socket."""
        self._loop.remove_reader(self._receiver)
        self._receiver.close()
        self._sender.close()
        _remove(self._path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _create_socket() -> socket.socket:
    created = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    created.setblocking(False)
    return created

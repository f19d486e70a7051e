"""Accept connections from a socket that several workers share.

An event loop accepts all waiting connections at once, so one worker would get a whole burst of connections, and keep
them. This listener accepts one connection and then gives the other workers time to accept the next one. If
connections wait for many turns, it accepts more in each turn. So idle workers get about the same number of connections,
and a busy worker gets fewer.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from dovetail.background_tasks import BackgroundTasks

_TURN_S: Final = 0.001  # the time in which only other workers accept connections
_TURNS_PER_STEP: Final = 8  # After this many turns with waiting connections, the listener accepts one more per turn.
_RETRY_DELAY_S: Final = 1.0  # the time without new connections after the system could not open one
_NO_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class SharedListener:
    """Accepts the connections of one worker, until `close`."""

    def __init__(
        self, listener: socket.socket, create_protocol: Callable[[], asyncio.Protocol], tls_options: dict[str, Any]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._create_protocol = create_protocol
        self._tls_options = tls_options
        self._tasks = BackgroundTasks()
        self._turns = 0  # the number of turns since no connection was waiting
        self._next_turn: asyncio.TimerHandle | None = None
        self._is_closed = False
        listener.setblocking(False)
        self._begin_turn()

    def close(self) -> None:
        """Accept no more connections, and close the socket in this process."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._next_turn is not None:
            self._next_turn.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._loop.add_reader(self._listener, self._accept_waiting)

    def _end_turn(self, delay: float) -> None:
        self._loop.remove_reader(self._listener)
        self._next_turn = self._loop.call_later(delay, self._begin_turn)

    def _accept_waiting(self) -> None:
        for _ in range(1 + self._turns // _TURNS_PER_STEP):
            try:
                client, _ = self._listener.accept()
            except OSError as exc:  # No connection waits, or its client has left.
                self._turns = 0
                if exc.errno in _NO_RESOURCES:
                    self._end_turn(_RETRY_DELAY_S)
                return
            self._start(client)
        self._turns += 1
        self._end_turn(_TURN_S)

    def _start(self, client: socket.socket) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tasks.start(self._open(client))

    async def _open(self, client: socket.socket) -> None:
        with suppress(OSError):  # The client has left, or its TLS handshake has failed.
            await self._loop.connect_accepted_socket(self._create_protocol, client, **self._tls_options)

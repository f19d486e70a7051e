"""Open a TCP connection to the first address of a host that answers.

This module does not use `loop.create_connection`, because uvloop tries addresses one after another and both loops
report several failures as one text.
"""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest

_HEAD_START_S = 0.25  # the seconds between two connection attempts. RFC 8305, section 5
# The first probe is sent after a minute, because some routers forget a connection after four minutes.
# TCP_KEEPALIVE is the name of TCP_KEEPIDLE on macOS.
_PROBE_OPTIONS = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}

Address = tuple[int, tuple[str | int | bytes, ...]]


AddressFilter = Callable[[str], bool]


async def dial(host: str, port: int, address_filter: AddressFilter | None = None) -> socket.socket:
    """Connect to a host and return the socket. Addresses that the filter rejects are not tried.

    Raises:
        OSError: the host name is unknown, or no address answers. If no address answers, this is the first error.
    """
    addresses = await _resolve(host, port)
    if address_filter is not None:
        addresses = [address for address in addresses if address_filter(str(address[1][0]))]
        if not addresses:
            raise OSError(errno.EACCES, "none of the addresses of the host is allowed")
    if len(addresses) == 1:
        return await _connect(addresses[0])
    return await _race(addresses)


async def _resolve(host: str, port: int) -> list[Address]:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, (host, port))]
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # The list alternates between IPv4 and IPv6, and starts with the first address from the resolver.
    preferred_family = infos[0][0]
    preferred: list[Address] = [(family, address) for family, _, _, _, address in infos if family == preferred_family]
    others: list[Address] = [(family, address) for family, _, _, _, address in infos if family != preferred_family]
    return [candidate for pair in zip_longest(preferred, others) for candidate in pair if candidate is not None]


async def _connect(address: Address) -> socket.socket:
    family, sockaddr = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _enable_probes(sock)
        await asyncio.get_running_loop().sock_connect(sock, sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def _enable_probes(sock: socket.socket) -> None:
    """Let the system probe an idle connection, so that routers remember it and a lost connection is noticed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBE_OPTIONS.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _race(addresses: Sequence[Address]) -> socket.socket:
    connected: list[socket.socket] = []
    errors: list[OSError] = []

    async def attempt(address: Address) -> None:
        try:
            connected.append(await _connect(address))
        except OSError as fault:
            errors.append(fault)

    remaining = deque(addresses)
    running: set[asyncio.Task[None]] = set()
    try:
        async with asyncio.TaskGroup() as group:
            while not connected and (remaining or running):
                if remaining:
                    running.add(group.create_task(attempt(remaining.popleft())))
                timeout = _HEAD_START_S if remaining else None
                _, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()
    except BaseException:
        for sock in connected:
            sock.close()
        raise
    for spare in connected[1:]:
        spare.close()
    if not connected:
        raise errors[0]
    return connected[0]

"""A TCP connection to a host, over whichever of its addresses answers first.

The loop's own way is not used: uvloop tries one address after the other, and both report several failures as one text.
"""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest

_HEAD_START = 0.25  # for one address before the next is tried too. RFC 8305, section 5

Address = tuple[int, tuple[str | int | bytes, ...]]


Screen = Callable[[str], bool]


async def dial(host: str, port: int, screen: Screen | None = None) -> socket.socket:
    """A connected socket; only addresses that pass the screen are tried, and what was looked at is what is used.

    Raises:
        OSError: the name is unknown, or the first address's reason when none answers.
    """
    addresses = await _resolve(host, port)
    if screen is not None:
        addresses = [one for one in addresses if screen(str(one[1][0]))]
        if not addresses:
            raise OSError(errno.EACCES, "its address is not one that may be used here")
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
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # One family after the other in turn, beginning with the one the resolver prefers.
    first = found[0][0]
    preferred: list[Address] = [(family, address) for family, _, _, _, address in found if family == first]
    others: list[Address] = [(family, address) for family, _, _, _, address in found if family != first]
    return [one for pair in zip_longest(preferred, others) for one in pair if one is not None]


async def _connect(address: Address) -> socket.socket:
    family, where = address
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(one, where)
    except BaseException:
        one.close()
        raise
    return one


async def _race(addresses: Sequence[Address]) -> socket.socket:
    opened: list[socket.socket] = []
    faults: list[OSError] = []

    async def attempt(address: Address) -> None:
        try:
            opened.append(await _connect(address))
        except OSError as fault:
            faults.append(fault)

    rest = deque(addresses)
    running: set[asyncio.Task[None]] = set()
    try:
        async with asyncio.TaskGroup() as group:
            while not opened and (rest or running):
                if rest:
                    running.add(group.create_task(attempt(rest.popleft())))
                patience = _HEAD_START if rest else None
                _, running = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()
    except BaseException:
        for one in opened:
            one.close()
        raise
    for spare in opened[1:]:
        spare.close()
    if not opened:
        raise faults[0]
    return opened[0]

"""Test that a socket gets no connections before it is closed."""

import socket
import sys

import pytest

from dovetail.transports.http1.accept_filter import stop_opening_connections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: only Linux has filters for sockets")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_no_connection_opens_and_earlier_ones_work(
    family: socket.AddressFamily, request: pytest.FixtureRequest
) -> None:
    if family == socket.AF_INET6:
        request.getfixturevalue("ipv6")
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with (
        socket.create_server((host, 0), family=family) as listener,
        socket.create_connection(listener.getsockname()[:2]) as early,
        socket.socket(family) as late,
    ):
        stop_opening_connections(listener)
        late.setblocking(False)
        late.connect_ex(listener.getsockname())
        listener.setblocking(False)
        accepted, _ = listener.accept()
        with accepted:
            early.sendall(b"x")
            assert accepted.recv(1) == b"x"
        with pytest.raises(BlockingIOError):
            listener.accept()
        with pytest.raises(BlockingIOError):
            late.send(b"x")

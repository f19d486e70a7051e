"""The command line and the contents of all benchmark servers: `with_NAME.py stdio|http name=value ...`.

- responses=json|sse
- tools=N adds N extra tools
- megabytes=N is the size of the resource
- large=1 raises the limits to 64 MB
- stamped=1 adds the result fields that clients of the newest protocol version require
- filtered=1 adds a tool that no client may see
- workers=N serves HTTP with N processes

Every `echo` returns only text. `add` also returns structured content. This module imports nothing heavy, because that
would slow down the start of all servers.
"""

import sys
from typing import Any

URI = "bench://text"
MEGABYTE = 1_000_000
LARGE = 64 * 1024 * 1024
_LINE = 'The quick brown fox jumps over the lazy dog, "twice".\n'


def text(megabytes: float) -> str:
    """Return a text of this size, with quotes and newlines to escape."""
    size = int(megabytes * MEGABYTE)
    return (_LINE * (size // len(_LINE) + 1))[:size]


class ServerOptions:
    """The command line options of a server."""

    def __init__(self) -> None:
        self.transport = sys.argv[1]
        values = dict(argument.split("=") for argument in sys.argv[2:])
        self.responses = values.get("responses", "json")
        self.tools = int(values.get("tools", "0"))
        self.large = values.get("large") == "1"
        self.stamped = values.get("stamped") == "1"
        self.filtered = values.get("filtered") == "1"
        self.workers = int(values.get("workers", "1"))
        self.style = values.get("style", "")
        self.contents = text(float(values.get("megabytes", "5")))


def open_socket() -> Any:
    """Open a socket on a free loopback port, and print the port to standard error."""
    import socket

    # asyncio turns off Nagle's algorithm only for a socket with IPPROTO_TCP. Otherwise every response takes 40 ms
    # longer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    sys.stderr.write(f"listening on 127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stderr.flush()
    return listener

"""What all servers of the benchmark offer, and how they are told: `server.py stdio|http name=value ...`.

Options: responses=json|sse, tools=N extra tools, megabytes=size of the resource, large=1 for limits of 64 MB,
stamped=1 for results as clients of the newest revision want them, filtered=1 for one more tool that nobody may see.
Every `echo` answers with a text alone and no structured content; `add` has both.
Imports nothing heavy, so that it adds nothing to anybody's cold start.
"""

import sys
from typing import Any

URI = "bench://text"
MEGABYTE = 1_000_000
LARGE = 64 * 1024 * 1024
_LINE = 'The quick brown fox jumps over the lazy dog, "twice".\n'


def text(megabytes: float) -> str:
    """A text of this size, with quotes and line ends to escape as any text has them."""
    size = int(megabytes * MEGABYTE)
    return (_LINE * (size // len(_LINE) + 1))[:size]


class ServerOptions:
    """The command line."""

    def __init__(self) -> None:
        self.transport = sys.argv[1]
        given = dict(one.split("=") for one in sys.argv[2:])
        self.responses = given.get("responses", "json")
        self.tools = int(given.get("tools", "0"))
        self.large = given.get("large") == "1"
        self.stamped = given.get("stamped") == "1"
        self.filtered = given.get("filtered") == "1"
        self.style = given.get("style", "")
        self.contents = text(float(given.get("megabytes", "5")))


def open_socket() -> Any:
    """A socket on a free loopback port; the harness is told which."""
    import socket

    # asyncio turns Nagle's algorithm off only for a socket that says it is TCP; without that, 40 ms for every answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    sys.stderr.write(f"listening on 127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stderr.flush()
    return listener

"""A program that starts a server and hands both ends of its streams to the fault proxy of a test.

Run as a program of its own, by path, with nothing but the standard library. It ends as the server ends.
"""

import os
import signal
import socket
import subprocess
import sys


def main(path: str, command: list[str]) -> int:
    """Start the command, send the descriptors over the socket at `path`, wait for the end."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            signal_number, signal.SIG_IGN
        )  # the whole group gets it; when the server has ended is when this ends
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b"%d" % child.pid], [0, 1, child.stdin.fileno(), child.stdout.fileno()])
    child.stdin.close()
    child.stdout.close()
    os.close(0)
    os.close(1)
    code = child.wait()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

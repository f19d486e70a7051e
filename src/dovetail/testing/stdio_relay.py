"""A program that starts a server and passes the server's pipes to the fault proxy of a test.

The program uses only the standard library, and exits when the server exits.
"""

import os
import signal
import socket
import subprocess
import sys


def main(path: str, command: list[str]) -> int:
    """Start the command and send its pipes over the socket at `path`. Wait until the command exits."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        # Ignore the signal, because the server receives it, too. This program exits after the server.
        signal.signal(signal_number, signal.SIG_IGN)
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

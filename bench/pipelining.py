"""Measure how long other clients wait while some connections send requests without waiting for the answers.

The same application runs on our HTTP server and on uvicorn, in alternating rounds. The attackers send small requests
that the server refuses, as fast as the server reads them. The output is the slowest answer to another client.

python bench/pipelining.py [--rounds 3] [--seconds 5] [--connections 1 4 16]
"""

import argparse
import contextlib
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from statistics import median

MAX_RATIO = 0.25  # of the slowest answers of our server and of uvicorn
FLOOD = b"GET /q HTTP/1.1\r\nHost:127.0.0.1\r\n\r\n" * 1900
REQUEST = b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
PAUSE_S = 0.02  # between two requests of the other client
TIMEOUT_S = 60.0
SERVERS = ("dovetail", "uvicorn")


def serve(kind: str, port: int) -> None:
    """Serve an application that refuses callers without a token."""
    from dovetail import Server
    from dovetail.auth import StaticTokenVerifier

    app = Server("pipelining", auth=StaticTokenVerifier({"a-secret-token-0001": "ada"}))
    if kind == "dovetail":
        app.run("http", port=port)
    else:
        import uvicorn

        uvicorn.run(app.asgi(), port=port, log_level="critical", http="httptools", loop="uvloop")


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def run_server(kind: str) -> Iterator[int]:
    """Run a server in another process, and yield its port."""
    port = find_free_port()
    command = [sys.executable, __file__, "--serve", kind, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while time.monotonic() < deadline and process.poll() is None:
                with contextlib.suppress(OSError):
                    measure_answer(port)
                    break
                time.sleep(0.05)
            yield port
        finally:
            process.kill()


def measure_answer(port: int) -> float:
    """Return the seconds that a request on a new connection takes."""
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
        client.sendall(REQUEST)
        client.recv(4096)
    return time.monotonic() - started


def attack(port: int, connections: int, seconds: float) -> None:
    """Flood the server from several connections."""
    threads = [threading.Thread(target=flood, args=(port, seconds)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def flood(port: int, seconds: float) -> None:
    """Send requests on one connection, and discard the answers."""
    end = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client, contextlib.suppress(OSError):
        reader = threading.Thread(target=discard, args=(client,), daemon=True)
        reader.start()
        while time.monotonic() < end:
            client.sendall(FLOOD)
        client.shutdown(socket.SHUT_RDWR)
        reader.join()


def discard(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while client.recv(1 << 20):
            pass


def measure_slowest_answer(kind: str, connections: int, seconds: float) -> float:
    """Return the slowest answer to another client during an attack, in milliseconds."""
    with run_server(kind) as port:
        attackers = multiprocessing.Process(target=attack, args=(port, connections, seconds))
        attackers.start()
        end, times = time.monotonic() + seconds, list[float]()
        while time.monotonic() < end:
            times.append(measure_answer(port))
            time.sleep(PAUSE_S)
        attackers.terminate()
        attackers.join()
    return max(times) * 1000


def main() -> None:
    """Measure, print a table, and fail if a ratio exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--serve", nargs=2, metavar=("SERVER", "PORT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve[0], int(arguments.serve[1]))
        return
    failed = False
    sys.stdout.write("attackers  slowest answer of dovetail  of uvicorn   ratio\n")
    for connections in arguments.connections:
        times: dict[str, list[float]] = {kind: [] for kind in SERVERS}
        for _ in range(arguments.rounds):
            for kind in SERVERS:
                times[kind].append(measure_slowest_answer(kind, connections, arguments.seconds))
        ours, theirs = (median(times[kind]) for kind in SERVERS)
        failed = failed or ours / theirs > MAX_RATIO
        sys.stdout.write(f"{connections:9}  {ours:23.0f} ms  {theirs:7.0f} ms  {ours / theirs:6.3f}\n")
        sys.stdout.flush()
    if failed:
        sys.exit(f"a ratio exceeds {MAX_RATIO}")


if __name__ == "__main__":
    main()

"""Machines for tests: network namespaces that are connected by a bridge, or several addresses of this machine."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

from cluster.server_pool import Machine
from support.outside_programs import find_program

# Without the privilege to create namespaces, two addresses of the loopback interface are the machines.
LOOPBACK_MACHINES = [Machine("127.0.0.2"), Machine("127.0.0.3")]


def can_create_machines() -> bool:
    """Return whether this process may create network namespaces."""
    ip, unshare = find_program("ip"), find_program("unshare")
    if ip is None or unshare is None or os.geteuid() != 0:
        return False
    return subprocess.run([unshare, "-n", "true"], capture_output=True).returncode == 0


class Network:
    """A bridge with one address for the programs between the machines, and the machines."""

    def __init__(self, name: str, host: str, machines: list[Machine]) -> None:
        self.name = name
        self.host = host
        self.machines = machines

    def cut(self, number: int) -> None:
        """Cut the cable of a machine."""
        _run("ip", "link", "set", f"{self.name}{number}", "down")

    def mend(self, number: int) -> None:
        _run("ip", "link", "set", f"{self.name}{number}", "up")


@contextlib.contextmanager
def run_network(machine_count: int = 2) -> Iterator[Network]:
    """Create network namespaces, and delete them at the end."""
    name = f"dt{os.getpid() % 100_000}"
    prefix = f"10.{77 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
    machines: list[Machine] = []
    with contextlib.ExitStack() as stack:
        _run("ip", "link", "add", name, "type", "bridge")
        stack.callback(_run, "ip", "link", "del", name)
        _run("ip", "addr", "add", f"{prefix}.1/24", "dev", name)
        _run("ip", "link", "set", name, "up")
        for number in range(machine_count):
            namespace, cable, host = f"{name}n{number}", f"{name}{number}", f"{prefix}.{number + 2}"
            inside = ("ip", "netns", "exec", namespace)
            _run("ip", "netns", "add", namespace)
            stack.callback(_run, "ip", "netns", "del", namespace)
            _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _run("ip", "link", "set", cable, "master", name, "up")
            _run(*inside, "ip", "addr", "add", f"{host}/24", "dev", "eth0")
            _run(*inside, "ip", "link", "set", "eth0", "up")
            _run(*inside, "ip", "link", "set", "lo", "up")
            machines.append(Machine(host, inside))
        yield Network(name, f"{prefix}.1", machines)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)

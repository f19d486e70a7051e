"""Test that servers and their children end when the process that started them ends for any reason."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dovetail.transports.process import reaper as module
from dovetail.transports.process.reaper import Reaper
from support.outside_programs import get_program, needs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="platform: a job object needs no guardian")

PATIENCE = 20.0

# Deaf to everything but SIGKILL, and it does not read its input.
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
# The same with one more of the kind inside, which this one says only when both are deaf.
PAIR = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = subprocess.Popen([sys.executable, "-c", {DEAF!r}], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
inner.stdout.readline()
print(os.getpid(), inner.pid, flush=True)
time.sleep(600)
"""
HOST = f"""
import asyncio, os, signal, sys, threading
from dovetail.transports.process import process_group as group, reaper as module
from dovetail.transports.process.reaper import reaper
from dovetail.transports.process.child_process import ChildProcess

module.GRACE_PERIOD_S = 0.3

class Heard(asyncio.Protocol):
    said = []
    def data_received(self, data):
        self.said += data.decode().split()

async def main():
    children = [await ChildProcess.start([sys.executable, "-c", PROGRAM], Heard()) for _ in range(2)]
    while reaper.pid is None or reaper.watched < 2 or len(Heard.said) < 4:
        await asyncio.sleep(0.001)
    print(reaper.pid, *Heard.said, flush=True)
    await then(children)

PROGRAM = {PAIR!r}
"""


class Host:
    """A process that has started two servers, each with a process of its own."""

    def __init__(self, then: str) -> None:
        program = HOST + "async def then(children):\n" + then + "\nasyncio.run(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.guardian, *self.pids = map(int, self.process.stdout.readline().split())

    def close(self) -> None:
        for pid in [self.process.pid, *self.pids]:
            if running(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def host() -> Iterator[Callable[[str], Host]]:
    hosts: list[Host] = []

    def begin(then: str) -> Host:
        hosts.append(Host(then))
        return hosts[-1]

    yield begin
    for one in hosts:
        one.close()


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return made[-1]

    yield begin
    for one in made:
        one.kill()
        one.wait()


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def let_go(guardian: Reaper) -> Callable[[], object]:
    """Close the pipe, as the end of this process would; what is returned waits for the guardian's own end."""
    pid = guardian.pid
    assert pid is not None
    guardian.reset_after_fork()
    return lambda: os.waitpid(pid, 0)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


WAITS = "    await asyncio.sleep(600)"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_when_this_process_is_killed_nothing_stays(host: Callable[[str], Host], number: signal.Signals) -> None:
    family = host(WAITS)
    assert all(map(running, family.pids))
    family.process.send_signal(number)
    until(lambda: not any(map(running, [*family.pids, family.guardian])))


def test_the_guardian_lets_ctrl_c_and_other_signals_pass(host: Callable[[str], Host]) -> None:
    family = host("    signal.signal(signal.SIGINT, signal.SIG_IGN)\n    print('ready', flush=True)\n" + WAITS)
    assert family.process.stdout is not None
    assert family.process.stdout.readline() == "ready\n"
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        os.kill(family.guardian, number)
    os.killpg(family.process.pid, signal.SIGINT)
    assert os.getsid(family.guardian) == family.guardian
    family.process.kill()
    until(lambda: not any(map(running, [*family.pids, family.guardian])))


@pytest.mark.parametrize(
    "then",
    [
        "    return",
        "    sys.exit(3)",
        "    os._exit(3)",
        "    os.abort()",
        "    group.GRACE_PERIOD_S = 0.1\n    await asyncio.gather(*(child.stop() for child in children))",
    ],
    ids=["return", "exit", "_exit", "abort", "stop"],
)
def test_however_this_process_ends_nothing_stays(host: Callable[[str], Host], then: str) -> None:
    family = host(then)
    until(lambda: not any(map(running, [*family.pids, family.guardian, family.process.pid])))


def test_a_fork_of_this_process_neither_ends_its_children_nor_keeps_them_alive(host: Callable[[str], Host]) -> None:
    family = host(
        "    pid = os.fork()\n"
        "    if pid == 0:\n        children[0].kill(); os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    os.waitpid(pid, os.WUNTRACED)\n    print(pid, flush=True)\n" + WAITS
    )
    assert family.process.stdout is not None
    forked = int(family.process.stdout.readline())
    try:
        assert all(map(running, family.pids))
        family.process.kill()
        until(lambda: not any(map(running, [*family.pids, family.guardian])))
        assert running(forked)
    finally:
        os.kill(forked, signal.SIGKILL)


def test_a_fork_that_exits_normally_ends_no_server(host: Callable[[str], Host]) -> None:
    # The fork happens in a callback: from Python 3.14 on, a task cannot end in another process than the one it runs in.
    family = host(
        "    def fork():\n"
        "        pid = os.fork()\n        if pid == 0: sys.exit(0)\n"
        "        os.waitpid(pid, 0)\n        print('back', flush=True)\n"
        "    asyncio.get_running_loop().call_soon(fork)\n" + WAITS
    )
    assert family.process.stdout is not None
    assert family.process.stdout.readline() == "back\n"
    assert all(map(running, [*family.pids, family.guardian]))


def test_it_is_there_while_there_is_something_to_guard(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    one, two = sleeper(), sleeper()
    guardian = Reaper()
    before = psutil.Process().num_fds()
    guardian.add(one.pid)
    guardian.add(two.pid)
    pid = guardian.pid
    assert pid is not None
    guardian.remove(one.pid)
    assert running(pid)
    guardian.remove(two.pid)
    assert not psutil.pid_exists(pid)
    assert psutil.Process().num_fds() == before
    assert one.poll() is None
    assert two.poll() is None


def test_a_killed_reaper_is_replaced_and_gets_all_processes(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    one, two, three = sleeper(), sleeper(), sleeper()
    guardian = Reaper()
    guardian.add(one.pid)
    pid = guardian.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    guardian.add(two.pid)
    guardian.add(three.pid)
    guardian.remove(three.pid)
    wait = let_go(guardian)
    assert one.wait(PATIENCE) == two.wait(PATIENCE) == -signal.SIGTERM
    wait()
    assert three.poll() is None


def test_without_a_shell_there_is_none(
    sleeper: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHELL", "/nonexistent/sh")
    one = sleeper()
    guardian = Reaper()
    guardian.add(one.pid)
    guardian.remove(one.pid)
    assert one.poll() is None


@pytest.mark.parametrize("shell", [pytest.param(name, marks=needs(name)) for name in ("dash", "bash", "zsh")])
def test_any_shell_will_do(
    shell: str, sleeper: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sh").symlink_to(get_program(shell))  # by that name zsh behaves as POSIX has it
    monkeypatch.setattr(module, "SHELL", str(tmp_path / "sh"))
    monkeypatch.setattr(module, "GRACE_PERIOD_S", 0.3)
    family = [sleeper() for _ in range(5)]
    deaf = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        guardian = Reaper()
        for one in [*family, deaf]:
            guardian.add(one.pid)
        for one in family[::2]:
            guardian.remove(one.pid)
        wait = let_go(guardian)
        assert [one.wait(PATIENCE) for one in family[1::2]] == [-signal.SIGTERM] * 2
        assert deaf.wait(PATIENCE) == -signal.SIGKILL
        wait()
        assert [one.poll() for one in family[::2]] == [None] * 3
    finally:
        deaf.kill()
        deaf.communicate()

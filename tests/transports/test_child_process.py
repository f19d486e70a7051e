"""Test a server as a child process: its environment, its output and its stop, without leftovers."""

import asyncio
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from dovetail.errors import ProcessStartError
from dovetail.transports import pipes
from dovetail.transports.process import process_group
from dovetail.transports.process.child_process import ChildProcess
from dovetail.transports.process.posix_group import has_running_member
from support.fake_service import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="platform: process groups")

BUSY_TIMEOUT_S = 100.0

ECHO = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
STUBBORN = DEAF + "print('up', flush=True)\nwhile True: time.sleep(60)"
FAMILY = f"""
import os, subprocess, sys
inner = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
inner.stdout.readline()
print(os.getpid(), inner.pid, flush=True)
sys.stdin.read()
"""


class Heard(asyncio.Protocol):
    """Keeps what a child says on stdout, and what happens to the connection."""

    def __init__(self) -> None:
        self.said = b""
        self.events: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.said += data

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    async def line(self) -> str:
        await wait_until(lambda: b"\n" in self.said)
        first, _, self.said = self.said.partition(b"\n")
        return first.decode()

    async def pids(self) -> list[int]:
        return [int(word) for word in (await self.line()).split()]


Start = Callable[..., Awaitable[tuple[ChildProcess, Heard]]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a Python program as a child; whatever a test leaves is killed."""
    children: list[ChildProcess] = []

    async def begin(program: str, *arguments: str, **options: Any) -> tuple[ChildProcess, Heard]:
        heard = Heard()
        child = await ChildProcess.start([sys.executable, "-c", program, *arguments], heard, **options)
        children.append(child)
        return child, heard

    yield begin
    for child in children:
        child.kill()
        await child.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "GRACE_PERIOD_S", 0.2)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a process the time that it needs on a busy machine to notice the end of its input."""
    monkeypatch.setattr(process_group, "GRACE_PERIOD_S", BUSY_TIMEOUT_S)


def hold_signal(monkeypatch: pytest.MonkeyPatch, name: str, is_ready: Callable[[], bool]) -> None:
    """Let a method of the group send its signal only when the test is ready, however busy the machine is."""
    send = getattr(process_group.ProcessGroup, name)

    def send_when_ready(group: process_group.ProcessGroup) -> None:
        while not is_ready():
            time.sleep(0.01)
        send(group)

    monkeypatch.setattr(process_group.ProcessGroup, name, send_when_ready)


def gone(*pids: int) -> bool:
    """Whether none of these runs; an unreaped one counts as gone only if it is not ours to reap."""
    return not any(running(pid) for pid in pids)


def running(pid: int) -> bool:
    try:
        found = psutil.Process(pid)
        return found.status() != psutil.STATUS_ZOMBIE or found.ppid() == os.getpid()
    except psutil.NoSuchProcess:
        return False


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# What goes in and comes out


async def test_bytes_go_in_and_come_out(start: Start) -> None:
    child, heard = await start(ECHO)
    child.stdin.write(b"abc\n")
    assert await heard.line() == "cba"
    assert child.returncode is None
    assert running(child.pid)
    await child.stop()
    assert child.returncode == 0
    assert heard.events == ["made", "eof", "lost"]


def test_it_works_on_uvloop_too() -> None:
    async def talk() -> tuple[str, int, list[str]]:
        heard = Heard()
        child = await ChildProcess.start([sys.executable, "-c", ECHO], heard)
        child.stdin.write(b"abc\n")
        line = await heard.line()
        await child.stop()
        return line, await child.wait_exited(), heard.events

    assert uvloop.run(talk()) == ("cba", 0, ["made", "eof", "lost"])


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_it_works_on_a_loop_in_another_thread(run: Callable[..., Any]) -> None:
    async def talk() -> str:
        heard = Heard()
        child = await ChildProcess.start([sys.executable, "-c", ECHO], heard)
        child.stdin.write(b"abc\n")
        line = await heard.line()
        await child.stop()
        return line

    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(run(talk())))
    thread.start()
    thread.join(30)
    assert said == ["cba"]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_child_that_does_not_read_pauses_the_writer(run: Callable[..., Any]) -> None:
    async def talk() -> list[str]:
        heard = Heard()
        child = await ChildProcess.start([sys.executable, "-c", "import sys; sys.stdin.buffer.read()"], heard)
        child.stdin.write(b"x" * (4 << 20))
        paused = list(heard.events)
        await wait_until(lambda: "resume" in heard.events)
        await child.stop()
        return paused

    assert run(talk()) == ["made", "pause"]


async def test_a_waiting_writer_notices_a_closed_reader(start: Start) -> None:
    child, heard = await start(
        "import os, sys; sys.stdin.buffer.raw.read(1); os.close(0); print('shut', flush=True); input()"
    )
    child.stdin.write(b"x" * (4 << 20))
    assert "pause" in heard.events
    await wait_until(lambda: "resume" in heard.events)
    assert child.stdin.is_closing()


async def test_a_child_has_its_own_session_and_no_descriptor_of_ours(start: Start) -> None:
    ours, other = os.pipe()
    os.set_inheritable(ours, True)
    try:
        child, heard = await start(
            "import os; print(os.getsid(0), os.getpgid(0), *os.listdir('/proc/self/fd')); input()"
        )
        session, leader, *descriptors = await heard.pids()
    finally:
        os.close(ours)
        os.close(other)
    assert session == leader == child.pid
    assert set(descriptors) <= {0, 1, 2, 3}  # the last is the listing itself


# What it is started with


async def test_secrets_of_this_process_are_not_passed_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "secret")
    show = "import os; print(os.environ.get('ACME_API_KEY'), os.environ.get('MINE'), 'PATH' in os.environ)"
    _, heard = await start(show, env={"MINE": "1"})
    assert await heard.line() == "None 1 True"
    _, heard = await start(show, inherit=["ACME_*"])
    assert await heard.line() == "secret None True"
    _, heard = await start(show, inherit="all", env={"ACME_API_KEY": "other"})
    assert await heard.line() == "other None True"


async def test_it_runs_in_the_given_folder(start: Start, tmp_path: Path) -> None:
    _, heard = await start("import os; print(os.getcwd())", cwd=tmp_path)
    assert await heard.line() == str(tmp_path)


async def test_a_command_that_is_not_there_is_an_error_that_helps() -> None:
    with pytest.raises(ProcessStartError, match=r"no-such-server.*PATH"):
        await ChildProcess.start(["no-such-server"], Heard(), env={"PATH": "/nowhere"})


async def test_a_failed_start_leaves_no_descriptor() -> None:
    before = psutil.Process().num_fds()
    for _ in range(5):
        with pytest.raises(ProcessStartError):
            await ChildProcess.start(["no-such-server"], Heard())
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("broken", ["open_reader", "open_writer"])
async def test_a_start_that_fails_halfway_leaves_nothing(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(protocol: asyncio.Protocol, pipe: Any) -> Any:
        pipe.close()
        raise OSError("no more")

    monkeypatch.setattr(f"dovetail.transports.process.child_process.{broken}", fail)
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match="no more"):
        await ChildProcess.start([sys.executable, "-c", STUBBORN], Heard())
    await wait_until(lambda: not psutil.Process().children() and psutil.Process().num_fds() == before)


# What it writes on stderr


async def test_a_child_that_exits_at_once_leaves_its_code_and_its_last_words(start: Start) -> None:
    child, _ = await start("import sys; sys.exit('cannot open the database')")
    assert await child.wait_exited() == 1
    assert child.returncode == 1
    assert child.stderr_tail() == "cannot open the database"


async def test_the_last_words_are_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[asyncio.ReadTransport] = []

    async def reader(protocol: asyncio.Protocol, pipe: Any) -> asyncio.ReadTransport:
        opened.append(await pipes.open_reader(protocol, pipe))
        return opened[-1]

    monkeypatch.setattr("dovetail.transports.process.child_process.open_reader", reader)
    child, _ = await start("import sys; sys.exit('late')")
    _, pipe = opened  # of its output and its errors
    pipe.pause_reading()
    await wait_until(lambda: child.returncode is not None)
    asyncio.get_running_loop().call_later(0.05, pipe.resume_reading)
    assert await child.wait_exited() == 1
    assert child.stderr_tail() == "late"


async def test_the_tail_is_short_and_safe_to_show(start: Start) -> None:
    child, _ = await start(
        "import sys\nfor n in range(1000): print('line', n, file=sys.stderr)\n"
        "sys.stderr.flush(); sys.stderr.buffer.write(b'\\x1b[31mr\\xe9d\\x07\\ttab \\xc3\\xa9\\n\\n')"
    )
    await child.wait_exited()
    lines = child.stderr_tail().split("\n")
    assert len(lines) == 20
    assert lines[-2:] == ["line 999", "\\x1b[31mr�d\\x07\ttab é"]


async def test_much_on_stderr_neither_blocks_the_child_nor_fills_memory(start: Start) -> None:
    program = "import sys; sys.stderr.write('x' * 10_000_000); print('answer', flush=True); input()"
    tracemalloc.start()
    try:
        child, heard = await start(program)
        assert await heard.line() == "answer"
        await child.stop()
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert 65000 < len(child.stderr_tail()) <= 65536


async def test_a_sink_gets_every_line_and_long_ones_are_cut(start: Start) -> None:
    lines: list[str] = []
    child, _ = await start(
        "import sys; w = sys.stderr.write; w('one\\r\\ntwo\\n'); w('x' * 200_000 + '\\n'); w('last')",
        stderr=lines.append,
    )
    await child.wait_exited()
    assert lines == ["one", "two", "x" * 16384, "last"]


async def test_a_stream_can_be_the_sink(start: Start) -> None:
    sink = io.StringIO()
    child, _ = await start("import sys; sys.stderr.write('one\\ntwo\\n')", stderr=sink)
    await child.wait_exited()
    assert sink.getvalue() == "one\ntwo\n"


async def test_a_failing_sink_is_reported_once_and_affects_no_caller(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def sink(line: str) -> None:
        seen.append(line)
        raise ValueError("full")

    child, _ = await start("import sys; sys.stderr.write('one\\ntwo\\n'); sys.exit(3)", stderr=sink)
    assert await child.wait_exited() == 3
    assert seen == ["one", "two"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert child.stderr_tail() == "one\ntwo"


def test_stderr_can_be_inherited() -> None:
    program = """
import asyncio, sys
from dovetail.transports.process.child_process import ChildProcess
async def main():
    command = [sys.executable, "-c", "import sys; sys.exit('to the terminal')"]
    child = await ChildProcess.start(command, asyncio.Protocol(), stderr="inherit")
    await child.wait_exited()
    print(repr(child.stderr_tail()))
asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (run.stdout, run.stderr) == ("''\n", "to the terminal\n")


# How it is stopped


async def test_the_order_of_a_stop_is_end_of_input_terminate_kill(
    start: Start, impatient: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record"
    record.touch()
    hold_signal(monkeypatch, "terminate", lambda: record.read_text().startswith("EOF"))
    hold_signal(monkeypatch, "kill", lambda: record.read_text() == "EOF\nTERM\n")
    child, heard = await start(
        "import signal, sys, time\n"
        "note = lambda what: open(sys.argv[1], 'a').write(what + '\\n')\n"
        "signal.signal(signal.SIGTERM, lambda *_: note('TERM'))\n"
        "print('up', flush=True); sys.stdin.read(); note('EOF')\n"
        "while True: time.sleep(60)",
        str(record),
    )
    await heard.line()
    await child.stop()
    assert record.read_text() == "EOF\nTERM\n"
    assert child.returncode == -signal.SIGKILL


async def test_one_that_ends_with_its_input_gets_no_signal(start: Start, patient: None) -> None:
    child, heard = await start(
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print('up', flush=True); sys.stdin.read()"
    )
    await heard.line()
    await child.stop()
    assert child.returncode == 0


async def test_a_signal_ends_one_that_does_not_read(start: Start, impatient: None) -> None:
    child, heard = await start("import time; print('up', flush=True); time.sleep(60)")
    await heard.line()
    await child.stop()
    assert child.returncode == -signal.SIGTERM


async def test_what_it_started_is_ended_after_a_clean_exit_too(
    start: Start, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, heard = await start(FAMILY)
    leader, inner = await heard.pids()
    hold_signal(monkeypatch, "terminate", lambda: has_ended(leader))
    await child.stop()
    assert child.returncode == 0
    assert gone(leader, inner)


async def test_what_it_started_is_ended_when_it_crashes(start: Start, impatient: None) -> None:
    child, heard = await start(FAMILY)
    leader, inner = await heard.pids()
    os.kill(leader, signal.SIGKILL)
    assert await child.wait_exited() == -signal.SIGKILL
    await wait_until(lambda: gone(leader, inner))


SLOW = """
import signal, sys, time
def end(*_):
    open(sys.argv[1], "a").write("asked ")
    time.sleep(0.3)
    open(sys.argv[1], "a").write("done ")
    raise SystemExit
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True: time.sleep(60)
"""


@pytest.mark.parametrize("waits", ["sys.stdin.read()", "signal.pause()"], ids=["ends with input", "ends when asked"])
async def test_what_it_started_may_end_in_its_own_time_and_is_asked_once(
    waits: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "GRACE_PERIOD_S", 1.0)
    record = tmp_path / "record"
    family = FAMILY.replace(f"{STUBBORN!r}]", f"{SLOW!r}, sys.argv[1]]").replace("sys.stdin.read()", waits)
    child, heard = await start("import signal\n" + family, str(record))
    await heard.pids()
    await child.stop()
    assert record.read_text() == "asked done "


async def test_one_that_leaves_the_group_is_not_followed_but_does_not_hold_up_the_stop(start: Start) -> None:
    escaped = FAMILY.replace("stdout=subprocess.PIPE", "start_new_session=True, stdout=subprocess.PIPE")
    keeps_stdout = escaped.replace("stdout=subprocess.PIPE)", "stdout=subprocess.PIPE, pass_fds=(1,))")
    child, heard = await start(keeps_stdout)
    leader, inner = await heard.pids()
    try:
        await child.stop()
        assert gone(leader)
        assert running(inner)
        assert heard.events[-1] == "lost"
    finally:
        os.kill(inner, signal.SIGKILL)


def test_ctrl_c_in_the_terminal_is_for_this_process_alone(tmp_path: Path) -> None:
    record = tmp_path / "record"
    server = f"""
import signal, sys
signal.signal(signal.SIGINT, lambda *_: open({str(record)!r}, "a").write("INT"))
print("up", flush=True); sys.stdin.read(); open({str(record)!r}, "a").write("EOF")
"""
    host = f"""
import asyncio, sys
from dovetail.transports.process import process_group
from dovetail.transports.process.child_process import ChildProcess
process_group.GRACE_PERIOD_S = {BUSY_TIMEOUT_S}
class Up(asyncio.Protocol):
    def data_received(self, data): print("up", flush=True)
async def main():
    child = await ChildProcess.start([sys.executable, "-c", {server!r}], Up())
    try: await asyncio.sleep(600)
    finally: await child.stop()
asyncio.run(main())
"""
    terminal = subprocess.Popen(
        [sys.executable, "-c", host], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    with terminal:
        assert terminal.stdout is not None
        terminal.stdout.readline()
        os.killpg(terminal.pid, signal.SIGINT)
        _, complaint = terminal.communicate(timeout=BUSY_TIMEOUT_S)
    assert complaint.rstrip().endswith(b"KeyboardInterrupt")
    assert record.read_text() == "EOF"


async def test_unread_output_is_dropped_even_if_another_process_holds_the_pipe(start: Start, impatient: None) -> None:
    before = psutil.Process().num_fds()
    child, heard = await start(
        "import subprocess, time; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)\n"
        "time.sleep(600)"
    )
    (stranger,) = await heard.pids()
    try:
        child.stdin.write(b"x" * (4 << 20))
        assert heard.events == ["made", "pause"]
        await child.stop()
        assert child.returncode == -signal.SIGTERM
        await wait_until(lambda: psutil.Process().num_fds() == before)
        assert heard.events[2:] in (["lost", "resume"], ["resume", "lost"])
    finally:
        os.kill(stranger, signal.SIGKILL)


async def test_stops_from_many_tasks_are_one_stop(start: Start) -> None:
    child, _ = await start(ECHO)
    await asyncio.gather(*(child.stop() for _ in range(5)))
    await child.stop()
    assert child.returncode == 0


async def test_a_cancelled_stop_goes_on(start: Start, impatient: None) -> None:
    child, heard = await start(STUBBORN)
    await heard.line()
    first = asyncio.create_task(child.stop())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await wait_until(lambda: gone(child.pid))
    await child.stop()
    assert child.returncode == -signal.SIGKILL


async def test_a_kill_at_once_is_a_kill_of_all(start: Start) -> None:
    child, heard = await start(FAMILY)
    leader, inner = await heard.pids()
    child.kill()
    child.kill()
    await wait_until(lambda: gone(leader, inner))
    assert await child.wait_exited() == -signal.SIGKILL


def test_a_child_that_is_forgotten_with_its_loop_is_killed() -> None:
    loop = asyncio.new_event_loop()
    heard = Heard()

    async def begin() -> ChildProcess:
        child = await ChildProcess.start([sys.executable, "-c", STUBBORN], heard)
        await heard.line()
        return child

    child = loop.run_until_complete(begin())
    pid, forgotten = child.pid, weakref.ref(child)
    loop.close()
    del child, heard.transport
    with pytest.warns(ResourceWarning):
        gc.collect()
    assert forgotten() is None
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)
    assert gone(pid)


async def test_many_starts_and_stops_leave_neither_descriptors_nor_processes_nor_threads(start: Start) -> None:
    program = ["/bin/sh", "-c", "read line"]
    await (await ChildProcess.start(program, Heard())).stop()
    await wait_until(lambda: not psutil.Process().children())
    before, threads = psutil.Process().num_fds(), threading.active_count()
    for _ in range(100):
        child = await ChildProcess.start(program, Heard())
        await child.stop()
        assert child.returncode == 1
    # A thread of an earlier test may end meanwhile, so there can be fewer than before.
    await wait_until(lambda: not psutil.Process().children() and threading.active_count() <= threads)
    assert psutil.Process().num_fds() <= before


async def test_one_that_cannot_be_killed_does_not_hold_up_the_stop(
    start: Start, impatient: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    child, heard = await start(STUBBORN)
    await heard.line()
    with monkeypatch.context() as patch:
        patch.setattr(process_group.ProcessGroup, "kill", process_group.ProcessGroup.terminate)
        await child.stop()
    assert child.returncode is None
    assert str(child.pid) in caplog.text
    os.kill(child.pid, signal.SIGKILL)
    assert await child.wait_exited() == -signal.SIGKILL


async def test_a_system_that_cannot_wait_without_reaping_will_do(
    start: Start, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "waitid")
    child, heard = await start(FAMILY)
    leader, inner = await heard.pids()
    assert running(leader)
    await child.stop()
    assert child.returncode == 0
    assert gone(leader, inner)


async def test_an_unreaped_zombie_is_not_waited_for(
    start: Start, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    child, heard = await start(
        "import os, sys, time\npid = os.fork()\n"
        "if pid == 0:\n    inner = os.fork()\n    if inner == 0: os._exit(0)\n"
        "    os.setsid(); os.close(0); os.close(1); os.close(2); time.sleep(600)\n"
        "print(pid, flush=True); sys.stdin.read()"
    )
    (keeper,) = await heard.pids()
    try:
        await child.stop()
        assert child.returncode == 0
        assert not has_running_member(child.pid)
        os.killpg(child.pid, 0)  # the zombie is still a member
        assert not caplog.records
    finally:
        os.kill(keeper, signal.SIGKILL)


async def test_many_at_the_same_time(start: Start) -> None:
    running_now = await asyncio.gather(*(start(ECHO) for _ in range(20)))
    for number, (child, _) in enumerate(running_now):
        child.stdin.write(b"%d!\n" % number)
    assert [await heard.line() for _, heard in running_now] == [f"!{str(n)[::-1]}" for n in range(20)]
    await asyncio.gather(*(child.stop() for child, _ in running_now))
    assert all(child.returncode == 0 for child, _ in running_now)


async def test_pipes_that_cannot_be_polled_are_read_by_threads(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def reader(protocol: asyncio.Protocol, pipe: Any) -> asyncio.ReadTransport:
        return pipes.ThreadReader(asyncio.get_running_loop(), protocol, pipe)

    async def writer(protocol: asyncio.Protocol, pipe: Any) -> asyncio.WriteTransport:
        return pipes.ThreadWriter(asyncio.get_running_loop(), protocol, pipe)

    monkeypatch.setattr("dovetail.transports.process.child_process.open_reader", reader)
    monkeypatch.setattr("dovetail.transports.process.child_process.open_writer", writer)
    child, heard = await start(ECHO + "\nsys.exit('bye')")
    child.stdin.write(b"abc\n")
    assert await heard.line() == "cba"
    await child.stop()
    assert (child.returncode, child.stderr_tail()) == (1, "bye")
    assert heard.events == ["made", "eof", "lost"]

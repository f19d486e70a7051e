"""Test that the watchdog reports a blocked event loop, and that a requested stop still happens."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time

import pytest

from dovetail.server.loop_watchdog import LoopWatchdog, hung_up
from support.fake_service import wait_until


def brisk(blocked_after: float = 0.05, report_every: float = 10.0) -> LoopWatchdog:
    return LoopWatchdog(interval=0.005, blocked_after=blocked_after, report_every=report_every)


def started(dog: LoopWatchdog) -> threading.Thread:
    """Start it; its thread."""
    before = set(threading.enumerate())
    dog.start()
    (thread,) = set(threading.enumerate()) - before
    return thread


def hold_everything_up(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_blocked_loop_is_reported_with_what_blocks_it(caplog: pytest.LogCaptureFixture) -> None:
    dog = brisk()
    dog.start()
    hold_everything_up(0.3)
    dog.stop()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("dovetail", logging.ERROR)
    assert "hold_everything_up" in record.getMessage()
    assert len(record.getMessage()) < 5000


async def test_a_loop_that_turns_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    dog = brisk(blocked_after=5.0)  # a busy machine is not a blocked loop
    dog.start()
    first = dog.last_turn
    await wait_until(lambda: dog.last_turn - first > 0.05)
    dog.stop()
    assert not caplog.records


@pytest.mark.parametrize(("every", "repeated"), [(1000.0, False), (0.0, True)])
async def test_a_report_is_repeated_only_after_a_while(
    caplog: pytest.LogCaptureFixture, every: float, repeated: bool
) -> None:
    dog = brisk(report_every=every)
    dog.start()
    hold_everything_up(0.3)
    dog.stop()
    assert (len(caplog.records) > 1) == repeated


async def test_stopping_ends_the_thread_and_the_beat() -> None:
    dog = brisk()
    thread = started(dog)
    assert thread.daemon
    dog.stop()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
    await asyncio.sleep(0.03)
    last = dog.last_turn
    await asyncio.sleep(0.03)
    assert dog.last_turn == last


@pytest.mark.skipif(sys.platform == "win32", reason="platform: no poll")
def test_hang_ups_are_seen() -> None:
    reads, writes = os.pipe()
    assert not hung_up(reads)
    os.close(writes)
    assert hung_up(reads)
    os.close(reads)
    assert hung_up(reads)


PROGRAM = """
import asyncio, os, sys, threading, time
from dovetail.server.loop_watchdog import LoopWatchdog

async def main():
    dog = LoopWatchdog(interval=0.01, blocked_after=0.05)
    dog.start(0 if "hang-up" in sys.argv else None)
    if "hang-up" not in sys.argv:
        for seconds, code in ((50.0, 1), (0.1, 7), (30.0, 3)):  # the earliest end counts
            dog.exit_within(seconds, code)
    print("ready", flush=True)
    time.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize(("why", "code"), [("told", 7), ("hang-up", 0)])
def test_a_process_whose_loop_is_blocked_ends_all_the_same(why: str, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, why], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        if why == "hang-up":
            process.stdin.close()
        assert process.wait(30) == code
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        process.wait()


async def test_the_watch_is_kept_from_outside_the_loop() -> None:
    dog = brisk()
    thread = started(dog)
    assert thread.is_alive()
    assert thread is not threading.current_thread()
    dog.stop()

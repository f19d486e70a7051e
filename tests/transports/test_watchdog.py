"""Watchdog: a loop that does not turn is reported, and a stop that was asked for comes about."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time

import pytest

from dovetail.transports import watchdog
from dovetail.transports.watchdog import Watchdog, _hung_up
from transports.scene import until


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_BEAT", 0.005)
    monkeypatch.setattr(watchdog, "_LATE", 0.05)


def hold_everything_up(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_blocked_loop_is_reported_with_what_blocks_it(caplog: pytest.LogCaptureFixture) -> None:
    dog = Watchdog()
    dog.start()
    hold_everything_up(0.3)
    dog.stop()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("dovetail", logging.ERROR)
    assert "hold_everything_up" in record.getMessage()
    assert len(record.getMessage()) < 5000


async def test_a_loop_that_turns_is_left_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_LATE", 5.0)  # a busy machine is not a blocked loop
    dog = Watchdog()
    dog.start()
    beat = dog._beat
    await until(lambda: dog._beat - beat > 0.05)
    dog.stop()
    assert not caplog.records


@pytest.mark.parametrize(("every", "repeated"), [(1000.0, False), (0.0, True)])
async def test_a_report_is_repeated_only_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, every: float, repeated: bool
) -> None:
    monkeypatch.setattr(watchdog, "_REPORT_EVERY", every)
    dog = Watchdog()
    dog.start()
    hold_everything_up(0.3)
    dog.stop()
    assert (len(caplog.records) > 1) == repeated


async def test_stopping_ends_the_thread_and_the_beat() -> None:
    dog = Watchdog()
    dog.start()
    assert dog._thread.daemon
    dog.stop()
    await asyncio.to_thread(dog._thread.join, 10)
    assert not dog._thread.is_alive()
    await asyncio.sleep(0.03)
    beat = dog._beat
    await asyncio.sleep(0.03)
    assert dog._beat == beat


async def test_the_earliest_end_counts() -> None:
    dog = Watchdog()
    for seconds, code in ((50.0, 1), (10.0, 2), (30.0, 3)):
        dog.end_within(seconds, code)
    assert dog._exit_code == 2
    assert dog._stop_at is not None
    assert dog._stop_at - time.monotonic() <= 10.0


@pytest.mark.skipif(sys.platform == "win32", reason="platform: no poll")
def test_hang_ups_are_seen() -> None:
    reads, writes = os.pipe()
    assert not _hung_up(reads)
    os.close(writes)
    assert _hung_up(reads)
    os.close(reads)
    assert _hung_up(reads)


PROGRAM = """
import asyncio, os, sys, threading, time
from dovetail.transports import watchdog

watchdog._BEAT, watchdog._LATE = 0.01, 0.05

async def main():
    dog = watchdog.Watchdog()
    dog.start(0 if "hang-up" in sys.argv else None)
    if "hang-up" not in sys.argv:
        dog.end_within(0.1, 7)
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
    dog = Watchdog()
    dog.start()
    await until(lambda: dog._thread.is_alive())
    assert dog._thread is not threading.current_thread()
    assert dog._main == threading.get_ident()
    dog.stop()

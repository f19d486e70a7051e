"""How a back end calls a listener."""

import asyncio

import pytest

from cluster.recorder import Recorder, wait_until
from dovetail.cluster import guarded_listener
from dovetail.cluster.guarded_listener import GuardedListener
from dovetail.protocol.interfaces.shared_state import Message


class FailingRecorder(Recorder):
    def receive(self, message: Message) -> None:
        super().receive(message)
        raise RuntimeError("the listener fails")

    def handle_gap(self) -> None:
        super().handle_gap()
        raise RuntimeError("the listener fails")


async def test_an_error_of_the_listener_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    recorder = FailingRecorder()
    guarded = GuardedListener(recorder)
    for _ in range(2):
        guarded.deliver(Message("change", b"", "worker"))
    guarded.report_gap()
    await wait_until(lambda: recorder.gaps)
    assert (len(recorder.messages), recorder.gaps, len(caplog.records)) == (2, 1, 3)


async def test_many_gaps_are_reported_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_listener, "_GAP_INTERVAL_S", 3600.0)
    recorder = Recorder()
    guarded = GuardedListener(recorder)
    for _ in range(100):
        guarded.report_gap()
    assert recorder.gaps == 0  # Changes that arrive together with the gap come first.
    await wait_until(lambda: recorder.gaps)
    guarded.report_gap()
    await asyncio.sleep(0.01)
    assert recorder.gaps == 1
    guarded.close()


async def test_a_later_gap_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_listener, "_GAP_INTERVAL_S", 0.05)
    recorder = Recorder()
    guarded = GuardedListener(recorder)
    guarded.report_gap()
    await wait_until(lambda: recorder.gaps)
    guarded.report_gap()
    guarded.report_gap()
    await wait_until(lambda: recorder.gaps == 2)


async def test_a_closed_listener_hears_nothing() -> None:
    recorder = Recorder()
    guarded = GuardedListener(recorder)
    guarded.report_gap()
    guarded.close()
    guarded.report_gap()
    guarded.deliver(Message("change", b"", "worker"))
    await asyncio.sleep(0.01)
    assert (recorder.messages, recorder.gaps) == ([], 0)

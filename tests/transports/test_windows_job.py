"""Test the calls and structures for the Windows job object, on any platform."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.transports.process import windows_job
from dovetail.transports.process.windows_job import Accounting, BasicLimits, ExtendedLimits, WindowsJob


class Kernel:
    """Plays the system: notes calls, answers as told."""

    def __init__(self, *, allows: bool = True, active: int = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.allows, self.active = allows, active

    def CreateJobObjectW(self, *_: Any) -> int:  # noqa: N802
        return 7

    def SetInformationJobObject(self, handle: int, kind: int, limits: Any, size: int) -> int:  # noqa: N802
        # ctypes has no public way to read what byref() refers to.
        self.calls.append(("limit", handle, kind, limits._obj.BasicLimitInformation.LimitFlags, size))
        return 1

    def AssignProcessToJobObject(self, handle: int, process: int) -> int:  # noqa: N802
        self.calls.append(("assign", handle, process))
        return int(self.allows)

    def QueryInformationJobObject(self, handle: int, kind: int, counts: Any, size: int, _: Any) -> int:  # noqa: N802
        counts._obj.ActiveProcesses = self.active
        return 1

    def TerminateJobObject(self, handle: int, code: int) -> int:  # noqa: N802
        self.calls.append(("terminate", handle))
        return 1

    def CloseHandle(self, handle: int) -> int:  # noqa: N802
        self.calls.append(("close", handle))
        return 1


def begin(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> WindowsJob:
    monkeypatch.setattr(windows_job, "load_kernel32", lambda: kernel)
    process: Any = SimpleNamespace(_handle=9, kill=lambda: kernel.calls.append(("kill",)), wait=lambda: 0)
    return WindowsJob(process)


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="platform: 64 bits")
def test_the_layouts_are_those_of_the_system() -> None:
    assert [ctypes.sizeof(one) for one in (BasicLimits, ExtendedLimits, Accounting)] == [64, 144, 48]
    assert BasicLimits.LimitFlags.offset == 16
    assert Accounting.ActiveProcesses.offset == 40


def test_a_process_is_put_into_a_job_that_ends_with_its_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(active=2)
    members = begin(kernel, monkeypatch)
    assert kernel.calls == [("limit", 7, 9, 0x2000, ctypes.sizeof(ExtendedLimits)), ("assign", 7, 9)]
    assert members.is_running()
    kernel.active = 0
    assert not members.is_running()
    members.terminate()
    members.close()
    members.close()
    assert kernel.calls[2:] == [("terminate", 7), ("close", 7)]


def test_without_a_job_the_process_alone_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(allows=False, active=2)
    members = begin(kernel, monkeypatch)
    assert not members.is_running()
    members.kill()
    assert kernel.calls[2:] == [("close", 7), ("kill",)]

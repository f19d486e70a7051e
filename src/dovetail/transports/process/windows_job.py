"""Process groups on Windows. A job object ends all its processes when this process ends."""

import ctypes
import subprocess
from typing import Any

_KILL_ON_JOB_CLOSE = 0x2000
_EXTENDED_LIMITS_CLASS = 9
_ACCOUNTING_CLASS = 1


class BasicLimits(ctypes.Structure):
    """The Windows structure JOBOBJECT_BASIC_LIMIT_INFORMATION."""

    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    )


class ExtendedLimits(ctypes.Structure):
    """The Windows structure JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("BasicLimitInformation", BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


class Accounting(ctypes.Structure):
    """The Windows structure JOBOBJECT_BASIC_ACCOUNTING_INFORMATION."""

    _fields_ = (
        ("TotalUserTime", ctypes.c_int64),
        ("TotalKernelTime", ctypes.c_int64),
        ("ThisPeriodTotalUserTime", ctypes.c_int64),
        ("ThisPeriodTotalKernelTime", ctypes.c_int64),
        ("TotalPageFaultCount", ctypes.c_uint32),
        ("TotalProcesses", ctypes.c_uint32),
        ("ActiveProcesses", ctypes.c_uint32),
        ("TotalTerminatedProcesses", ctypes.c_uint32),
    )


def load_kernel32() -> Any:
    """Load the Windows functions for job objects and set their argument types."""
    handle, number, pointer = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p
    library = ctypes.WinDLL("kernel32", use_last_error=True)
    library.CreateJobObjectW.restype = handle
    library.CreateJobObjectW.argtypes = (pointer, ctypes.c_wchar_p)
    library.SetInformationJobObject.argtypes = (handle, ctypes.c_int, pointer, number)
    library.QueryInformationJobObject.argtypes = (handle, ctypes.c_int, pointer, number, pointer)
    library.AssignProcessToJobObject.argtypes = (handle, handle)
    library.TerminateJobObject.argtypes = (handle, number)
    library.CloseHandle.argtypes = (handle,)
    return library


class WindowsJob:
    """A process and all processes that it starts.

    If this process may not create a job, only the process itself is included.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._kernel = load_kernel32()
        self._handle: int | None = self._kernel.CreateJobObjectW(None, None)
        limits = ExtendedLimits()
        limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
        is_assigned = self._kernel.SetInformationJobObject(
            self._handle, _EXTENDED_LIMITS_CLASS, ctypes.byref(limits), ctypes.sizeof(limits)
        ) and self._kernel.AssignProcessToJobObject(
            self._handle,
            int(process._handle),  # pyright: ignore[reportAttributeAccessIssue]
        )
        if not is_assigned:
            self.close()

    def watch(self) -> None:
        """Do nothing, because Windows ends the job when this process dies."""

    def wait(self) -> None:
        """Wait until the process has exited. Windows does not reuse the process ID while the handle is open."""
        self._process.wait()

    def terminate(self) -> None:
        """Kill the processes of the job, because a process without a console cannot be asked to exit."""
        self.kill()

    def kill(self) -> None:
        """Kill the processes of the job."""
        if self._handle is not None:
            self._kernel.TerminateJobObject(self._handle, 1)
        else:
            self._process.kill()

    def is_running(self) -> bool:
        """Return whether a process of the job is running."""
        counts = Accounting()
        has_counts = self._handle is not None and self._kernel.QueryInformationJobObject(
            self._handle, _ACCOUNTING_CLASS, ctypes.byref(counts), ctypes.sizeof(counts), None
        )
        return bool(has_counts) and counts.ActiveProcesses > 0

    def close(self) -> None:
        """Close the job, which ends all its processes."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._kernel.CloseHandle(handle)

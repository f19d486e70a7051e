"""A Windows job object: a process and all it starts, ended together, also when this process dies."""

import ctypes
import subprocess
import sys
from typing import Any

if sys.platform == "win32":
    from ctypes import wintypes

    _KILL_ON_JOB_CLOSE = 0x2000
    _EXTENDED_LIMITS = 9
    _ACCOUNTING = 1

    class _BasicLimits(ctypes.Structure):
        _fields_ = (
            ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
            ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        )

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = (
            ("BasicLimitInformation", _BasicLimits),
            ("IoInfo", ctypes.c_uint64 * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        )

    class _Accounting(ctypes.Structure):
        _fields_ = (
            ("TotalUserTime", wintypes.LARGE_INTEGER),
            ("TotalKernelTime", wintypes.LARGE_INTEGER),
            ("ThisPeriodTotalUserTime", wintypes.LARGE_INTEGER),
            ("ThisPeriodTotalKernelTime", wintypes.LARGE_INTEGER),
            ("TotalPageFaultCount", wintypes.DWORD),
            ("TotalProcesses", wintypes.DWORD),
            ("ActiveProcesses", wintypes.DWORD),
            ("TotalTerminatedProcesses", wintypes.DWORD),
        )

    def _kernel() -> Any:
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.CreateJobObjectW.restype = wintypes.HANDLE
        kernel.CreateJobObjectW.argtypes = (ctypes.c_void_p, wintypes.LPCWSTR)
        kernel.SetInformationJobObject.argtypes = (wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD)
        kernel.QueryInformationJobObject.argtypes = (
            wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD, ctypes.c_void_p,
        )  # fmt: skip
        kernel.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
        kernel.TerminateJobObject.argtypes = (wintypes.HANDLE, wintypes.UINT)
        kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
        return kernel

    class Job:
        """One process and its descendants. A system that allows no job leaves the process alone in it."""

        def __init__(self, process: subprocess.Popen[bytes]) -> None:
            self._process = process
            self._kernel = _kernel()
            self._handle: int | None = self._kernel.CreateJobObjectW(None, None) or None
            limits = _ExtendedLimits()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
            joined = self._kernel.SetInformationJobObject(
                self._handle, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
            ) and self._kernel.AssignProcessToJobObject(
                self._handle,
                int(process._handle),  # pyright: ignore[reportAttributeAccessIssue]
            )
            if not joined:
                self.close()

        def watch(self) -> None:
            """Nothing to do: the job ends with its last handle, which this process holds."""

        def wait_unreaped(self) -> None:
            """Nothing to do: a number is not reused while a handle is held."""

        def terminate(self) -> None:
            """End them: a process without a console cannot be asked."""
            self.kill()

        def kill(self) -> None:
            """End them."""
            if self._handle is not None:
                self._kernel.TerminateJobObject(self._handle, 1)
            else:
                self._process.kill()

        def busy(self) -> bool:
            """Whether one of them still runs."""
            counts = _Accounting()
            return (
                self._handle is not None
                and bool(
                    self._kernel.QueryInformationJobObject(
                        self._handle, _ACCOUNTING, ctypes.byref(counts), ctypes.sizeof(counts), None
                    )
                )
                and counts.ActiveProcesses > 0
            )

        def close(self) -> None:
            """Let go of it; whatever still runs in it ends."""
            handle, self._handle = self._handle, None
            if handle is not None:
                self._kernel.CloseHandle(handle)

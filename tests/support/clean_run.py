"""Run a command, and fail if it leaves a process, or a file in the home folder, the temporary folder or the checkout.

The command gets an empty home folder and an empty temporary folder. On Linux, this program adopts the orphans among
all processes of the command, so that none can hide. It ends the processes and removes the files that were left. pytest
still keeps the files of the last runs. New files in the checkout count only under CI=true, where no one edits it.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

# A process that was killed, or whose input was closed, needs a moment to end.
_GRACE_PERIOD_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_ROOT = Path(__file__).parents[2]
_CACHE = _ROOT / ".pytest_cache"  # for programs that start faster the second time


def main(command: list[str]) -> int:
    _adopt_orphans()
    files_before = _list_untracked_files()
    pytest_root = tempfile.gettempdir()
    # The names are short, because the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="t-") as folder, tempfile.TemporaryDirectory(prefix="home-") as home:
        environment = os.environ | {"HOME": home, "TMPDIR": folder, "PYTEST_DEBUG_TEMPROOT": pytest_root}
        environment |= {"NODE_COMPILE_CACHE": f"{_CACHE}/node", "MPLCONFIGDIR": f"{_CACHE}/matplotlib"}
        environment["XDG_CACHE_HOME"] = f"{_CACHE}/xdg"
        # pip runs `rustc --version`, and rustup writes its settings.
        environment.setdefault("RUSTUP_HOME", str(Path.home() / ".rustup"))
        status = _run(command, environment)
        left = [
            *(f"process {name}" for name in _end_processes()),
            *(f"file in the temporary folder: {path}" for path in _list_temporary_files(Path(folder))),
            *(f"file in the home folder: {path.relative_to(home)}" for path in Path(home).rglob("*")),
            *(f"file in the checkout: {path}" for path in sorted(_list_untracked_files() - files_before)),
        ]
    for name in left:
        sys.stderr.write(f"left behind: {name}\n")
    return status or bool(left)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command, and return its exit code. Interrupts from the keyboard are for the command."""
    process = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while True:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(-1, 0)  # also removes orphans that have ended, as the first process does
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_processes() -> list[str]:
    """Kill the processes that have not ended, and return their names."""
    deadline = time.monotonic() + _GRACE_PERIOD_S
    while (processes := _list_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    names: list[str] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(f"{process.pid}: {' '.join(process.cmdline()) or process.name()}")
            process.kill()
    psutil.wait_procs(processes, _GRACE_PERIOD_S)
    return names


def _list_processes() -> list[psutil.Process]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    return psutil.Process().children(recursive=True)


def _list_temporary_files(folder: Path) -> list[str]:
    """Return what is in the temporary folder.

    dovetail keeps a folder for each user there. In that folder, only the files of workers must be removed.
    """
    user_folder = folder / f"dovetail-{os.geteuid()}"
    paths = [*folder.iterdir(), *user_folder.glob("workers-*")]
    return [str(path.relative_to(folder)) for path in paths if path != user_folder]


def _list_untracked_files() -> set[str]:
    git = shutil.which("git")
    if git is None or os.environ.get("CI") != "true":
        return set()
    command = [git, "-C", str(_ROOT), "ls-files", "--others", "--exclude-standard"]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

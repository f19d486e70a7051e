"""Run a program in this process as if on Windows: without the names that only POSIX systems have.

The type stubs of basedpyright list the names of the standard library that exist on Windows. All other names and modules
are removed before dovetail is imported, and `sys.platform` is "win32". A few stand-ins do what Windows does. They also
check that dovetail opens files in binary, and that it does not share addresses.

    python windows_names.py PROGRAM ARGUMENTS...
"""

import ast
import os
import runpy
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import basedpyright

_STUBS = Path(str(basedpyright.__file__)).parent / "dist" / "typeshed-fallback" / "stdlib"
_STUB_BY_MODULE = {"os": "os/__init__.pyi", "signal": "signal.pyi", "socket": "socket.pyi", "select": "select.pyi"}
POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
# These modules of the standard library and of other projects choose their Windows code when they are imported, or they
# need a POSIX module. They are not tested here.
_LOADED_BEFORE = (
    "asyncio", "click", "cryptography.hazmat.primitives.ciphers.aead", "ctypes", "getpass", "httptools", "joserfc.jwt",
    "jsonschema_rs", "logging.handlers", "msgspec", "multiprocessing.connection", "pydantic", "pytest", "rich.console",
    "rich.markdown", "rich.table", "selectors", "shutil", "sqlite3", "ssl", "subprocess", "sysconfig", "tempfile",
    "urllib.request", "webbrowser",
)  # fmt: skip
_KEPT = {"WNOHANG"}  # `subprocess` reads this name when it waits
_BINARY_FLAG = 1 << 40  # a stand-in for os.O_BINARY that no other flag uses
_EXCLUSIVE_OPTION = -5  # the value of socket.SO_EXCLUSIVEADDRUSE


def find_posix_names(module: str) -> set[str]:
    """Return the names of a module that exist on Linux and do not exist on Windows."""
    tree = ast.parse((_STUBS / _STUB_BY_MODULE[module]).read_text(encoding="utf-8"))
    return {*_list_names(tree.body, "linux")} - {*_list_names(tree.body, "win32")}


def _list_names(statements: list[ast.stmt], platform: str) -> Iterator[str]:
    for statement in statements:
        match statement:
            case ast.If():
                is_true = _evaluate(statement.test, platform)
                yield from _list_names(statement.body if is_true else statement.orelse, platform)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case _:
                pass


def _evaluate(condition: ast.expr, platform: str) -> bool:
    names = {"sys": types.SimpleNamespace(platform=platform, version_info=sys.version_info), "TYPE_CHECKING": True}
    return bool(eval(ast.unparse(condition), names))  # noqa: S307


def imitate_windows() -> None:
    """Change this process. Import dovetail only afterwards."""
    for name in _LOADED_BEFORE:
        __import__(name)
    sys.modules["sysconfig"].get_config_vars()
    # From Python 3.14 on, asyncio chooses its code for the platform when the first loop is created.
    sys.modules["asyncio"].new_event_loop().close()
    _add_stand_ins()
    for name in _STUB_BY_MODULE:
        for posix_name in find_posix_names(name) - _KEPT:
            vars(sys.modules[name]).pop(posix_name, None)
    for name in (*POSIX_MODULES, "uvloop"):  # uvloop has no wheels for Windows
        sys.modules[name] = None  # type: ignore[assignment]
    sys.platform = "win32"


def _add_stand_ins() -> None:
    _replace_loop_methods()
    _replace_files()
    _replace_processes()
    _replace_sockets()


def _replace_loop_methods() -> None:
    import asyncio
    import selectors

    def refuse(*_: object, **__: object) -> Any:
        raise NotImplementedError

    selectors.DefaultSelector = selectors.SelectSelector
    loop_class: Any = asyncio.SelectorEventLoop
    for name in ("add_reader", "add_writer", "add_signal_handler", "connect_read_pipe", "connect_write_pipe",
                 "create_unix_connection", "create_unix_server"):  # fmt: skip
        setattr(loop_class, name, refuse)
    for module in (asyncio, asyncio.streams):
        for name in ("open_unix_connection", "start_unix_server"):
            delattr(module, name)


def _replace_files() -> None:
    import fcntl
    import shutil
    import tempfile

    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK = 2
    msvcrt.locking = lambda descriptor, _, __: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    sys.modules["msvcrt"] = msvcrt
    modules: Any = (os, shutil, tempfile)
    os_module, shutil_module, tempfile_module = modules
    shutil_module._use_fd_functions = False
    shutil_module._rmtree_impl = shutil_module._rmtree_unsafe  # Python 3.14 and newer read this name
    tempfile_module._rmtree_use_dir_fd = False
    tempfile_module.TemporaryFile = tempfile.NamedTemporaryFile
    os_module.O_BINARY = _BINARY_FLAG
    if sys.version_info >= (3, 13):
        os_module.process_cpu_count = os.cpu_count  # On Linux, it needs a name that is removed.
    open_descriptor, flag_of_files = os.open, os.O_CLOEXEC

    def open_in_binary(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        is_ours = str(sys._getframe(1).f_globals.get("__name__")).startswith("dovetail.")
        # `open` itself opens in binary. It passes this flag to its opener.
        if is_ours and not flags & (_BINARY_FLAG | flag_of_files) and path != os.devnull:
            raise AssertionError(f"{path} is opened as text")
        return open_descriptor(path, flags & ~_BINARY_FLAG, mode)

    os_module.open = open_in_binary


def _replace_processes() -> None:
    import ctypes
    import signal
    import subprocess

    kill_group, kill_signal, popen, library = os.killpg, signal.SIGKILL, subprocess.Popen, ctypes
    modules: Any = (subprocess, popen, library)
    subprocess_module, popen_class, ctypes_module = modules
    subprocess_module.CREATE_NO_WINDOW = 0
    subprocess_module._USE_POSIX_SPAWN = False
    subprocess_module._CAN_USE_PIDFD_OPEN = False  # Python 3.15 and newer read this name
    popen_class._handle = property(lambda process: process.pid)
    popen_class.kill = lambda process: process.send_signal(kill_signal)

    class Function:
        """A function of the system. Callers set its attributes."""

        def __init__(self, function: Any) -> None:
            self._function = function

        def __call__(self, *arguments: Any) -> Any:
            return self._function(*arguments)

    class Kernel:
        """Job objects. Each process is the leader of a group, which ends with its job."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self._pid: int | None = None
            self.CreateJobObjectW = Function(lambda *_: 7)
            self.SetInformationJobObject = Function(lambda *_: 1)
            self.AssignProcessToJobObject = Function(self._assign)
            self.QueryInformationJobObject = Function(self._query)
            self.TerminateJobObject = Function(self._kill)
            self.CloseHandle = Function(self._kill)

        def _assign(self, _: int, pid: int) -> int:
            self._pid = pid
            return 1

        def _query(self, _: int, __: int, counts: Any, *___: Any) -> int:
            counts._obj.ActiveProcesses = int(self._send(0))
            return 1

        def _kill(self, *_: Any) -> int:
            self._send(kill_signal)
            return 1

        def _send(self, signal_number: int) -> bool:
            try:
                kill_group(self._pid, signal_number)
            except OSError:
                return False
            return True

    ctypes_module.WinDLL = Kernel


def _replace_sockets() -> None:
    import socket

    share_option, family = socket.SO_REUSEADDR, socket.AF_UNIX
    set_option, create_pair = socket.socket.setsockopt, socket.socketpair
    module: Any = socket
    module.SO_EXCLUSIVEADDRUSE = _EXCLUSIVE_OPTION
    module.socketpair = lambda: create_pair(family)

    def set_windows_option(self: socket.socket, level: int, option: int, *value: Any) -> None:
        is_ours = str(sys._getframe(1).f_globals.get("__name__")).startswith("dovetail.")
        if is_ours and (level, option) == (socket.SOL_SOCKET, share_option):
            raise AssertionError("on Windows, other programs can listen at an address with SO_REUSEADDR")
        if option != _EXCLUSIVE_OPTION:
            set_option(self, level, option, *value)

    module.socket.setsockopt = set_windows_option


if __name__ == "__main__":
    imitate_windows()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")

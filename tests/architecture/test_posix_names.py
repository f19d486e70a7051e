"""Test that names which only POSIX systems have are used behind a check of `sys.platform`.

The type checker understands this check. `hasattr` and `getattr` hide a name from it, and tests cannot set `os.name`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.windows_names import POSIX_MODULES, find_posix_names

SOURCE = Path(__file__).parents[2] / "src" / "dovetail"
MODULES = ("os", "select", "signal", "socket")
# These files need Unix. The documents say so, and their callers check the platform.
UNIX_FILES = {
    "cluster/local/local_backend.py",
    "cluster/local/local_folder.py",
    "cluster/local/wakeup_socket.py",
    "cluster/local/worker_lock.py",
    "server/workers.py",
    "testing/fault_proxy.py",
    "testing/stdio_relay.py",
    "transports/process/posix_group.py",
}
POSIX_NAMES = {f"{module}.{name}" for module in MODULES for name in find_posix_names(module)}
POSIX_NAMES |= {"asyncio.open_unix_connection", "asyncio.start_unix_server", "os.name"}


def find_unguarded(nodes: list[ast.AST]) -> Iterator[str]:
    """Find names and modules that are used before any check of the platform in the same or an outer block."""
    for node in nodes:
        if "sys.platform" in _get_condition(node):
            # The check protects its own blocks. If it returns or raises, it also protects what follows.
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise):
                return
            continue
        if isinstance(node, ast.Attribute) and ast.unparse(node) in POSIX_NAMES:
            yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = {alias.name for alias in node.names} if isinstance(node, ast.Import) else {node.module}
            yield from (f"{node.lineno}: {module}" for module in sorted(modules & POSIX_MODULES, key=str))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            module, name = (ast.unparse(argument) for argument in node.args[:2])
            if f"{module}.{name.strip(chr(39))}" in POSIX_NAMES:
                yield f"{node.lineno}: {ast.unparse(node)}"
        yield from find_unguarded([*ast.iter_child_nodes(node)])


def _get_condition(node: ast.AST) -> str:
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            return ast.unparse(test)
        case ast.BoolOp(values=[first, *_]):
            return ast.unparse(first)
        case _:
            return ""


def test_posix_names_are_used_behind_a_check_of_the_platform() -> None:
    found = {
        path.relative_to(SOURCE).as_posix(): names
        for path in SOURCE.rglob("*.py")
        if (names := [*find_unguarded([ast.parse(path.read_text(encoding="utf-8"))])])
    }
    assert found.keys() >= UNIX_FILES, "remove the files that no longer need Unix from UNIX_FILES"
    assert {path: names for path, names in found.items() if path not in UNIX_FILES} == {}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import os\nos.getpid()", []),
        ("os.open(path, os.O_RDONLY | os.O_CLOEXEC)", ["1: os.O_CLOEXEC"]),
        ("import fcntl", ["1: fcntl"]),
        ("if sys.platform != 'win32':\n    os.fork()", []),
        ("def f():\n    if sys.platform == 'win32':\n        return\n    os.fork()", []),
        ("def f():\n    if sys.platform == 'win32':\n        x = 1\n    os.fork()", ["4: os.fork"]),
        ("x = os.fork() if sys.platform != 'win32' else 0", []),
        ("if hasattr(os, 'fork'):\n    pass", ["1: hasattr(os, 'fork')"]),
        ("getattr(os, 'O_CLOEXEC', 0)", ["1: getattr(os, 'O_CLOEXEC', 0)"]),
        ("if os.name == 'nt':\n    pass", ["1: os.name"]),
    ],
)
def test_what_is_found(code: str, names: list[str]) -> None:
    assert [*find_unguarded([ast.parse(code)])] == names

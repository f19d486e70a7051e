"""Load the Server object of a file or a module."""

import ast
import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from dovetail.cli import error_report
from dovetail.errors import DamagedFile, UnsupportedFileVersion, UnusableFile

_DEFAULT_SERVER_NAMES = ("app", "server", "mcp")


def has_object_name(target_arg: str) -> bool:
    """Return whether a target has the form `file.py:object`."""
    path, colon, object_name = target_arg.rpartition(":")
    return bool(colon) and path.endswith(".py") and object_name.isidentifier()


def split_object_name(target_arg: str) -> tuple[str, str]:
    """Split `file.py:object` into the file and the name of the object, which may be missing."""
    path, _, object_name = target_arg.rpartition(":")
    return (path, object_name) if has_object_name(target_arg) else (target_arg, "")


def may_have_metadata(path: str) -> bool:
    """Return whether a file seems to contain script metadata (PEP 723). This check is fast."""
    try:
        return b"# /// script" in Path(path).read_bytes()
    except OSError:
        return False


def is_plain_program(path: str) -> bool:
    """Return whether importing a file may start a server.

    Such a file neither checks `__name__` nor imports dovetail.
    """
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        module_names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        module_names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any(module_name.partition(".")[0] == "dovetail" for module_name in module_names):
            return False
        if isinstance(node, ast.Name) and node.id == "__name__":
            return False
    return True


def load_server(target_arg: str | None, module: str | None) -> Any:
    """Load a file or module and return its server. Return None if there is no server."""
    namespace, object_name = _load_namespace(target_arg, module)
    return find_server(namespace, object_name, target_arg or module)


def find_server(namespace: Mapping[str, Any], object_name: str | None, source: str | None) -> Any:
    """Return the server that a module defines. Return None if there is no server."""
    from dovetail.server.server import Server

    servers = {name: value for name, value in namespace.items() if isinstance(value, Server)}
    if object_name is not None:
        candidate = namespace.get(object_name)
        if callable(candidate) and not isinstance(candidate, Server):
            with report_user_errors():
                candidate = candidate()
        if not isinstance(candidate, Server):
            available = ", ".join(sorted(servers))
            raise click.UsageError(
                f"no Server named {object_name!r} in {source!r}{f'. Available: {available}' if available else ''}"
            )
        return candidate
    for name in _DEFAULT_SERVER_NAMES:
        if name in servers:
            return servers[name]
    if len({id(server) for server in servers.values()}) > 1:
        choice = ", ".join(f"{source}:{name}" for name in sorted(servers))
        raise click.UsageError(f"several servers in {source!r}. Choose one: {choice}")
    return next(iter(servers.values()), None)


def _load_namespace(target_arg: str | None, module: str | None) -> tuple[Mapping[str, Any], str | None]:
    if module is not None:
        sys.path.insert(0, os.getcwd())
        module_name, _, name = module.partition(":")
        with report_user_errors(module_name):
            return vars(importlib.import_module(module_name)), name or None
    assert target_arg is not None
    file, name = split_object_name(target_arg)
    path = Path(file).resolve()
    if not path.is_file():
        from dovetail.cli.suggestions import suggest_file

        raise click.UsageError(f"file not found: {file!r}{suggest_file(Path(file))}")
    sys.path.insert(0, str(path.parent))
    stem = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "served"
    spec = importlib.util.spec_from_file_location(stem, path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{file!r} is not a Python file")
    loaded_module = importlib.util.module_from_spec(spec)
    # Python needs the module in `sys.modules` to resolve the string annotations of the module.
    sys.modules[stem] = loaded_module
    with report_user_errors():
        spec.loader.exec_module(loaded_module)
    return vars(loaded_module), name or None


@contextlib.contextmanager
def report_user_errors(module: str | None = None) -> Generator[None]:
    """Print the traceback of an exception in user code and exit. Leave out the frames of dovetail."""
    try:
        yield
    except (click.ClickException, DamagedFile, UnsupportedFileVersion, UnusableFile):
        raise
    except Exception as exc:
        if module is not None and isinstance(exc, ModuleNotFoundError) and _is_parent_module(exc.name, module):
            raise click.UsageError(f"module not found: {module!r}") from None
        traceback.print_exception(exc.with_traceback(_skip_own_frames(exc.__traceback__)))
        raise click.exceptions.Exit(error_report.EXIT_CONNECT) from None


def _is_parent_module(name: str | None, module: str) -> bool:
    return name is not None and f"{module}.".startswith(f"{name}.")


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (
            file.startswith("<frozen ") or file == __file__ or file.endswith(os.path.join("cli", "commands", "run.py"))
        ):
            break
        trace = trace.tb_next
    return trace

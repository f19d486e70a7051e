"""The outside programs that tests use: which ones exist, which tests need them, and how to install them.

A test declares each program with `needs`, and is skipped if the program is not found. The environment variable
DOVETAIL_HIDDEN_PROGRAMS lists programs, separated by commas, that are treated as missing. As a program, this module
prints the Debian packages of all missing programs. It must run without pytest, because `.ci/run` calls it first.
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

# The Debian package of each program. Every other program that tests start is part of POSIX or of a Python package.
PACKAGES = {
    "bash": "bash",
    "caddy": "caddy",
    "chromium": "chromium",
    "curl": "curl",
    "dash": "dash",
    "fish": "fish",
    "git": "git",
    "haproxy": "haproxy",
    "ip": "iproute2",
    "nginx": "nginx",
    "openssl": "openssl",
    "redis-server": "redis-server",
    "unshare": "util-linux",
    "zsh": "zsh",
}
HIDDEN_VARIABLE = "DOVETAIL_HIDDEN_PROGRAMS"
MARK = "needs_program"
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin")  # not on the PATH of every user
_PROPERTY = "missing_program"

_running_item: Any = None


def find_program(name: str) -> str | None:
    """Return the path of a program, or None if it is missing or hidden."""
    assert name in PACKAGES, f"add {name} to PACKAGES"
    if name in os.environ.get(HIDDEN_VARIABLE, "").split(","):
        return None
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_SYSTEM_FOLDERS)))


def needs(*names: str) -> Any:
    """Return a mark for tests, modules and parameters that need these programs."""
    import pytest

    assert names
    assert PACKAGES.keys() >= set(names), f"add {names} to PACKAGES"
    return getattr(pytest.mark, MARK)(*names)


def get_program(name: str) -> str:
    """Return the path of a program that the running test has declared with `needs`."""
    assert _running_item is None or name in _get_needed_programs(_running_item), f"mark the test with needs({name!r})"
    path = find_program(name)
    assert path is not None, f"{name} is not installed"
    return path


def begin_test(item: Any) -> None:
    """Skip a test whose programs are missing, before its fixtures start."""
    global _running_item
    import pytest

    _running_item = item
    missing = [name for name in _get_needed_programs(item) if find_program(name) is None]
    if missing:
        item.user_properties.extend((_PROPERTY, name) for name in missing)  # reaches the controller of pytest-xdist
        pytest.skip(f"not found: {', '.join(missing)}")


def describe_missing_programs(skipped_reports: Iterable[Any]) -> list[str]:
    """Return the lines that say which programs would run the skipped tests, and how to install them."""
    counts = Counter(
        name for report in skipped_reports for key, name in getattr(report, "user_properties", ()) if key == _PROPERTY
    )
    if not counts:
        return []
    programs = [f"{name} ({count} test{'s' * (count > 1)})" for name, count in sorted(counts.items())]
    packages = sorted({PACKAGES[name] for name in counts})
    return [f"Skipped, programs not found: {', '.join(programs)}", f"To run them: apt-get install {' '.join(packages)}"]


def _get_needed_programs(item: Any) -> list[str]:
    return sorted({name for mark in item.iter_markers(MARK) for name in mark.args})


if __name__ == "__main__":
    sys.stdout.write(" ".join(sorted({package for name, package in PACKAGES.items() if find_program(name) is None})))

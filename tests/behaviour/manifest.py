"""The requirements on the server, one row each, and the decorator that connects tests with rows.

The rows are in the `rows_*.py` files in this folder, each in a tuple `ROWS`. A row names the source of the requirement
(an anchor of the specification as listed in `architecture/anchors.txt`, or "house"), describes it, and lists the
revisions and transports it applies to. A test names its rows:

    @requirement("cancel.no-answer")
    async def test_a_cancelled_request_is_not_answered(revision: str, transport: str) -> None: ...

It runs once for each revision and transport that all of its rows have in common, if it has the parameters `revision`
and `transport`. `revisions=` and `transports=` narrow it further. `test_manifest.py` checks that every row has a test
and every test a row.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.driver import DRAFT, HANDSHAKE, REVISIONS, STATELESS

HERE = Path(__file__).parent
F = TypeVar("F", bound=Callable[..., Any])

PUBLISHED = (*HANDSHAKE, STATELESS)
SESSION_REVISIONS = (*HANDSHAKE, DRAFT)  # all revisions with a handshake
SINCE_2025 = PUBLISHED[1:]
STREAM_TRANSPORTS = ("pipe", "unix", "tcp")  # newline-delimited bytes
MAIN_TRANSPORTS = ("memory", "pipe", "sse", "http")  # one transport of each kind
HTTP_ONLY = ("http",)
ALL_HTTP = ("http", "http-stateless")


@dataclass(frozen=True)
class Requirement:
    """A row of the manifest."""

    id: str
    source: str
    text: str
    revisions: tuple[str, ...] = REVISIONS
    transports: tuple[str, ...] = MAIN_TRANSPORTS


@functools.cache
def requirements() -> dict[str, Requirement]:
    """Return the rows of all files by id."""
    found: dict[str, Requirement] = {}
    for file in sorted(HERE.glob("rows_*.py")):
        for row in importlib.import_module(f"behaviour.{file.stem}").ROWS:
            assert row.id not in found, f"the id {row.id} is given twice"
            found[row.id] = row
    return found


def is_supported(revision: str, transport: str) -> bool:
    """Return whether a client of the revision can use the transport."""
    if transport == "sse":  # HTTP+SSE does not exist in the stateless era
        return revision != STATELESS
    # Without sessions, a server cannot recognize a revision that has no version header.
    return transport != "http-stateless" or revision != "2024-11-05"


def requirement(
    *ids: str, revisions: Sequence[str] | None = None, transports: Sequence[str] | None = None
) -> Callable[[F], F]:
    """Mark a test for these rows."""
    rows = [requirements()[id] for id in ids]
    held = [one for one in REVISIONS if all(one in row.revisions for row in rows)]
    over = [one for row in rows for one in row.transports if all(one in other.transports for other in rows)]
    chosen = [one for one in held if revisions is None or one in revisions]
    carried = [one for one in dict.fromkeys(over) if transports is None or one in transports]

    def mark(test: F) -> F:
        wanted = inspect.signature(test).parameters
        cases: list[Any]
        match "revision" in wanted, "transport" in wanted:
            case True, True:
                names = "revision, transport"
                cases = [(one, other) for one in chosen for other in carried if is_supported(one, other)]
            case True, False:
                names, cases = "revision", chosen
            case False, True:
                names, cases = "transport", carried
            case _:
                return test
        assert cases, f"{test.__name__}: its rows have no revision and transport in common"
        return pytest.mark.parametrize(names, cases)(test)

    return mark

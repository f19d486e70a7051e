"""Targets for the reliability tests: one with defaults for all files, and a way to start others."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

# The lab and the faults are modules of this folder; the target, a program of its own, finds them the same way.
sys.path.insert(0, str(Path(__file__).parent))

import harness


@pytest.fixture
def start(tmp_path: Path) -> Iterator[harness.StartTarget]:
    """Start a target with options of one's own; it ends with the test."""
    with ExitStack() as stack:

        def started(transport: str = "http", **options: Any) -> harness.Target:
            return stack.enter_context(harness.run_target(tmp_path, transport, **options))

        yield started


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Target]:
    """A target over HTTP with the default limits, shared by the tests of one file."""
    with harness.run_target(tmp_path_factory.mktemp("target"), "http") as one:
        yield one
        assert one.alive, one.log


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Target]:
    """A target on standard streams with the default limits, shared by the tests of one file."""
    with harness.run_target(tmp_path_factory.mktemp("target"), "stdio") as one:
        yield one
        assert one.alive, one.log

"""Fixtures of the reliability tests: a target with default limits, and a function that starts others."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

# The harness and the faults are modules of this folder. The target runs as a program and finds them in the same way.
sys.path.insert(0, str(Path(__file__).parent))

import harness


@pytest.fixture
def start(tmp_path: Path) -> Iterator[harness.StartTarget]:
    """Start a target with other options. It stops with the test."""
    with ExitStack() as stack:

        def started(transport: str = "http", **options: Any) -> harness.Target:
            return stack.enter_context(harness.run_target(tmp_path, transport, **options))

        yield started


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Target]:
    """A target over HTTP with the default limits, shared by the tests of one file."""
    with harness.run_target(tmp_path_factory.mktemp("target"), "http") as target:
        yield target
        assert target.alive, target.log


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Target]:
    """A target on standard streams with the default limits, shared by the tests of one file."""
    with harness.run_target(tmp_path_factory.mktemp("target"), "stdio") as target:
        yield target
        assert target.alive, target.log

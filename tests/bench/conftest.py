"""Import the modules of bench/, which is not a package."""

import sys
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> Generator[Callable[[str], Any]]:
    sys.path.insert(0, str(BENCH))
    yield import_module
    sys.path.remove(str(BENCH))

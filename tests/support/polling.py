"""Wait for conditions in tests, with a timeout."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest

TIMEOUT_S = 20.0


async def wait_until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Wait until a function, plain or async, returns a true value, and return the value."""
    end = asyncio.get_running_loop().time() + timeout_s
    while asyncio.get_running_loop().time() < end:
        said = condition()
        if said := (await said if inspect.isawaitable(said) else said):
            return said
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {timeout_s} s")


def hurry(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Make the clock of this process run faster by this factor, until the test ends."""
    clock = time.monotonic
    start = clock()
    monkeypatch.setattr(time, "monotonic", lambda: start + (clock() - start) * times)

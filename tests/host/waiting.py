"""Waiting in tests: until something is so, in bounded time."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest

PATIENCE = 20.0


async def until(fact: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Wait until a function, plain or not, says so; what it said."""
    end = asyncio.get_running_loop().time() + patience
    while asyncio.get_running_loop().time() < end:
        said = fact()
        if said := (await said if inspect.isawaitable(said) else said):
            return said
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {patience} s")


def hurry(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the clock of this process run so many times as fast, until the test ends."""
    clock = time.monotonic
    start = clock()
    monkeypatch.setattr(time, "monotonic", lambda: start + (clock() - start) * times)

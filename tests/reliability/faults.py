"""Ways in which a function of an author can fail, by name. The target and the tests share them."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any, NoReturn


class NonStandardError(BaseException):
    """Not an Exception, like the control flow exceptions of some libraries."""


class FailingStrError(Exception):
    """Raises again in `__str__`."""

    def __str__(self) -> str:
        raise ValueError("secret-detail")

    __repr__ = __str__


def _raising(make: Callable[[], BaseException]) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise make()

    return fail


def _recursion(depth: int = 0) -> int:
    return _recursion(depth + 1) + 1


def _exit() -> NoReturn:
    sys.exit(3)


def _cycle() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(200_000):
        value = [value]
    return value


RAISED: dict[str, Callable[[], Any]] = {
    "Exception": _raising(lambda: Exception("secret-detail")),
    "RecursionError": _recursion,
    "MemoryError": _raising(MemoryError),
    "StopIteration": _raising(StopIteration),
    "StopAsyncIteration": _raising(StopAsyncIteration),
    "TimeoutError": _raising(TimeoutError),
    "unsayable": _raising(FailingStrError),
    "Unusual": _raising(lambda: NonStandardError("secret-detail")),
    "GeneratorExit": _raising(GeneratorExit),
    "BaseExceptionGroup": _raising(
        lambda: BaseExceptionGroup("secret-detail", [NonStandardError(), KeyboardInterrupt()])
    ),
    "SystemExit": _exit,
    "KeyboardInterrupt": _raising(KeyboardInterrupt),
    "CancelledError": _raising(asyncio.CancelledError),
}

RETURNED: dict[str, Callable[[], Any]] = {
    "lone surrogate": lambda: "half a pair \ud800",
    "nested surrogate": lambda: {"deep": ["half a pair \ud800"]},
    "cycle": _cycle,
    "deep": _deep,
    "no JSON form": lambda: object(),
    "over the limit": lambda: "x" * (11 * 1024 * 1024),
}

# JSON has no NaN. It may become null or an error, but never an invalid message.
TOLERATED: dict[str, Callable[[], Any]] = {
    "NaN": lambda: {"value": float("nan")},
    "infinity": lambda: [float("inf")],
}

FAULTS = RAISED | RETURNED | TOLERATED

"""Awaiting work with a word when it does not finish at once.

Most requests are answered without ever waiting. What a waiting request needs (someone to watch whether its client is
still there) is set up only when the work first waits, so the others do not pay for it.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SuspendNotifier(Generic[T]):
    """`await Suspending(work, told)`: the work's value; `told()` is called once, if and when it first waits."""

    __slots__ = ("_coroutine", "_on_suspend")

    def __init__(self, coroutine: Coroutine[Any, Any, T], on_suspend: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._on_suspend = on_suspend

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine = self._coroutine
        try:
            awaited = coroutine.send(None)
        except StopIteration as done:
            return done.value
        self._on_suspend()
        while True:
            try:
                sent = yield awaited
            except BaseException as exc:
                step = coroutine.throw
                value: Any = exc
            else:
                step, value = coroutine.send, sent
            try:
                awaited = step(value)
            except StopIteration as done:
                return done.value

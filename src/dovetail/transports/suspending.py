"""Awaiting work with a word when it does not finish at once.

Most requests are answered without ever waiting. What a waiting request needs (someone to watch whether its client is
still there) is set up only when the work first waits, so the others do not pay for it.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Suspending(Generic[T]):
    """`await Suspending(work, told)`: the work's value; `told()` is called once, if and when it first waits."""

    __slots__ = ("_told", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], told: Callable[[], None]) -> None:
        self._work = work
        self._told = told

    def __await__(self) -> Generator[Any, Any, T]:
        work = self._work
        try:
            waiting = work.send(None)
        except StopIteration as done:
            return done.value
        self._told()
        while True:
            try:
                sent = yield waiting
            except BaseException as exc:
                step = work.throw
                given: Any = exc
            else:
                step, given = work.send, sent
            try:
                waiting = step(given)
            except StopIteration as done:
                return done.value

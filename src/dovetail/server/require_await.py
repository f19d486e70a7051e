"""A coroutine that cannot be used in a condition, so that `if ctx.elicit(...)` without `await` does not continue.

Python treats a coroutine as true, so a tool would go on as if the user had agreed.
"""

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

AWAIT_HINT: Final = "Write `await` before the call in an `async def`, or use Context.wait(...) in a plain function"

T = TypeVar("T")
P = ParamSpec("P")


class RequiredAwait(Coroutine[Any, Any, T]):
    """Wraps a coroutine. If the wrapper is never awaited, Python still warns about the coroutine."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        return self._coroutine.throw(*args)

    def close(self) -> None:
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        # The `repr` of a task shows the names and the frame of its coroutine.
        return getattr(self._coroutine, name)

    def __bool__(self) -> bool:
        self._coroutine.close()
        name = getattr(self._coroutine, "__qualname__", "the coroutine")
        raise TypeError(f"the coroutine `{name}` was not awaited. {AWAIT_HINT}")


def require_await(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a coroutine function, so that its result raises TypeError if it is used without `await`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return RequiredAwait(function(*args, **kwargs))

    return call

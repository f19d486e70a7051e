"""Life: a server's lifespan, entered and left in one task of its own, as context managers expect."""

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, cast

from dovetail.errors import InternalError
from dovetail.server.faults import trace

log = logging.getLogger("dovetail")

Lifespan = Callable[..., AbstractAsyncContextManager[Any]]


_PLAIN: Final = cast("Any", contextmanager)(lambda: iter(())).__code__  # of all that it decorates


def _is_plain(given: Any) -> bool:
    """Whether it makes a context manager that is entered without waiting."""
    return inspect.isgeneratorfunction(given) or getattr(given, "__code__", None) is _PLAIN


_OTHERS: Final = (inspect.isasyncgenfunction, inspect.iscoroutinefunction, _is_plain)


def lifespan_of(server: Any, given: Any) -> Lifespan | None:
    """What was given as a lifespan, as a function of nothing; one with a parameter is given the server.

    Raises:
        TypeError: it can be no lifespan.
    """
    if given is None:
        return None
    if not callable(given) or any(look(given) for look in _OTHERS):
        raise TypeError(
            f"lifespan= takes a function that makes an asynchronous context manager, not {given!r}: decorate it with "
            "contextlib.asynccontextmanager, and do not call it"
        )
    try:
        signature = inspect.signature(given)
    except ValueError:  # of something built in
        return cast("Lifespan", given)
    for arguments in ((), (server,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return cast("Lifespan", functools.partial(given, *arguments) if arguments else given)
    raise TypeError("a lifespan takes nothing, or the server")


class Life:
    """One run of a lifespan, from its start to its end."""

    def __init__(self, lifespan: Lifespan) -> None:
        self.value: Any = None
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._leave = asyncio.Event()
        self._task = loop.create_task(self._live(lifespan))

    async def _live(self, lifespan: Lifespan) -> None:
        try:
            async with lifespan() as self.value:
                self._ready.set_result(None)
                await self._leave.wait()
        except asyncio.CancelledError:
            raise  # the loop is ending
        except BaseException as exc:
            if self._ready.done():
                log.error("the lifespan failed at its end\n%s", trace(exc))
                return
            log.error("the lifespan failed at its start\n%s", trace(exc))
            self._ready.set_exception(InternalError("The server could not start; its log says why"))

    async def entered(self) -> None:
        """Wait until it has started; InternalError if it could not."""
        await asyncio.shield(self._ready)

    async def leave(self) -> None:
        """End it and wait for its clean-up."""
        self._leave.set()
        await asyncio.wait([self._task])

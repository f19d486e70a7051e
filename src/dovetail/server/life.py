"""Life: a server's lifespan, entered and left in one task of its own, as context managers expect."""

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

from dovetail.errors import Busy, InternalError
from dovetail.server.faults import trace

if TYPE_CHECKING:
    from dovetail.protocol.exchange import Exchange
    from dovetail.server.changes import Mailbox

log = logging.getLogger("dovetail")

Lifespan = Callable[..., AbstractAsyncContextManager[Any]]


_MARK: Final = "_dovetail_start_failure"
_MASKED: Final = "The server could not start; its log says why"
_YIELDS: Final = {"generator didn't yield": "did not yield", "generator didn't stop": "yielded again"}
_PLAIN: Final = cast("Any", contextmanager)(lambda: iter(())).__code__  # of all that it decorates
_ASYNC: Final = cast("Any", asynccontextmanager)(lambda: iter(())).__code__


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
    if getattr(given, "__code__", None) is _ASYNC and inspect.iscoroutinefunction(inspect.unwrap(given)):
        raise TypeError(f"the lifespan {_name(given)} must yield exactly once, but it has no yield")
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

    def __init__(self, lifespan: Lifespan, name: str) -> None:
        self.value: Any = None
        self.is_open = False
        self.failure: BaseException | None = None  # raised before it was open
        self._name = name
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._leave = asyncio.Event()
        self._task = loop.create_task(self._live(lifespan))

    async def _live(self, lifespan: Lifespan) -> None:
        try:
            manager = lifespan()
            if not hasattr(type(manager), "__aenter__"):
                raise TypeError(
                    f"lifespan= must return an async context manager, but {_name(lifespan)} returned {manager!r}: "
                    "decorate it with contextlib.asynccontextmanager"
                )
            async with manager as self.value:
                self.is_open = True
                self._ready.set_result(None)
                await self._leave.wait()
        except asyncio.CancelledError as exc:  # the event loop ends, or the server stops before it has started
            if not self._ready.done():
                self.failure = exc
            raise
        except BaseException as exc:
            exc = _explain_yield_error(exc, lifespan)
            if self.is_open:
                log.error("the lifespan of %s failed at its end\n%s", self._name, trace(exc))
            else:
                self.failure = exc
                setattr(exc, _MARK, _StartFailure(exc))
        finally:
            self.is_open = False
            if not self._ready.done():
                self._ready.set_result(None)

    @property
    def is_starting(self) -> bool:
        """Whether it is on its way to be open."""
        return not self._ready.done()

    async def entered(self) -> None:
        """Wait until it has started. Raise what the author's function raised if it could not."""
        await asyncio.shield(self._ready)
        if isinstance(self.failure, asyncio.CancelledError):
            raise Busy("The server is shutting down")
        if self.failure is not None:
            raise _shorten(self.failure)

    def end(self) -> None:
        """Have it end, without waiting for that."""
        self._leave.set()
        if not self._ready.done():
            self._task.cancel()

    async def leave(self) -> None:
        """End it and wait for its clean-up."""
        self.end()
        await asyncio.wait([self._task])


class _StartFailure:
    """The mark on an exception that a lifespan raised at its start."""

    __slots__ = ("is_logged", "traceback")

    def __init__(self, exc: BaseException) -> None:
        self.traceback = _authors_part(exc)
        self.is_logged = False


def log_start_failure(name: str, exc: BaseException) -> InternalError:
    """Log what a lifespan raised at its start, once. Return the error for callers, which does not say why."""
    failure: _StartFailure | None = getattr(exc, _MARK, None)
    if failure is None or not failure.is_logged:
        log.error("the lifespan of %s failed at its start\n%s", name, trace(_shorten(exc)))
    if failure is not None:
        failure.is_logged = True
    return InternalError(_MASKED)


def print_failure(exc: BaseException) -> bool:
    """Print the author's part of a traceback, and return True, if a lifespan raised this at its start."""
    if not hasattr(exc, _MARK):
        return False
    # One write: several workers that fail at once share a terminal.
    sys.stderr.write("".join(traceback.format_exception(_shorten(exc))))
    return True


def _shorten(exc: BaseException) -> BaseException:
    """Return the exception with the author's part of its traceback, if a lifespan raised it at its start."""
    failure: _StartFailure | None = getattr(exc, _MARK, None)
    return exc if failure is None else exc.with_traceback(failure.traceback)


def _authors_part(exc: BaseException) -> TracebackType | None:
    """The traceback without our frame and those of contextlib at its beginning."""
    part = exc.__traceback__
    while part is not None and part.tb_frame.f_code.co_filename in (__file__, contextlib.__file__):
        part = part.tb_next
    return part


def _explain_yield_error(exc: BaseException, lifespan: Lifespan) -> BaseException:
    """Return the exception, or a clear one if contextlib complains that a function does not yield exactly once."""
    times = _YIELDS.get(str(exc)) if isinstance(exc, RuntimeError) else None
    if times is None:
        return exc
    return RuntimeError(f"the lifespan {_name(lifespan)} must yield exactly once, but it {times}")


def _name(lifespan: Any) -> str:
    while isinstance(lifespan, functools.partial):
        lifespan = cast("Any", lifespan).func
    code = getattr(inspect.unwrap(lifespan), "__code__", None)
    place = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""
    return f"{getattr(lifespan, '__qualname__', lifespan)}{place}"


class LoopState:
    """The part of a server's state that belongs to one event loop, from the first use there until the server stops."""

    __slots__ = (
        "calls",
        "closed",
        "is_closing",
        "is_sweeping",
        "life",
        "listens",
        "loop",
        "mailboxes",
        "running",
        "users",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.running: set[Exchange] = set()
        self.calls: Counter[str] = Counter()  # running calls by caller
        self.listens: Counter[str] = Counter()
        self.mailboxes: set[Mailbox] = set()
        self.is_sweeping = False
        self.users: set[object] = set()  # who has started the server here and not stopped it
        self.life: Life | None = None
        self.is_closing = False
        self.closed = asyncio.Event()

"""The lifespan of a server, which runs user code when the server starts and stops.

One task enters and exits the context manager, because some context managers require the same task for both.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Final, cast

from dovetail.errors import DamagedFile, InternalError, ServerBusy, UnsupportedFileVersion, UnusableFile
from dovetail.log import log

# Takes no argument or the server. The functions of the server find its value in `ctx.lifespan`.
Lifespan = Callable[..., AbstractAsyncContextManager[object]]


_START_FAILURE_ATTRIBUTE: Final = "_dovetail_start_failure"
_MASKED_MESSAGE: Final = "The server could not start. See its log for the reason"
_YIELD_PROBLEMS: Final = {"generator didn't yield": "did not yield", "generator didn't stop": "yielded again"}
# All functions with the `contextmanager` decorator share this code object.
_CONTEXTMANAGER_CODE: Final = cast("Any", contextmanager)(lambda: iter(())).__code__
_ASYNCCONTEXTMANAGER_CODE: Final = cast("Any", asynccontextmanager)(lambda: iter(())).__code__


def _is_sync_manager(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or getattr(function, "__code__", None) is _CONTEXTMANAGER_CODE


_UNSUPPORTED_CHECKS: Final = (inspect.isasyncgenfunction, inspect.iscoroutinefunction, _is_sync_manager)


def normalize_lifespan(server: Any, lifespan: Any) -> Lifespan | None:
    """Convert `lifespan=` to a function without parameters. A function with one parameter receives the server.

    Raises:
        TypeError: the value is not a valid lifespan.
    """
    if lifespan is None:
        return None
    if not callable(lifespan) or any(is_unsupported(lifespan) for is_unsupported in _UNSUPPORTED_CHECKS):
        raise TypeError(
            f"lifespan= must be a function that returns an async context manager, not {lifespan!r}. Decorate "
            "the function with contextlib.asynccontextmanager and pass the function without calling it"
        )
    if getattr(lifespan, "__code__", None) is _ASYNCCONTEXTMANAGER_CODE and inspect.iscoroutinefunction(
        inspect.unwrap(lifespan)
    ):
        raise TypeError(f"the lifespan {_describe_lifespan(lifespan)} must yield exactly once, but does not yield")
    try:
        signature = inspect.signature(lifespan)
    except ValueError:  # Some built-in functions do not have a signature.
        return cast("Lifespan", lifespan)
    for arguments in ((), (server,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return cast("Lifespan", functools.partial(lifespan, *arguments) if arguments else lifespan)
    raise TypeError("the lifespan function must take no argument, or one argument for the server")


class LifespanRun:
    """The open lifespans of a server: first its own, and then those of its extensions.

    `extension_lifespans` may become longer while the server runs. `open_added` then opens the new ones.
    """

    def __init__(
        self,
        lifespan: Lifespan | None,
        extension_lifespans: Sequence[Lifespan],
        name: str,
        context: contextvars.Context,
    ) -> None:
        self.value: Any = None
        self.is_open = False
        self.failure: BaseException | None = None  # the exception that the startup raised
        self._name = name
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._lifespan = lifespan
        self._extension_lifespans = extension_lifespans
        self._opened_count = 0  # how many lifespans of extensions were opened
        self._last_opened = lifespan
        self._has_started = False
        self._is_ending = False
        self._wake_event = asyncio.Event()
        self._task = loop.create_task(self._run(), context=context.copy())

    def open_added(self) -> None:
        """Open the lifespans of extensions that were added to a running server. New requests wait for them."""
        if self.is_open and self._opened_count < len(self._extension_lifespans):
            self.is_open = False
            self._ready = asyncio.get_running_loop().create_future()
            self._wake_event.set()

    async def _run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                if self._lifespan is not None:
                    self.value = await self._open(stack, self._lifespan)
                await self._open_extensions(stack)
                self._has_started = True
                while not self._is_ending:
                    await self._open_extensions(stack)
                    self.is_open = True
                    self._ready.set_result(None)
                    await self._wake_event.wait()
                    self._wake_event.clear()
        except asyncio.CancelledError as exc:
            # If the server stops before the lifespan has started, waiting callers must get an exception.
            if not self._ready.done():
                self.failure = exc
            raise
        except BaseException as exc:
            exc = _explain_yield_error(exc, self._last_opened)
            if self.is_open:
                log.error("the lifespan of %s failed during shutdown", self._name, exc_info=exc)
            else:
                self.failure = exc
                setattr(exc, _START_FAILURE_ATTRIBUTE, _StartFailure(exc))
        finally:
            self.is_open = False
            if not self._ready.done():
                self._ready.set_result(None)

    async def _open_extensions(self, stack: AsyncExitStack) -> None:
        while self._opened_count < len(self._extension_lifespans):
            self._opened_count += 1
            await self._open(stack, self._extension_lifespans[self._opened_count - 1])

    async def _open(self, stack: AsyncExitStack, lifespan: Lifespan) -> Any:
        self._last_opened = lifespan
        manager = lifespan()
        if not hasattr(type(manager), "__aenter__"):
            raise TypeError(
                f"lifespan= must return an async context manager, but {_describe_lifespan(lifespan)} returned "
                f"{manager!r}. Decorate it with contextlib.asynccontextmanager"
            )
        return await stack.enter_async_context(manager)

    @property
    def is_starting(self) -> bool:
        return not self._ready.done()

    async def wait_until_ready(self) -> None:
        """Wait until the lifespan has started. If the startup failed, raise the exception of the user's function."""
        await asyncio.shield(self._ready)
        if isinstance(self.failure, asyncio.CancelledError):
            raise ServerBusy("The server is shutting down")
        if self.failure is not None:
            raise _trim_traceback(self.failure)

    def end(self) -> None:
        """End the lifespan, but do not wait for its cleanup."""
        self._is_ending = True
        self._wake_event.set()
        if not self._has_started:
            self._task.cancel()

    async def close(self) -> None:
        """End the lifespan and wait for its cleanup."""
        self.end()
        await asyncio.wait([self._task])


class _StartFailure:
    __slots__ = ("is_logged", "traceback")

    def __init__(self, exc: BaseException) -> None:
        self.traceback = _get_author_traceback(exc)
        self.is_logged = False


def log_start_failure(name: str, exc: BaseException) -> InternalError:
    """Log once why a lifespan could not start. Return an error without details."""
    failure: _StartFailure | None = getattr(exc, _START_FAILURE_ATTRIBUTE, None)
    if failure is None or not failure.is_logged:
        log.error("the lifespan of %s failed during startup", name, exc_info=_trim_traceback(exc))
    if failure is not None:
        failure.is_logged = True
    return InternalError(_MASKED_MESSAGE)


def print_failure(exc: BaseException) -> bool:
    """Print why a server could not start: the traceback of its lifespan without frames of dovetail. Return True.

    If dovetail cannot use a stored file, print only the message. Return False for other errors.
    """
    if isinstance(exc, DamagedFile | UnsupportedFileVersion | UnusableFile):
        text = f"error: {exc}\n"
    elif hasattr(exc, _START_FAILURE_ATTRIBUTE):
        text = "".join(traceback.format_exception(_trim_traceback(exc)))
    else:
        return False
    # Several worker processes may share a terminal, so the text is written with one call.
    sys.stderr.write(text)
    return True


def _trim_traceback(exc: BaseException) -> BaseException:
    failure: _StartFailure | None = getattr(exc, _START_FAILURE_ATTRIBUTE, None)
    return exc if failure is None else exc.with_traceback(failure.traceback)


def _get_author_traceback(exc: BaseException) -> TracebackType | None:
    frame = exc.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame = frame.tb_next
    return frame


def _explain_yield_error(exc: BaseException, lifespan: Lifespan | None) -> BaseException:
    """Return a clearer exception if the lifespan does not yield exactly once. Otherwise return `exc`."""
    problem = _YIELD_PROBLEMS.get(str(exc)) if isinstance(exc, RuntimeError) else None
    if problem is None:
        return exc
    return RuntimeError(f"the lifespan {_describe_lifespan(lifespan)} must yield exactly once, but it {problem}")


def _describe_lifespan(lifespan: Any) -> str:
    while isinstance(lifespan, functools.partial):
        lifespan = cast("Any", lifespan).func
    code = getattr(inspect.unwrap(lifespan), "__code__", None)
    location = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""
    return f"{getattr(lifespan, '__qualname__', lifespan)}{location}"

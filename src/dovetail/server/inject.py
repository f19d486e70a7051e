"""Injection: parameters filled by functions of the author's, `db: Annotated[Database, Depends(open_db)]`.

What depends on what is worked out at registration, in the order in which it will be needed. In a call each function
runs once, generators are cleaned up when the call is over, and the model sees none of it.
"""

import contextlib
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Any, NamedTuple

from dovetail.errors import Busy
from dovetail.server.context import Context
from dovetail.server.functions import hints_of, where_is
from dovetail.server.runner import Runner
from dovetail.server.schema import alternatives, is_a
from dovetail.server.threads import Threads


class Depends:
    """Fills a parameter with what a function returns or yields: `Annotated[T, Depends(function)]`.

    The function may be plain or a coroutine, or a generator of either kind, whose rest runs when the call is over. It
    may take the Context, parameters with the name of one of the tool's, and dependencies of its own. It runs once in a
    call, however many need it, unless `shared` is False.
    """

    __slots__ = ("function", "shared")

    def __init__(self, function: Callable[..., Any], *, shared: bool = True) -> None:
        self.function = function
        self.shared = shared


Replaced = Mapping[Callable[..., Any], Callable[..., Any]]

_REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {}


@contextlib.contextmanager
def override(dependency: Any, by: Callable[..., Any]) -> Generator[None]:
    """Have another function fill what depends on one, in every server of this process, as long as the context lasts.

    dependency: the function a Depends was given, the Depends, or `Annotated[T, Depends(function)]`. What stands in may
    be anything `Depends` takes; the other one and what only it depends on are not run. A function that nothing depends
    on is replaced in vain: what will depend on what is not known here.
    """
    dependency = _meant(dependency)
    _check_function(by, f"override takes a function that returns the value: write lambda: {by!r}")
    before = _REPLACED.get(dependency)
    _REPLACED[dependency] = by
    try:
        yield
    finally:
        if before is None:
            del _REPLACED[dependency]
        else:
            _REPLACED[dependency] = before


def _meant(given: Any) -> Callable[..., Any]:
    """The function to be replaced."""
    kind = given.__value__ if type(given).__name__ == "TypeAliasType" else given
    notes: tuple[Any, ...] = kind.__metadata__ if typing.get_origin(kind) is Annotated else (kind,)
    for mark in notes:
        if isinstance(mark, Depends):
            return mark.function
    _check_function(kind, f"override takes the function a Depends was given, not {given!r}")
    return kind


def _check_function(given: Any, text: str) -> None:
    if not callable(given) or typing.get_origin(given) is not None:  # aliases of types can be called, too
        raise TypeError(text)


class _Step(NamedTuple):
    """One function to run: where its parameters come from."""

    key: object
    call: Callable[..., Any]
    context: str | None
    arguments: tuple[str, ...]
    needs: Mapping[str, object]


class Plan:
    """All that has to run before a function, in order, and which of its parameters that fills."""

    def __init__(self, function: Callable[..., Any], replaced: Replaced | None = None) -> None:
        self._function = function
        self._replaced: Replaced = replaced or {}
        self._names: Collection[str] = ()
        self._where = where_is(function)
        self._steps: dict[object, _Step] = {}
        self._open: list[Callable[..., Any]] = []
        self.filled = {name: self._add(mark) for name, mark in _marked(function, self._where).items()}
        self._wanted = {name for step in self._steps.values() for name in step.arguments}
        self._signature = inspect.signature(function) if self._wanted else None

    def check(self, names: Collection[str]) -> None:
        """Refuse functions that want what nobody can give them; TypeError."""
        self._names = names
        for step in self._steps.values():
            for name in step.arguments:
                if name not in names:
                    raise TypeError(
                        f"{self._where}: parameter `{name}` of the dependency {where_is(step.call)} cannot be "
                        "filled: annotate it with Context or Depends, name it like a parameter of the function, or "
                        "give it a default"
                    )

    def current(self) -> "Plan":
        """This plan, or one with those dependencies replaced that are replaced now."""
        if not _REPLACED:
            return self
        plan = Plan(self._function, _REPLACED)
        plan.check(self._names)
        return plan

    def _add(self, mark: Depends) -> object:
        function = self._replaced.get(mark.function, mark.function)
        key: object = mark.function if mark.shared else mark
        if function in self._open:
            raise TypeError(f"{self._where}: the dependency {where_is(function)} depends on itself")
        if key in self._steps:
            return key
        self._open.append(function)
        where = f"{self._where}: {where_is(function)}"
        marks = _marked(function, where)
        needs = {name: self._add(inner) for name, inner in marks.items()}
        hints = _hints(function, where)
        context: str | None = None
        arguments: list[str] = []
        for parameter in inspect.signature(function).parameters.values():
            if any(is_a(kind, Context) for kind in alternatives(hints.get(parameter.name, Any))):
                context = parameter.name
            elif parameter.name not in needs and parameter.default is parameter.empty and not _is_rest(parameter):
                arguments.append(parameter.name)
        self._open.pop()
        self._steps[key] = _Step(key, function, context, tuple(arguments), needs)
        return key

    async def run(
        self,
        stack: AsyncExitStack,
        context: Context[Any],
        given: Callable[[], Mapping[str, Any]],
        threads: Threads,
        origin: str | None,
    ) -> dict[str, Any]:
        """The values of the parameters; what has to be cleaned up is left on the stack."""
        arguments = given() if self._wanted else {}
        values: dict[object, Any] = {}
        for key, step in self._steps.items():
            kwargs = {name: values[need] for name, need in step.needs.items()}
            kwargs |= {name: arguments[name] for name in step.arguments}
            if step.context is not None:
                kwargs[step.context] = context
            values[key] = await _value(stack, step.call, kwargs, threads, origin)
        return {name: values[key] for name, key in self.filled.items()}

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """The arguments of a call by the names of the parameters."""
        return {} if self._signature is None else self._signature.bind_partial(*args, **kwargs).arguments


class Injecting(Runner):
    """Runs a function after all it depends on; the first argument is the context."""

    __slots__ = ("_inner", "_plan")

    takes_context = True

    def __init__(self, inner: Runner, plan: Plan) -> None:
        super().__init__(inner.function, timeout=inner.timeout, inline=inner.inline)
        self._inner = inner
        self._plan = plan

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None
    ) -> Awaitable[Any]:
        return self._after_all(args[0], args[1:], kwargs, threads, origin)

    async def _after_all(
        self, context: Any, args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None
    ) -> Any:
        plan = self._plan.current()
        async with AsyncExitStack() as stack:
            kwargs |= await plan.run(stack, context, lambda: plan.named(args, kwargs), threads, origin)
            args = (context, *args) if self._inner.takes_context else args
            return await self._inner(args, kwargs, threads, origin)


def _marked(function: Callable[..., Any], where: str) -> dict[str, Depends]:
    hints = _hints(function, where)
    found: dict[str, Depends] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        notes: list[Any] = [*hint.__metadata__] if typing.get_origin(hint) is Annotated else []
        marks = [note for note in (*notes, parameter.default) if isinstance(note, Depends)]
        if marks and _is_rest(parameter):
            raise TypeError(f"{where}: parameter `{parameter.name}`: Depends fills one parameter, not many")
        if marks:
            found[parameter.name] = marks[0]
        elif Depends in notes:
            raise TypeError(f"{where}: parameter `{parameter.name}`: Depends needs its function: Depends(function)")
    return found


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    # A class is called like its __init__.
    return hints_of(function.__init__ if isinstance(function, type) else function, Context, where)


def _is_rest(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


async def _value(
    stack: AsyncExitStack, function: Callable[..., Any], kwargs: dict[str, Any], threads: Threads, origin: str | None
) -> Any:
    plain = inspect.unwrap(function)
    if inspect.isasyncgenfunction(plain):
        manager = contextlib.asynccontextmanager(function)(**kwargs)
        value = await manager.__aenter__()
        stack.push_async_exit(_leaving(manager.__aexit__))
        return value
    if inspect.isgeneratorfunction(plain):
        held = contextlib.contextmanager(function)(**kwargs)
        opening = _Opening(held)
        stack.push_async_exit(_leaving_in_thread(opening.leave, threads, origin))
        return await threads.run(opening.enter, (), {}, origin)
    if inspect.iscoroutinefunction(plain):
        return await function(**kwargs)
    value = await threads.run(function, (), kwargs, origin)
    return await value if inspect.isawaitable(value) else value


class _Opening:
    """A generator's beginning in a thread, which may go on when the call is over: then its rest follows at once."""

    def __init__(self, held: contextlib.AbstractContextManager[Any]) -> None:
        self._held = held
        self._lock = threading.Lock()
        self._entered = False
        self._left: tuple[Any, ...] | None = None  # the exception of the call, if it is over

    def enter(self) -> Any:
        """Run it up to its value."""
        value = self._held.__enter__()
        with self._lock:
            self._entered = True
            left = self._left
        if left is not None:
            self._held.__exit__(*left)
        return value

    def leave(self, *exc: Any) -> None:
        """Run the rest of it, now or when it has begun."""
        with self._lock:
            self._left = exc
            entered = self._entered
        if entered:
            self._held.__exit__(*exc)


# What a generator does about an exception of the call cannot make the call succeed: it has no result then.


def _leaving(leave: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[bool]]:
    async def left(*exc: Any) -> bool:
        await leave(*exc)
        return False

    return left


def _leaving_in_thread(
    leave: Callable[..., Any], threads: Threads, origin: str | None
) -> Callable[..., Awaitable[bool]]:
    async def left(*exc: Any) -> bool:
        try:
            await threads.run(leave, exc, {}, origin)
        except Busy:
            leave(*exc)  # better late on the loop than never
        return False

    return left

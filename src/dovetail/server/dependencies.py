"""Dependency injection: functions that provide values for parameters, as in `Annotated[Database, Depends(open_db)]`.

The server computes the order of the dependencies at registration. In each call, a dependency runs once, and generators
are closed when the call ends. The model does not see parameters that have a dependency.
"""

import contextlib
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Any, NamedTuple

from dovetail.errors import ServerBusy
from dovetail.server.context import Context
from dovetail.server.invocation import Runner
from dovetail.server.parameters.signature import describe_location, resolve_hints
from dovetail.server.parameters.type_hints import is_subclass_of, list_alternatives
from dovetail.server.thread_pool import ThreadPool


class Depends:
    """Marks a parameter whose value comes from a function: `Annotated[T, Depends(function)]`.

    The function can be plain or async. It can also be a generator, whose code after `yield` runs when the call ends.
    Its parameters can be the Context, other dependencies, and arguments of the tool. A parameter gets the argument with
    the same name. The function runs once per call, even if several functions depend on it, unless `use_cache` is False.

    Args:
        dependency: The function that returns or yields the value.
        use_cache: If False, the function runs once for each parameter that depends on it.
    """

    __slots__ = ("dependency", "use_cache")

    def __init__(self, dependency: Callable[..., object], *, use_cache: bool = True) -> None:
        self.dependency = dependency
        self.use_cache = use_cache


Overrides = Mapping[Callable[..., Any], Callable[..., Any]]

_OVERRIDES: dict[Callable[..., Any], Callable[..., Any]] = {}


@contextlib.contextmanager
def override(dependency: object, replacement: Callable[..., object]) -> Generator[None]:
    """Replace a dependency in all servers of this process while the context is open.

    The replaced function and its dependencies do not run.

    Args:
        dependency: The function passed to `Depends`, the `Depends` itself, or `Annotated[T, Depends(function)]`.
        replacement: Any function that `Depends` accepts.
    """
    dependency = _get_overridden_function(dependency)
    _check_callable(
        replacement, f"replacement must be a function that returns the value, for example `lambda: {replacement!r}`"
    )
    previous = _OVERRIDES.get(dependency)
    _OVERRIDES[dependency] = replacement
    try:
        yield
    finally:
        if previous is None:
            del _OVERRIDES[dependency]
        else:
            _OVERRIDES[dependency] = previous


def _get_overridden_function(target: Any) -> Callable[..., Any]:
    annotation = target.__value__ if type(target).__name__ == "TypeAliasType" else target
    notes: tuple[Any, ...] = annotation.__metadata__ if typing.get_origin(annotation) is Annotated else (annotation,)
    for note in notes:
        if isinstance(note, Depends):
            return note.dependency
    _check_callable(annotation, f"override() needs the function that was passed to Depends, not {target!r}")
    return annotation


def _check_callable(value: Any, message: str) -> None:
    # A type alias is callable, but it is not a function.
    if not callable(value) or typing.get_origin(value) is not None:
        raise TypeError(message)


class _Step(NamedTuple):
    key: object
    call: Callable[..., Any]
    context_parameter: str | None
    arguments: tuple[str, ...]
    dependencies: Mapping[str, object]


class DependencyPlan:
    """The dependencies of a function in the order in which they run."""

    def __init__(self, function: Callable[..., Any], overrides: Overrides | None = None) -> None:
        self._function = function
        self._overrides: Overrides = overrides or {}
        self._parameter_names: Collection[str] = ()
        self._where = describe_location(function)
        self._steps: dict[object, _Step] = {}
        self._resolving: list[Callable[..., Any]] = []
        self.filled_parameters = {
            name: self._add_step(depends) for name, depends in _find_dependencies(function, self._where).items()
        }
        self._used_arguments = {name for step in self._steps.values() for name in step.arguments}
        self._signature = inspect.signature(function) if self._used_arguments else None

    def check(self, parameter_names: Collection[str]) -> None:
        """Raise TypeError if a required parameter of a dependency gets no value."""
        self._parameter_names = parameter_names
        for step in self._steps.values():
            for name in step.arguments:
                if name not in parameter_names:
                    raise TypeError(
                        f"{self._where}: parameter `{name}` of the dependency {describe_location(step.call)} has no "
                        "source. Annotate it with Context or Depends, give it the name of a parameter of the "
                        "function, or give it a default"
                    )

    def apply_overrides(self) -> "DependencyPlan":
        """Return a copy of this plan that uses the dependencies from the current overrides."""
        if not _OVERRIDES:
            return self
        plan = DependencyPlan(self._function, _OVERRIDES)
        plan.check(self._parameter_names)
        return plan

    def _add_step(self, depends: Depends) -> object:
        function = self._overrides.get(depends.dependency, depends.dependency)
        key: object = depends.dependency if depends.use_cache else depends
        if function in self._resolving:
            raise TypeError(f"{self._where}: the dependency {describe_location(function)} depends on itself")
        if key in self._steps:
            return key
        self._resolving.append(function)
        where = f"{self._where}: {describe_location(function)}"
        inner_depends = _find_dependencies(function, where)
        dependencies = {name: self._add_step(depends) for name, depends in inner_depends.items()}
        hints = _resolve_hints(function, where)
        context_parameter: str | None = None
        arguments: list[str] = []
        for parameter in inspect.signature(function).parameters.values():
            if any(
                is_subclass_of(alternative, Context)
                for alternative in list_alternatives(hints.get(parameter.name, Any))
            ):
                context_parameter = parameter.name
            elif (
                parameter.name not in dependencies
                and parameter.default is parameter.empty
                and not _is_variadic(parameter)
            ):
                arguments.append(parameter.name)
        self._resolving.pop()
        self._steps[key] = _Step(key, function, context_parameter, tuple(arguments), dependencies)
        return key

    async def run(
        self,
        stack: AsyncExitStack,
        context: Context[Any],
        get_arguments: Callable[[], Mapping[str, Any]],
        thread_pool: ThreadPool,
        origin: str | None,
    ) -> dict[str, Any]:
        """Run the dependencies and return the value for each parameter. Generators stay open until `stack` closes."""
        arguments = get_arguments() if self._used_arguments else {}
        values: dict[object, Any] = {}
        for key, step in self._steps.items():
            kwargs = {name: values[dependency_key] for name, dependency_key in step.dependencies.items()}
            kwargs |= {name: arguments[name] for name in step.arguments}
            if step.context_parameter is not None:
                kwargs[step.context_parameter] = context
            values[key] = await _resolve_value(stack, step.call, kwargs, thread_pool, origin)
        return {name: values[key] for name, key in self.filled_parameters.items()}

    def bind_names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        return {} if self._signature is None else self._signature.bind_partial(*args, **kwargs).arguments


class DependencyRunner(Runner):
    """Runs the dependencies of a function, and then the function. The first argument must be the context."""

    __slots__ = ("_inner", "_plan")

    takes_context = True

    def __init__(self, inner: Runner, plan: DependencyPlan) -> None:
        super().__init__(inner.function, timeout=inner.timeout, run_in_thread=inner.run_in_thread)
        self._inner = inner
        self._plan = plan

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        return self._run_with_dependencies(args[0], args[1:], kwargs, thread_pool, origin)

    async def _run_with_dependencies(
        self, context: Any, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Any:
        plan = self._plan.apply_overrides()
        async with AsyncExitStack() as stack:
            kwargs |= await plan.run(stack, context, lambda: plan.bind_names(args, kwargs), thread_pool, origin)
            args = (context, *args) if self._inner.takes_context else args
            return await self._inner.run(args, kwargs, thread_pool, origin)


def _find_dependencies(function: Callable[..., Any], where: str) -> dict[str, Depends]:
    hints = _resolve_hints(function, where)
    dependencies: dict[str, Depends] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        notes: list[Any] = [*hint.__metadata__] if typing.get_origin(hint) is Annotated else []
        depends_notes = [note for note in (*notes, parameter.default) if isinstance(note, Depends)]
        if depends_notes and _is_variadic(parameter):
            raise TypeError(f"{where}: Depends cannot be used for *args or **kwargs (parameter `{parameter.name}`)")
        if depends_notes:
            dependencies[parameter.name] = depends_notes[0]
        elif Depends in notes:
            raise TypeError(
                f"{where}: parameter `{parameter.name}`: Depends requires a function, as in `Depends(function)`"
            )
    return dependencies


def _resolve_hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    # A class passes its arguments to `__init__`, so the type hints of `__init__` apply.
    return resolve_hints(function.__init__ if isinstance(function, type) else function, Context, where)


def _is_variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


async def _resolve_value(
    stack: AsyncExitStack,
    function: Callable[..., Any],
    kwargs: dict[str, Any],
    thread_pool: ThreadPool,
    origin: str | None,
) -> Any:
    unwrapped = inspect.unwrap(function)
    if inspect.isasyncgenfunction(unwrapped):
        manager = contextlib.asynccontextmanager(function)(**kwargs)
        value = await manager.__aenter__()
        stack.push_async_exit(_make_exit_callback(manager.__aexit__))
        return value
    if inspect.isgeneratorfunction(unwrapped):
        sync_manager = contextlib.contextmanager(function)(**kwargs)
        threaded_manager = _ThreadedManager(sync_manager)
        stack.push_async_exit(_make_threaded_exit_callback(threaded_manager.leave, thread_pool, origin))
        return await thread_pool.run(threaded_manager.enter, (), {}, origin)
    if inspect.iscoroutinefunction(unwrapped):
        return await function(**kwargs)
    value = await thread_pool.run(function, (), kwargs, origin)
    return await value if inspect.isawaitable(value) else value


class _ThreadedManager:
    """Enters and exits a context manager in threads.

    If the call ends while a thread enters it, that thread also exits it.
    """

    def __init__(self, manager: contextlib.AbstractContextManager[Any]) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._is_entered = False
        self._exit_args: tuple[Any, ...] | None = None

    def enter(self) -> Any:
        value = self._manager.__enter__()
        with self._lock:
            self._is_entered = True
            exit_args = self._exit_args
        if exit_args is not None:
            self._manager.__exit__(*exit_args)
        return value

    def leave(self, *exc: Any) -> None:
        """Run the code after `yield`. If `enter` is still running in a thread, the thread runs this code later."""
        with self._lock:
            self._exit_args = exc
            is_entered = self._is_entered
        if is_entered:
            self._manager.__exit__(*exc)


# A generator must not suppress the exception of a call, because the call would have no result.


def _make_exit_callback(leave: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[bool]]:
    async def on_exit(*exc: Any) -> bool:
        await leave(*exc)
        return False

    return on_exit


def _make_threaded_exit_callback(
    leave: Callable[..., Any], thread_pool: ThreadPool, origin: str | None
) -> Callable[..., Awaitable[bool]]:
    async def on_exit(*exc: Any) -> bool:
        try:
            await thread_pool.run(leave, exc, {}, origin)
        except ServerBusy:
            # If no thread is free, the cleanup runs in the event loop.
            leave(*exc)
        return False

    return on_exit

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

from dovetail.errors import ServerBusy
from dovetail.server.context import Context
from dovetail.server.invocation import Runner
from dovetail.server.parameters.annotations import is_subclass_of, list_alternatives
from dovetail.server.parameters.signature import describe_location, resolve_hints
from dovetail.server.thread_pool import ThreadPool


class Depends:
    """Fills a parameter with what a function returns or yields: `Annotated[T, Depends(function)]`.

    The function may be plain or async, or a generator, whose code after `yield` runs when the call is over. It may take
    the Context, parameters of the tool by their names, and dependencies. It runs once in a call, even if several
    functions depend on it, unless `use_cache` is False.
    """

    __slots__ = ("dependency", "use_cache")

    def __init__(self, dependency: Callable[..., Any], *, use_cache: bool = True) -> None:
        self.dependency = dependency
        self.use_cache = use_cache


Overrides = Mapping[Callable[..., Any], Callable[..., Any]]

_OVERRIDES: dict[Callable[..., Any], Callable[..., Any]] = {}


@contextlib.contextmanager
def override(dependency: Any, replacement: Callable[..., Any]) -> Generator[None]:
    """Have another function fill what depends on one, in every server of this process, as long as the context lasts.

    dependency: the function a Depends was given, the Depends, or `Annotated[T, Depends(function)]`. What stands in may
    be anything `Depends` takes; the other one and what only it depends on are not run. A function that nothing depends
    on is replaced in vain: what will depend on what is not known here.
    """
    dependency = _get_overridden_function(dependency)
    _check_callable(replacement, f"override takes a function that returns the value: write lambda: {replacement!r}")
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
    """The function to be replaced."""
    annotation = target.__value__ if type(target).__name__ == "TypeAliasType" else target
    notes: tuple[Any, ...] = annotation.__metadata__ if typing.get_origin(annotation) is Annotated else (annotation,)
    for note in notes:
        if isinstance(note, Depends):
            return note.dependency
    _check_callable(annotation, f"override takes the function a Depends was given, not {target!r}")
    return annotation


def _check_callable(value: Any, message: str) -> None:
    if not callable(value) or typing.get_origin(value) is not None:  # aliases of types can be called, too
        raise TypeError(message)


class _Step(NamedTuple):
    """One function to run: where its parameters come from."""

    key: object
    call: Callable[..., Any]
    context_parameter: str | None
    arguments: tuple[str, ...]
    dependencies: Mapping[str, object]


class DependencyPlan:
    """All that has to run before a function, in order, and which of its parameters that fills."""

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
        """Refuse functions that want what nobody can give them; TypeError."""
        self._parameter_names = parameter_names
        for step in self._steps.values():
            for name in step.arguments:
                if name not in parameter_names:
                    raise TypeError(
                        f"{self._where}: parameter `{name}` of the dependency {describe_location(step.call)} cannot be "
                        "filled: annotate it with Context or Depends, name it like a parameter of the function, or "
                        "give it a default"
                    )

    def apply_overrides(self) -> "DependencyPlan":
        """This plan, or one with those dependencies replaced that are replaced now."""
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
        """The values of the parameters; what has to be cleaned up is left on the stack."""
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
        """The arguments of a call by the names of the parameters."""
        return {} if self._signature is None else self._signature.bind_partial(*args, **kwargs).arguments


class DependencyRunner(Runner):
    """Runs a function after all it depends on; the first argument is the context."""

    __slots__ = ("_inner", "_plan")

    takes_context = True

    def __init__(self, inner: Runner, plan: DependencyPlan) -> None:
        super().__init__(inner.function, timeout=inner.timeout, run_in_thread=inner.run_in_thread)
        self._inner = inner
        self._plan = plan

    def __call__(
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
            return await self._inner(args, kwargs, thread_pool, origin)


def _find_dependencies(function: Callable[..., Any], where: str) -> dict[str, Depends]:
    hints = _resolve_hints(function, where)
    dependencies: dict[str, Depends] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        notes: list[Any] = [*hint.__metadata__] if typing.get_origin(hint) is Annotated else []
        depends_notes = [note for note in (*notes, parameter.default) if isinstance(note, Depends)]
        if depends_notes and _is_variadic(parameter):
            raise TypeError(f"{where}: parameter `{parameter.name}`: Depends fills one parameter, not many")
        if depends_notes:
            dependencies[parameter.name] = depends_notes[0]
        elif Depends in notes:
            raise TypeError(f"{where}: parameter `{parameter.name}`: Depends needs its function: Depends(function)")
    return dependencies


def _resolve_hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    # A class is called like its __init__.
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
    """A generator's beginning in a thread, which may go on when the call is over: then its rest follows at once."""

    def __init__(self, manager: contextlib.AbstractContextManager[Any]) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._is_entered = False
        self._exit_args: tuple[Any, ...] | None = None  # the exception of the call, if it is over

    def enter(self) -> Any:
        """Run it up to its value."""
        value = self._manager.__enter__()
        with self._lock:
            self._is_entered = True
            exit_args = self._exit_args
        if exit_args is not None:
            self._manager.__exit__(*exit_args)
        return value

    def leave(self, *exc: Any) -> None:
        """Run the rest of it, now or when it has begun."""
        with self._lock:
            self._exit_args = exc
            is_entered = self._is_entered
        if is_entered:
            self._manager.__exit__(*exc)


# What a generator does about an exception of the call cannot make the call succeed: it has no result then.


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
            leave(*exc)  # better late on the loop than never
        return False

    return on_exit

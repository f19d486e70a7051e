"""Compile a tool, resource or prompt function into its signature and its runner.

Each function is compiled once, at registration. The runner contains only the features that the function uses, such as
dependencies, limits or streams. Unused features are not imported.
"""

import inspect
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, TypedDict

from dovetail.server.context import Context
from dovetail.server.invocation import AwaitingRunner, ErrorExposingRunner, LimitedRunner, Runner, may_return_coroutine
from dovetail.server.parameters.signature import Signature, compile_signature

if TYPE_CHECKING:
    from dovetail.server.dependencies import DependencyPlan
    from dovetail.server.parameters.custom_schema import CustomSchemaSignature

_DEPENDENCIES_MODULE: Final = "dovetail.server.dependencies"


class RunOptions(TypedDict, total=False):
    """The options for running the function of a tool, a resource or a prompt."""

    timeout: float | None
    max_concurrency: int | None
    run_in_thread: bool
    expose_errors: Collection[type[Exception]]


def compile_function(
    function: Callable[..., Any],
    *,
    schema: dict[str, Any] | None = None,
    lax: bool = False,
    timeout: float | None = None,
    max_concurrency: int | None = None,
    run_in_thread: bool = True,
    expose_errors: Collection[type[Exception]] = (),
) -> "tuple[Signature | CustomSchemaSignature, Runner]":
    """Return the signature of a function, and the `Runner` that calls it.

    If `schema` is set, the function gets all arguments as one dict.

    Raises:
        TypeError: the type of a parameter cannot be read from JSON, and the parameter is not a dependency.
    """
    plan = _build_plan(function)
    runner = _build_runner(function, plan, timeout, run_in_thread)
    if expose_errors:
        runner = ErrorExposingRunner(runner, expose_errors)
    if max_concurrency is not None:
        runner = LimitedRunner(runner, max_concurrency)
    passes_context = runner.takes_context
    signature = compile_signature(
        function,
        context_type=Context,
        lax=lax,
        skip=() if plan is None else plan.filled_parameters,
        passes_context=passes_context and schema is None,
    )
    if plan is not None:
        plan.check(signature.parameters)
    if _is_generator(function):
        from dovetail.server.invocation import get_collected_type

        signature.returns = get_collected_type(signature.returns)
    if schema is None:
        return signature, runner
    from dovetail.server.parameters.custom_schema import CustomSchemaSignature

    return CustomSchemaSignature(signature, schema, passes_context=passes_context), runner


def _build_plan(function: Callable[..., Any]) -> "DependencyPlan | None":
    if _DEPENDENCIES_MODULE not in sys.modules:
        # Functions can use `Depends` only if this module was imported.
        return None
    from dovetail.server.dependencies import DependencyPlan

    plan = DependencyPlan(function)
    return plan if plan.filled_parameters else None


def _build_runner(
    function: Callable[..., Any], plan: "DependencyPlan | None", timeout: float | None, run_in_thread: bool
) -> Runner:
    if _is_generator(function):
        from dovetail.server.invocation import StreamingRunner

        runner = StreamingRunner(function, timeout=timeout, run_in_thread=run_in_thread)
    else:
        runner_class = AwaitingRunner if may_return_coroutine(function) else Runner
        runner = runner_class(function, timeout=timeout, run_in_thread=run_in_thread)
    if plan is None:
        return runner
    from dovetail.server.dependencies import DependencyRunner

    return DependencyRunner(runner, plan)


def _is_generator(function: Callable[..., Any]) -> bool:
    unwrapped = inspect.unwrap(function)
    return inspect.isasyncgenfunction(unwrapped) or inspect.isgeneratorfunction(unwrapped)

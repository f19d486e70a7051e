"""Binding: a function of the author's as its signature and its runner, with everything it uses and nothing else.

Decided at registration, so a function without dependencies, limits or streams is called as if there were none; and what
no function uses is not even loaded.
"""

import inspect
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from dovetail.server.context import Context
from dovetail.server.runner import Limited, Resolving, Revealing, Runner, may_give_coroutine
from dovetail.server.signature import Signature, compile_signature

if TYPE_CHECKING:
    from dovetail.server.inject import Plan
    from dovetail.server.verbatim import Verbatim

_INJECTION: Final = "dovetail.server.inject"


def bound(
    function: Callable[..., Any],
    *,
    schema: dict[str, Any] | None = None,
    lax: bool = False,
    timeout: float | None = None,
    limit: int | None = None,
    inline: bool = False,
    reveal: Collection[type[Exception]] = (),
) -> "tuple[Signature | Verbatim, Runner]":
    """How a call's arguments reach the function, and how it is run; with a schema of the author's, they are one dict.

    Raises:
        TypeError: a parameter can be filled neither from JSON nor by a dependency.
    """
    plan = _plan(function)
    runner = _runner(function, plan, timeout, inline)
    if reveal:
        runner = Revealing(runner, reveal)
    if limit is not None:
        runner = Limited(runner, limit)
    carries = runner.takes_context
    signature = compile_signature(
        function,
        context_type=Context,
        lax=lax,
        skip=() if plan is None else plan.filled,
        carries=carries and schema is None,
    )
    if plan is not None:
        plan.check(signature.parameters)
    if _yields(function):
        from dovetail.server.streaming import gathered

        signature.returns = gathered(signature.returns)
    if schema is None:
        return signature, runner
    from dovetail.server.verbatim import Verbatim

    return Verbatim(signature, schema, carries=carries), runner


def _plan(function: Callable[..., Any]) -> "Plan | None":
    if _INJECTION not in sys.modules:
        return None  # nobody has got hold of a Depends yet
    from dovetail.server.inject import Plan

    plan = Plan(function)
    return plan if plan.filled else None


def _runner(function: Callable[..., Any], plan: "Plan | None", timeout: float | None, inline: bool) -> Runner:
    if _yields(function):
        from dovetail.server.streaming import Streaming

        runner = Streaming(function, timeout=timeout, inline=inline)
    else:
        kind = Resolving if may_give_coroutine(function) else Runner
        runner = kind(function, timeout=timeout, inline=inline)
    if plan is None:
        return runner
    from dovetail.server.inject import Injecting

    return Injecting(runner, plan)


def _yields(function: Callable[..., Any]) -> bool:
    plain = inspect.unwrap(function)
    return inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain)

"""Binding: a function of the author's as its signature and its runner, with everything it uses and nothing else.

Decided at registration, so a function without dependencies, limits or streams is called as if there were none.
"""

from collections.abc import Callable
from typing import Any

from dovetail.server.context import Context
from dovetail.server.inject import Injecting, Plan
from dovetail.server.runner import Limited, Runner
from dovetail.server.signature import Signature, compile_signature
from dovetail.server.streaming import Streaming, gathered, yields
from dovetail.server.verbatim import Verbatim


def bound(
    function: Callable[..., Any],
    *,
    schema: dict[str, Any] | None = None,
    lax: bool = False,
    timeout: float | None = None,
    limit: int | None = None,
    inline: bool = False,
) -> tuple[Signature | Verbatim, Runner]:
    """How a call's arguments reach the function, and how it is run; with a schema of the author's, they are one dict.

    Raises:
        TypeError: a parameter can be filled neither from JSON nor by a dependency.
    """
    plan = Plan(function)
    runner = (Streaming if yields(function) else Runner)(function, timeout=timeout, inline=inline)
    if plan.filled:
        runner = Injecting(runner, plan)
    if limit is not None:
        runner = Limited(runner, limit)
    carries = runner.takes_context and schema is None
    signature: Signature | Verbatim = compile_signature(
        function, context_type=Context, lax=lax, skip=plan.filled, carries=carries
    )
    plan.check(signature.parameters)
    if yields(function):
        signature.returns = gathered(signature.returns)
    if schema is not None:
        signature = Verbatim(signature, schema, carries=runner.takes_context)
    return signature, runner

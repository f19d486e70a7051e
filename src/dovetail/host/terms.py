"""Terms: how a host treats one server. What a configuration or a program does not say has a default."""

from typing import Any, Literal

from dovetail.host.quotas import Quota
from dovetail.wire.shape import Struct


class Terms(Struct, frozen=True, kw_only=True):
    """How one server is treated. Times are seconds."""

    trust: bool = False  # whether what it says of its own tools may relax a policy
    start: Literal["lazy", "eager"] = "lazy"
    start_time: float = 30.0  # to become ready
    list_time: float = 10.0  # to say what it offers
    list_life: float = 60.0  # of a list, where the server does not tell of changes
    idle_stop: float | None = None  # unused for so long, it is stopped; what it offers stays known
    backoff: tuple[float, float] = (1.0, 60.0)  # between attempts: the first wait, doubling up to the last
    give_up: int = 5  # failures in a row after which it is only tried once in a while
    allow: tuple[str, ...] = ("*",)  # globs of tools
    deny: tuple[str, ...] = ()
    roots: tuple[Any, ...] | None = None  # instead of the host's
    quota: Quota = Quota()  # for each of its tools, beside what the policy says

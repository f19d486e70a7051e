"""Quotas: how long, how large, how many at once and how often, for the tools a policy limits."""

import re
from collections.abc import Mapping
from typing import Any, Final

from dovetail.wire.shape import Struct

_RATE: Final = re.compile(r"(\d{1,9}) ?/ ?(s|sec|min|h|hour|day)")
_SECONDS: Final = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86400.0}


class Rate(Struct, frozen=True):
    """So many in so many seconds."""

    count: int
    seconds: float

    def __str__(self) -> str:
        unit = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "day"}[self.seconds]
        return f"{self.count}/{unit}"


class Quota(Struct, frozen=True, kw_only=True):
    """The limits of one tool; None where there is none."""

    timeout: float | None = None
    result_bytes: int | None = None
    concurrency: int | None = None
    rate: Rate | None = None

    def tightened(self, other: "Quota") -> "Quota":
        """The strictest of each kind."""
        return Quota(
            timeout=_least(self.timeout, other.timeout),
            result_bytes=_least(self.result_bytes, other.result_bytes),
            concurrency=_least(self.concurrency, other.concurrency),
            rate=min(
                (one for one in (self.rate, other.rate) if one is not None),
                key=lambda one: (one.count / one.seconds, one.count),
                default=None,
            ),
        )

    def __str__(self) -> str:
        said = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} {value}" for name, value in said if value is not None)


def quota(given: str | Mapping[str, Any]) -> Quota:
    """A quota as a policy has it: a rate alone, or a table; ValueError if it is neither."""
    table: dict[str, Any] = {"rate": given} if isinstance(given, str) else dict(given)
    if unknown := table.keys() - set(Quota.__struct_fields__):
        raise ValueError(
            f"no limit is called {', '.join(sorted(unknown))}; there are {', '.join(Quota.__struct_fields__)}"
        )
    for name in ("timeout", "result_bytes", "concurrency"):
        value = table.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise ValueError(f"the limit {name} is a number over 0, not {value!r}")
    for name in ("result_bytes", "concurrency"):
        if isinstance(table.get(name), float):
            raise ValueError(f"the limit {name} is a whole number, not {table[name]!r}")
    return Quota(
        timeout=table.get("timeout"),
        result_bytes=table.get("result_bytes"),
        concurrency=table.get("concurrency"),
        rate=_rate(table["rate"]) if "rate" in table else None,
    )


def _rate(given: Any) -> Rate:
    found = _RATE.fullmatch(given) if isinstance(given, str) else None
    if found is None or int(found[1]) == 0:
        raise ValueError(f'a rate is written "60/min", not {given!r}')
    return Rate(int(found[1]), _SECONDS[found[2]])


def _least(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else min(one, other)

"""Check the version, the settings and the clock of a Redis server when a worker connects."""

import time
from typing import Any, Final

from dovetail.cluster.redis_connection import report_unavailable
from dovetail.log import log
from dovetail.protocol.shared_state import SharedStateUnavailable

_MIN_VERSION: Final = (7, 0)
_MAX_CLOCK_DIFFERENCE_S: Final = 5.0


async def check_server(client: Any) -> str | None:
    """Log each problem with the settings as a warning. Return the first problem, or None.

    Raises:
        SharedStateUnavailable: the server does not answer or is too old.
    """
    with report_unavailable():
        info: dict[str, Any] = {**await client.info("server"), **await client.info("memory")}
        seconds, microseconds = await client.time()
    version = str(info.get("redis_version", "0"))  # Valkey reports the Redis version that it is compatible with.
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _MIN_VERSION:
        raise SharedStateUnavailable(f"Redis {version} is too old. Use Redis 7 or Valkey")
    problems: list[str] = []
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") and policy != "noeviction":
        problems.append(
            f"maxmemory-policy is {policy}, so Redis may delete sessions and used IDs. Set it to noeviction"
        )
    difference = seconds + microseconds / 1e6 - time.time()
    if abs(difference) > _MAX_CLOCK_DIFFERENCE_S:
        problems.append(f"the clock of Redis differs by {difference:.0f} seconds from that of this machine")
    for problem in problems:
        log.warning("%s", problem)
    return problems[0] if problems else None

"""Check the version, the settings and the clock of a Redis server."""

import time
from typing import Final, NamedTuple

from dovetail.cluster.redis.redis_channel import RedisChannel
from dovetail.log import log
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable

_MIN_VERSION: Final = (7, 0)
_MAX_CLOCK_DIFFERENCE_S: Final = 5.0
MAX_CLOCK_STEP_S: Final = 5.0  # If the clock of Redis was set forward by more, a new epoch starts.


class ClockReading(NamedTuple):
    """A time of Redis, and the times of this machine before and after the command that returned it."""

    sent_at: float
    received_at: float
    redis_time: float


def compute_clock_step(earlier: ClockReading, later: ClockReading) -> float:
    """Return the seconds by which the clock of Redis was set forward at least between two readings."""
    return later.redis_time - earlier.redis_time - (later.received_at - earlier.sent_at)


async def check_server(channel: RedisChannel) -> str | None:
    """Log each problem with the settings as a warning. Return the first problem, or None.

    Raises:
        SharedStateUnavailable: the server does not answer or is too old.
    """
    problems = await find_settings_problems(channel)
    for problem in problems:
        log.warning("%s", problem)
    return problems[0] if problems else None


async def find_settings_problems(channel: RedisChannel) -> list[str]:
    """Return all problems with the settings of Redis. Raise the same errors as `check_server`."""
    text: bytes = await channel.send("INFO")
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    info = {name: value for name, _, value in lines}
    version = info.get("redis_version", "0")  # Valkey reports the Redis version that it is compatible with.
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _MIN_VERSION:
        raise SharedStateUnavailable(f"Redis {version} is too old. Use Redis 7 or Valkey")
    problems: list[str] = []
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        problems.append(
            f"maxmemory-policy is {policy}, so Redis may delete sessions and used IDs. Set it to noeviction"
        )
    # Redis reports the number of replicas that keep up only if min-replicas-to-write is set.
    if info.get("connected_slaves", "0") != "0" and "min_slaves_good_slaves" not in info:
        problems.append(
            "min-replicas-to-write is 0, so a primary that was replaced accepts writes that get lost. Set it to 1"
        )
    return problems


async def find_clock_problem(channel: RedisChannel) -> str | None:
    """Ask Redis for its time, and return the problem of `check_clock`. Raise SharedStateUnavailable without a reply."""
    seconds, microseconds = await channel.send("TIME")
    return check_clock(int(seconds) + int(microseconds) / 1e6)


def check_clock(redis_time: float) -> str | None:
    """Return the description of a problem if the clock of Redis differs from this machine's clock, or None."""
    difference = redis_time - time.time()
    if abs(difference) <= _MAX_CLOCK_DIFFERENCE_S:
        return None
    return f"the clock of Redis differs by {difference:.0f} seconds from that of this machine"

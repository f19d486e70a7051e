"""Test the deadlines of one request, on an event loop with a simulated clock."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.deadlines import MAX_TIMEOUT_S, RequestDeadline
from support.mentions import mentions


class Timeless:
    """Stands in for a loop: tells the time it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


def clock(idle: float, total: float) -> tuple[RequestDeadline, Timeless]:
    loop: Any = Timeless()
    return RequestDeadline(idle, total, loop=loop), loop


steps = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.sampled_from(["alive", "pause", "resume", "nothing"])), min_size=1, max_size=30
)


@given(idle=st.floats(0.5, 5.0), total=st.floats(1.0, 20.0), said=steps)
def test_signs_of_life_extend_one_limit_and_never_the_other(idle: float, total: float, said: list[Any]) -> None:
    made, loop = clock(idle, total)
    begun, asked, since = loop.now, 0.0, None
    sign = loop.now
    for pause, what in said:
        if loop.now + pause >= made.due_at:
            break
        loop.now += pause
        match what:
            case "alive":
                made.record_activity()
                sign = loop.now if since is None else sign
            case "pause" if since is None:
                made.pause()
                since = loop.now
            case "resume" if since is not None:
                made.resume()
                asked, since, sign = asked + loop.now - since, None, loop.now
            case _:
                pass
        if since is not None:
            assert made.due_at == math.inf
            continue
        assert made.due_at == pytest.approx(min(sign + idle, begun + total + asked))


async def test_no_limit_is_a_year() -> None:
    made = RequestDeadline()
    assert made.due_at - asyncio.get_running_loop().time() == pytest.approx(MAX_TIMEOUT_S, abs=5)


async def test_the_verdict_says_which_limit_it_was() -> None:
    made = RequestDeadline(0.01, 60)
    assert mentions(made.describe_timeout(), "0.01 s")
    made.record_activity()
    assert mentions(made.describe_timeout(), "0.01 s", 1)
    late = RequestDeadline(60, 1)
    assert mentions(late.describe_timeout(), "total", "1 s")
    late.record_activity()
    assert mentions(late.describe_timeout(), "total", "1 s", "progress")

"""Spool: the same bytes come back wherever they lie, and what waits in memory is counted."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dovetail.transports import spool as module
from dovetail.transports.spool import SLICE, Budget, Spool, spooled

pieces = st.lists(st.binary(max_size=50), max_size=8)


@given(pieces, st.integers(0, 200), st.none() | st.integers(0, 8))
def test_the_bytes_come_back_wherever_they_lie(given: list[bytes], limit: int, move: int | None) -> None:
    budget = Budget(limit)
    spool = Spool(budget)
    for place, piece in enumerate(given):
        if place == move:
            spool.to_disk()
        spool.append(piece)
        assert 0 <= budget.used <= max(limit, spool.size)
    whole = b"".join(given)
    assert spool.size == len(whole)
    assert spool.read() == whole
    assert spool.read() == whole
    assert b"".join(spool.slices()) == whole
    spool.close()
    assert budget.used == 0


@given(st.binary(max_size=60), st.integers(0, 6))
def test_slices_survive_a_move_in_the_middle(data: bytes, move: int) -> None:
    original, module.SLICE = module.SLICE, 10
    try:
        budget = Budget(1000)
        spool, got = spooled(data, budget), []
        for place, part in enumerate(spool.slices()):
            assert 0 < len(part) <= 10
            got.append(part)
            if place == move:
                spool.to_disk()
                assert budget.used == 0
        assert b"".join(got) == data
        spool.close()
    finally:
        module.SLICE = original


@given(st.lists(st.binary(min_size=1, max_size=30) | st.sampled_from(["read", "disk"]), max_size=20))
def test_bytes_may_be_added_while_others_go_on(steps: list[Any]) -> None:
    original, module.SLICE = module.SLICE, 10
    try:
        spool, added, gone = Spool(Budget(60)), b"", b""
        for step in steps:
            if step == "disk":
                spool.to_disk()
            elif step == "read":
                gone += spool.part(len(gone)) if spool.size else b""
            else:
                spool.append(step)
                added += step
        while spool.size and (part := spool.part(len(gone))):
            gone += part
        assert gone == added
        spool.close()
    finally:
        module.SLICE = original


def test_one_message_alone_may_be_larger_than_the_budget_but_nothing_else() -> None:
    budget = Budget(100)
    large = spooled(b"x" * 150, budget)
    large.append(b"x" * 50)
    assert budget.used == 200
    other = spooled(b"y", budget)
    assert budget.used == 200
    large.append(b"x")
    assert budget.used == 201
    other.close()
    large.one_message = False
    large.append(b"x")
    assert budget.used == 0
    assert large.read() == b"x" * 202
    large.close()


def test_those_who_wait_share_one_budget() -> None:
    budget = Budget(100)
    first, second = spooled(b"x" * 80, budget), spooled(b"y" * 80, budget)
    assert budget.used == 80
    first.close()
    third = spooled(b"z" * 80, budget)
    assert budget.used == 80
    assert (second.read(), third.read()) == (b"y" * 80, b"z" * 80)
    second.close()
    third.close()
    assert budget.used == 0


def test_moving_and_closing_twice_changes_nothing() -> None:
    budget = Budget(100)
    spool = spooled(b"x" * 50, budget)
    spool.to_disk()
    spool.to_disk()
    assert spool.read() == b"x" * 50
    spool.close()
    spool.close()
    assert budget.used == 0


def test_nothing_is_nothing() -> None:
    empty: Any = Spool(Budget(0))
    assert (empty.size, empty.read(), list(empty.slices())) == (0, b"", [])
    empty.close()


def test_a_slice_is_what_one_write_takes() -> None:
    spool = spooled(b"x" * (2 * SLICE + 1), Budget(10 * SLICE))
    assert [len(part) for part in spool.slices()] == [SLICE, SLICE, 1]
    spool.close()

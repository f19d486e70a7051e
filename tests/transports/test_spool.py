"""Test that a spool returns the same bytes from memory and disk, and counts the memory."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dovetail.transports import spool as module
from dovetail.transports.spool import SLICE_BYTES, MemoryBudget, Spool, create_spool

pieces = st.lists(st.binary(max_size=50), max_size=8)


@given(pieces, st.integers(0, 200), st.none() | st.integers(0, 8))
def test_the_bytes_come_back_wherever_they_lie(given: list[bytes], limit: int, move: int | None) -> None:
    budget = MemoryBudget(limit)
    spool = Spool(budget)
    for place, piece in enumerate(given):
        if place == move:
            spool.move_to_disk()
        spool.append(piece)
        assert 0 <= budget.used_bytes <= max(limit, spool.size)
    whole = b"".join(given)
    assert spool.size == len(whole)
    assert spool.read() == whole
    assert spool.read() == whole
    assert b"".join(spool.iter_slices()) == whole
    spool.close()
    assert budget.used_bytes == 0


@given(st.binary(max_size=60), st.integers(0, 6))
def test_slices_survive_a_move_in_the_middle(data: bytes, move: int) -> None:
    original, module.SLICE_BYTES = module.SLICE_BYTES, 10
    try:
        budget = MemoryBudget(1000)
        spool, got = create_spool(data, budget), []
        for place, part in enumerate(spool.iter_slices()):
            assert 0 < len(part) <= 10
            got.append(part)
            if place == move:
                spool.move_to_disk()
                assert budget.used_bytes == 0
        assert b"".join(got) == data
        spool.close()
    finally:
        module.SLICE_BYTES = original


@given(st.lists(st.binary(min_size=1, max_size=30) | st.sampled_from(["read", "disk"]), max_size=20))
def test_bytes_may_be_added_while_others_go_on(steps: list[Any]) -> None:
    original, module.SLICE_BYTES = module.SLICE_BYTES, 10
    try:
        spool, added, gone = Spool(MemoryBudget(60)), b"", b""
        for step in steps:
            if step == "disk":
                spool.move_to_disk()
            elif step == "read":
                gone += spool.read_slice(len(gone)) if spool.size else b""
            else:
                spool.append(step)
                added += step
        while spool.size and (part := spool.read_slice(len(gone))):
            gone += part
        assert gone == added
        spool.close()
    finally:
        module.SLICE_BYTES = original


def test_one_message_alone_may_be_larger_than_the_budget_but_nothing_else() -> None:
    budget = MemoryBudget(100)
    large = create_spool(b"x" * 150, budget)
    large.append(b"x" * 50)
    assert budget.used_bytes == 200
    other = create_spool(b"y", budget)
    assert budget.used_bytes == 200
    large.append(b"x")
    assert budget.used_bytes == 201
    other.close()
    large.is_single_message = False
    large.append(b"x")
    assert budget.used_bytes == 0
    assert large.read() == b"x" * 202
    large.close()


def test_those_who_wait_share_one_budget() -> None:
    budget = MemoryBudget(100)
    first, second = create_spool(b"x" * 80, budget), create_spool(b"y" * 80, budget)
    assert budget.used_bytes == 80
    first.close()
    third = create_spool(b"z" * 80, budget)
    assert budget.used_bytes == 80
    assert (second.read(), third.read()) == (b"y" * 80, b"z" * 80)
    second.close()
    third.close()
    assert budget.used_bytes == 0


def test_moving_and_closing_twice_changes_nothing() -> None:
    budget = MemoryBudget(100)
    spool = create_spool(b"x" * 50, budget)
    spool.move_to_disk()
    spool.move_to_disk()
    assert spool.read() == b"x" * 50
    spool.close()
    spool.close()
    assert budget.used_bytes == 0


def test_nothing_is_nothing() -> None:
    empty: Any = Spool(MemoryBudget(0))
    assert (empty.size, empty.read(), list(empty.iter_slices())) == (0, b"", [])
    empty.close()


def test_a_slice_is_what_one_write_takes() -> None:
    spool = create_spool(b"x" * (2 * SLICE_BYTES + 1), MemoryBudget(10 * SLICE_BYTES))
    assert [len(part) for part in spool.iter_slices()] == [SLICE_BYTES, SLICE_BYTES, 1]
    spool.close()

"""Test that a spool returns the same bytes from memory and disk, counts the memory, and survives a full disk."""

import asyncio
import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.transports import spool as module
from dovetail.transports.spool import SLICE_BYTES, MemoryBudget, Spool, create_spool
from support.fake_service import wait_until

pieces = st.lists(st.binary(max_size=50), max_size=8)


@contextmanager
def small_slices() -> Iterator[None]:
    original, module.SLICE_BYTES = module.SLICE_BYTES, 10
    try:
        yield
    finally:
        module.SLICE_BYTES = original


async def moved(spool: Spool, budget: MemoryBudget) -> None:
    """Move everything to disk and wait for it."""

    def is_moved() -> bool:
        spool.move_to_disk()  # the bytes that were added during a move need another one
        return budget.used_bytes == 0

    await wait_until(is_moved)


@given(pieces, st.integers(0, 200), st.none() | st.integers(0, 8))
def test_the_bytes_come_back_wherever_they_lie(given: list[bytes], limit: int, move: int | None) -> None:
    async def check() -> None:
        budget = MemoryBudget(limit)
        spool = Spool(budget)
        for place, piece in enumerate(given):
            if place == move:
                await moved(spool, budget)
            spool.append(piece)
            assert 0 <= budget.used_bytes <= spool.size
        whole = b"".join(given)
        assert spool.size == len(whole)
        assert spool.read() == whole
        assert spool.read() == whole
        assert b"".join(spool.iter_slices()) == whole
        spool.close()
        assert budget.used_bytes == 0

    asyncio.run(check())


@given(st.binary(max_size=60), st.integers(0, 6))
def test_slices_survive_a_move_in_the_middle(data: bytes, move: int) -> None:
    async def check() -> None:
        budget = MemoryBudget(1000)
        spool, got = create_spool(data, budget), []
        for place, part in enumerate(spool.iter_slices()):
            assert 0 < len(part) <= 10
            got.append(part)
            if place == move:
                await moved(spool, budget)
        assert b"".join(got) == data
        spool.close()

    with small_slices():
        asyncio.run(check())


@given(st.lists(st.binary(min_size=1, max_size=30) | st.sampled_from(["read", "disk", "wait"]), max_size=20))
def test_bytes_may_be_added_while_others_go_on(steps: list[Any]) -> None:
    async def check() -> None:
        budget = MemoryBudget(60)
        spool, added, gone = Spool(budget), b"", b""
        for step in steps:
            if step == "disk":
                spool.move_to_disk()
            elif step == "wait":
                await moved(spool, budget)
            elif step == "read":
                gone += spool.read_slice(len(gone))
            else:
                spool.append(step)
                added += step
        while part := spool.read_slice(len(gone)):
            gone += part
        assert gone == added
        spool.close()
        assert budget.used_bytes == 0

    with small_slices():
        asyncio.run(check())


async def test_one_message_alone_may_be_larger_than_the_budget_but_nothing_else() -> None:
    budget = MemoryBudget(100)
    large = create_spool(b"x" * 150, budget)
    large.append(b"x" * 50)
    assert budget.used_bytes == 200
    other = create_spool(b"y", budget)
    await wait_until(lambda: budget.used_bytes == 200)
    large.append(b"x")
    assert budget.used_bytes == 201
    other.close()
    large.is_single_message = False
    large.append(b"x")
    await wait_until(lambda: budget.used_bytes == 0)
    assert large.read() == b"x" * 202
    large.close()


async def test_those_who_wait_share_one_budget() -> None:
    budget = MemoryBudget(100)
    first, second = create_spool(b"x" * 80, budget), create_spool(b"y" * 80, budget)
    await wait_until(lambda: budget.used_bytes == 80)
    first.close()
    third = create_spool(b"z" * 80, budget)
    assert budget.used_bytes == 80
    assert (second.read(), third.read()) == (b"y" * 80, b"z" * 80)
    second.close()
    third.close()
    assert budget.used_bytes == 0


async def test_moving_and_closing_twice_changes_nothing() -> None:
    budget = MemoryBudget(100)
    spool = create_spool(b"x" * 50, budget)
    spool.move_to_disk()
    await moved(spool, budget)
    assert spool.read() == b"x" * 50
    spool.close()
    spool.close()
    assert budget.used_bytes == 0


async def test_a_spool_may_close_while_its_bytes_move() -> None:
    budget = MemoryBudget(0)
    spools = [create_spool(b"x" * 100_000, budget) for _ in range(20)]
    for spool in spools:
        spool.append(b"y")
        spool.close()
    assert budget.used_bytes == 0
    last = create_spool(b"z", budget)
    last.append(b"z")
    await moved(last, budget)  # the files are written one after another, so all others are done
    last.close()


async def test_the_event_loop_does_not_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    may_open, create = threading.Event(), tempfile.TemporaryFile

    def open_slowly(*args: Any, **options: Any) -> Any:
        may_open.wait(30)
        return create(*args, **options)

    monkeypatch.setattr(tempfile, "TemporaryFile", open_slowly)
    budget = MemoryBudget(10)
    spool = Spool(budget)
    spool.is_single_message = False
    spool.append(b"x" * 8)
    spool.append(b"x" * 8)
    spool.append(b"y" * 8)  # bytes may follow while the disk is busy
    assert budget.used_bytes == 24
    assert spool.read() == b"x" * 16 + b"y" * 8
    may_open.set()
    await wait_until(lambda: budget.used_bytes <= 10)
    assert spool.read() == b"x" * 16 + b"y" * 8
    spool.close()


@contextmanager
def full_disk(max_file_bytes: int) -> Iterator[None]:
    """Limit the size of files, as a stand-in for a disk that fills up in the middle of a write."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_loses_no_bytes_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    budget = MemoryBudget(100)
    with full_disk(4096):
        spools = [create_spool(bytes([place]) * 10_000, budget) for place in range(3)]
        await wait_until(lambda: spools[1].is_disk_full and spools[2].is_disk_full)
        for place, spool in enumerate(spools):
            assert b"".join(spool.iter_slices()) == bytes([place]) * 10_000
    assert budget.used_bytes == 30_000
    for spool in spools:
        spool.close()
    assert budget.used_bytes == 0
    assert [record.levelno for record in caplog.records if "disk" in record.getMessage()] == [logging.ERROR]


async def test_a_disk_that_fills_up_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DISK_RETRY_S", 0.0)
    budget = MemoryBudget(0)
    spool = create_spool(b"a" * 3000, budget)
    spool.is_single_message = False
    await moved(spool, budget)
    with full_disk(4096):
        spool.append(b"b" * 3000)
        await wait_until(lambda: spool.is_disk_full)
        assert spool.read() == b"a" * 3000 + b"b" * 3000
    spool.append(b"c" * 3000)  # the disk has room again
    await wait_until(lambda: budget.used_bytes == 0)
    assert not spool.is_disk_full
    assert spool.read() == b"a" * 3000 + b"b" * 3000 + b"c" * 3000
    spool.close()


async def test_a_slow_client_is_dropped_only_if_disk_and_memory_are_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    budget, dropped = MemoryBudget(100), []
    spool = Spool(budget)
    spool.is_single_message = False
    spool.on_exhausted = lambda: dropped.append(True)
    spool.append(b"x" * 200)
    await wait_until(lambda: spool.is_disk_full)
    assert not dropped
    spool.append(b"x" * 10_000)
    assert dropped
    spool.close()


async def test_nothing_is_nothing() -> None:
    empty: Any = Spool(MemoryBudget(0))
    empty.move_to_disk()
    assert (empty.size, empty.read(), list(empty.iter_slices()), empty.read_slice(0)) == (0, b"", [], b"")
    empty.close()


def test_a_slice_is_what_one_write_takes() -> None:
    spool = create_spool(b"x" * (2 * SLICE_BYTES + 1), MemoryBudget(10 * SLICE_BYTES))
    assert [len(part) for part in spool.iter_slices()] == [SLICE_BYTES, SLICE_BYTES, 1]
    spool.close()


# Large results that arrive together


async def test_results_wait_after_many_bytes_in_one_iteration_of_the_event_loop() -> None:
    budget, order = MemoryBudget(100), list[int]()

    async def encode(number: int) -> None:
        if budget.is_crowded:
            await budget.wait_for_turn(100)
        order.append(number)
        budget.count_encoded(module.MAX_BYTES_PER_ITERATION + 1)

    tasks = [asyncio.create_task(encode(number)) for number in range(10)]
    for _ in range(30):
        before = len(order)
        await asyncio.sleep(0)
        assert len(order) - before <= 1
    assert order == list(range(10))
    assert not budget.is_crowded
    await asyncio.gather(*tasks)


async def test_a_result_whose_call_was_cancelled_loses_its_turn() -> None:
    budget = MemoryBudget(100)
    budget.count_encoded(module.MAX_BYTES_PER_ITERATION + 1)
    waiting = [asyncio.create_task(budget.wait_for_turn(100)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(waiting[0], waiting[2])
    assert not budget.is_crowded


def test_a_turn_of_an_event_loop_that_ended_does_not_block_the_next_loop() -> None:
    budget = MemoryBudget(100)

    async def leave() -> None:
        budget.count_encoded(module.MAX_BYTES_PER_ITERATION + 1)

    async def wait() -> None:
        async with asyncio.timeout(10):
            await budget.wait_for_turn(100)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    budget.is_crowded = True
    asyncio.run(wait())
    assert not budget.is_crowded


async def test_small_messages_make_no_result_wait() -> None:
    budget = MemoryBudget(100)
    for _ in range(100):
        budget.count_encoded(1000)
    assert not budget.is_crowded


async def test_results_do_not_wait_if_they_would_take_too_much_memory() -> None:
    budget = MemoryBudget(100)
    budget.count_encoded(module.MAX_BYTES_PER_ITERATION + 1)
    waiting = asyncio.create_task(budget.wait_for_turn(6000))
    continuing = asyncio.create_task(budget.wait_for_turn(1000))
    await asyncio.sleep(0)
    assert (waiting.done(), continuing.done()) == (False, True)
    async with asyncio.timeout(10):
        await waiting
    await continuing

"""Test that a used id is never accepted again, and that no owner uses up the memory of others."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.oauth.replay_memory import ReplayMemory


def test_an_id_is_accepted_once_for_each_owner() -> None:
    memory = ReplayMemory(60.0, 10)
    assert memory.add("ada", "a", 0.0, 0.0)
    assert memory.has("ada", "a", 0.0)
    assert not memory.has("bob", "a", 0.0)
    assert not memory.add("ada", "a", 0.0, 1.0)
    assert memory.add("bob", "a", 0.0, 1.0)


def test_an_owner_with_many_ids_does_not_lock_out_others() -> None:
    memory = ReplayMemory(60.0, 100)
    for number in range(1000):
        memory.add("flood", number, number / 100, 10.0)
    for number in range(20):
        assert memory.add("ada", number, 10.0, 10.0)
    for number in range(1000):
        memory.add("flood", f"more {number}", 10.0 + number / 100, 20.0)
    assert all(memory.has("ada", number, 10.0) for number in range(20))


def test_an_owner_that_lost_ids_can_use_newer_ones() -> None:
    memory = ReplayMemory(60.0, 100)
    used = [number for number in range(150) if memory.add("flood", number, number / 10, 15.0)]
    assert used == list(range(150))
    assert all(memory.has("flood", number, number / 10) for number in used)
    assert memory.add("flood", "new", 15.1, 15.1)


def test_expired_ids_make_room() -> None:
    memory = ReplayMemory(60.0, 100)
    for number in range(100):
        assert memory.add(f"owner {number}", "a", 0.0, 0.0)
    for number in range(100):
        assert memory.add("ada", number, 61.0, 61.0)
    assert all(memory.has("ada", number, 61.0) for number in range(100))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(0, 30)), max_size=200),
    st.integers(1, 12),
)
def test_no_id_is_accepted_twice_while_it_is_valid(uses: list[tuple[str, int, int]], max_ids: int) -> None:
    memory, accepted = ReplayMemory(30.0, max_ids), set[tuple[str, int, int]]()
    for owner, id, issued_at in uses:
        if memory.add(owner, (id, issued_at), float(issued_at), 30.0):
            assert (owner, id, issued_at) not in accepted
            accepted.add((owner, id, issued_at))


def test_no_id_is_dropped_while_there_is_room() -> None:
    memory = ReplayMemory(60.0, 4)
    for number in range(3):
        memory.add("old", number, 0.0, 0.0)
    memory.add("ada", "first", 61.0, 61.0)
    # The memory is full of expired IDs. When they are removed, it has room, so the valid ID is kept.
    assert memory.add("ada", "second", 62.0, 62.0)
    assert memory.add("ada", "earlier", 60.5, 62.0)
    assert memory.has("ada", "first", 61.0)

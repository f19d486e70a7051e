"""Limits of the memory back end."""

import pytest

from cluster.recorder import Recorder
from dovetail.cluster import memory_backend
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable


@pytest.fixture
async def backend() -> MemoryBackend:
    backend = MemoryBackend()
    await backend.start(Recorder())
    return backend


async def test_values_have_a_maximum_total_size(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_backend, "_MAX_VALUE_BYTES", 1000)
    monkeypatch.setattr(memory_backend, "_SWEEP_INTERVAL_S", 0.0)
    await backend.write("a", bytes(600), 60)
    with pytest.raises(SharedStateUnavailable):
        await backend.write("b", bytes(600), 60)
    for _ in range(3):  # A replaced value makes room.
        assert await backend.write("a", bytes(900), 60) is not None
    assert await backend.write("a", b"", 60) is not None
    assert await backend.write("expired", bytes(900), 0.0) is not None
    assert await backend.write("b", bytes(900), 60) is not None
    assert await backend.delete("b")
    assert await backend.restore("c", bytes(900), 1000, 60)


async def test_each_kind_has_a_maximum_number_of_entries(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_backend, "_MAX_ENTRIES", 3)
    for name in "abc":
        await backend.write(name, b"", 60)
    with pytest.raises(SharedStateUnavailable):
        await backend.write("d", b"", 60)
    assert await backend.write("a", b"", 60) is not None
    assert await backend.acquire("a", "holder", 1, 60)


async def test_a_full_table_is_not_searched_for_each_new_entry(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_backend, "_MAX_ENTRIES", 1)
    monkeypatch.setattr(memory_backend, "_SWEEP_INTERVAL_S", 3600.0)
    await backend.write("a", b"", 60)
    with pytest.raises(SharedStateUnavailable):
        await backend.write("b", b"", 60)
    await backend.delete("a")
    await backend.write("expired", b"", 0.0)
    with pytest.raises(SharedStateUnavailable):  # The expired entry would have been found by a search.
        await backend.write("b", b"", 60)


async def test_a_long_name_is_stored_as_its_hash(backend: MemoryBackend) -> None:
    names = ["x" * 1_000_000, "x" * 1_000_001]
    for name in names:
        await backend.write(name, name[:10].encode(), 60)
        assert await backend.read(name) is not None
    assert await backend.delete(names[0])
    assert await backend.read(names[0]) is None
    assert await backend.read(names[1]) is not None


async def test_a_lost_worker_leaves_no_places(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places that belong to a worker have no time to live, so they must not stay in a table of limited size."""
    monkeypatch.setattr(memory_backend, "_MAX_ENTRIES", 2)
    for _ in range(3):
        lost = MemoryBackend(backend)
        await lost.start(Recorder())
        assert await lost.acquire("a", "holder", 1, None)
        assert await lost.acquire("b", "holder", 1, None)
        await lost.close()
        assert await backend.acquire("c", "holder", 1, None)
        await backend.release("c", "holder")

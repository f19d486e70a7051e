"""The format of what leaves a worker."""

import time
from itertools import pairwise

import pytest

from dovetail.cluster.envelope import (
    FORMAT,
    Envelope,
    create_worker_name,
    hash_name,
    pack_message,
    unpack_message,
)
from dovetail.protocol.interfaces.shared_state import Message

KEY, OTHER_KEY = "k" * 16, "o" * 16


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_data_can_be_read_in_its_place_only(keys: tuple[str, ...]) -> None:
    envelope = Envelope(keys)
    encoded = envelope.encode(b"data", "value a", 60)
    assert encoded[0] == FORMAT
    assert envelope.decode(encoded, "value a") == b"data"
    assert envelope.decode(encoded, "value b") == (None if keys else b"data")


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_expired_data_is_not_read(keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    envelope = Envelope(keys)
    encoded = envelope.encode(b"data", "value", 60)
    now = time.time()
    monkeypatch.setattr("dovetail.cluster.envelope.time.time", lambda: now + 100)
    assert envelope.decode(encoded, "value") == b"data"  # The clocks of two machines may differ.
    monkeypatch.setattr("dovetail.cluster.envelope.time.time", lambda: now + 200)
    assert envelope.decode(encoded, "value") is None


@pytest.mark.parametrize("keys", [(), (KEY,)])
@pytest.mark.parametrize("encoded", [b"", b"\x00", bytes([FORMAT + 1, 0]) + bytes(20), bytes([FORMAT, 7]), b"x" * 100])
def test_data_of_another_format_is_not_read(keys: tuple[str, ...], encoded: bytes) -> None:
    assert Envelope(keys).decode(encoded, "value") is None


def test_changed_data_is_not_read() -> None:
    envelope = Envelope([KEY])
    encoded = bytearray(envelope.encode(b"data", "value", 60))
    for index in range(len(encoded)):
        changed = bytearray(encoded)
        changed[index] ^= 1
        assert envelope.decode(bytes(changed), "value") is None


def test_a_worker_with_keys_does_not_read_plain_data() -> None:
    plain, sealed = Envelope(), Envelope([KEY])
    assert sealed.decode(plain.encode(b"data", "value", 60), "value") is None
    assert plain.decode(sealed.encode(b"data", "value", 60), "value") is None


def test_keys_can_be_rotated_without_a_gap() -> None:
    """Add the new key as the second one everywhere, make it the first one everywhere, and remove the old one."""
    steps = [[KEY], [KEY, OTHER_KEY], [OTHER_KEY, KEY], [OTHER_KEY]]
    for keys, next_keys in pairwise(steps):
        before, after = Envelope(keys), Envelope(next_keys)
        assert after.decode(before.encode(b"data", "value", 60), "value") == b"data"
        if next_keys != [OTHER_KEY]:
            assert before.decode(after.encode(b"data", "value", 60), "value") == b"data"


def test_a_message_survives_packing() -> None:
    body = bytes(range(256)) + b"\n\n"
    assert unpack_message(pack_message("answer", "worker", body), "7") == Message("answer", body, "worker", "7")


def test_names_are_hidden_and_short() -> None:
    assert hash_name("a") != hash_name("b")
    assert len(hash_name("principal" * 1000)) == len(hash_name("\ud800")) < 30
    assert create_worker_name() != create_worker_name()

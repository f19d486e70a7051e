"""Test the IDs that workers of a cluster exchange: session IDs, IDs of questions, and the records of sessions."""

import time

import pytest

from dovetail.cluster.sessions.routed_id import RoutedIds
from dovetail.cluster.sessions.sealed_session_id import SessionClient, SessionIdentity, SessionIdSealer, hash_principal
from dovetail.cluster.sessions.session_record import SessionRecord, decode_record, encode_record
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.protocol.sealer import Sealer
from dovetail.wire.lifecycle import ClientCapabilities, Implementation, RootsCapability

KEY = "the secret key of the fixture"
IDENTITY = SessionIdentity(
    key="0123456789abcdef0123456789abcdef",
    protocol_version="2025-11-25",
    created_at=1_800_000_000,
    expires_at=4_000_000_000,
    principal_digest=hash_principal("alice"),
    client=SessionClient(
        client_info=Implementation(name="client", version="1"),
        capabilities=ClientCapabilities(roots=RootsCapability(list_changed=True)),
    ),
)
# Workers of the next release must read what workers of this release have created, and the other way round.
SESSION_ID = (
    "AT2OGr7cGH9HqB66oWuOETh8v8ylMz8kmxCnQxjjZnAkaABofYCw4M-fEuNTM7IYPrFqRjaXu-B-l267_L76TIMemGvxYPdGKRO4mVcoQFDvb3NY"
    "XreVOUfka6V2xGqr1vRuVZs_GqAy4AmG0KVS4W4N8iB83TGcEhw_aie67941ppzwT8QS8Fz-WinC3In6Z4zMmtdKq2fgw41I6wLHkHRbQYvpV1wT"
    "O4SukRjqcDWv9vuJ4j7nfppsvU76aP889t-dOgG1_KCkC-dnYEplvSKZ6L88F_Vz_ItFmCHeMr6GK2ohLrkyhMPkVWdwA1kD7Amz5O1CrehcvPg3"
    "vauZMWyHAmvJy3GH-h9g14nbn9m0i8czRSRRqkSgvSpVrfDknYa-4CfDoX17-tKjYNtv0XXreBCkfAmU7rJXdMBoiiS2"
)
QUESTION_ID = "0a1b2c3d4e5f.7.JL36d8MhNmp8UfMw"


@pytest.fixture
def sealer() -> SessionIdSealer:
    return SessionIdSealer([KEY], "server")


def test_the_format_of_session_ids_is_stable(sealer: SessionIdSealer) -> None:
    assert sealer.open(SESSION_ID, time.time()) == IDENTITY


def test_a_session_id_is_read_by_the_servers_with_the_key(sealer: SessionIdSealer) -> None:
    id = sealer.seal(IDENTITY)
    now = time.time()
    assert SessionIdSealer(["another key of the server", KEY], "server").open(id, now) == IDENTITY
    assert SessionIdSealer(["another key of the server"], "server").open(id, now) is None
    assert SessionIdSealer([KEY], "another server").open(id, now) is None
    assert sealer.open(id, IDENTITY.expires_at + 1) is None
    assert sealer.seal(IDENTITY) != id


def test_a_session_id_with_new_fields_is_read(sealer: SessionIdSealer) -> None:
    data = b'\x01{"key":"k","protocol_version":"2025-11-25","created_at":1,"expires_at":2,"new":{"field":1}}'
    id = Sealer([KEY], purpose="session ID").seal_text(data, b"server", 4_000_000_000)
    assert sealer.open(id, time.time()) == SessionIdentity(
        key="k", protocol_version="2025-11-25", created_at=1, expires_at=2
    )


@pytest.mark.parametrize("data", [b"", b"\x02{}", b"\x01{}", b"\x01[", b'\x01{"key":1}'])
def test_a_session_id_in_another_format_is_invalid(sealer: SessionIdSealer, data: bytes) -> None:
    id = Sealer([KEY], purpose="session ID").seal_text(data, b"server", 4_000_000_000)
    assert sealer.open(id, time.time()) is None


@pytest.mark.parametrize("id", ["", "x", "AAAA", SESSION_ID[:-1], SESSION_ID[1:], "A" * 20_000, "é"])
def test_another_text_is_not_a_session_id(sealer: SessionIdSealer, id: str) -> None:
    assert sealer.open(id, time.time()) is None


def test_principals_have_different_digests() -> None:
    digests = [hash_principal(principal) for principal in (None, "", "alice", "bob", "alice#bob")]
    assert len(set(digests)) == len(digests)


def test_the_format_of_question_ids_is_stable() -> None:
    assert RoutedIds([KEY]).read(QUESTION_ID, "session") == ("0a1b2c3d4e5f", "7")


def test_the_id_of_a_question_belongs_to_one_session_and_one_cluster() -> None:
    ids = RoutedIds([KEY])
    id = ids.create("worker", "session", "7")
    assert ids.read(id, "session") == ("worker", "7")
    assert RoutedIds(["another key of the cluster", KEY]).read(id, "session") == ("worker", "7")
    assert ids.read(id, "another session") is None
    assert RoutedIds(["another key of the cluster"]).read(id, "session") is None
    for changed in (id.replace(".7.", ".8."), id.replace("worker", "another"), id[:-1], id + "A", id.upper()):
        assert ids.read(changed, "session") is None


@pytest.mark.parametrize("id", [None, 1, True, "", ".", "..", "a.b.c", "é.1.x", "x" * 10_000, [], {}])
def test_another_value_is_not_the_id_of_a_question(id: object) -> None:
    assert RoutedIds([KEY]).read(id, "session") is None


def test_a_record_with_new_or_missing_fields_is_read() -> None:
    record = SessionRecord(is_ready=True, log_level=3, subscriptions={"a://b": ["a://b"]}, touched_at=5.5, seen="x.1")
    assert decode_record(encode_record(record)) == record
    assert decode_record(b'\x01{"is_ready":true,"new":[1]}') == SessionRecord(is_ready=True)
    assert decode_record(b"\x01{}") == SessionRecord()


@pytest.mark.parametrize("data", [b"", b"\x02{}", b"\x01", b'\x01{"is_ready":1}'])
def test_a_record_in_an_unknown_format_is_not_taken_for_missing(data: bytes) -> None:
    with pytest.raises(SharedStateUnavailable):
        decode_record(data)

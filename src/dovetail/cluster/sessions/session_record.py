"""The part of a session that can change, which the workers of a cluster share, and one worker's copy of it."""

import asyncio
from typing import Final

from dovetail.cluster.sessions.sealed_session_id import SessionIdentity
from dovetail.protocol.handshake import DEFAULT_LOG_LEVEL
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.wire.base import Struct


class SessionRecord(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The changing state of a session."""

    is_ready: bool = False  # whether the client has completed the handshake
    is_ended: bool = False
    log_level: int | None = DEFAULT_LOG_LEVEL
    subscriptions: dict[str, list[str]] | None = None  # maps normalized URIs to the URIs that the client sent
    touched_at: float = 0.0  # when a worker last extended the life of the session, in seconds since 1970
    seen: str = ""  # the position in the change log up to which the client knows all changes
    stream_worker: str = ""  # the worker that has the GET stream, or ""
    stream_reader: str = ""  # the name of the GET stream's reader at that worker, or ""


_records: Final = VersionedCodec(SessionRecord)


def encode_record(record: SessionRecord, newer_data: bytes | None = None) -> bytes:
    """Encode a record, with the version of its format. Keep the members that only `newer_data` has."""
    return _records.encode(record, newer_data)


def has_unknown_members(record: SessionRecord, data: bytes) -> bool:
    """Return whether a newer release may have added members to an encoded record."""
    return _records.encode(record) != data


def decode_record(data: bytes) -> SessionRecord:
    """Decode a record. Raise SharedStateUnavailable if a newer release has written it in an unknown format."""
    record = _records.decode(data)
    if record is None:
        raise SharedStateUnavailable("the record of a session has an unknown format")
    return record


class SessionCopy:
    """What one worker knows about a shared session."""

    __slots__ = (
        "cancel_count",
        "cancel_second",
        "identity",
        "is_opener",
        "is_unsaved",
        "lock",
        "newer_data",
        "record",
        "request_count",
        "version",
    )

    def __init__(
        self, identity: SessionIdentity, record: SessionRecord, version: int, *, is_opener: bool = False
    ) -> None:
        self.identity = identity
        self.is_opener = is_opener  # True if this worker opened the session
        self.record = record
        self.version = version  # the version of the record. 0 if the record was never read
        self.newer_data: bytes | None = None  # the encoded record, if it has members that this release does not know
        self.is_unsaved = False  # True if the record could not be stored yet
        self.lock = asyncio.Lock()  # held during a change of the record
        self.request_count = 0  # the HTTP requests of the session that this worker handles now
        self.cancel_second = 0
        self.cancel_count = 0  # the cancellations that were published during `cancel_second`

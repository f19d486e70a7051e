"""The part of a session that can change, which the workers of a cluster share, and one worker's copy of it."""

import asyncio
from typing import Final

import msgspec

from dovetail.protocol.handshake import DEFAULT_LOG_LEVEL
from dovetail.protocol.session_id import SessionIdentity
from dovetail.protocol.shared_state import SharedStateUnavailable
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode

_FORMAT: Final = b"\x01"


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


_decode: Final = msgspec.json.Decoder(SessionRecord).decode


def encode_record(record: SessionRecord) -> bytes:
    """Encode a record, with the version of its format."""
    return _FORMAT + encode(record)


def decode_record(data: bytes) -> SessionRecord:
    """Decode a record. Raise SharedStateUnavailable if a newer release has written it in an unknown format."""
    if data[:1] == _FORMAT:
        try:
            return _decode(data[1:])
        except msgspec.MsgspecError:
            pass
    raise SharedStateUnavailable("the record of a session has an unknown format")


class SessionCopy:
    """What one worker knows about a shared session."""

    __slots__ = ("cancel_count", "cancel_second", "identity", "is_unsaved", "lock", "record", "version")

    def __init__(self, identity: SessionIdentity, record: SessionRecord, version: int) -> None:
        self.identity = identity
        self.record = record
        self.version = version  # the version of the record. 0 if the record was never read
        self.is_unsaved = False  # True if the record could not be stored yet
        self.lock = asyncio.Lock()  # held during a change of the record
        self.cancel_second = 0
        self.cancel_count = 0  # the cancellations that were published during `cancel_second`

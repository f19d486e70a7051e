"""The messages about changes that the workers of a cluster send to each other through the change log."""

from typing import Final

from dovetail.protocol.interfaces.shared_state import Message
from dovetail.protocol.subscription_filter import EVERYTHING
from dovetail.protocol.versioned_codec import VersionedCodec, add_format
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode

CHANGE: Final = "change"  # the kind of a message about a change that all clients may hear
SESSION_NOTICE: Final = "session-notice"  # the kind of a message with a notification for one session


class Change(Struct, frozen=True, omit_defaults=True):
    """A change of a list or a resource. `method` is the notification for clients, or EVERYTHING."""

    method: str
    uri: str | None = None  # the normalized URI of a changed resource


class SessionNotice(Struct, frozen=True):
    """A notification for the client of one session."""

    session_id: str
    method: str
    notification: str  # the encoded notification


_changes: Final = VersionedCodec(Change)
_session_notices: Final = VersionedCodec(SessionNotice)


def encode_body(body: Change | SessionNotice) -> bytes:
    """Encode the body of a message, with the version of its format."""
    return add_format(encode(body))


def read_change(message: Message) -> Change:
    """Return the change in a message. A change in an unknown format means that everything has changed."""
    return _changes.decode(message.body) or Change(EVERYTHING)


def read_session_notice(message: Message) -> SessionNotice | None:
    """Return the notice in a message, or None if its format is unknown."""
    return _session_notices.decode(message.body)

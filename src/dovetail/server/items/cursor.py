"""Cursors of paged lists. A cursor contains the last item of its page, so the next page does not shift if other items
are added or removed.
"""

import base64
from collections.abc import Sequence

from dovetail.errors import InvalidParams, ParseError
from dovetail.wire.base64url import decode_base64url
from dovetail.wire.codec import decode, encode


def encode_cursor(method: str, last_name: str) -> str:
    """Return the cursor for the page after an item."""
    return base64.urlsafe_b64encode(encode([method, last_name])).decode("ascii")


def find_page_start(method: str, cursor: str | None, names: Sequence[str], max_bytes: int) -> int:
    """Return the index of the item after the cursor. spec: pagination#error-handling

    Raises:
        InvalidParams: the cursor belongs to another method, or its item no longer exists.
    """
    if cursor is None:
        return 0
    name = _decode_cursor(method, cursor) if len(cursor) <= max_bytes else None
    if name is None or name not in names:
        raise InvalidParams("Invalid params: unknown cursor", {"field": "cursor"})
    return names.index(name) + 1


def _decode_cursor(method: str, cursor: str) -> str | None:
    """Return the item name in a cursor. Return None if the cursor is invalid or belongs to another list method."""
    try:
        decoded = decode(decode_base64url(cursor))
    except (ValueError, ParseError):
        return None
    is_pair = type(decoded) is list and len(decoded) == 2 and type(decoded[1]) is str
    return decoded[1] if is_pair and encode_cursor(method, decoded[1]) == cursor else None

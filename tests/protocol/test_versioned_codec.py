"""Records with the version of their format."""

import pytest

from dovetail.protocol.versioned_codec import VersionedCodec, add_format, remove_format
from dovetail.wire.base import Struct


class Point(Struct, frozen=True):
    x: int
    data: bytes = b""


POINTS = VersionedCodec(Point)


def test_a_record_is_decoded_as_it_was_encoded() -> None:
    point = Point(3, b"\x00\xff")
    assert POINTS.decode(POINTS.encode(point)) == point


@pytest.mark.parametrize("data", [b"", b"{}", b"\x01", b"\x01{}", b'\x01{"x":"3"}', b'\x02{"x":3}', b'{"x":3}'])
def test_data_in_an_unknown_format_is_not_decoded(data: bytes) -> None:
    assert POINTS.decode(data) is None


def test_members_that_a_newer_release_has_added_are_ignored() -> None:
    assert POINTS.decode(b'\x01{"x":3,"z":4}') == Point(3)


def test_a_format_version_is_removed_only_if_it_is_known() -> None:
    assert remove_format(add_format(b"null")) == b"null"
    assert remove_format(b"\x02null") is None

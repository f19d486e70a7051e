"""Records with the version of their format."""

from typing import Any

import pytest

from dovetail.protocol.versioned_codec import VersionedCodec, add_format, remove_format
from dovetail.wire.base import Struct, field, replace
from dovetail.wire.codec import decode, encode


class Point(Struct, frozen=True):
    x: int
    data: bytes = b""


class Path(Struct, frozen=True, omit_defaults=True):
    name: str = ""
    start: Point | None = None
    points: tuple[Point, ...] = ()
    named_points: dict[str, Point] = field(default_factory=dict)


class Step(Struct, frozen=True, array_like=True):
    number: int
    path: Path


POINTS = VersionedCodec(Point)
PATHS = VersionedCodec(Path)
STEPS = VersionedCodec(Step)


def test_a_record_is_decoded_as_it_was_encoded() -> None:
    point = Point(3, b"\x00\xff")
    assert POINTS.decode(POINTS.encode(point)) == point


@pytest.mark.parametrize("data", [b"", b"{}", b"\x01", b"\x01{}", b'\x01{"x":"3"}', b'\x02{"x":3}', b'{"x":3}'])
def test_data_in_an_unknown_format_is_not_decoded(data: bytes) -> None:
    assert POINTS.decode(data) is None


def test_members_that_a_newer_release_has_added_are_ignored() -> None:
    assert POINTS.decode(b'\x01{"x":3,"z":4}') == Point(3)


def change(stored: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Decode a record, change some of its fields, and return the members of the encoded record."""
    data = add_format(encode(stored))
    path = PATHS.decode(data)
    assert path is not None
    encoded = remove_format(PATHS.encode(replace(path, **fields), data))
    assert encoded is not None
    return decode(encoded)


def test_a_change_keeps_the_members_that_a_newer_release_has_added() -> None:
    assert change({"name": "a", "color": [1, {"b": 2}]}, name="b") == {"name": "b", "color": [1, {"b": 2}]}


def test_objects_inside_a_record_keep_their_unknown_members() -> None:
    point, newer_point = {"x": 1, "data": ""}, {"x": 1, "data": "", "z": 3}
    assert change({"start": newer_point}, start=Point(2)) == {"start": {"x": 2, "data": "", "z": 3}}
    assert change({"start": newer_point}, start=None) == {}
    changed = change(
        {"named_points": {"a": newer_point, "b": newer_point}}, named_points={"b": Point(1), "c": Point(1)}
    )
    assert changed == {"named_points": {"b": newer_point, "c": point}}


def test_unchanged_objects_in_a_list_keep_their_unknown_members() -> None:
    newer_points = [{"x": x, "data": "", "z": x} for x in (1, 2, 3)]
    points = [{"x": 5, "data": ""}, newer_points[2], newer_points[0]]
    assert change({"points": newer_points}, points=(Point(5), Point(3), Point(1))) == {"points": points}


def test_a_struct_that_is_encoded_as_an_array_keeps_the_values_at_its_end() -> None:
    data = add_format(b'[1,{"name":"a","color":2},"later",{"z":4}]')
    step = STEPS.decode(data)
    assert step == Step(1, Path("a"))
    changed = STEPS.encode(Step(5, Path("b")), data)
    assert remove_format(changed) == b'[5,{"color":2,"name":"b"},"later",{"z":4}]'
    assert STEPS.encode(Step(5, Path("b")), STEPS.encode(step)) == STEPS.encode(Step(5, Path("b")))


def test_a_member_that_this_release_removes_does_not_come_back() -> None:
    assert change({"name": "a", "color": 1}, name="") == {"color": 1}
    assert change({"name": "", "color": 1}, name="b") == {"name": "b", "color": 1}


def test_a_record_in_an_unknown_format_adds_nothing() -> None:
    assert PATHS.encode(Path(), b'\x02{"color":1}') == PATHS.encode(Path(), b"") == PATHS.encode(Path())


def test_a_format_version_is_removed_only_if_it_is_known() -> None:
    assert remove_format(add_format(b"null")) == b"null"
    assert remove_format(b"\x02null") is None

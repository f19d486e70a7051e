import msgspec
import pytest

from dovetail.wire.roots import ListRootsResult, Root


def test_no_roots_is_an_empty_list() -> None:
    assert msgspec.json.encode(ListRootsResult(roots=[])) == b'{"roots":[]}'
    with pytest.raises(msgspec.ValidationError, match="roots"):
        msgspec.json.decode(b"{}", type=ListRootsResult)


def test_a_root_needs_only_its_uri() -> None:
    assert msgspec.json.encode(Root(uri="file:///a")) == b'{"uri":"file:///a"}'

"""A resource that is not there is NotFound in every revision, also in the one that has no code of its own for it."""

from typing import Any

import pytest

from dovetail import NotFound, PeerError
from dovetail.protocol.speaking import refused
from dovetail.wire.incoming import Failure

URI = "note://nowhere"


@pytest.mark.parametrize(
    ("revision", "code", "data", "kind"),
    [
        ("2026-07-28", -32602, {"uri": URI}, NotFound),
        ("2025-11-25", -32602, {"uri": URI}, NotFound),
        ("2025-11-25", -32002, None, NotFound),
        ("2026-07-28", -32602, None, PeerError),
        ("2026-07-28", -32602, "uri", PeerError),
        ("2026-07-28", -32603, {"uri": URI}, PeerError),
    ],
)
def test_a_resource_that_is_not_there(revision: str, code: int, data: Any, kind: type[PeerError]) -> None:
    told = refused(revision, "resources/read", Failure(code, "no such thing", data))
    assert type(told) is kind
    assert isinstance(told, PeerError)
    assert (told.code, told.data) == (code, data)


def test_only_of_resources() -> None:
    assert type(refused("2026-07-28", "tools/call", Failure(-32602, "no", {"uri": URI}))) is PeerError

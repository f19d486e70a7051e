"""Test the order of protocol versions and the two eras."""

import itertools

import pytest

from dovetail.wire import revisions
from dovetail.wire.revisions import (
    DRAFT,
    HANDSHAKE_REVISIONS,
    NEWEST_REVISION,
    PUBLISHED_REVISIONS,
    REVISIONS,
    get_order,
    is_stateless,
    is_within,
)


def test_published_revisions_stand_in_the_order_of_their_dates() -> None:
    assert list(PUBLISHED_REVISIONS) == sorted(PUBLISHED_REVISIONS)
    assert [get_order(one) for one in PUBLISHED_REVISIONS] == list(range(len(PUBLISHED_REVISIONS)))
    assert max(PUBLISHED_REVISIONS) == NEWEST_REVISION
    assert max(HANDSHAKE_REVISIONS) == revisions.NEWEST_HANDSHAKE_REVISION
    assert revisions.DEFAULT_HTTP_REVISION in HANDSHAKE_REVISIONS


def test_the_eras_divide_the_revisions_and_the_newest_alone_is_stateless() -> None:
    assert [one for one in REVISIONS if is_stateless(one)] == [NEWEST_REVISION]
    assert not is_stateless(DRAFT)
    assert not is_stateless("2099-01-01")


def test_the_draft_dialect_has_what_the_newest_handshake_revision_has() -> None:
    assert get_order(DRAFT) == get_order(revisions.NEWEST_HANDSHAKE_REVISION)
    for since, until in itertools.product(PUBLISHED_REVISIONS, (None, *PUBLISHED_REVISIONS)):
        assert is_within(DRAFT, since, until) == is_within(revisions.NEWEST_HANDSHAKE_REVISION, since, until)


@pytest.mark.parametrize("revision", PUBLISHED_REVISIONS)
def test_a_window_is_closed_below_and_open_above(revision: str) -> None:
    for since, until in itertools.product(PUBLISHED_REVISIONS, (None, *PUBLISHED_REVISIONS)):
        assert is_within(revision, since, until) == (since <= revision and (until is None or revision < until))


def test_an_unknown_revision_has_no_place() -> None:
    with pytest.raises(KeyError):
        get_order("2099-01-01")

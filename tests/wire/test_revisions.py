"""The order of revisions and the two eras."""

import itertools

import pytest

from dovetail.wire import revisions
from dovetail.wire.revisions import DRAFT, HANDSHAKE, NEWEST, PUBLISHED, REVISIONS, order, stateless, within


def test_published_revisions_stand_in_the_order_of_their_dates() -> None:
    assert list(PUBLISHED) == sorted(PUBLISHED)
    assert [order(one) for one in PUBLISHED] == list(range(len(PUBLISHED)))
    assert max(PUBLISHED) == NEWEST
    assert max(HANDSHAKE) == revisions.NEWEST_HANDSHAKE
    assert revisions.UNNAMED_HTTP in HANDSHAKE


def test_the_eras_divide_the_revisions_and_the_newest_alone_is_stateless() -> None:
    assert [one for one in REVISIONS if stateless(one)] == [NEWEST]
    assert not stateless(DRAFT)
    assert not stateless("2099-01-01")


def test_the_draft_dialect_has_what_the_newest_handshake_revision_has() -> None:
    assert order(DRAFT) == order(revisions.NEWEST_HANDSHAKE)
    for since, until in itertools.product(PUBLISHED, (None, *PUBLISHED)):
        assert within(DRAFT, since, until) == within(revisions.NEWEST_HANDSHAKE, since, until)


@pytest.mark.parametrize("revision", PUBLISHED)
def test_a_window_is_closed_below_and_open_above(revision: str) -> None:
    for since, until in itertools.product(PUBLISHED, (None, *PUBLISHED)):
        assert within(revision, since, until) == (since <= revision and (until is None or revision < until))


def test_an_unknown_revision_has_no_place() -> None:
    with pytest.raises(KeyError):
        order("2099-01-01")

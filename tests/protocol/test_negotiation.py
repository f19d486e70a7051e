"""Test version negotiation as a state machine: it ends for any response, with a common version or a reason."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import VersionNegotiationError
from dovetail.protocol.negotiation import DISCOVER, INITIALIZE, VersionNegotiation, check_protocol_version
from dovetail.wire.lifecycle import DiscoverResult, ServerCapabilities
from dovetail.wire.revisions import DRAFT, HANDSHAKE_REVISIONS, STATELESS_REVISIONS

KNOWN = (*HANDSHAKE_REVISIONS, *STATELESS_REVISIONS, DRAFT)


def discovered(*versions: str) -> DiscoverResult:
    return DiscoverResult(supported_versions=list(versions), capabilities=ServerCapabilities())


def test_left_alone_it_asks_for_the_newest() -> None:
    probe = VersionNegotiation()
    assert (probe.next_method, probe.revision) == (DISCOVER, STATELESS_REVISIONS[-1])
    assert probe.can_fall_back
    probe.handle_discovery(discovered(*STATELESS_REVISIONS, *HANDSHAKE_REVISIONS))
    assert (probe.next_method, probe.revision) == (None, STATELESS_REVISIONS[-1])


def test_a_server_that_discovers_but_speaks_only_older_revisions_gets_a_handshake() -> None:
    probe = VersionNegotiation()
    probe.handle_discovery(discovered("1999-01-01", HANDSHAKE_REVISIONS[0], HANDSHAKE_REVISIONS[1]))
    assert (probe.next_method, probe.revision) == (INITIALIZE, HANDSHAKE_REVISIONS[1])


@pytest.mark.parametrize("code", [-32601, -32600, -32602, -32700, -32603, -32000, 0, 404])
def test_no_single_code_decides(code: int) -> None:
    probe = VersionNegotiation()
    assert probe.handle_discovery_error(code, None)
    assert (probe.next_method, probe.revision) == (INITIALIZE, HANDSHAKE_REVISIONS[-1])


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_what_only_a_stateless_server_says_is_not_taken_for_an_old_one(code: int) -> None:
    probe = VersionNegotiation()
    assert not probe.handle_discovery_error(code, None)
    assert probe.next_method == DISCOVER


def test_a_counter_offer_is_taken_and_one_that_is_refused_twice_is_not() -> None:
    probe = VersionNegotiation()
    offer = {"supported": [STATELESS_REVISIONS[-1]], "requested": STATELESS_REVISIONS[-1]}
    assert probe.handle_discovery_error(-32022, offer)  # it offers what it refused: once more
    assert probe.next_method == DISCOVER
    with pytest.raises(VersionNegotiationError):
        probe.handle_discovery_error(-32022, offer)


def test_the_answer_to_initialize_settles_it() -> None:
    probe = VersionNegotiation("handshake")
    assert (probe.next_method, probe.revision) == (INITIALIZE, HANDSHAKE_REVISIONS[-1])
    probe.handle_initialize(HANDSHAKE_REVISIONS[0])
    assert (probe.next_method, probe.revision) == (None, HANDSHAKE_REVISIONS[0])
    with pytest.raises(VersionNegotiationError, match=f"1999-01-01.*{HANDSHAKE_REVISIONS[0]}"):
        VersionNegotiation().handle_initialize("1999-01-01")
    with pytest.raises(VersionNegotiationError) as caught:
        VersionNegotiation(HANDSHAKE_REVISIONS[1]).handle_initialize(HANDSHAKE_REVISIONS[0])
    assert repr(HANDSHAKE_REVISIONS[0]) in (caught.value.hint or "")


def test_a_wish_narrows_what_is_tried() -> None:
    stateless = VersionNegotiation("stateless")
    assert not stateless.can_fall_back
    with pytest.raises(VersionNegotiationError) as caught:
        stateless.fall_back()
    assert "protocol_version=" in (caught.value.hint or "")
    assert VersionNegotiation(DRAFT).revision == DRAFT
    assert VersionNegotiation(HANDSHAKE_REVISIONS[1]).next_method == INITIALIZE
    assert not VersionNegotiation("handshake").handle_initialize_error("none")
    assert not VersionNegotiation("handshake").handle_initialize_error({"supported": "all"})


def test_wishes_that_cannot_be() -> None:
    for protocol_version in ("1999-01-01", "iron", ""):
        with pytest.raises(ValueError, match=re.escape(repr(protocol_version))):
            check_protocol_version(protocol_version)
    for protocol_version in (HANDSHAKE_REVISIONS[0], STATELESS_REVISIONS[-1], DRAFT, "handshake", "stateless", None):
        check_protocol_version(protocol_version)


versions = st.lists(st.one_of(st.sampled_from(KNOWN), st.text(max_size=12), st.none(), st.integers()), max_size=8)
codes = st.one_of(st.sampled_from([-32020, -32021, -32022, -32601, -32602]), st.integers(-33000, 1000))
details = st.one_of(st.none(), st.text(), st.builds(lambda found: {"supported": found}, versions))
answers = st.one_of(
    st.tuples(st.just("discovered"), versions),
    st.tuples(st.just("refused"), codes, details),
    st.tuples(st.just("fall back")),
    st.tuples(st.just("initialized"), st.one_of(st.sampled_from(KNOWN), st.text(max_size=12))),
    st.tuples(st.just("countered"), details),
)
wishes = st.sampled_from([None, *KNOWN, "stateless", "handshake"])


@given(wish=wishes, said=st.lists(answers, min_size=1, max_size=30))
def test_whatever_is_answered_it_ends_and_speaks_only_what_was_wished(wish: Any, said: list[Any]) -> None:
    probe = VersionNegotiation(wish)
    eras = {"stateless": set(STATELESS_REVISIONS), "handshake": {*HANDSHAKE_REVISIONS, DRAFT}}
    allowed = eras.get(wish) or {one for one in KNOWN if wish in (None, one)}
    for one in said:
        if probe.next_method is None:
            break
        try:
            if not told(probe, one):
                break
        except VersionNegotiationError:
            break
        assert probe.next_method in (None, DISCOVER, INITIALIZE)
        assert probe.revision in allowed
        assert (probe.revision in STATELESS_REVISIONS) == (probe.next_method == DISCOVER) or probe.next_method is None


def told(probe: VersionNegotiation, answer: Any) -> bool:
    match probe.next_method, answer:
        case "server/discover", ("discovered", offered):
            probe.handle_discovery(DiscoverResult(supported_versions=offered, capabilities=ServerCapabilities()))
        case "server/discover", ("refused", code, data):
            return probe.handle_discovery_error(code, data)
        case "server/discover", ("fall back",):
            probe.fall_back()
        case "initialize", ("initialized", revision):
            probe.handle_initialize(revision)
        case "initialize", ("countered", data):
            return probe.handle_initialize_error(data)
        case _:
            pass
    return True


@settings(max_examples=30)
@given(offers=st.lists(versions, min_size=20, max_size=20))
def test_counter_offers_come_to_an_end(offers: list[Any]) -> None:
    """However a server plays with its offers, it is not followed for ever."""
    assert rounds(VersionNegotiation(), offers) <= 2 * len(KNOWN) + 1


def rounds(probe: VersionNegotiation, offers: list[Any]) -> int:
    for number, offered in enumerate(offers, 1):
        try:
            if probe.next_method == DISCOVER:
                probe.handle_discovery_error(-32022, {"supported": offered})
            else:
                probe.handle_initialize_error({"supported": offered})
        except VersionNegotiationError:
            return number
    return len(offers)

"""The probe as a machine: whatever a server answers, it ends, settles only what both sides speak, and says why not."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import NoCommonRevision
from dovetail.protocol.probe import DISCOVER, INITIALIZE, Probe, check_wishes
from dovetail.wire.lifecycle import DiscoverResult, ServerCapabilities
from dovetail.wire.revisions import DRAFT, HANDSHAKE, STATELESS

KNOWN = (*HANDSHAKE, *STATELESS, DRAFT)


def discovered(*versions: str) -> DiscoverResult:
    return DiscoverResult(supported_versions=list(versions), capabilities=ServerCapabilities())


def test_left_alone_it_asks_for_the_newest() -> None:
    probe = Probe()
    assert (probe.send, probe.revision) == (DISCOVER, STATELESS[-1])
    assert probe.handshake_too
    probe.discovered(discovered(*STATELESS, *HANDSHAKE))
    assert (probe.send, probe.revision) == (None, STATELESS[-1])


def test_a_server_that_discovers_but_speaks_only_older_revisions_gets_a_handshake() -> None:
    probe = Probe()
    probe.discovered(discovered("1999-01-01", HANDSHAKE[0], HANDSHAKE[1]))
    assert (probe.send, probe.revision) == (INITIALIZE, HANDSHAKE[1])


@pytest.mark.parametrize("code", [-32601, -32600, -32602, -32700, -32603, -32000, 0, 404])
def test_no_single_code_decides(code: int) -> None:
    probe = Probe()
    assert probe.refused(code, None)
    assert (probe.send, probe.revision) == (INITIALIZE, HANDSHAKE[-1])


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_what_only_a_stateless_server_says_is_not_taken_for_an_old_one(code: int) -> None:
    probe = Probe()
    assert not probe.refused(code, None)
    assert probe.send == DISCOVER


def test_a_counter_offer_is_taken_and_one_that_is_refused_twice_is_not() -> None:
    probe = Probe()
    offer = {"supported": [STATELESS[-1]], "requested": STATELESS[-1]}
    assert probe.refused(-32022, offer)  # it offers what it refused: once more
    assert probe.send == DISCOVER
    with pytest.raises(NoCommonRevision):
        probe.refused(-32022, offer)


def test_the_answer_to_initialize_settles_it() -> None:
    probe = Probe(era="handshake")
    assert (probe.send, probe.revision) == (INITIALIZE, HANDSHAKE[-1])
    probe.initialized(HANDSHAKE[0])
    assert (probe.send, probe.revision) == (None, HANDSHAKE[0])
    with pytest.raises(NoCommonRevision, match=f"1999-01-01.*{HANDSHAKE[0]}"):
        Probe().initialized("1999-01-01")
    with pytest.raises(NoCommonRevision) as caught:
        Probe(revision=HANDSHAKE[1]).initialized(HANDSHAKE[0])
    assert repr(HANDSHAKE[0]) in (caught.value.hint or "")


def test_a_wish_narrows_what_is_tried() -> None:
    stateless = Probe(era="stateless")
    assert not stateless.handshake_too
    with pytest.raises(NoCommonRevision) as caught:
        stateless.fall_back()
    assert "era=" in (caught.value.hint or "")
    assert Probe(revision=DRAFT).revision == DRAFT
    assert Probe(revision=HANDSHAKE[1]).send == INITIALIZE
    assert not Probe(era="handshake").counter_offered("none")
    assert not Probe(era="handshake").counter_offered({"supported": "all"})


def test_wishes_that_cannot_be() -> None:
    for revision, era in (
        ("1999-01-01", None),
        (None, "iron"),
        (STATELESS[-1], "handshake"),
        (HANDSHAKE[0], "stateless"),
    ):
        with pytest.raises(ValueError, match=r"revision|era"):
            check_wishes(revision, era)
    check_wishes(HANDSHAKE[0], "handshake")
    check_wishes(None, None)


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
wishes = st.one_of(
    st.just((None, None)),
    st.sampled_from([(one, None) for one in KNOWN]),
    st.sampled_from([(None, "stateless"), (None, "handshake")]),
)


@given(wish=wishes, said=st.lists(answers, min_size=1, max_size=30))
def test_whatever_is_answered_it_ends_and_speaks_only_what_was_wished(wish: Any, said: list[Any]) -> None:
    revision, era = wish
    probe = Probe(revision, era)
    allowed = {one for one in KNOWN if revision in (None, one)}
    if era is not None:
        allowed = set(STATELESS) if era == "stateless" else {*HANDSHAKE, DRAFT}
    for one in said:
        if probe.send is None:
            break
        try:
            if not told(probe, one):
                break
        except NoCommonRevision:
            break
        assert probe.send in (None, DISCOVER, INITIALIZE)
        assert probe.revision in allowed
        assert (probe.revision in STATELESS) == (probe.send == DISCOVER) or probe.send is None


def told(probe: Probe, answer: Any) -> bool:
    match probe.send, answer:
        case "server/discover", ("discovered", offered):
            probe.discovered(DiscoverResult(supported_versions=offered, capabilities=ServerCapabilities()))
        case "server/discover", ("refused", code, data):
            return probe.refused(code, data)
        case "server/discover", ("fall back",):
            probe.fall_back()
        case "initialize", ("initialized", revision):
            probe.initialized(revision)
        case "initialize", ("countered", data):
            return probe.counter_offered(data)
        case _:
            pass
    return True


@settings(max_examples=30)
@given(offers=st.lists(versions, min_size=20, max_size=20))
def test_counter_offers_come_to_an_end(offers: list[Any]) -> None:
    """However a server plays with its offers, it is not followed for ever."""
    assert rounds(Probe(), offers) <= 2 * len(KNOWN) + 1


def rounds(probe: Probe, offers: list[Any]) -> int:
    for number, offered in enumerate(offers, 1):
        try:
            if probe.send == DISCOVER:
                probe.refused(-32022, {"supported": offered})
            else:
                probe.counter_offered({"supported": offered})
        except NoCommonRevision:
            return number
    return len(offers)

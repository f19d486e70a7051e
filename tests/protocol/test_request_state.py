"""Test requestState: only a value this server sealed, for this request and in time, is accepted, and all refusals look
the same.
"""

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import InvalidParams
from dovetail.protocol.request_state import (
    MAX_STATE_BYTES,
    RequestState,
    RequestStateSealer,
    compute_binding,
    create_empty_state,
    hash_request,
)

OLD, NEW = "the older of two secrets", b"the newer of two secrets"
BOUND = compute_binding("alice", ("shop",), "tools/call", {"name": "book", "arguments": {"flight": "OS1"}})
REFUSAL = "Invalid params: requestState is not valid for this request"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
memories = st.builds(
    RequestState,
    input_responses=objects,
    request_digests=st.dictionaries(st.text(max_size=5), st.text(max_size=16), max_size=3),
    once_values=objects,
    author_state=st.none() | st.text(max_size=20),
)
SEALER = RequestStateSealer([OLD])


def refused(sealer: RequestStateSealer, state: str, bound: bytes = BOUND, now: float = 0.0) -> bool:
    """Whether it is refused, in the one way there is."""
    try:
        sealer.open(state, bound, now)
    except InvalidParams as exc:
        refusal = (exc.code, exc.message, exc.data, exc.__cause__)
    else:
        return False
    assert refusal == (-32602, REFUSAL, {"field": "requestState"}, None)
    return True


@given(memories, st.floats(0, 2**40))
def test_what_is_sealed_comes_back(memory: RequestState, now: float) -> None:
    state = SEALER.seal(memory, BOUND, now + 600)
    assert SEALER.open(state, BOUND, now) == memory
    assert state.isascii()
    assert state.isprintable()


@settings(max_examples=30)
@given(st.data(), memories)
def test_any_change_of_any_character_is_refused(data: st.DataObject, memory: RequestState) -> None:
    state = SEALER.seal(memory, BOUND, 600)
    place = data.draw(st.integers(0, len(state) - 1))
    for other in map(chr, range(256)):
        if other != state[place]:
            assert refused(SEALER, state[:place] + other + state[place + 1 :])


def test_every_character_of_a_state_counts() -> None:
    for text in ("", "a", "ab"):  # one for each length of the padding
        state = SEALER.seal(
            RequestState(input_responses={}, request_digests={}, once_values={}, author_state=text), BOUND, 600
        )
        for place, char in enumerate(state):
            for bit in range(8):
                assert refused(SEALER, state[:place] + chr(ord(char) ^ 1 << bit) + state[place + 1 :])
            assert refused(SEALER, state[:place] + state[place + 1 :])
            assert refused(SEALER, state[:place] + "A" + state[place:]) or char == "A"


@settings(max_examples=30)
@given(memories, st.integers(0))
def test_any_change_of_any_byte_beneath_is_refused(memory: RequestState, seed: int) -> None:
    sealed = bytearray(base64.urlsafe_b64decode(SEALER.seal(memory, BOUND, 600)))
    sealed[seed % len(sealed)] ^= 1 + seed // len(sealed) % 255
    assert refused(SEALER, base64.urlsafe_b64encode(sealed).decode())


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_whatever_is_invented_is_refused(state: str) -> None:
    assert refused(SEALER, state)


def test_an_altered_state_is_refused() -> None:
    state = SEALER.seal(create_empty_state(), BOUND, 600)
    assert all(refused(SEALER, state[:end]) for end in range(len(state)))
    assert refused(SEALER, state + "=")
    assert refused(SEALER, state + "\n")
    assert refused(SEALER, " " + state)
    assert refused(SEALER, state + state)


def test_an_endless_state_is_refused_unread() -> None:
    assert refused(SEALER, "A" * (MAX_STATE_BYTES + 1))
    assert refused(SEALER, "\u00e9" * 100)


# Time


@pytest.mark.parametrize(
    ("now", "open"), [(0.0, True), (599.9, True), (600.0, False), (1e12, False), (math.inf, False)]
)
def test_a_state_expires(now: float, open: bool) -> None:
    state = SEALER.seal(create_empty_state(), BOUND, 600.0)
    assert refused(SEALER, state, now=now) != open


# Binding


def request(**changes: Any) -> bytes:
    params = {"name": "book", "arguments": {"flight": "OS1"}, "uri": None, "_meta": {"progressToken": 1}}
    principal, method = changes.pop("principal", "alice"), changes.pop("method", "tools/call")
    server = changes.pop("server", ("shop",))
    return compute_binding(principal, server, method, params | changes)


@pytest.mark.parametrize(
    "change",
    [
        {"principal": None},
        {"principal": "bob"},
        {"principal": ""},
        {"server": ("other",)},
        {"server": ("shop", "")},
        {"server": ()},
        {"method": "prompts/get"},
        {"name": "cancel"},
        {"name": None},
        {"uri": "a:b"},
        {"arguments": {"flight": "OS2"}},
        {"arguments": {"flight": "OS1", "seat": 1}},
        {"arguments": {}},
        {"arguments": None},
        {"arguments": {"flight": ["OS1"]}},
    ],
    ids=str,
)
def test_a_state_belongs_to_one_caller_and_one_request(change: dict[str, Any]) -> None:
    assert request(**change) != BOUND
    assert refused(SEALER, SEALER.seal(create_empty_state(), BOUND, 600), request(**change))


def test_what_a_retry_may_change_does_not_unbind() -> None:
    assert request() == BOUND
    assert request(_meta={}, requestState="x", inputResponses={"q1": {}}) == BOUND


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4), st.randoms())
def test_the_order_of_arguments_does_not_matter(arguments: dict[str, Any], random: Any) -> None:
    names = list(arguments)
    random.shuffle(names)
    shuffled = {name: arguments[name] for name in names}
    assert request(arguments=shuffled) == request(arguments=arguments)
    assert hash_request(["m", shuffled]) == hash_request(["m", arguments])


@given(json_values, json_values)
def test_questions_are_distinguished(left: Any, right: Any) -> None:
    alike = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert (hash_request(left) == hash_request(right)) == alike


def test_what_no_peer_may_send_cannot_be_remembered_either() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    state = SEALER.seal(RequestState(input_responses={}, request_digests={}, once_values={"k": deep}), BOUND, 600)
    assert refused(SEALER, state)


# Secrets


def test_secrets_are_rotated_by_putting_the_new_one_first() -> None:
    before, between, after = RequestStateSealer([OLD]), RequestStateSealer([NEW, OLD]), RequestStateSealer([NEW])
    by_old, by_new = before.seal(create_empty_state(), BOUND, 600), between.seal(create_empty_state(), BOUND, 600)
    assert (
        between.open(by_old, BOUND, 0)
        == between.open(by_new, BOUND, 0)
        == after.open(by_new, BOUND, 0)
        == create_empty_state()
    )
    assert refused(after, by_old)
    assert refused(before, by_new)


def test_a_server_without_a_secret_makes_one_of_its_own() -> None:
    one, other = RequestStateSealer(), RequestStateSealer()
    state = one.seal(create_empty_state(), BOUND, 600)
    assert one.open(state, BOUND, 0) == create_empty_state()
    assert refused(other, state)


def test_a_state_opens_only_for_its_purpose() -> None:
    state = SEALER.seal(create_empty_state(), BOUND, 600)
    assert refused(RequestStateSealer([OLD], purpose="something else"), state)


@pytest.mark.parametrize("alone", [OLD, OLD.encode()])
def test_one_secret_need_not_be_a_list(alone: Any) -> None:
    assert (
        RequestStateSealer(alone).open(SEALER.seal(create_empty_state(), BOUND, 600), BOUND, 0) == create_empty_state()
    )


def test_what_would_be_refused_is_not_sealed() -> None:
    with pytest.raises(ValueError, match=str(MAX_STATE_BYTES)):
        SEALER.seal(
            RequestState(input_responses={}, request_digests={}, once_values={"k": "x" * MAX_STATE_BYTES}), BOUND, 600
        )


def test_a_text_and_its_bytes_are_the_same_secret() -> None:
    assert (
        RequestStateSealer([OLD.encode()]).open(SEALER.seal(create_empty_state(), BOUND, 600), BOUND, 0)
        == create_empty_state()
    )


@pytest.mark.parametrize("short", ["", "fifteen bytes..", b"\x00" * 15])
def test_a_short_secret_is_refused_when_the_server_is_made(short: str | bytes) -> None:
    with pytest.raises(ValueError, match="16"):
        RequestStateSealer([OLD, short])
    assert RequestStateSealer([b"\x00" * 16])


def test_no_two_seals_are_alike_and_none_shows_what_is_in_it() -> None:
    memory = RequestState(
        input_responses={"q1": "open sesame"}, request_digests={}, once_values={}, author_state="hidden"
    )
    states = {SEALER.seal(memory, BOUND, 600) for _ in range(50)}
    assert len(states) == 50
    assert not any(word in base64.urlsafe_b64decode(state) for state in states for word in (b"sesame", b"hidden"))


def test_each_first_round_starts_with_nothing_of_its_own() -> None:
    one = create_empty_state()
    one.input_responses["q1"] = 1
    assert create_empty_state() == RequestState(
        input_responses={}, request_digests={}, once_values={}, author_state=None
    )

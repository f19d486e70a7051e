"""Test that the JSON decoder accepts only unambiguous JSON, and raises only one error."""

import json
import math
import tracemalloc
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.errors import InvalidParams, ParseError
from dovetail.wire.base import Struct
from dovetail.wire.codec import MAX_DEPTH, MAX_DIGITS, MAX_MEMBERS, convert, decode, encode, encode_canonical, to_plain

numbers = st.integers(-(10**MAX_DIGITS) + 1, 10**MAX_DIGITS - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=12) | st.sampled_from(
    [":", '"', "\\", "\\u003a", "{", "[", ",", "\u2028", "\U0001f600", "\x7f"]
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
spaces = st.text(" \t\r\n", max_size=3)


def refused(data: bytes) -> bool:
    """Whether the reader says no; anything but ParseError is a failure of the test."""
    try:
        decode(data)
    except ParseError:
        return True
    return False


def same(left: Any, right: Any) -> bool:
    """Equality that tells 1, 1.0 and True apart, and minus zero from zero."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right and (not isinstance(left, float) or math.copysign(1, left) == math.copysign(1, right))


@st.composite
def spellings(draw: st.DrawFn, value: Any) -> str:
    """One of the many ways to write a value: any white space, any escapes."""
    pad = draw(spaces)
    if isinstance(value, str):
        return pad + '"' + "".join(draw(st.sampled_from(escapes(char))) for char in value) + '"' + draw(spaces)
    if isinstance(value, list):
        return pad + "[" + ",".join(draw(spellings(item)) for item in value) + "]" + draw(spaces)
    if isinstance(value, dict):
        pairs = [f"{draw(spellings(name))}:{draw(spellings(item))}" for name, item in value.items()]
        return pad + "{" + ",".join(pairs) + "}" + draw(spaces)
    return pad + json.dumps(value) + draw(spaces)


def escapes(char: str) -> list[str]:
    coded = "".join(f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le")).cast("H"))
    short = json.dumps(char)[1:-1]
    raw = [char] if char >= " " and char not in '"\\' else []
    return [*raw, short, coded, coded.upper().replace("\\U", "\\u")]


@given(st.data(), values)
def test_any_spelling_of_a_value_reads_as_that_value(data: st.DataObject, value: Any) -> None:
    assert same(decode(data.draw(spellings(value)).encode()), value)


@given(st.binary(max_size=40) | values.map(lambda value: json.dumps(value, ensure_ascii=False).encode()), st.data())
@settings(max_examples=300)
def test_what_is_accepted_reads_as_the_standard_library_reads_it(text: bytes, data: st.DataObject) -> None:
    """Valid documents, arbitrary bytes, and documents with a few bytes changed."""
    changed = bytearray(text)
    for place in data.draw(st.lists(st.integers(0, max(0, len(changed) - 1)), max_size=3)) if changed else ():
        changed[place] = data.draw(st.sampled_from(b'"\\:,{}[]0e-.u \n\x00\xff') | st.integers(0, 255))
    try:
        found = decode(bytes(changed))
    except ParseError:
        return
    assert same(found, json.loads(bytes(changed)))


REFUSED = {
    "nothing": b"",
    "white space only": b" \n",
    "two values": b"1 2",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "not a number": b"NaN",
    "infinity": b"-Infinity",
    "a number beyond a double": b"1e400",
    "a leading zero": b"01",
    "a plus sign": b"+1",
    "a bare fraction": b".5",
    "an open fraction": b"1.",
    "a trailing comma": b"[1,]",
    "single quotes": b"{'a':1}",
    "a comment": b"[1/*x*/]",
    "a control character": b'"\x01"',
    "a raw newline in a string": b'"\n"',
    "an unknown escape": b'"\\x41"',
    "a form feed between tokens": b"\x0c1",
    "NUL": b"\x00",
    "broken UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "a lone high surrogate": b'"\\ud800"',
    "a lone low surrogate": b'"\\udc00"',
    "surrogates the wrong way round": b'"\\ude00\\ud83d"',
    "a lone surrogate as a name": b'{"\\ud800":1}',
    "UTF-16": "{}".encode("utf-16"),
    "UTF-32": "{}".encode("utf-32-le"),
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_ambiguous_or_broken_text_is_refused(data: bytes) -> None:
    assert refused(data)


# Names given twice


@st.composite
def with_a_duplicate(draw: st.DrawFn) -> str:
    """A document in which one object, somewhere, has one name twice, spelled as cunningly as it gets."""
    name, first, second = draw(texts), draw(values), draw(values)
    others = {key: value for key, value in draw(st.dictionaries(texts, values, max_size=3)).items() if key != name}
    pairs = [(name, first), *others.items(), (name, second)]
    order = draw(st.permutations(pairs))
    inner = "{" + ",".join(f"{draw(spellings(key))}:{draw(spellings(value))}" for key, value in order) + "}"
    for _ in range(draw(st.integers(0, 4))):
        key, beside = draw(spellings(draw(texts))), draw(spellings(draw(values)))
        inner = draw(st.sampled_from([f"[{beside},{inner}]", f"[{inner}]", f"{{{key}:{inner}}}"]))
    return inner


@given(with_a_duplicate())
@example('{"a":1,"a":1}')
@example('{"a":{},"\\u0061":{"x":"\\u003a"}}')
@example('{"a":"::","a":"\\u003a\\u003a\\u003a"}')
@example('{"a":1,"a":"\\u003a","b":"\\u0022\\u003a"}')
@example('[[{"":0,"":0}]]')
@example('{"a":1, "b":{"a" : 2 , "a"\n:\t3}}')
def test_a_name_given_twice_is_refused_wherever_and_however_it_is_written(text: str) -> None:
    assert refused(text.encode())


@given(st.dictionaries(st.text(':\\"u03a{', min_size=1, max_size=6), st.text(':\\"u03a{', max_size=6), max_size=5))
def test_names_and_texts_that_look_like_syntax_are_no_duplicates(value: dict[str, str]) -> None:
    assert decode(json.dumps(value).encode()) == value


# Limits


def nested(depth: int, leaf: str, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + leaf + closing * depth).encode()


@pytest.mark.parametrize("leaf", ["", "1", '"\\u0041"', '"[{"'])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":[', "]}")])
def test_depth_at_and_over_the_limit(leaf: str, opening: str, closing: str) -> None:
    levels = opening.count("[") + opening.count("{")
    assert not refused(nested(MAX_DEPTH // levels, leaf, opening, closing))
    assert refused(b"[" + nested(MAX_DEPTH // levels, leaf, opening, closing) + b"]")


def test_depth_is_of_the_deepest_place_and_not_the_sum() -> None:
    assert len(decode(b"[" + b"[[]]," * 1000 + b"[]]")) == 1001
    assert refused(b"[" + b"[[]]," * 1000 + nested(MAX_DEPTH, "") + b"]")
    assert not refused(b'["' + b"[{" * 100_000 + b'"]')


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'["\\u0041",', b"[1,"])
def test_any_depth_is_refused_in_the_same_way(unit: bytes) -> None:
    """Also at the depths around which one reader gives up and another does not yet."""
    closing = b"}" if unit.startswith(b"{") else b"]"
    for depth in (*range(900, 1010), 5_000, 200_000):
        assert refused(unit * depth + b"1" + closing * depth)


@pytest.mark.parametrize("around", [b"[%s]", b'{"a":[%s]}'])
def test_members_at_and_over_the_limit(around: bytes) -> None:
    assert not refused(around % b",".join([b"1"] * MAX_MEMBERS))
    assert refused(around % b",".join([b"1"] * (MAX_MEMBERS + 1)))


def test_members_of_an_object_at_and_over_the_limit() -> None:
    names = [b'"%d":0' % number for number in range(MAX_MEMBERS + 1)]
    assert not refused(b"{" + b",".join(names[:-1]) + b"}")
    assert refused(b"{" + b",".join(names) + b"}")


def test_commas_in_texts_are_no_members() -> None:
    text = ',\\",\\\\,' * MAX_MEMBERS
    assert decode(f'["{text}","{text}"]'.encode()) == [json.loads(f'"{text}"')] * 2


@pytest.mark.parametrize(
    "write",
    [lambda digits: digits, lambda digits: "-" + digits, lambda digits: "0." + digits, lambda digits: "1e-" + digits],
)
def test_digits_at_and_over_the_limit(write: Callable[[str], str]) -> None:
    digits = "0" * (MAX_DIGITS - 1) + "1" if "." in write("") or "e" in write("") else "1" * MAX_DIGITS
    assert not refused(f"[{write(digits)}]".encode())
    assert refused(f"[{write('0' + digits if digits[0] == '0' else '1' + digits)}]".encode())


@pytest.mark.parametrize("offset", range(10))
def test_too_many_digits_are_found_at_every_offset(offset: int) -> None:
    spaces = " " * offset
    assert refused(f"[{spaces}{'1' * (MAX_DIGITS + 1)}]".encode())
    assert not refused(f"[{spaces}{'1' * MAX_DIGITS}]".encode())


def test_digits_in_texts_are_free() -> None:
    text = "1" * 5000
    assert decode(f'{{"{text}":"{text}\\"{text}"}}'.encode()) == {text: f'{text}"{text}'}


@pytest.mark.parametrize("count", [MAX_DIGITS + 1, 4300, 4301, 100_000])
def test_a_number_too_long_to_read_is_refused_in_the_same_way(count: int) -> None:
    assert refused(b'{"a":"\\u0041","b":' + b"1" * count + b"}")


@pytest.mark.parametrize("text", [b"x" * 4_000_000, b"\\n" * 2_000_000, b"\\\\" * 2_000_000])
@pytest.mark.parametrize("provocation", [b"," * (MAX_MEMBERS + 1), b"1" * (MAX_DIGITS + 1)])
def test_a_close_look_at_a_long_text_needs_no_memory_to_speak_of(text: bytes, provocation: bytes) -> None:
    data = b'["' + text + provocation + b'"]'
    tracemalloc.start()
    try:
        decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(data)


# Large messages are read in another way, to the same end


def beside_a_long_text(text: bytes) -> bytes:
    return b'["' + b"x, :{" * 20_000 + b'",' + text + b"]"


@given(st.data(), values)
def test_any_spelling_reads_the_same_beside_a_long_text(data: st.DataObject, value: Any) -> None:
    assert same(decode(beside_a_long_text(data.draw(spellings(value)).encode()))[1], value)


@given(with_a_duplicate())
@example('{"a":1,"a":1}')
@example('{"a":{},"\\u0061":{"x":"\\u003a"}}')
@example('{"a":1,"a":"\\u003a","b":"\\u0022\\u003a"}')
def test_a_name_given_twice_is_refused_beside_a_long_text(text: str) -> None:
    assert refused(beside_a_long_text(text.encode()))


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_broken_text_is_refused_beside_a_long_text(data: bytes) -> None:
    assert refused(beside_a_long_text(data))


@pytest.mark.parametrize("leaf", ["", "1", "1.5", '"\\u0041"'])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_depth_beside_a_long_text(leaf: str, opening: str, closing: str) -> None:
    inner = leaf if leaf or opening == "[" else "{}"
    levels = MAX_DEPTH - 1 - (inner == "{}")
    assert not refused(beside_a_long_text(nested(levels, inner, opening, closing)))
    assert refused(beside_a_long_text(nested(levels + 1, inner, opening, closing)))


@pytest.mark.parametrize("write", ["{}", "-{}", "0.{}", "1.{}", "0.{}e1"])
def test_digits_beside_a_long_text(write: str) -> None:
    assert not refused(beside_a_long_text(write.format("1" * MAX_DIGITS).encode()))
    assert refused(beside_a_long_text(write.format("1" * (MAX_DIGITS + 1)).encode()))


@pytest.mark.parametrize("member", ["[1,%d]", '{"a":%d}', "%d.5", '"\\u0041%d"'])
def test_many_members_of_a_large_message(member: str) -> None:
    """Too many to be looked at one by one, few enough to be served."""
    members = [(member % number).encode() for number in range(20_000)]
    assert not refused(b"[" + b",".join(members) + b"]")
    assert refused(b"[" + b",".join([*members, b'{"a":1,"\\u0061":2}']) + b"]")
    assert refused(b"[" + b",".join([*members, b"0." + b"1" * (MAX_DIGITS + 1)]) + b"]")
    assert refused(b"[" + b",".join([*members, nested(MAX_DEPTH, "1")]) + b"]")


# Writing


@given(values)
def test_what_is_written_reads_back(value: Any) -> None:
    text = encode(value)
    assert same(decode(text), value)
    assert b"\n" not in text


@given(st.dictionaries(texts, values, max_size=6), st.randoms())
def test_equal_values_have_one_canonical_form(value: dict[str, Any], random: Any) -> None:
    names = list(value)
    random.shuffle(names)
    assert encode_canonical({name: value[name] for name in names}) == encode_canonical(value)


# Typed values


class Place(Struct):
    name: str
    height: int = 0


def test_convert_names_the_place_that_does_not_fit() -> None:
    assert convert({"name": "K2", "height": 8611}, Place) == Place("K2", 8611)
    with pytest.raises(InvalidParams, match=r"`\$\.height`") as caught:
        convert({"name": "K2", "height": "high"}, Place)
    assert "high" not in caught.value.message
    with pytest.raises(InvalidParams, match="answer"):
        convert([], Place, label="answer")


def test_plain_spells_a_value_as_the_wire_does() -> None:
    assert to_plain({"when": date(2026, 7, 28), 1: Place("K2")}) == {
        "when": "2026-07-28",
        "1": {"name": "K2", "height": 0},
    }


class Name(str):
    """A text with more attributes, like a principal."""

    __slots__ = ("extra",)

    def __str__(self) -> str:
        return "shown"


def test_a_subclass_of_str_is_encoded_as_its_text() -> None:
    value = {"owner": Name("ada"), "others": [Name("bob")]}
    assert encode(value) == b'{"owner":"ada","others":["bob"]}'
    assert encode_canonical(value) == b'{"others":["bob"],"owner":"ada"}'
    assert to_plain(value) == {"owner": "ada", "others": ["bob"]}
    assert type(to_plain(value)["owner"]) is str
    with pytest.raises(TypeError, match="object"):
        encode({"owner": object()})

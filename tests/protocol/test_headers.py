"""Test mirrored headers: encoding, schema annotations and comparison with the body."""

import base64
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.errors import HeaderMismatch
from dovetail.protocol.headers import (
    MAX_SAFE_INTEGER,
    HeaderPath,
    build_param_headers,
    check_param_headers,
    compile_header_paths,
    decode_value,
    encode_value,
)


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("us-west1", "us-west1"),
        ("Hello, \u4e16\u754c", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("", ""),
        ("a b", "a b"),
        (" a", "=?base64?IGE=?="),
        ("a ", "=?base64?YSA=?="),
        ("\tindented", "=?base64?CWluZGVudGVk?="),
        ("a\tb", "=?base64?YQli?="),
        ("a\x7f", "=?base64?YX8=?="),
        ("a\0", "=?base64?YQA=?="),
        ("a\r\nX-Evil: 1", "=?base64?YQ0KWC1FdmlsOiAx?="),
        ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
        ("=?base64?open", "=?base64?open"),
        ("close?=", "close?="),
        ("=?BASE64?YQ==?=", "=?BASE64?YQ==?="),
        ("file:///projects/myapp/config.json", "file:///projects/myapp/config.json"),
    ],
)
def test_encodes_what_a_header_cannot_hold(text: str, encoded: str) -> None:
    assert encode_value(text) == encoded
    assert decode_value(encoded) == text
    assert decode_value(encoded.encode("latin-1")) == text


@given(st.text(st.characters(codec="utf-8")))
@example("=?base64??=")
def test_any_text_survives(text: str) -> None:
    encoded = encode_value(text)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert encoded.strip() == encoded
    assert decode_value(encoded.encode("latin-1")) == text


@given(st.text(st.sampled_from("=?base64 \tYQ/+")))
def test_texts_near_the_sentinel_survive(text: str) -> None:
    assert decode_value(encode_value(text)) == text


def test_a_lone_surrogate_cannot_travel() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        encode_value("\ud800")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"  plain\t", "plain"),
        (b" =?base64?SGVsbG8=?= ", "Hello"),
        (b"a\tb", "a\tb"),
        (b"=?base64??=", ""),
        (b"=?Base64?SGVsbG8=?=", "=?Base64?SGVsbG8=?="),
        (b"SGVsbG8=", "SGVsbG8="),
        (b"=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        (b"SGVsbG8=?=", "SGVsbG8=?="),
        (b"=?base64?IGEg?=", " a "),
    ],
)
def test_decodes(raw: bytes, text: str) -> None:
    assert decode_value(raw) == text


@pytest.mark.parametrize(
    "raw",
    [
        b"=?base64?SGVsbG8?=",
        b"=?base64?SGVsbG8==?=",
        b"=?base64?SGVs!!!bG8=?=",
        b"=?base64?SGVs bG8=?=",
        b"=?base64?SGVsbG9=?=",
        b"=?base64?SGVsbG8=SGVsbG8=?=",
        b"=?base64?=SGVsbG8?=",
        b"=?base64?-_-_?=",
        b"=?base64?/w==?=",
        b"=?base64?wK4=?=",
        b"=?base64?7aCA?=",
        b"=?base64?=",
    ],
)
def test_refuses_what_is_not_the_base64_of_a_text(raw: bytes) -> None:
    with pytest.raises(HeaderMismatch, match=r"mcp-name.*base64"):
        decode_value(raw, header="mcp-name")


@pytest.mark.parametrize("raw", [b"a\0", b"a\nb", b"a\rb", b"a\x7f", b"\xc3\xb6", b"\x1b[2J", "\u4e16"])
def test_refuses_characters_no_header_may_hold(raw: bytes | str) -> None:
    with pytest.raises(HeaderMismatch, match="mcp-name") as caught:
        decode_value(raw, header="mcp-name")
    assert str(caught.value).isprintable()


@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda inner: b"=?base64?" + inner + b"?="))
def test_any_bytes_decode_or_are_refused(raw: bytes) -> None:
    try:
        text = decode_value(raw)
    except HeaderMismatch:
        return
    # One text, at most two spellings: itself, and its one base64 form.
    sentinel = b"=?base64?" + base64.b64encode(text.encode()) + b"?="
    assert raw.strip(b" \t") in (text.encode(), sentinel)


def annotated(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_compiles_annotations_by_their_path() -> None:
    schema = annotated(
        region={"type": "string", "x-mcp-header": "Region"},
        query={"type": "string"},
        where=annotated(
            zone={"type": "integer", "x-mcp-header": "Zone-1"},
            deep=annotated(dry={"type": "boolean", "x-mcp-header": "X!#$%&'*+.^_`|~"}),
        ),
    )
    assert compile_header_paths(schema) == (
        HeaderPath(b"mcp-param-region", ("region",), "string"),
        HeaderPath(b"mcp-param-zone-1", ("where", "zone"), "integer"),
        HeaderPath(b"mcp-param-x!#$%&'*+.^_`|~", ("where", "deep", "dry"), "boolean"),
    )


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, annotated(a={"type": "string"}), annotated(a=True)])
def test_a_schema_without_annotations_has_no_paths(schema: dict[str, Any]) -> None:
    assert compile_header_paths(schema) == ()


def test_names_and_examples_are_not_annotations() -> None:
    note = {"x-mcp-header": "A B"}
    schema = annotated(
        **{"x-mcp-header": {"type": "string", "default": note, "examples": [note], "const": note, "enum": [note]}},
    )
    assert compile_header_paths(schema) == ()


@pytest.mark.parametrize(
    "name", ["", "My Region", "Region:Primary", "R\u00e9gion", "Region\t1", "a\r\nb", "a\n", "(a)"]
)
def test_refuses_a_name_that_is_not_a_token(name: str) -> None:
    with pytest.raises(ValueError, match=r"'p'.*x-mcp-header") as caught:
        compile_header_paths(annotated(p={"type": "string", "x-mcp-header": name}))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", [None, 1, True, ["a"], {"a": 1}])
def test_refuses_a_name_that_is_not_text(name: Any) -> None:
    with pytest.raises(ValueError, match=rf"'p'.*\b{type(name).__name__}\b"):
        compile_header_paths(annotated(p={"type": "string", "x-mcp-header": name}))


@pytest.mark.parametrize("kind", ["number", "object", "array", "null", None, ["string", "null"], ["string"], 1])
def test_refuses_a_type_that_is_not_one_primitive(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"'p'.*x-mcp-header.*string.*integer.*boolean"):
        compile_header_paths(annotated(p={"type": kind, "x-mcp-header": "P"}))


@pytest.mark.parametrize("node", [{"$ref": "#/$defs/a"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}])
def test_refuses_a_type_known_only_through_another_schema(node: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"'p'.*x-mcp-header.*string.*integer.*boolean"):
        compile_header_paths(annotated(p={**node, "x-mcp-header": "P"}))


def test_refuses_the_same_name_twice_whatever_its_case() -> None:
    schema = annotated(
        a={"type": "string", "x-mcp-header": "MyField"},
        b=annotated(c={"type": "string", "x-mcp-header": "myfield"}),
    )
    with pytest.raises(ValueError, match=r"'b\.c'.*mcp-param-myfield"):
        compile_header_paths(schema)


MARK: dict[str, Any] = {"type": "string", "x-mcp-header": "P"}
INNER = annotated(p=MARK)


@pytest.mark.parametrize(
    "schema",
    [
        MARK,
        *({keyword: MARK} for keyword in ("items", "contains", "additionalProperties", "not", "if", "then", "else")),
        *({keyword: INNER} for keyword in ("items", "not", "if", "then", "else", "propertyNames", "unevaluatedItems")),
        *({keyword: [INNER]} for keyword in ("oneOf", "anyOf", "allOf", "prefixItems", "items")),
        *({keyword: {"a": MARK}} for keyword in ("$defs", "definitions", "patternProperties", "dependentSchemas")),
        {"$defs": {"a": INNER}},
        {"x-vendor": INNER},
        annotated(p={"type": "array", "items": MARK}),
        annotated(p={"anyOf": [MARK, {"type": "null"}]}),
        annotated(p={"type": "object", "additionalProperties": MARK}),
        annotated(p={"allOf": [annotated(q=MARK)]}),
    ],
    ids=str,
)
def test_refuses_an_annotation_that_is_not_statically_reachable(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"x-mcp-header.*'P'.*propert"):
        compile_header_paths(schema)


def test_a_deep_schema_is_read_without_recursion() -> None:
    schema: dict[str, Any] = MARK
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    assert len(compile_header_paths(schema)[0].path) == 5000


REGION = HeaderPath(b"mcp-param-region", ("region",), "string")
COUNT = HeaderPath(b"mcp-param-count", ("limits", "count"), "integer")
DRY = HeaderPath(b"mcp-param-dry", ("dry",), "boolean")
PATHS = (REGION, COUNT, DRY)


def check(row: HeaderPath, value: Any, raw: bytes | None) -> None:
    arguments: Any = value
    for name in reversed(row.path):
        arguments = {name: arguments}
    check_param_headers((row,), arguments, {} if raw is None else {row.header: raw})


@pytest.mark.parametrize(
    ("row", "value", "raw"),
    [
        (REGION, "us-west1", b"us-west1"),
        (REGION, "Hello", b"=?base64?SGVsbG8=?="),
        (REGION, "", b""),
        (REGION, "42", b"42"),
        (REGION, None, None),
        (COUNT, None, None),
        (COUNT, 42, b"42"),
        (COUNT, 42, b"42.0"),
        (COUNT, 42, b"42.000"),
        (COUNT, 42, b"042"),
        (COUNT, 42, b"=?base64?NDI=?="),
        (COUNT, 42.0, b"42"),
        (COUNT, -7, b"-7"),
        (COUNT, 0, b"-0"),
        (COUNT, 0, b"0"),
        (COUNT, MAX_SAFE_INTEGER, b"9007199254740991"),
        (COUNT, -MAX_SAFE_INTEGER, b"-9007199254740991"),
        (DRY, True, b"true"),
        (DRY, False, b"false"),
    ],
)
def test_accepts_a_header_that_agrees(row: HeaderPath, value: Any, raw: bytes | None) -> None:
    check(row, value, raw)


@pytest.mark.parametrize(
    ("row", "value", "raw", "values"),
    [
        (REGION, "a", None, []),
        (REGION, "", None, []),
        (COUNT, 0, None, []),
        (DRY, False, None, []),
        (REGION, None, b"a", []),
        (REGION, None, b"", []),
        (REGION, "a", b"b", ["'b'", "'a'"]),
        (REGION, "a", b"A", ["'A'", "'a'"]),
        (REGION, "42", b"42.0", ["'42.0'", "'42'"]),
        (REGION, "true", b"True", ["'True'"]),
        (REGION, "a", b"a, b", ["'a, b'"]),
        (REGION, "=?base64?YQ==?=", b"=?base64?YQ==?=", ["'a'"]),
        (REGION, "a", b"=?base64?YQ?=", ["base64"]),
        (REGION, "\u00f6", b"\xc3\xb6", []),
        (REGION, ["a"], b"a", []),
        (REGION, {"a": 1}, b"a", []),
        (COUNT, 42, b"43", ["'43'", "'42'"]),
        (COUNT, 42, b"42.5", ["'42.5'"]),
        (COUNT, 42, b"4.2e1", ["'4.2e1'"]),
        (COUNT, 42, b"0x2a", ["'0x2a'"]),
        (COUNT, 42, b"+42", ["'+42'"]),
        (COUNT, 42, b"4_2", ["'4_2'"]),
        (COUNT, 42, b"42.", ["'42.'"]),
        (COUNT, 42, b"", ["''"]),
        (COUNT, 42, b"=?base64?2aTZog==?=", ["'\u0664\u0662'"]),
        (COUNT, 42, b"9" * 5000, ["'999"]),
        (COUNT, 1, b"true", ["'true'", "'1'"]),
        (COUNT, 4.5, b"4.5", []),
        (COUNT, float("inf"), b"inf", []),
        (COUNT, MAX_SAFE_INTEGER + 1, b"9007199254740992", ["2^53"]),
        (COUNT, -MAX_SAFE_INTEGER - 1, b"-9007199254740992", ["2^53"]),
        pytest.param(COUNT, 10**5000, b"1", ["2^53"], id="5001 digits"),
        (COUNT, 1e300, b"1", ["2^53"]),
        (DRY, True, b"1", ["'1'", "'true'"]),
        (DRY, True, b"True", ["'True'", "'true'"]),
        (DRY, True, b"false", ["'false'", "'true'"]),
    ],
)
def test_refuses_a_header_that_disagrees(row: HeaderPath, value: Any, raw: bytes | None, values: list[str]) -> None:
    with pytest.raises(HeaderMismatch) as caught:
        check(row, value, raw)
    assert row.header.decode() in caught.value.message
    assert not [value for value in values if value not in caught.value.message]
    assert caught.value.code == -32020
    assert len(caught.value.message) < 250


@pytest.mark.parametrize("arguments", [{}, {"limits": None}, {"limits": {}}, {"limits": 5}, {"limits": ["count"]}])
def test_a_value_that_is_not_at_its_path_is_absent(arguments: dict[str, Any]) -> None:
    check_param_headers(PATHS, arguments, {b"mcp-param-other": b"forwarded"})
    assert build_param_headers(PATHS, arguments) == []
    with pytest.raises(HeaderMismatch, match="mcp-param-count"):
        check_param_headers(PATHS, arguments, {b"mcp-param-count": b"1"})


def test_a_message_shows_little_of_a_value_and_no_control_character() -> None:
    value = "\x1b]0;" + "x" * 10_000 + "\n"
    raw = b"=?base64?" + base64.b64encode(b"\x1b[2J" + b"y" * 10_000) + b"?="
    with pytest.raises(HeaderMismatch) as caught:
        check(REGION, value, raw)
    message = caught.value.message
    assert "mcp-param-region" in message
    assert message.isprintable()
    assert message.count("x") < 70
    assert message.count("y") < 70


def test_mirrors_the_arguments_of_a_call() -> None:
    arguments = {"region": "S\u00e3o", "limits": {"count": 42}, "dry": False, "query": "SELECT 1"}
    assert build_param_headers(PATHS, arguments) == [
        (b"mcp-param-region", b"=?base64?U8Ojbw==?="),
        (b"mcp-param-count", b"42"),
        (b"mcp-param-dry", b"false"),
    ]
    assert build_param_headers(PATHS, {"region": "", "dry": None}) == [(b"mcp-param-region", b"")]
    assert build_param_headers((), arguments) == []


@pytest.mark.parametrize("count", [MAX_SAFE_INTEGER + 1, 1.5, [1], {}])
def test_does_not_mirror_what_no_header_can_say(count: Any) -> None:
    with pytest.raises(ValueError, match="mcp-param-count"):
        build_param_headers(PATHS, {"limits": {"count": count}})


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
WHOLE = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "region": st.none() | TEXTS,
        "limits": st.fixed_dictionaries({}, optional={"count": st.none() | WHOLE | WHOLE.map(float)}),
        "dry": st.none() | st.booleans(),
    },
)


@given(CALLS)
def test_what_a_client_mirrors_a_server_accepts(arguments: dict[str, Any]) -> None:
    headers = dict(build_param_headers(PATHS, arguments))
    check_param_headers(PATHS, arguments, headers)
    for name in headers:
        with pytest.raises(HeaderMismatch, match=name.decode()):
            check_param_headers(PATHS, arguments, {key: value for key, value in headers.items() if key != name})

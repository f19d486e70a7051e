"""Test rules on arguments that a server may convert to another type."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import Client, Policy, PolicyError, Server, rule
from dovetail.host import Allow, AllowWithChanges, Host, PolicyRequest, argument
from dovetail.host.policy.argument_coercion import create_expected_schemas as expected_by
from dovetail.host.policy.argument_coercion import iter_readings, normalize
from dovetail.host.policy.rules import STRICTNESS

app = Server("s")
calls: list[dict[str, Any]] = []


@app.tool
def act(
    path: str,
    force: bool = False,
    count: int = 0,
    options: dict[str, Any] | None = None,
    tags: list[str] | None = None,
    note: str = "",
) -> str:
    calls.append({"path": path, "force": force, "count": count, "options": options, "tags": tags, "note": note})
    return "ran"


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


DENIED = [
    (argument("/force").equals(True), {"force": "true"}),
    (argument("/force").equals(True), {"force": " true "}),
    (argument("/force").equals(True), {"force": "yes"}),
    (argument("/force").equals(True), {"force": 1}),
    (argument("/count").in_([99]), {"count": "99"}),
    (argument("/count").in_([99]), {"count": "9.9e1"}),
    (argument("/count").in_([99]), {"count": "99.0"}),
    (argument("/count").equals(99), {"count": " 99 "}),
    (argument("/count").equals(1000), {"count": "1_000"}),
    (argument("/options/force").exists(), {"options": '{"force": 1}'}),
    (argument("/options/force").equals(1), {"options": '{"force": 1}'}),
    (argument("/options/force").equals(True), {"options": {"force": "on"}}),
    (argument("/options/deep/force").exists(), {"options": {"deep": '{"force": 1}'}}),
    (argument("/tags").matches("prod*"), {"tags": '["prod"]'}),
    (argument("/tags/0").equals("prod"), {"tags": '["prod"]'}),
    (argument("/tags").in_(["prod"]), {"tags": ' ["test", "prod"]'}),
]


@pytest.mark.parametrize("through", ["host", "gateway"])
@pytest.mark.parametrize(("condition", "arguments"), DENIED)
async def test_a_deny_rule_holds_however_a_value_is_written(
    through: str, condition: Any, arguments: dict[str, Any]
) -> None:
    arguments = {"path": "x", **arguments}
    async with Host(policy=Policy("allow", [rule("deny", tool="s.act", when=condition)])) as host:
        host.add("s", app)
        if through == "host":
            with pytest.raises(PolicyError):
                await host.call("s.act", arguments)
        else:
            async with Client(host.as_server()) as client:
                assert (await client.call_tool("s__act", arguments)).is_error
    assert calls == []


@pytest.mark.parametrize("through", ["host", "gateway", "search"])
async def test_the_arguments_that_were_judged_are_shown_noted_and_sent(through: str) -> None:
    received: list[Any] = []
    asked: list[Any] = []
    noted: list[Any] = []
    judged = {"path": "5", "force": True, "count": 99, "tags": ["a"]}

    async def record(exchange: Any, call_next: Any) -> Any:
        if exchange.method == "tools/call":
            received.append(exchange.params["arguments"])
        return await call_next(exchange)

    def consent(request: Any) -> Allow:
        asked.append(request.arguments)
        return Allow()

    behind = Server("s", middleware=[record])
    behind.tool(act)
    async with Host(consent=consent) as host:
        host.add("s", behind)
        host.on("*", lambda event: noted.append(event) if event.kind in ("tool.call", "decision") else None)
        written = {"path": "5", "force": "true", "count": "99", "tags": '["a"]'}
        if through == "host":
            await host.call("s.act", written)
        else:
            gateway = host.as_server("search" if through == "search" else "merged")
            async with Client(gateway) as client:
                if through == "search":
                    await client.call_tool("call_tool", {"name": "s__act", "arguments": written})
                else:
                    await client.call_tool("s__act", written)
    assert received == [judged]
    assert asked == [judged]
    questions = [event.details if event.kind == "tool.call" else event.details.request for event in noted]
    assert [one.arguments for one in questions if one.kind == "tool.call"] == [judged, judged]


async def test_arguments_a_user_edits_are_judged_and_sent_the_same_way() -> None:
    policy = Policy("ask", [rule("deny", tool="s.act", when=argument("/force").equals(True))])
    edit: dict[str, Any] = {"path": "x", "force": "true"}
    async with Host(policy=policy, consent=lambda request: AllowWithChanges(edit)) as host:
        host.add("s", app)
        with pytest.raises(PolicyError):
            await host.call("s.act", path="x")
        assert calls == []
        edit["force"], edit["count"] = "false", "7"
        await host.call("s.act", path="x")
    assert [(one["force"], one["count"]) for one in calls] == [(False, 7)]


def verdict(condition: Any, value: Any, schema: Any = None, verdict: Any = "deny") -> str:
    whole = None if schema is None else {"type": "object", "properties": {"x": schema}}
    policy = Policy("allow" if verdict == "deny" else "ask", [rule(verdict, when=condition)])
    question = PolicyRequest(server="s", tool="t", schema=whole).with_arguments({"x": value})
    return policy.decide(question).action


X = argument("/x")


@pytest.mark.parametrize("schema", [None, {}, {"description": "anything"}, {"anyOf": [{"type": "string"}, {}]}])
@pytest.mark.parametrize(
    ("condition", "value"),
    [
        *((X.equals(True), value) for value in ("true", "True", "yes", "on", "1", "t", "1.0", 1, '"true"')),
        *((X.equals(False), value) for value in ("false", "no", "off", "0", 0)),
        *((X.in_([99]), value) for value in ("99", "9.9e1", " 99 ", "99.0", "+99", "0x63", "\uff19\uff19", '"99"')),
        (X.equals(1000), "1_000"),
        (X.equals("99"), 99),
        (X.equals({"a": 1}), '{"a": "1"}'),
        (X.equals([1, True]), ["1", "yes"]),
        (argument("/x/force").exists(), '{"force": 1}'),
        (argument("/x/force").exists(), '"{\\"force\\": 1}"'),
        (argument("/x/0/force").equals(1), '[{"force": "1"}]'),
        (X.matches("prod*"), '["prod"]'),
        (X.matches("prod*"), '"prod"'),
        (X.host_in("evil.example"), '["http://evil.example/"]'),
        (X.under("/etc"), '"/etc/passwd"'),
    ],
)
def test_where_the_schema_is_silent_another_reading_is_a_doubt(schema: Any, condition: Any, value: Any) -> None:
    assert verdict(condition, value, schema) == "deny"


@pytest.mark.parametrize("schema", [None, {}, {"type": "string"}])
@pytest.mark.parametrize(
    ("condition", "value"),
    [
        (X.equals(True), "hello"),
        (X.in_([99]), "a99"),
        (argument("/x/force").exists(), "force"),
        (X.matches("prod*"), "test"),
        (X.matches("prod*"), "[prod]"),
        (X.host_in("evil.example"), "http://good.example/"),
    ],
)
def test_a_plain_text_leaves_no_doubt(schema: Any, condition: Any, value: Any) -> None:
    assert verdict(condition, value, schema) == "allow"


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        (X.equals(True), "true"),
        (X.in_([99]), "99"),
        (X.matches("prod*"), "5"),
        (argument("/x/force").exists(), '{"force": 1}'),
    ],
)
def test_where_only_text_is_allowed_a_text_is_a_text(condition: Any, value: Any) -> None:
    texts: list[Any] = [
        {"type": "string"},
        {"type": ["string"]},
        {"enum": ["a", "b"]},
        {"$ref": "#/properties/y"},
        {"anyOf": [{"type": "string", "format": "uri"}, {"const": "none"}]},
        {"allOf": [{}, {"type": "string"}]},
    ]
    for schema in texts:
        whole = {"type": "object", "properties": {"x": schema, "y": {"type": "string"}}}
        question = PolicyRequest(server="s", tool="t", schema=whole).with_arguments({"x": value})
        assert Policy("allow", [rule("deny", when=condition)]).decide(question).action == "allow"


def test_a_typed_value_that_is_allowed_stays_allowed() -> None:
    for schema in (None, {"type": "integer"}, {"type": ["integer", "null"]}):
        assert verdict(X.in_([1, 2]), 1, schema, "allow") == "allow"
    assert verdict(X.in_([1, 2]), "1", {"type": "integer"}, "allow") == "allow"  # it is decoded first
    assert verdict(X.in_([1, 2]), "1", None, "allow") == "ask"
    assert verdict(X.in_(["1"]), "1", {"type": "string"}, "allow") == "allow"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "boolean"},
        {"type": ["boolean", "null"]},
        {"enum": [True, False]},
        {"$ref": "#/$defs/flag"},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        {"oneOf": [{"const": True}, {"const": False}]},
    ],
)
@pytest.mark.parametrize("value", ["yes", "enabled", "TRUE", 1, "1"])
def test_a_value_the_schema_forbids_is_a_doubt(schema: Any, value: Any) -> None:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": {"flag": {"type": "boolean"}}}
    question = PolicyRequest(server="s", tool="t", schema=whole).with_arguments({"x": value})
    for condition in (X.equals(True), X.equals(False), argument("/x/y").exists()):
        assert Policy("allow", [rule("deny", when=condition)]).decide(question).action == "deny"


# Properties

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3) | st.sampled_from([99, 1000]),
    st.sampled_from([0.5, 1.0, 99.0]),
    st.sampled_from(["", "prod", "prod-1", "true", "1", "99", "/etc/passwd", "http://evil.example/"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "force"]), inner, max_size=2),
    max_leaves=4,
)
PLACES = st.sampled_from(["/x", "/x/force", "/x/0", "/x/a/force"]).map(argument)
CONDITIONS = st.one_of(
    st.builds(lambda place, value: place.equals(value), PLACES, VALUES),
    st.builds(lambda place, values: place.in_(values), PLACES, st.lists(SCALARS, min_size=1, max_size=3)),
    st.builds(
        lambda place, test: getattr(place, test[0])(*test[1:]),
        PLACES,
        st.sampled_from(
            [("exists",), ("matches", "prod*"), ("matches", "*"), ("host_in", "evil.*"), ("under", "/etc")]
        ),
    ),
)


def spellings(value: Any) -> st.SearchStrategy[str]:
    """Texts that a lenient server takes for this value."""
    texts = [json.dumps(value), f" {json.dumps(value)} ", json.dumps(value, indent=1)]
    match value:
        case bool():
            texts += ["yes", "on", "1", "True", "T"] if value else ["no", "off", "0", "False", "F"]
        case int() | float():
            texts += [str(value), f"{float(value)}", f"{float(value):e}", f" {value}\n", f"0{abs(value)}"[value < 0 :]]
            texts = [one for one in texts if float(one) == value]
        case _:
            pass
    return st.sampled_from(texts)


TYPES: dict[str, Any] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "array": {"type": "array"},
    "object": {"type": "object"},
}


def kind_of(value: Any) -> str:
    names: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return "null" if value is None else names.get(type(value), "object")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, str, Any]:
    value = draw(VALUES)
    fits = TYPES[kind_of(value)]
    schemas: list[Any] = [None, {}]
    if not isinstance(value, str):  # a schema that allows only strings leaves no doubt about a string
        schemas += [{"anyOf": [fits, {"type": "string"}]}, {"type": [fits["type"], "string"]}]
        schemas += [fits, {"anyOf": [fits, {"type": "null"}]}, {"type": [fits["type"]]}]
    return value, draw(spellings(value)), draw(st.sampled_from(schemas))


@settings(deadline=None, max_examples=600)
@given(
    case=cases(),
    condition=CONDITIONS,
    decided=st.sampled_from(["allow", "ask", "deny"]),
    default=st.sampled_from(["allow", "ask", "deny"]),
    negated=st.booleans(),
)
def test_a_text_is_never_judged_more_leniently_than_its_value(
    case: tuple[Any, str, Any], condition: Any, decided: Any, default: Any, negated: bool
) -> None:
    value, text, schema = case
    whole = None if schema is None else {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    one = rule(decided, unless=condition) if negated else rule(decided, when=condition)
    policy = Policy(default, [one])
    question = PolicyRequest(server="s", tool="t", schema=whole)
    of_value = policy.decide(question.with_arguments({"x": value})).action
    of_text = policy.decide(question.with_arguments({"x": text})).action
    if decided == "allow" or STRICTNESS[decided] >= STRICTNESS[default]:
        assert STRICTNESS[of_text] >= STRICTNESS[of_value]
    if of_value == "deny":
        assert of_text != "allow"


KEYWORDS = (
    "type", "properties", "items", "prefixItems", "anyOf", "oneOf", "allOf", "$ref", "$defs", "enum", "const",
    "required", "additionalProperties", "patternProperties", "x", "a", "force",
)  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYWORDS),
            inner | st.sampled_from(["string", "object", "array", "integer", "#", "#/properties/x", "#/$defs/a"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(schema=st.dictionaries(st.sampled_from(["properties", "type", "$defs", "anyOf", "$ref"]), JSON), value=VALUES)
def test_no_schema_of_a_stranger_breaks_the_judgement(schema: Any, value: Any) -> None:
    question = PolicyRequest(server="s", tool="t", schema=schema).with_arguments({"x": value, "y": json.dumps(value)})
    assert normalize(schema, question.arguments or {}) == question.arguments
    for condition in (argument("/x/force").exists(), X.equals(1), argument("/y/0").matches("*")):
        Policy("ask", [rule("deny", when=condition)]).decide(question)


def test_a_schema_that_branches_without_end_is_not_followed_without_end() -> None:
    schema: dict[str, Any] = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 3}}}
    assert next(iter_readings("5", expected_by(schema))) == "5"
    assert verdict(X.equals(5), "5", {"anyOf": [{"$ref": "#"}, {"$ref": "#/properties/x"}]}) == "deny"


# Arguments and schemas that are meant to keep the host busy


class CountedSchema(dict[str, Any]):
    """A schema that counts how often it is looked at."""

    lookups = 0

    def get(self, key: str, default: Any = None) -> Any:
        CountedSchema.lookups += 1
        return super().get(key, default)


class CountedList(list[Any]):
    """A list that counts the items that are taken from it."""

    taken = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.taken += 1
            yield item


def ids(schema: Any, values: Any) -> PolicyRequest:
    items = {"type": "object", "properties": {"ids": {"type": "array", "items": schema}}}
    return PolicyRequest(server="s", tool="act", arguments={"ids": values}, schema=None if schema is None else items)


def test_the_items_of_an_array_share_one_look_at_their_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountedSchema, "lookups", 0)
    alternatives = [CountedSchema(type="string", maxLength=number) for number in range(200)]
    schema = CountedSchema(anyOf=[{"type": "integer"}, CountedSchema(anyOf=alternatives)])
    denied = rule("deny", when=argument("/ids").in_([99]))
    assert not denied.matches(ids(schema, ["a"] * 2_000))
    assert denied.matches(ids(schema, ["a"] * 2_000 + ["99"]))
    assert 0 < CountedSchema.lookups < 10_000


def test_items_with_a_schema_for_their_position_are_distinguished() -> None:
    array = {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "boolean"}}
    schema = {"type": "object", "properties": {"ids": {"type": "array", **array}}}
    denied = rule("deny", when=argument("/ids").in_(["a", 99]))
    for values, applies in (["b", 1, True], False), (["a", 1], True), (["b", 99], True), (["b", 1, "a"], True):
        question = PolicyRequest(server="s", tool="act", arguments={"ids": values}, schema=schema)
        assert denied.matches(question) is applies


@pytest.mark.parametrize("item", [1, "5", "x", [1]])
@pytest.mark.parametrize("schema", [None, {"type": ["integer", "string", "array"]}])
def test_an_array_that_is_too_long_to_be_judged_counts_as_doubt(item: Any, schema: Any) -> None:
    values = CountedList([item] * 200_000)
    assert rule("deny", when=argument("/ids").in_([99])).matches(ids(schema, values))
    assert not rule("allow", unless=argument("/ids").in_([99])).matches(ids(schema, values))
    assert values.taken <= 200_000  # half of it for each rule
    assert not rule("deny", when=argument("/ids").in_([99])).matches(ids(schema, [item] * 5_000))


@pytest.mark.parametrize(
    "hostile",
    [
        {"anyOf": [{"$ref": "#/$defs/all"}] * 5_000},
        {"anyOf": [{"$ref": "#/$defs/values"}] * 200},
        {"anyOf": [{"$ref": "#/$defs/names"}] * 200},
        {"$ref": "#" + "/a" * 100_000},
    ],
)
def test_a_schema_that_is_too_large_to_be_judged_counts_as_doubt_or_nothing(hostile: dict[str, Any]) -> None:
    defs = {"all": hostile, "values": {"enum": ["a"] * 5_000}, "names": {"type": ["string"] * 5_000}}
    schema = {"type": "object", "properties": {"ids": {"type": "array", "items": hostile}}, "$defs": defs}
    question = PolicyRequest(server="s", tool="act", arguments={"ids": ["99"]}, schema=schema)
    assert rule("deny", when=argument("/ids").in_([99])).matches(question)
    assert not rule("allow", unless=argument("/ids").in_([99])).matches(question)


@pytest.mark.parametrize(
    ("text", "is_doubtful"),
    [
        ("0x" + "ab" * 500, False),
        ("0x" + "ab" * 2_000, True),
        ("-0B" + "1" * 100_000, True),
        ("1" * 5_000, True),
        ("0" * 5_000 + "99", True),
        ("99." + "0" * 5_000, True),
        ("1_0" * 2_000, True),
        ("x" * 5_000, False),
        ("(" * 5_000, False),
    ],
)
async def test_a_long_number_in_a_text_does_not_break_the_decision(text: str, is_doubtful: bool) -> None:
    server = Server("s")

    @server.tool
    def send(data: str | int) -> str:
        return "ran"

    async with Host(policy=Policy("allow", [rule("deny", when=argument("/data").in_([99]))])) as host:
        host.add("s", server)
        if is_doubtful:
            with pytest.raises(PolicyError):
                await host.call("s.send", {"data": text})
        else:
            assert (await host.call("s.send", {"data": text})).content[0].text == "ran"

"""A mirrored header must agree with the body, or the request is refused and nothing runs.

The test defines agreement again, independently of the code. A gateway that routes by the header and a server that acts
on the body must never disagree.
"""

import base64
import json
from typing import Any

import pytest
from harness import (
    HANDSHAKE,
    NEWEST,
    VERSION,
    Answer,
    Client,
    Target,
    encode_http_request,
    message,
    mirror_headers,
    record_measurement,
    stateless_params,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

KEY = "headers"  # of the calls that must not run

CASES: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "wait", "arguments": {"key": KEY}},
    "resources/read": {"uri": "note://one/text"},
    "prompts/get": {"name": "greeting", "arguments": {"name": "Ada"}},
    "tools/list": {},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "name", "value": "a"}
    },
    "server/discover": {},
    "subscriptions/listen": {"notifications": {"toolsListChanged": True}},
}  # fmt: skip
NAMED = ("tools/call", "resources/read", "prompts/get")


def wrapped(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def send(client: Client, request: Any, headers: list[tuple[str, str]]) -> Answer:
    return client.exchange(
        encode_http_request("POST", "/mcp", [*client.headers.items(), *headers], json.dumps(request).encode())
    )


def refused(answer: Answer, *codes: int) -> bool:
    return answer.status == 400 and answer.message["error"]["code"] in codes


@pytest.fixture(scope="module")
def client(served: Target) -> Client:
    one = Client(served)
    one.call("release", {"key": KEY})
    return one


def nothing_ran(client: Client) -> bool:
    return client.call("count", {"what": "started", "key": KEY}).text == "0"


def spoiled(header: str, right: str) -> list[list[tuple[str, str]]]:
    """Ways in which one header is not what it should be."""
    other = {"mcp-protocol-version": HANDSHAKE, "mcp-method": "ping", "mcp-name": "echo"}[header]
    values = [
        other, "", right.upper(), right[:-1], right + "x", right + "\x00", right + ",", f"{right}, {other}",
        f"{right},{right}", f'"{right}"', right.replace("/", "%2F") + "%20", right + "é", "=?base64?!!!!?=",
        "=?base64?",
        wrapped(other), wrapped(right)[:-3] + "?=", wrapped(right).replace("=?b",
        "=?B"), wrapped(wrapped(right)), "\x7f",
    ]  # fmt: skip
    twice = [(header, right), (header, right)], [(header, right), (header, other)], [(header, other), (header, right)]
    spelled = [(header, right), (header.title(), other)]
    return [[], *twice, spelled, *([(header, value)] for value in values if value != right)]


@pytest.mark.parametrize("method", CASES)
def test_every_standard_header_of_every_method(client: Client, method: str) -> None:
    request = message(method, stateless_params(CASES[method]), 1)
    right = mirror_headers(request)
    accepted: list[Any] = []
    tried = 0
    for header, value in right.items():
        others = [(name, text) for name, text in right.items() if name != header]
        for wrong in spoiled(header, value):
            tried += 1
            answer = send(client, request, others + wrong)
            # A header given twice is refused before the body is read; one with a control character is no HTTP.
            no_http = answer.status == 400 and answer.body.startswith(b"Invalid HTTP request")
            if not no_http and not refused(answer, -32020, -32022, -32600):
                accepted.append((wrong, answer))
    record_measurement(f"mismatches tried, {method}", tried, "")
    assert not accepted
    assert nothing_ran(client)


@pytest.mark.parametrize("method", NAMED)
def test_an_encoded_name_is_the_same_name(client: Client, method: str) -> None:
    params: dict[str, Any] = CASES[method] | (
        {"name": "echo", "arguments": {"text": "x"}} if method == "tools/call" else {}
    )
    request = message(method, stateless_params(params), 1)
    right = mirror_headers(request)
    for spelled in (right["mcp-name"], f"  {right['mcp-name']}\t", wrapped(right["mcp-name"])):
        assert send(client, request, list((right | {"mcp-name": spelled}).items())).status == 200
    upper = [(name.upper(), value) for name, value in right.items()]
    assert send(client, request, upper).status == 200


@pytest.mark.parametrize(
    "name", ["tool\u0000", "wait ", "\uff57ait", "wait\n", "WAIT", "wait\u200b", "=?base64?d2FpdA==?="]
)
def test_a_name_is_not_improved(client: Client, name: str) -> None:
    """What the body asks for is looked up as it is: the header of a tool that exists does not help."""
    request = message("tools/call", stateless_params({"name": name, "arguments": {"key": KEY}}), 1)
    right = mirror_headers(request)
    for spelled in ("wait", wrapped("wait"), wrapped(name)):
        answer = send(client, request, list((right | {"mcp-name": spelled}).items()))
        assert refused(answer, -32020, -32602)
    assert nothing_ran(client)


@pytest.mark.parametrize("value", [None, 1, True, [], {}, ["wait"], "absent"])
def test_a_body_without_the_name_does_not_pass_by_its_header(client: Client, value: Any) -> None:
    params = {"arguments": {"key": KEY}} | ({} if value == "absent" else {"name": value})
    request = message("tools/call", stateless_params(params), 1)
    for spelled in ("wait", "None", "null", "1", "true", "True", "[]", "", "{}"):
        headers = {"mcp-protocol-version": NEWEST, "mcp-method": "tools/call", "mcp-name": spelled}
        assert refused(send(client, request, list(headers.items())), -32020, -32602)
    assert nothing_ran(client)


@pytest.mark.parametrize("header", [None, HANDSHAKE, "2024-11-05", "draft", "2099-01-01", "", NEWEST])
@pytest.mark.parametrize("body", [None, HANDSHAKE, "2099-01-01", "", 7, NEWEST])
def test_the_two_eras_do_not_mix(client: Client, header: str | None, body: Any) -> None:
    if header == body == NEWEST:
        return  # the one pair that agrees
    params = dict(CASES["tools/call"]) | (
        {} if body is None else {"_meta": stateless_params()["_meta"] | {VERSION: body}}
    )
    request = message("tools/call", params, 1)
    headers = [("mcp-method", "tools/call"), ("mcp-name", "wait")]
    headers += [] if header is None else [("mcp-protocol-version", header)]
    answer = send(client, request, headers)
    assert answer.status == 400
    assert "error" in answer.message
    assert nothing_ran(client)


def test_a_session_does_not_carry_a_stateless_request_in(served: Target, client: Client) -> None:
    """A session's request that claims to be of the other era is judged by the rules of that era."""
    session = Client(served, HANDSHAKE)
    request = message("tools/call", stateless_params(CASES["tools/call"]), 1)
    for extra in ([], [("mcp-method", "tools/list")], [("mcp-method", "tools/call"), ("mcp-name", "wait")]):
        assert refused(send(session, request, extra), -32020)
    assert nothing_ran(client)


# Arguments that are mirrored

PARAMS = {"region": ("region",), "level": ("level",), "dry": ("dry",), "zone": ("inner", "zone")}


def spoken(value: Any) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    plain = text.isascii() and text.isprintable() and text == text.strip()
    return text if plain and not (text.startswith("=?base64?") and text.endswith("?=")) else wrapped(text)


def arguments_of(values: dict[str, Any]) -> dict[str, Any]:
    made = {name: values[name] for name in ("region", "level", "dry") if name in values}
    return made | ({"inner": {"zone": values["zone"]}} if "zone" in values else {})


def call_region(client: Client, arguments: dict[str, Any], headers: dict[str, str]) -> Answer:
    request = message("tools/call", stateless_params({"name": "region", "arguments": arguments}), 1)
    params = [(f"Mcp-Param-{name}", value) for name, value in headers.items()]
    return send(client, request, [*mirror_headers(request).items(), *params])


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
given_values = st.fixed_dictionaries(
    {},
    optional={
        "region": texts | st.sampled_from(["=?base64?eA==?=", " padded ", "a\nb", "", "true", "1", "null"]),
        "level": st.integers(-(2**53) + 1, 2**53 - 1),
        "dry": st.booleans(),
        "zone": texts,
    },
)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(values=given_values)
def test_what_is_mirrored_well_is_served(client: Client, values: dict[str, Any]) -> None:
    answer = call_region(client, arguments_of(values), {name: spoken(value) for name, value in values.items()})
    assert json.loads(answer.text) == arguments_of(values)


@quick
@given(values=given_values, others=given_values)
def test_what_is_mirrored_otherwise_is_not(client: Client, values: dict[str, Any], others: dict[str, Any]) -> None:
    """The headers of one call with the body of another pass only if both say the same."""
    answer = call_region(client, arguments_of(values), {name: spoken(value) for name, value in others.items()})
    if values == others:
        assert answer.status == 200
    else:
        assert refused(answer, -32020)


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"region": "a"}, {}),
        ({"region": "a"}, {"region": "A"}),
        ({"region": "a"}, {"region": "b"}),
        ({"region": "a"}, {"region": ""}),
        ({"region": "a"}, {"region": wrapped("b")}),
        ({"region": "a"}, {"region": "=?base64?YR==?="}),  # stray bits in the last character
        ({"region": "a"}, {"region": "=?base64?YQ?="}),
        ({"region": "a"}, {"region": "=?base64?Y Q==?="}),
        ({"region": "é"}, {"region": "é"}),
        ({"region": "a"}, {"region": "a", "zone": "z"}),
        ({"region": None}, {"region": "null"}),
        ({}, {"region": ""}),
        ({}, {"level": "0"}),
        ({"inner": None}, {"zone": "z"}),
        ({"inner": []}, {"zone": "z"}),
        ({"inner": "z"}, {"zone": "z"}),
        ({"level": 1}, {"level": "1.5"}),
        ({"level": 1}, {"level": "+1"}),
        ({"level": 1}, {"level": "0x1"}),
        ({"level": 1}, {"level": "1e0"}),
        ({"level": 1}, {"level": "\uff11"}),
        ({"level": 1}, {"level": "1" + "0" * 400}),
        ({"level": 1}, {"level": "true"}),
        ({"level": 2**53}, {"level": str(2**53)}),
        ({"level": 2**53 - 1}, {"level": str(2**53)}),
        ({"dry": True}, {"dry": "True"}),
        ({"dry": True}, {"dry": "1"}),
        ({"dry": False}, {"dry": "0"}),
        ({"dry": False}, {}),
        ({"level": 0}, {}),
        ({"region": ""}, {}),
    ],
)
def test_values_that_only_look_alike(client: Client, arguments: dict[str, Any], headers: dict[str, str]) -> None:
    assert refused(call_region(client, arguments, headers), -32020)


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"level": 42}, {"level": "42.0"}),
        ({"level": 42.0}, {"level": "42"}),
        ({"level": -1}, {"level": "-1"}),
        ({"region": ""}, {"region": ""}),
        ({"region": "a"}, {"REGION": " a "}),
        ({"region": "a"}, {"region": wrapped("a")}),
        ({"region": "a"}, {"region": "a", "unknown": "whatever"}),
    ],
)
def test_values_that_are_the_same(client: Client, arguments: dict[str, Any], headers: dict[str, str]) -> None:
    assert call_region(client, arguments, headers).status == 200


def test_a_mirrored_argument_given_twice_is_refused(client: Client) -> None:
    request = message("tools/call", stateless_params({"name": "region", "arguments": {"region": "a"}}), 1)
    for pair in (("a", "a"), ("a", "b"), ("b", "a")):
        params = [("mcp-param-region", pair[0]), ("Mcp-Param-Region", pair[1])]
        assert refused(send(client, request, [*mirror_headers(request).items(), *params]), -32020, -32600)

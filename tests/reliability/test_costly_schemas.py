"""An expensive schema of the author, or expensive arguments, do not block other callers.

The schemas are like those that froze other hosts. References are never fetched, and a schema that cannot be checked in
time is refused at registration.
"""

import socket
import time
from typing import Annotated, Any

import msgspec
import pytest
from harness import HANDSHAKE, NEWEST, Client, MiB, Target, measure_cpu_unit, record_measurement, run_target

import dovetail
from dovetail import Server, ToolError

BOUND = 40  # units of work a call may take, reading it included; the target is one


def of(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **more}


def doubling(keyword: str, depth: int) -> dict[str, Any]:
    """Each definition names the next one twice."""
    defs: dict[str, Any] = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)}
    return of({"$ref": "#/$defs/d0"}, **{"$defs": defs | {f"d{depth}": {"type": "string"}}})


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


SCHEMAS: dict[str, dict[str, Any]] = {
    "pattern": of({"type": "string", "pattern": "^(a+)+$"}),
    "alternatives": of({"type": "string", "pattern": "^(a|a|a|aa)*b$"}),
    "patterns": of({"items": {"pattern": "^(a+)+$"}}),
    "names": {"type": "object", "patternProperties": {"^(k+)+$": {"type": "integer"}}, "additionalProperties": False},
    "own": {"type": "object", "properties": {"a": {"$ref": "#"}}},
    "loop": {"type": "object", "$ref": "#"},
    "integers": of({"items": {"type": "integer"}}),
    "choices": of({"items": {"anyOf": [{"type": "integer"}, {"type": "null"}, {"maxLength": 1}]}}),
    "enumeration": of({"items": {"enum": list(range(1000))}}),
    "unique": of({"uniqueItems": True}),
    "contains": of({"contains": {"const": "needle"}}),
    "closed": {"type": "object", "additionalProperties": False},
    "evaluated": {"type": "object", "anyOf": [of({})] * 20, "unevaluatedProperties": False},
}
MANY = 20_000
ARGUMENTS: dict[str, list[Any]] = {
    "pattern": [{"a": "a" * 40 + "!"}, {"a": "a" * (2 * MiB) + "!"}],
    "alternatives": [{"a": "a" * 40}, {"a": "a" * (2 * MiB)}],
    "patterns": [{"a": ["a" * 40 + "!"] * MANY}],
    "names": [{"k" * 40 + f"!{number}": 1 for number in range(MANY)}],
    "own": [nested(50), nested(50) | {"b": ["x"] * MANY}],
    "loop": [{"a": 1}, {"a": ["x"] * MANY}],
    "integers": [{"a": ["x"] * MANY}, {"a": ["x" * 100] * MANY}],
    "choices": [{"a": ["x" * 80] * MANY}],
    "enumeration": [{"a": ["x"] * MANY}, {"a": [999] * MANY}, {"a": ["x"] * 400}],
    "unique": [{"a": [[number, "x" * 40] for number in range(MANY)]}, {"a": [{"k": 1}] * MANY}],
    "contains": [{"a": ["x" * 80] * MANY}],
    "closed": [{f"name{number}": 1 for number in range(MANY)}, {"x" * MiB: "y" * MiB}],
    "evaluated": [{f"name{number}": 1 for number in range(MANY)}],
}


@pytest.fixture(scope="module")
def judging(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with run_target(tmp_path_factory.mktemp("judging"), "http", schemas=SCHEMAS) as one:
        yield one
        assert one.alive, one.log


@pytest.mark.parametrize("revision", [NEWEST, HANDSHAKE])
@pytest.mark.parametrize("name", SCHEMAS)
def test_costly_arguments_are_judged_at_once(judging: Target, name: str, revision: str) -> None:
    client = Client(judging, revision)
    for arguments in ARGUMENTS[name]:
        client.is_healthy()
        before = judging.cpu
        answer = client.call(name, arguments)
        used = judging.cpu - before
        assert answer.status == 200
        assert len(answer.body) < 8192  # the verdict does not repeat what it judges
        record_measurement(f"CPU of a call judged by {name}", used * 1000, "ms")
        assert used < BOUND * measure_cpu_unit()


def test_another_client_does_not_wait_for_a_verdict(judging: Target) -> None:
    costly, other = Client(judging), Client(judging)
    worst = 0.0
    for name, tried in ARGUMENTS.items():
        for arguments in tried:
            data = costly.prepare("tools/call", {"name": name, "arguments": arguments})
            other.is_healthy()
            before = judging.cpu
            costly.connection().send(data)
            assert other.is_healthy()
            # CPU time of the server, because a busy machine makes everybody wait.
            worst = max(worst, judging.cpu - before)
            costly.connection().answer()
    record_measurement("longest CPU beside a verdict", worst * 1000, "ms")
    assert worst < 2 * BOUND * measure_cpu_unit()


def test_a_small_call_hears_of_all_its_problems(judging: Target) -> None:
    said = Client(judging).call("integers", {"a": [1, "x", 2, "y"]}).text
    assert "a[1]" in said
    assert "a[3]" in said


def registered(schema: dict[str, Any]) -> Server:
    async def judged(arguments: dict[str, Any]) -> str:
        return "fits"

    app = Server("author")
    app.add_tool(judged, input_schema=schema)
    return app


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_double_are_refused(keyword: str) -> None:
    """Thirty definitions would be checked a thousand million times for one argument."""
    with pytest.raises(ValueError, match="judged"):
        registered(doubling(keyword, 30))
    registered(doubling(keyword, 3))


@pytest.mark.parametrize(
    "schema",
    [
        of({"pattern": "(?=a)(a+)+$"}),  # needs an engine that turns back
        of({"pattern": r"(a)\1"}),
        of({"pattern": "((a{1,999}){1,999}){1,999}"}),
        of({"pattern": "("}),
        of({"type": "nothing"}),
        of({"$ref": "#/$defs/missing"}),
        of({"minLength": -1}),
        {"type": "string"},
    ],
)
def test_what_cannot_be_checked_is_refused_with_the_functions_name(schema: dict[str, Any]) -> None:
    began = time.thread_time()
    with pytest.raises(ValueError, match="judged"):
        registered(schema)
    assert time.thread_time() - began < 2.0


def test_nothing_is_fetched() -> None:
    """A reference that leads away is refused; nobody is asked for it."""
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.2)
        port = canary.getsockname()[1]
        for uri in (
            f"http://127.0.0.1:{port}/schema.json", f"https://127.0.0.1:{port}/schema.json", "file:///etc/passwd",
            f"//127.0.0.1:{port}/x", "schema.json", "/etc/passwd", f"http://127.0.0.1:{port}/x#/a",
        ):  # fmt: skip
            with pytest.raises(ValueError, match="judged"):
                registered(of({"$ref": uri}))
        with pytest.raises(ValueError, match="judged"):
            registered(of({}) | {"$schema": f"http://127.0.0.1:{port}/dialect"})
        with pytest.raises(TimeoutError):
            canary.accept()


def test_a_deep_schema_does_not_end_the_process() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(ValueError, match="judged"):
        registered({"type": "object"} | schema)


async def test_a_pattern_in_an_annotation_is_not_a_trap() -> None:
    """The same pattern written as an annotation is judged as quickly."""
    app = Server("typed")

    @app.tool
    async def typed(a: Annotated[str, msgspec.Meta(pattern="^(a+)+$")]) -> str:
        return a

    @app.tool
    async def hidden(a: Annotated[str, msgspec.Meta(pattern="^(a+)+$")] | None = None, n: int = 0) -> str | None:
        return a

    async with dovetail.Client(app) as client:
        began = time.thread_time()
        for name in ("typed", "hidden"):
            with pytest.raises(ToolError):
                await client.call(name, a="a" * 24 + "!", n="x")
        assert time.thread_time() - began < 0.25

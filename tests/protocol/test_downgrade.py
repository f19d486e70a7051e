"""Test converting the newest values to older protocol versions: always valid, never changed in place."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.errors import InvalidRequest, MissingClientCapability, ProtocolError, ResourceNotFound, ToolNotFound
from dovetail.protocol import downgrade
from dovetail.protocol.downgrade import downgrade_request, downgrade_result, must_wrap, wrap_schema
from dovetail.wire.base import Result, WireStruct, replace
from dovetail.wire.codec import encode, to_plain
from dovetail.wire.completion import CompleteResult, Completion
from dovetail.wire.content import (
    Annotations,
    AudioContent,
    EmbeddedResource,
    Icon,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from dovetail.wire.lifecycle import Implementation, InitializeResult, ServerCapabilities
from dovetail.wire.logs import LoggingMessageNotificationParams
from dovetail.wire.progress import ProgressParams
from dovetail.wire.prompts import GetPromptResult, ListPromptsResult, Prompt, PromptArgument, PromptMessage
from dovetail.wire.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from dovetail.wire.revisions import HANDSHAKE_REVISIONS, REVISIONS
from dovetail.wire.sampling import CreateMessageRequestParams
from dovetail.wire.tools import CallToolResult, ListToolsResult, Tool, ToolAnnotations
from support.official_schemas import each_schema
from wire.test_official_schemas import validator, value_of

R24, R25_03, R25_06, R25_11 = HANDSHAKE_REVISIONS
R26, DRAFT = "2026-07-28", "draft"

each_revision = each_schema(HANDSHAKE_REVISIONS)
drawn = settings(max_examples=20, suppress_health_check=list(HealthCheck), database=None)

RESULTS: dict[str, type[Result]] = {
    "tools/call": CallToolResult,
    "tools/list": ListToolsResult,
    "prompts/get": GetPromptResult,
    "prompts/list": ListPromptsResult,
    "resources/list": ListResourcesResult,
    "resources/templates/list": ListResourceTemplatesResult,
    "resources/read": ReadResourceResult,
    "completion/complete": CompleteResult,
}


def spoken(value: Any) -> Any:
    return json.loads(encode(value))


# Everything we can build is valid in every older revision


@each_revision
@pytest.mark.parametrize("method", RESULTS)
@drawn
@given(data=st.data())
def test_any_result_is_valid_in_every_older_revision(revision: str, method: str, data: st.DataObject) -> None:
    kind = RESULTS[method]
    value = replace(data.draw(value_of(kind, R26)), result_type=None)
    before = encode(value)
    said = spoken(downgrade_result(revision, method, value, wrap_structured=data.draw(st.booleans())))
    validator(revision, kind.__name__).validate(said)
    assert encode(value) == before
    assert said.keys().isdisjoint({"ttlMs", "cacheScope", "resultType"})


schemas = st.sampled_from(
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#/$defs/Point"}, "$defs": {"Point": {"type": "object"}}},
        {"anyOf": [{"type": "object"}, {"type": "null"}]},
        {"$ref": "#/$defs/Tree", "$defs": {"Tree": {"type": "object"}}},
        {"type": ["object", "null"]},
        {"type": "integer", "$schema": "https://json-schema.org/draft/2020-12/schema"},
    ]
)


@each_revision
@drawn
@given(tool=value_of(Tool, R26), schema=schemas)
def test_any_output_schema_is_valid_in_every_older_revision(revision: str, tool: Tool, schema: dict[str, Any]) -> None:
    listing = ListToolsResult(tools=[replace(tool, output_schema=schema)], ttl_ms=5, cache_scope="public")
    said = spoken(downgrade_result(revision, "tools/list", listing))
    validator(revision, "ListToolsResult").validate(said)
    published = said["tools"][0].get("outputSchema")
    if revision in (R24, R25_03):
        assert published is None
    else:
        assert published["type"] == "object"
        assert (published == schema) == (schema.get("type") == "object") == (not must_wrap(schema))


@each_revision
@drawn
@given(data=st.data())
def test_any_introduction_is_valid_in_every_older_revision(revision: str, data: st.DataObject) -> None:
    said = InitializeResult(
        protocol_version=revision,
        capabilities=downgrade.downgrade_capabilities(revision, data.draw(value_of(ServerCapabilities, R26))),
        server_info=downgrade.downgrade_implementation(revision, data.draw(value_of(Implementation, R26))),
    )
    validator(revision, "InitializeResult").validate(spoken(said))


@each_revision
@drawn
@given(data=st.data())
def test_any_notice_is_valid_in_every_older_revision(revision: str, data: st.DataObject) -> None:
    progress, message = (
        data.draw(value_of(ProgressParams, R26)),
        data.draw(value_of(LoggingMessageNotificationParams, R26)),
    )
    for method, params, name in (
        ("notifications/progress", progress, "ProgressNotification"),
        ("notifications/message", message, "LoggingMessageNotification"),
        ("notifications/tools/list_changed", None, "ToolListChangedNotification"),
    ):
        said = json.loads(downgrade.encode_notification(revision, 1, method, params))
        validator(revision, name).validate(said)
        assert revision != R24 or method != "notifications/progress" or "message" not in said["params"]


@each_revision
@drawn
@given(data=st.data())
def test_any_sampling_question_is_valid_or_not_asked(revision: str, data: st.DataObject) -> None:
    params = to_plain(replace(data.draw(value_of(CreateMessageRequestParams, R26)), meta=None))
    before = json.dumps(params)
    try:
        method, asked = downgrade_request(revision, "sampling/createMessage", params)
    except MissingClientCapability:
        assert revision != R25_11
        return
    finally:
        assert json.dumps(params) == before
    validator(revision, "CreateMessageRequest").validate(
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": asked}
        if revision == R25_11
        else {"method": method, "params": asked}
    )


CHOICE = {
    "type": "string",
    "title": "Size",
    "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}],
}
FORM = {
    "type": "object",
    "properties": {
        "size": CHOICE,
        "age": {"type": "integer", "minimum": 0, "default": 3},
        "mail": {"type": "string", "format": "email", "maxLength": 100},
        "sure": {"type": "boolean", "description": "Really?"},
        "plain": {"type": "string", "enum": ["a", "b"]},
    },
    "required": ["size"],
}
SEVERAL = {"type": "object", "properties": {"sizes": {"type": "array", "items": {"anyOf": CHOICE["oneOf"]}}}}
ASKED = {"mode": "form", "message": "How big?", "requestedSchema": FORM}
VISIT = {"mode": "url", "message": "Log in", "url": "https://example.com/login"}


@each_schema([R25_06, R25_11])
def test_a_form_is_valid_where_forms_can_be_asked(revision: str) -> None:
    method, params = downgrade_request(revision, "elicitation/create", ASKED)
    validator(revision, "ElicitRequest").validate({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


# Questions, one by one


def test_before_forms_no_user_is_asked() -> None:
    for revision in (R24, R25_03):
        with pytest.raises(MissingClientCapability) as caught:
            downgrade_request(revision, "elicitation/create", ASKED)
        assert caught.value.data == {"requiredCapabilities": {"elicitation": {}}}


def test_the_first_forms_had_names_beside_their_choices_and_no_mode() -> None:
    method, params = downgrade_request(R25_06, "elicitation/create", ASKED)
    assert (method, set(params)) == ("elicitation/create", {"message", "requestedSchema"})
    assert params["requestedSchema"]["properties"]["size"] == {
        "type": "string",
        "title": "Size",
        "enum": ["s", "l"],
        "enumNames": ["Small", "Large"],
    }
    for name in ("age", "mail", "sure", "plain"):
        assert params["requestedSchema"]["properties"][name] == FORM["properties"][name]
    assert FORM["properties"]["size"] is CHOICE
    assert "oneOf" in CHOICE


def test_the_first_forms_had_no_visits_and_no_lists() -> None:
    for params in (VISIT, ASKED | {"requestedSchema": SEVERAL}):
        with pytest.raises(MissingClientCapability):
            downgrade_request(R25_06, "elicitation/create", params)


def test_a_visit_has_an_id_in_one_revision() -> None:
    _, params = downgrade_request(R25_11, "elicitation/create", VISIT)
    assert {**params, "elicitationId": ""} == {**VISIT, "elicitationId": ""}
    assert len(params["elicitationId"]) > 10
    assert downgrade_request(R25_11, "elicitation/create", VISIT)[1]["elicitationId"] != params["elicitationId"]
    assert downgrade_request(R25_11, "elicitation/create", VISIT | {"elicitationId": "e"})[1]["elicitationId"] == "e"
    assert downgrade_request(R26, "elicitation/create", VISIT) == ("elicitation/create", VISIT)


def test_the_dialect_opens_dialogs() -> None:
    assert downgrade_request(DRAFT, "elicitation/create", ASKED) == ("elicitation/createDialog", ASKED)


@pytest.mark.parametrize("revision", REVISIONS)
def test_other_questions_have_not_changed(revision: str) -> None:
    assert downgrade_request(revision, "roots/list", {}) == ("roots/list", {})


TEXT, SOUND = {"type": "text", "text": "a"}, {"type": "audio", "data": "AAEC", "mimeType": "audio/wav"}
USE = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
OUTCOME = {"type": "tool_result", "toolUseId": "1", "content": []}


def sampling(*content: Any, **more: Any) -> dict[str, Any]:
    return {"maxTokens": 5, "messages": [{"role": "user", "content": one} for one in content]} | more


def test_several_blocks_become_several_messages() -> None:
    _, params = downgrade_request(R25_06, "sampling/createMessage", sampling([TEXT, SOUND], TEXT, []))
    assert params == sampling(TEXT, SOUND, TEXT)
    assert downgrade_request(R25_11, "sampling/createMessage", sampling([TEXT, SOUND]))[1] == sampling([TEXT, SOUND])


@pytest.mark.parametrize(
    "params",
    [
        sampling(TEXT, tools=[]),
        sampling(TEXT, toolChoice={"mode": "auto"}),
        sampling([TEXT, USE]),
        sampling(OUTCOME),
    ],
)
def test_models_had_no_tools_before(params: dict[str, Any]) -> None:
    for revision in (R24, R25_03, R25_06):
        with pytest.raises(MissingClientCapability) as caught:
            downgrade_request(revision, "sampling/createMessage", params)
        assert caught.value.data == {"requiredCapabilities": {"sampling": {"tools": {}}}}
    assert downgrade_request(R25_11, "sampling/createMessage", params)[1] == params


def test_what_a_models_tool_answered_was_always_an_object() -> None:
    for value, said in ((None, {"result": None}), ([1], {"result": [1]}), ({"a": 1}, {"a": 1})):
        before, after = OUTCOME | {"structuredContent": value}, OUTCOME | {"structuredContent": said}
        assert downgrade_request(R25_11, "sampling/createMessage", sampling([TEXT, before], before))[1] == sampling(
            [TEXT, after], after
        )
        assert downgrade_request(R26, "sampling/createMessage", sampling(before))[1] == sampling(before)


def test_the_first_models_heard_nothing() -> None:
    with pytest.raises(MissingClientCapability):
        downgrade_request(R24, "sampling/createMessage", sampling(SOUND))
    assert downgrade_request(R25_03, "sampling/createMessage", sampling(SOUND))[1] == sampling(SOUND)


# Results, one by one


BLOCKS = [
    TextContent(text="a"),
    ImageContent(data="AAEC", mime_type="image/png"),
    AudioContent(data="AAEC", mime_type="audio/wav"),
    ResourceLink(uri="a:b", name="b", title="Bee"),
    ResourceLink(uri="a:c", name="c"),
    EmbeddedResource(resource=ResourceContents(uri="a:b", text="t")),
]


def block_kinds(revision: str, method: str) -> list[str]:
    if method == "tools/call":
        return [
            one["type"] for one in spoken(downgrade_result(revision, method, CallToolResult(content=BLOCKS)))["content"]
        ]
    messages = [PromptMessage(role="user", content=one) for one in BLOCKS]
    said = spoken(downgrade_result(revision, method, GetPromptResult(messages=messages)))
    return [one["content"]["type"] for one in said["messages"]]


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_blocks_a_revision_does_not_know_are_said_in_words(method: str) -> None:
    newest = ["text", "image", "audio", "resource_link", "resource_link", "resource"]
    assert block_kinds(R25_11, method) == block_kinds(R25_06, method) == block_kinds(DRAFT, method) == newest
    assert block_kinds(R25_03, method) == ["text", "image", "audio", "text", "text", "resource"]
    assert block_kinds(R24, method) == ["text", "image", "text", "text", "text", "resource"]


def test_the_words_name_what_was_meant() -> None:
    said = spoken(downgrade_result(R24, "tools/call", CallToolResult(content=BLOCKS)))["content"]
    assert "audio/wav" in said[2]["text"]
    assert [said[place]["text"] for place in (3, 4)] == ["Bee: a:b", "c: a:c"]


@pytest.mark.parametrize("value", [None, 0, "text", [1], True])
@pytest.mark.parametrize("wraps", [True, False])
def test_structured_content_was_always_an_object(value: Any, wraps: bool) -> None:
    given = CallToolResult(content=[], structured_content=value)
    for revision in (R25_06, R25_11, DRAFT):
        said = spoken(downgrade_result(revision, "tools/call", given, wrap_structured=wraps))
        assert said["structuredContent"] == {"result": value}
    for revision in (R24, R25_03):
        assert spoken(downgrade_result(revision, "tools/call", given, wrap_structured=wraps)) == {"content": []}


def test_an_object_is_wrapped_exactly_if_its_schema_is() -> None:
    given = CallToolResult(content=[], structured_content={"a": 1})
    assert spoken(downgrade_result(R25_11, "tools/call", given))["structuredContent"] == {"a": 1}
    assert spoken(downgrade_result(R25_11, "tools/call", given, wrap_structured=True))["structuredContent"] == {
        "result": {"a": 1}
    }
    bare = CallToolResult(content=[], is_error=True)
    assert spoken(downgrade_result(R25_11, "tools/call", bare, wrap_structured=True)) == {
        "content": [],
        "isError": True,
    }


def test_a_wrapped_schema_still_finds_its_definitions() -> None:
    schema = {"$schema": "s", "type": "array", "items": {"$ref": "#/$defs/P"}, "$defs": {"P": {"type": "object"}}}
    tool = Tool(name="t", input_schema={"type": "object"}, output_schema=schema)
    said = spoken(downgrade_result(R25_11, "tools/list", ListToolsResult(tools=[tool])))["tools"][0]["outputSchema"]
    assert said == {
        "$schema": "s",
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"$ref": "#/$defs/P"}}},
        "required": ["result"],
        "$defs": {"P": {"type": "object"}},
        "x-fastmcp-wrap-result": True,
    }


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": ["array", "null"], "items": {"$ref": "#"}}, [[None]], [[1]]),
        (
            {"type": "array", "items": {"$ref": "#/definitions/N"}, "definitions": {"N": {"type": "integer"}}},
            [1],
            ["a"],
        ),
        ({"type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}}, [1], ["a"]),
        ({"type": "array", "items": {"$ref": "#n"}, "$defs": {"N": {"$anchor": "n", "type": "integer"}}}, [1], ["a"]),
        (
            {"$id": "a:b", "type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}},
            [1],
            ["a"],
        ),
    ],
)
def test_references_in_a_wrapped_schema_mean_the_same_as_before(schema: dict[str, Any], good: Any, bad: Any) -> None:
    before, wrapped = spoken(schema), jsonschema_rs.validator_for(wrap_schema(schema))
    assert wrapped.is_valid({"result": good})
    assert not wrapped.is_valid({"result": bad})
    assert not wrapped.is_valid({})
    assert schema == before


ICONS = [Icon(src="a:b")]
TOOL = Tool(
    name="t",
    title="T",
    description="d",
    icons=ICONS,
    input_schema={"type": "object"},
    output_schema={"type": "object"},
    annotations=ToolAnnotations(read_only_hint=True),
    meta={"x": 1},
)


@pytest.mark.parametrize(
    ("revision", "members"),
    [
        (R24, {"name", "description", "inputSchema"}),
        (R25_03, {"name", "description", "inputSchema", "annotations"}),
        (R25_06, {"name", "description", "inputSchema", "annotations", "title", "outputSchema", "_meta"}),
        (R25_11, {"name", "description", "inputSchema", "annotations", "title", "outputSchema", "_meta", "icons"}),
    ],
)
def test_the_definition_of_a_tool_grows_with_the_versions(revision: str, members: set[str]) -> None:
    assert set(spoken(downgrade_result(revision, "tools/list", ListToolsResult(tools=[TOOL])))["tools"][0]) == members


LISTS: dict[str, tuple[str, WireStruct]] = {
    "prompts/list": (
        "prompts",
        Prompt(name="p", title="P", icons=ICONS, arguments=[PromptArgument(name="a", required=True)]),
    ),
    "resources/list": (
        "resources",
        Resource(uri="a:b", name="r", title="R", icons=ICONS, size=3, annotations=Annotations(priority=0.5)),
    ),
    "resources/templates/list": (
        "resource_templates",
        ResourceTemplate(uri_template="a:{b}", name="r", title="R", icons=ICONS),
    ),
}


@pytest.mark.parametrize("method", LISTS)
def test_titles_and_icons_are_for_those_who_know_them(method: str) -> None:
    field, item = LISTS[method]
    said = {}
    for revision in HANDSHAKE_REVISIONS:
        listing = RESULTS[method](**{field: [item]}, ttl_ms=1, cache_scope="public", next_cursor="c")
        page = spoken(downgrade_result(revision, method, listing))
        assert page.pop("nextCursor") == "c"
        ((said[revision],),) = page.values()
    everything = spoken(item)
    assert said[R25_11] == everything
    assert said[R25_06] == {name: value for name, value in everything.items() if name != "icons"}
    assert said[R24] == said[R25_03] == {name: said[R25_06][name] for name in said[R25_06] if name != "title"}


def test_lifetimes_are_for_the_newest_only() -> None:
    contents = [ResourceContents(uri="a:b", text="t")]
    kept = ReadResourceResult(contents=contents)
    assert downgrade_result(R25_11, "resources/read", kept) is kept
    assert downgrade_result(R25_11, "resources/read", replace(kept, ttl_ms=0, cache_scope="private")) == kept


def test_what_needs_no_translation_is_passed_on() -> None:
    value = CallToolResult(content=[TextContent(text="a")])
    assert downgrade_result(R25_11, "tools/call", value) is value
    assert downgrade_result(R24, "completion/complete", value) is value


# Codes


@pytest.mark.parametrize("revision", REVISIONS)
def test_codes(revision: str) -> None:
    def code(exc: ProtocolError) -> int:
        return downgrade.get_error_code(revision, exc)

    assert code(ResourceNotFound("a:b")) == (-32602 if revision == R26 else -32002)
    assert code(ToolNotFound("a")) == (-32003 if revision == DRAFT else -32602)
    assert code(MissingClientCapability({})) == (-32021 if revision == R26 else -32602)
    assert code(InvalidRequest("a")) == -32600


@pytest.mark.parametrize("method", ["completion/complete", "tools/call"])
def test_a_forwarded_result_loses_the_type_that_older_versions_do_not_have(method: str) -> None:
    results: dict[str, Result] = {
        "completion/complete": CompleteResult(completion=Completion(values=["a"]), result_type="complete"),
        "tools/call": CallToolResult(content=[], result_type="complete"),
    }
    assert "resultType" not in to_plain(downgrade.downgrade_result(R25_11, method, results[method]))

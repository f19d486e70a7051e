"""Test our structs against the official schema of every protocol version.

They have the same members and requirements. Any value we can build for a version is valid in it and survives a round
trip.
"""

import functools
import json
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema_rs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.wire import base, content, lifecycle, meta
from dovetail.wire.completion import CompleteParams, CompleteResult, PromptReference, ResourceTemplateReference
from dovetail.wire.elicitation import ElicitationCompleteParams, ElicitRequestParams, ElicitResult
from dovetail.wire.input_required import InputRequest, InputRequiredResult
from dovetail.wire.logs import LEVELS, LoggingMessageNotificationParams, SetLevelParams
from dovetail.wire.progress import CancelledParams, ProgressParams
from dovetail.wire.prompts import (
    GetPromptParams,
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    PromptArgument,
    PromptMessage,
)
from dovetail.wire.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from dovetail.wire.roots import ListRootsResult, Root
from dovetail.wire.sampling import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ModelHint,
    ModelPreferences,
    SamplingMessage,
    ToolChoice,
)
from dovetail.wire.subscriptions import (
    AcknowledgedParams,
    ListenParams,
    ListenResult,
    ResourceUpdatedParams,
    SubscribeParams,
    SubscriptionFilter,
    UnsubscribeParams,
)
from dovetail.wire.tools import CallToolParams, CallToolResult, ListToolsResult, Tool, ToolAnnotations
from support.official_schemas import each_schema, load_schema, needs_schema

R24, R25_03, R25_06, R25_11, R26 = REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

ALL = REVISIONS
SINCE_25_03 = REVISIONS[1:]
SINCE_25_06 = REVISIONS[2:]
SINCE_25_11 = REVISIONS[3:]
HANDSHAKE = REVISIONS[:4]
MODERN = (R26,)

# Where in the schemas a struct is described, and in which revisions.
DESCRIBED: list[tuple[type[base.WireStruct], str, tuple[str, ...]]] = [
    (content.Annotations, "Annotations", SINCE_25_03),
    (content.Icon, "Icon", SINCE_25_11),
    (content.TextContent, "TextContent", ALL),
    (content.ImageContent, "ImageContent", ALL),
    (content.AudioContent, "AudioContent", SINCE_25_03),
    (content.ResourceLink, "ResourceLink", SINCE_25_06),
    (content.EmbeddedResource, "EmbeddedResource", ALL),
    (content.ResourceContents, "ReadResourceResult/properties/contents/items", ALL),
    (content.ToolUseContent, "ToolUseContent", SINCE_25_11),
    (content.ToolResultContent, "ToolResultContent", SINCE_25_11),
    (ToolAnnotations, "ToolAnnotations", SINCE_25_03),
    (Tool, "Tool", ALL),
    (ListToolsResult, "ListToolsResult", ALL),
    (CallToolParams, "CallToolRequest/properties/params", ALL),
    (CallToolResult, "CallToolResult", ALL),
    (Resource, "Resource", ALL),
    (ResourceTemplate, "ResourceTemplate", ALL),
    (ListResourcesResult, "ListResourcesResult", ALL),
    (ListResourceTemplatesResult, "ListResourceTemplatesResult", ALL),
    (ReadResourceParams, "ReadResourceRequest/properties/params", ALL),
    (ReadResourceResult, "ReadResourceResult", ALL),
    (PromptArgument, "PromptArgument", ALL),
    (Prompt, "Prompt", ALL),
    (PromptMessage, "PromptMessage", ALL),
    (ListPromptsResult, "ListPromptsResult", ALL),
    (GetPromptParams, "GetPromptRequest/properties/params", ALL),
    (GetPromptResult, "GetPromptResult", ALL),
    (PromptReference, "PromptReference", ALL),
    (ResourceTemplateReference, "ResourceReference", (R24, R25_03)),
    (ResourceTemplateReference, "ResourceTemplateReference", SINCE_25_06),
    (CompleteParams, "CompleteRequest/properties/params", ALL),
    (CompleteResult, "CompleteResult", ALL),
    (ModelHint, "ModelHint", ALL),
    (ModelPreferences, "ModelPreferences", ALL),
    (ToolChoice, "ToolChoice", SINCE_25_11),
    (SamplingMessage, "SamplingMessage", ALL),
    (CreateMessageRequestParams, "CreateMessageRequest/properties/params", ALL),
    (CreateMessageResult, "CreateMessageResult", ALL),
    (ElicitRequestParams, "ElicitRequest/properties/params", SINCE_25_06),
    (ElicitResult, "ElicitResult", SINCE_25_06),
    (ElicitationCompleteParams, "ElicitationCompleteNotification/properties/params", (R25_11,)),
    (Root, "Root", ALL),
    (ListRootsResult, "ListRootsResult", ALL),
    (SetLevelParams, "SetLevelRequest/properties/params", HANDSHAKE),
    (LoggingMessageNotificationParams, "LoggingMessageNotification/properties/params", ALL),
    (ProgressParams, "ProgressNotification/properties/params", ALL),
    (CancelledParams, "CancelledNotification/properties/params", ALL),
    (lifecycle.Implementation, "Implementation", ALL),
    (lifecycle.RootsCapability, "ClientCapabilities/properties/roots", ALL),
    (lifecycle.SamplingCapability, "ClientCapabilities/properties/sampling", ALL),
    (lifecycle.ElicitationCapability, "ClientCapabilities/properties/elicitation", SINCE_25_06),
    (lifecycle.ClientCapabilities, "ClientCapabilities", ALL),
    (lifecycle.ListChangedCapability, "ServerCapabilities/properties/tools", ALL),
    (lifecycle.ListChangedCapability, "ServerCapabilities/properties/prompts", ALL),
    (lifecycle.ResourcesCapability, "ServerCapabilities/properties/resources", ALL),
    (lifecycle.ServerCapabilities, "ServerCapabilities", ALL),
    (lifecycle.InitializeParams, "InitializeRequest/properties/params", HANDSHAKE),
    (lifecycle.InitializeResult, "InitializeResult", HANDSHAKE),
    (lifecycle.DiscoverResult, "DiscoverResult", MODERN),
    (SubscriptionFilter, "SubscriptionFilter", MODERN),
    (ListenParams, "SubscriptionsListenRequest/properties/params", MODERN),
    (ListenResult, "SubscriptionsListenResult", MODERN),
    (AcknowledgedParams, "SubscriptionsAcknowledgedNotification/properties/params", MODERN),
    (SubscribeParams, "SubscribeRequest/properties/params", HANDSHAKE),
    (UnsubscribeParams, "UnsubscribeRequest/properties/params", HANDSHAKE),
    (ResourceUpdatedParams, "ResourceUpdatedNotification/properties/params", ALL),
    (InputRequiredResult, "InputRequiredResult", MODERN),
    (base.PaginatedParams, "ListToolsRequest/properties/params", ALL),
    (base.Params, "InitializedNotification/properties/params", HANDSHAKE),
    (base.EmptyResult, "EmptyResult", ALL),
]

# The experimental tasks of 2025-11-25 are not served, so what only they need is not modelled.
NOT_SERVED = {"task"}

# Stamped by the era on the way out, so no author has to give them.
STAMPED = {"_meta", "resultType", "ttlMs", "cacheScope"}

# Ours carry these everywhere because every params and every result may; the schema leaves them open.
SHARED_MEMBERS = {"_meta", "resultType", "ttlMs", "cacheScope"}


@functools.cache
def schema(revision: str) -> dict[str, Any]:
    return load_schema(revision)


def definitions(revision: str) -> str:
    return "$defs" if "$defs" in schema(revision) else "definitions"


def at(revision: str, place: str) -> dict[str, Any] | None:
    node: Any = schema(revision)[definitions(revision)]
    for step in place.split("/"):
        if not isinstance(node, dict) or step not in node:
            return None
        node = node[step]
    return node


def alternatives(revision: str, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The object schemas a node may stand for."""
    if "$ref" in node:
        target = at(revision, node["$ref"].split("/", 2)[2])
        assert target is not None
        yield from alternatives(revision, target)
    elif "anyOf" in node:
        for option in node["anyOf"]:
            yield from alternatives(revision, option)
    else:
        yield node


def objects(revision: str, place: str) -> list[dict[str, Any]]:
    node = at(revision, place)
    assert node is not None, f"{place} is not in {revision}"
    return list(alternatives(revision, node))


def members(struct: type[base.WireStruct]) -> set[str]:
    tag_field = struct.__struct_config__.tag_field
    return set(struct.__struct_encode_fields__) | ({tag_field} if tag_field else set())


def required(struct: type[base.WireStruct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct) if field.required}


BY_STRUCT = {
    struct: [(place, revision) for other, place, window in DESCRIBED if other is struct for revision in window]
    for struct, _, _ in DESCRIBED
}

each_struct = pytest.mark.parametrize(
    "struct",
    [
        pytest.param(struct, id=struct.__name__, marks=needs_schema(*(revision for _, revision in places)))
        for struct, places in BY_STRUCT.items()
    ],
)
each_case = pytest.mark.parametrize(
    ("struct", "place", "revision"),
    [
        pytest.param(struct, place, revision, id=f"{place}-{struct.__name__}-{revision}", marks=needs_schema(revision))
        for struct, place, window in DESCRIBED
        for revision in window
    ],
)


@each_schema(REVISIONS)
def test_the_window_is_the_schemas(revision: str) -> None:
    described = {place for _, place, window in DESCRIBED if revision in window}
    assert described == {place for _, place, _ in DESCRIBED if at(revision, place) is not None}


@each_case
def test_no_official_member_is_missing(struct: type[base.WireStruct], place: str, revision: str) -> None:
    for node in objects(revision, place):
        assert set(node.get("properties", {})) - NOT_SERVED <= members(struct)


@each_struct
def test_no_member_is_invented(struct: type[base.WireStruct]) -> None:
    official = {
        name
        for place, revision in BY_STRUCT[struct]
        for node in objects(revision, place)
        for name in node.get("properties", {})
    }
    assert members(struct) - official <= SHARED_MEMBERS


@each_struct
def test_required_is_what_every_revision_requires(struct: type[base.WireStruct]) -> None:
    demands = [
        set(node.get("required", [])) for place, revision in BY_STRUCT[struct] for node in objects(revision, place)
    ]
    tag_field = struct.__struct_config__.tag_field
    assert required(struct) == set.intersection(*demands) - STAMPED - {tag_field}


# What a peer of one revision may be sent. Newer things are translated by the downgrade before they leave.

BLOCKS: dict[str, tuple[type[base.WireStruct], ...]] = {
    R24: (content.TextContent, content.ImageContent, content.EmbeddedResource),
    R25_03: (content.TextContent, content.ImageContent, content.AudioContent, content.EmbeddedResource),
    **dict.fromkeys(SINCE_25_06, typing.get_args(content.ContentBlock)),
}
SAMPLING_BLOCKS: dict[str, tuple[type[base.WireStruct], ...]] = {
    R24: (content.TextContent, content.ImageContent),
    R25_03: (content.TextContent, content.ImageContent, content.AudioContent),
    R25_06: (content.TextContent, content.ImageContent, content.AudioContent),
    **dict.fromkeys(SINCE_25_11, typing.get_args(content.SamplingContent)),
}

words = st.text(max_size=8)
uris = st.from_regex(r"[a-z]{2,6}://[a-z0-9]{1,8}(/[a-z0-9]{1,6}){0,2}", fullmatch=True)
templates = st.from_regex(r"[a-z]{2,6}://[a-z0-9]{1,4}/\{[a-z]{1,6}\}", fullmatch=True)
base64 = st.sampled_from(["", "aGVsbG8=", "AAEC"])
whole = st.integers(-(2**53), 2**53)
unit = st.floats(0, 1)
numbers = whole | st.floats(allow_nan=False, allow_infinity=False)
anything = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
# The official JSONValue knows neither null nor fractions.
plain = st.recursive(
    st.booleans() | whole | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=3,
)
plain_objects = st.dictionaries(words, plain, max_size=2)
named_objects = st.dictionaries(words, plain_objects, max_size=2)
objects_of_anything = st.dictionaries(words, anything, max_size=2)
object_schemas = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(words, st.just({"type": "string"}), max_size=2),
        "required": st.lists(words, max_size=2, unique=True),
    },
)
forms = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(
            words,
            st.sampled_from([{"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}]),
            max_size=3,
        ),
    },
)
unset = st.just(base.UNSET)


def structured(revision: str) -> st.SearchStrategy[Any]:
    return unset | (anything if revision == R26 else objects_of_anything)


def answers(revision: str) -> st.SearchStrategy[Any]:
    value = st.booleans() | whole | words
    return st.dictionaries(words, value if revision == R25_06 else value | st.lists(words, max_size=2), max_size=2)


def blocks(kinds: dict[str, tuple[type[base.WireStruct], ...]], revision: str) -> st.SearchStrategy[Any]:
    return st.one_of([value_of(kind, revision) for kind in kinds[revision]])


def sampling_content(revision: str) -> st.SearchStrategy[Any]:
    one = blocks(SAMPLING_BLOCKS, revision)
    return one | st.lists(one, max_size=2) if revision in SINCE_25_11 else one


def questions(revision: str) -> st.SearchStrategy[Any]:
    ask = st.builds(
        lambda params: InputRequest(method="elicitation/create", params=msgspec.to_builtins(params)),
        params=value_of(ElicitRequestParams, revision),
    )
    return st.dictionaries(words, ask | st.just(InputRequest(method="roots/list")), max_size=2)


def replies(revision: str) -> st.SearchStrategy[Any]:
    reply = st.one_of(value_of(ElicitResult, revision), value_of(ListRootsResult, revision))
    return st.dictionaries(words, reply.map(msgspec.to_builtins), max_size=2)


# Members whose type says less than the specification does.
BY_NAME: dict[str, Any] = {
    "uri": lambda _: uris,
    "src": lambda _: uris,
    "url": lambda _: uris,
    "website_url": lambda _: uris,
    "uri_template": lambda _: templates,
    "data": lambda _: base64,
    "blob": lambda _: base64,
    "priority": lambda _: unit,
    "cost_priority": lambda _: unit,
    "speed_priority": lambda _: unit,
    "intelligence_priority": lambda _: unit,
    "size": lambda _: st.integers(0, 2**53),
    "ttl_ms": lambda _: st.integers(0, 2**53),
    "input_schema": lambda _: object_schemas,
    "output_schema": lambda _: object_schemas,
    "requested_schema": lambda _: forms,
    "structured_content": structured,
    "metadata": lambda _: plain_objects,
    "logging": lambda _: plain_objects,
    "completions": lambda _: plain_objects,
    "form": lambda _: plain_objects,
    "experimental": lambda _: named_objects,
    "extensions": lambda _: named_objects,
    "tasks": lambda _: st.sampled_from([{}, {"list": {}, "cancel": {}}]),
    "execution": lambda _: st.sampled_from([{}, {"taskSupport": "optional"}]),
    "resource_subscriptions": lambda _: st.lists(uris, max_size=2),
    "input_requests": questions,
    "input_responses": replies,
    "meta": lambda _: objects_of_anything,
}
BY_FIELD: dict[tuple[type[base.WireStruct], str], Any] = {
    (ResourceTemplateReference, "uri"): lambda _: templates,
    (LoggingMessageNotificationParams, "data"): lambda _: anything,
    (ElicitResult, "content"): answers,
    (SamplingMessage, "content"): sampling_content,
    (CreateMessageResult, "content"): sampling_content,
    (lifecycle.SamplingCapability, "context"): lambda _: plain_objects,
    (lifecycle.SamplingCapability, "tools"): lambda _: plain_objects,
    (lifecycle.ElicitationCapability, "url"): lambda _: plain_objects,
}

NOTICES = (LoggingMessageNotificationParams, ProgressParams, CancelledParams, AcknowledgedParams, ResourceUpdatedParams)


def stamps(struct: type[base.WireStruct], revision: str) -> dict[str, st.SearchStrategy[Any]]:
    """What the era adds to every message of a revision."""
    if issubclass(struct, base.Params) and struct not in NOTICES and revision == R26:
        particulars = {
            meta.PROTOCOL_VERSION: st.just(R26),
            meta.CLIENT_CAPABILITIES: value_of(lifecycle.ClientCapabilities, R26).map(msgspec.to_builtins),
        }
        optional = {
            meta.CLIENT_INFO: st.just({"name": "n", "version": "1"}),
            meta.LOG_LEVEL: st.sampled_from(LEVELS),
            meta.PROGRESS_TOKEN: whole | words,
        }
        return {"meta": st.fixed_dictionaries(particulars, optional=optional)}
    if issubclass(struct, base.Result):
        found: dict[str, st.SearchStrategy[Any]] = {}
        if revision != R26:
            found |= {"result_type": st.none()}
        else:
            found |= {"result_type": st.just("input_required" if struct is InputRequiredResult else "complete")}
        if issubclass(struct, base.CacheableResult):
            lifetimes = (st.integers(0, 2**53), st.sampled_from(["public", "private"]))
            none = (st.none(), st.none())
            found["ttl_ms"], found["cache_scope"] = lifetimes if revision == R26 else none
        if struct is ListenResult:
            found["meta"] = st.fixed_dictionaries({meta.SUBSCRIPTION_ID: words | whole})
        return found
    return {}


def of_type(hint: Any, revision: str) -> st.SearchStrategy[Any]:
    """Values of one annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    match hint:
        case _ if hint is content.ContentBlock or set(arguments) == set(typing.get_args(content.ContentBlock)):
            return blocks(BLOCKS, revision)
        case _ if origin is types.UnionType or origin is typing.Union:
            return st.one_of([of_type(option, revision) for option in arguments])
        case _ if origin is Literal:
            return st.sampled_from(arguments)
        case _ if origin is list:
            return st.lists(of_type(arguments[0], revision), max_size=2)
        case _ if origin is dict and arguments[1] is not Any:
            return st.dictionaries(words, of_type(arguments[1], revision), max_size=2)
        case _ if origin is dict:
            return objects_of_anything
        case _ if isinstance(hint, type) and issubclass(hint, base.WireStruct):
            return value_of(hint, revision)
        case _:
            return {
                str: words,
                int: whole,
                float: st.floats(allow_nan=False, allow_infinity=False),
                bool: st.booleans(),
                types.NoneType: st.none(),
            }[hint]


def of_field(struct: type[base.WireStruct], name: str, hint: Any, revision: str) -> st.SearchStrategy[Any]:
    special = BY_FIELD.get((struct, name)) or BY_NAME.get(name)
    if special is None:
        return of_type(hint, revision)
    optional = types.NoneType in typing.get_args(hint)
    return st.none() | special(revision) if optional else special(revision)


@functools.cache
def value_of(struct: type[base.WireStruct], revision: str) -> st.SearchStrategy[Any]:
    """Values of a struct that a peer of this revision may be sent."""
    hints = typing.get_type_hints(struct)
    fields = {name: of_field(struct, name, hints[name], revision) for name in struct.__struct_fields__}
    fields |= stamps(struct, revision)
    if struct is content.ResourceContents:
        text, blob = fields | {"text": words, "blob": st.none()}, fields | {"blob": base64, "text": st.none()}
        return st.builds(struct, **text) | st.builds(struct, **blob)
    if struct is ElicitRequestParams:
        form = fields | {"mode": st.just("form"), "requested_schema": forms, "url": st.none()}
        url = fields | {"mode": st.just("url"), "url": uris, "requested_schema": st.none(), "elicitation_id": words}
        return st.builds(struct, **form) | st.builds(struct, **url) if revision != R25_06 else st.builds(struct, **form)
    if struct is CancelledParams and revision != R25_11:
        fields["request_id"] = whole | words
    return st.builds(struct, **fields)


@functools.cache
def validator(revision: str, place: str) -> Any:
    names = definitions(revision)
    document = {
        "$schema": schema(revision)["$schema"],
        "$ref": f"#/{names}/{place}",
        names: schema(revision)[names],
    }
    return jsonschema_rs.validator_for(document, validate_formats=True)


@each_case
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_what_we_can_build_is_valid_and_comes_back(
    struct: type[base.WireStruct], place: str, revision: str, data: st.DataObject
) -> None:
    value = data.draw(value_of(struct, revision))
    encoded = msgspec.json.encode(value)
    validator(revision, place).validate(json.loads(encoded))
    assert msgspec.json.decode(encoded, type=struct) == value
    assert msgspec.convert(json.loads(encoded), type=struct) == value

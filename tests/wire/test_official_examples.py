"""Test that every official example decodes and encodes to equal JSON, and that no example folder is missed."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dovetail.wire import (
    base,
    completion,
    content,
    elicitation,
    input_required,
    lifecycle,
    logs,
    meta,
    progress,
    prompts,
    resources,
    roots,
    sampling,
    subscriptions,
    tools,
)
from support.official_schemas import EXAMPLES, needs_examples

pytestmark = needs_examples

PARTS: dict[str, Any] = {
    "AudioContent": content.AudioContent,
    "BlobResourceContents": content.ResourceContents,
    "CallToolRequestParams": tools.CallToolParams,
    "CallToolResult": tools.CallToolResult,
    "CancelledNotificationParams": progress.CancelledParams,
    "ClientCapabilities": lifecycle.ClientCapabilities,
    "CompleteRequestParams": completion.CompleteParams,
    "CompleteResult": completion.CompleteResult,
    "CreateMessageRequestParams": sampling.CreateMessageRequestParams,
    "CreateMessageResult": sampling.CreateMessageResult,
    "DiscoverResult": lifecycle.DiscoverResult,
    "ElicitRequestFormParams": elicitation.ElicitRequestParams,
    "ElicitRequestURLParams": elicitation.ElicitRequestParams,
    "ElicitResult": elicitation.ElicitResult,
    "EmbeddedResource": content.EmbeddedResource,
    "GetPromptRequestParams": prompts.GetPromptParams,
    "GetPromptResult": prompts.GetPromptResult,
    "ImageContent": content.ImageContent,
    "InputRequests": dict[str, input_required.InputRequest],
    "InputRequiredResult": input_required.InputRequiredResult,
    "ListPromptsResult": prompts.ListPromptsResult,
    "ListResourceTemplatesResult": resources.ListResourceTemplatesResult,
    "ListResourcesResult": resources.ListResourcesResult,
    "ListRootsResult": roots.ListRootsResult,
    "ListToolsResult": tools.ListToolsResult,
    "LoggingMessageNotificationParams": logs.LoggingMessageNotificationParams,
    "ModelPreferences": sampling.ModelPreferences,
    "PaginatedRequestParams": base.PaginatedParams,
    "ProgressNotificationParams": progress.ProgressParams,
    "ReadResourceResult": resources.ReadResourceResult,
    "Resource": resources.Resource,
    "ResourceLink": content.ResourceLink,
    "ResourceUpdatedNotificationParams": subscriptions.ResourceUpdatedParams,
    "Root": roots.Root,
    "SamplingMessage": sampling.SamplingMessage,
    "ServerCapabilities": lifecycle.ServerCapabilities,
    "SubscriptionsListenResult": subscriptions.ListenResult,
    "TextContent": content.TextContent,
    "TextResourceContents": content.ResourceContents,
    "Tool": tools.Tool,
    "ToolResultContent": content.ToolResultContent,
    "ToolUseContent": content.ToolUseContent,
}

ENVELOPED_PARAMS: dict[str, Any] = {
    "CallToolRequest": tools.CallToolParams,
    "CancelledNotification": progress.CancelledParams,
    "CompleteRequest": completion.CompleteParams,
    "CreateMessageRequest": sampling.CreateMessageRequestParams,
    "DiscoverRequest": base.Params,
    "ElicitRequest": elicitation.ElicitRequestParams,
    "GetPromptRequest": prompts.GetPromptParams,
    "ListPromptsRequest": base.PaginatedParams,
    "ListResourceTemplatesRequest": base.PaginatedParams,
    "ListResourcesRequest": base.PaginatedParams,
    "ListRootsRequest": base.Params,
    "ListToolsRequest": base.PaginatedParams,
    "LoggingMessageNotification": logs.LoggingMessageNotificationParams,
    "ProgressNotification": progress.ProgressParams,
    "PromptListChangedNotification": base.Params,
    "ReadResourceRequest": resources.ReadResourceParams,
    "ResourceListChangedNotification": base.Params,
    "ResourceUpdatedNotification": subscriptions.ResourceUpdatedParams,
    "SubscriptionsAcknowledgedNotification": subscriptions.AcknowledgedParams,
    "SubscriptionsListenRequest": subscriptions.ListenParams,
    "ToolListChangedNotification": base.Params,
}

ENVELOPED_RESULTS: dict[str, Any] = {
    "CallToolResultResponse": tools.CallToolResult,
    "CompleteResultResponse": completion.CompleteResult,
    "DiscoverResultResponse": lifecycle.DiscoverResult,
    "GetPromptResultResponse": prompts.GetPromptResult,
    "ListPromptsResultResponse": prompts.ListPromptsResult,
    "ListResourceTemplatesResultResponse": resources.ListResourceTemplatesResult,
    "ListResourcesResultResponse": resources.ListResourcesResult,
    "ListToolsResultResponse": tools.ListToolsResult,
    "ReadResourceResultResponse": resources.ReadResourceResult,
    "SubscriptionsListenResultResponse": subscriptions.ListenResult,
}

# Plain dicts on our side: the properties of a form.
FORM_FIELDS = {
    "BooleanSchema",
    "NumberSchema",
    "StringSchema",
    "TitledMultiSelectEnumSchema",
    "TitledSingleSelectEnumSchema",
    "UntitledMultiSelectEnumSchema",
    "UntitledSingleSelectEnumSchema",
}

# Answers to several questions: each one is decoded by the question it belongs to.
ANSWERS = {"InputResponses"}

# Errors travel in the envelope, which jsonrpc.py owns.
ERRORS = {
    "HeaderMismatchError",
    "InternalError",
    "InvalidParamsError",
    "MethodNotFoundError",
    "MissingRequiredClientCapabilityError",
    "ParseError",
    "UnsupportedProtocolVersionError",
}

# Said aloud in an example though absence says the same; we leave such members out.
SPOKEN_DEFAULTS = [("isError", False), ("mode", "form"), ("mode", "auto")]


def examples(folder: str) -> list[Any]:
    assert EXAMPLES is not None
    paths = sorted((EXAMPLES / folder).glob("*.json"))
    assert paths, f"no examples of {folder}"
    return [json.loads(path.read_bytes()) for path in paths]


def again(value: Any, kind: Any) -> Any:
    return json.loads(msgspec.json.encode(msgspec.json.decode(json.dumps(value), type=kind)))


def assert_same(before: Any, after: Any) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        gone = [(name, value) for name, value in before.items() if name not in after]
        assert all(member in SPOKEN_DEFAULTS for member in gone), gone
        assert set(after) <= set(before)
        for name, value in after.items():
            assert_same(before[name], value)
    elif isinstance(before, list) and isinstance(after, list):
        assert len(before) == len(after)
        for left, right in zip(before, after, strict=True):
            assert_same(left, right)
    else:
        assert before == after
        assert isinstance(before, bool) == isinstance(after, bool)


def test_no_example_folder_is_overlooked() -> None:
    known = [*PARTS, *ENVELOPED_PARAMS, *ENVELOPED_RESULTS, *FORM_FIELDS, *ANSWERS, *ERRORS]
    assert len(known) == len(set(known))
    assert EXAMPLES is not None
    assert {folder.name for folder in EXAMPLES.iterdir()} == set(known)


@pytest.mark.parametrize("folder", PARTS)
def test_a_part_comes_back_equal(folder: str) -> None:
    for value in examples(folder):
        assert_same(value, again(value, PARTS[folder]))


@pytest.mark.parametrize("folder", ENVELOPED_PARAMS)
def test_params_in_an_envelope_come_back_equal(folder: str) -> None:
    for message in examples(folder):
        params = message.get("params", {})
        assert_same(params, again(params, ENVELOPED_PARAMS[folder]))


@pytest.mark.parametrize("folder", ENVELOPED_RESULTS)
def test_a_result_in_an_envelope_comes_back_equal(folder: str) -> None:
    for message in examples(folder):
        assert_same(message["result"], again(message["result"], ENVELOPED_RESULTS[folder]))


@pytest.mark.parametrize("folder", sorted(FORM_FIELDS))
def test_a_form_field_passes_untouched(folder: str) -> None:
    for field in examples(folder):
        form = {"message": "?", "requestedSchema": {"type": "object", "properties": {"field": field}}}
        assert again(form, elicitation.ElicitRequestParams) == form


def test_questions_decode_by_their_method() -> None:
    by_method: dict[str, Any] = {
        "elicitation/create": elicitation.ElicitRequestParams,
        "sampling/createMessage": sampling.CreateMessageRequestParams,
        "roots/list": base.Params,
    }
    for questions in examples("InputRequests"):
        for question in questions.values():
            assert_same(question["params"], again(question["params"], by_method[question["method"]]))


def test_answers_decode_by_their_question() -> None:
    for answers in examples("InputResponses"):
        retry = {"name": "tool", "inputResponses": answers}
        assert again(retry, tools.CallToolParams) == retry
        for answer in answers.values():
            kind = elicitation.ElicitResult if "action" in answer else sampling.CreateMessageResult
            assert_same(answer, again(answer, kind))


def metas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("_meta"), dict):
            yield value["_meta"]
        for inner in value.values():
            yield from metas(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from metas(inner)


def test_the_callers_particulars_in_meta_come_back_equal() -> None:
    kinds: dict[str, Any] = {
        meta.CLIENT_INFO: lifecycle.Implementation,
        meta.SERVER_INFO: lifecycle.Implementation,
        meta.CLIENT_CAPABILITIES: lifecycle.ClientCapabilities,
        meta.LOG_LEVEL: logs.LoggingLevel,
    }
    seen: set[str] = set()
    assert EXAMPLES is not None
    for path in EXAMPLES.glob("*/*.json"):
        for found in metas(json.loads(path.read_bytes())):
            seen |= set(found)
            for key in found.keys() & kinds.keys():
                assert_same(found[key], again(found[key], kinds[key]))
    assert {meta.CLIENT_INFO, meta.CLIENT_CAPABILITIES, meta.PROTOCOL_VERSION, meta.SUBSCRIPTION_ID} <= seen
    assert all(meta.is_valid_key(key) for key in seen)

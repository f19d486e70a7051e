import msgspec
import pytest

from dovetail.wire.content import SamplingContent, TextContent, ToolUseContent
from dovetail.wire.sampling import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ModelPreferences,
    SamplingMessage,
    ToolChoice,
)

BLOCK = TextContent(text="x")


@pytest.mark.parametrize("content", [BLOCK, [BLOCK], [], [BLOCK, ToolUseContent(id="1", name="t", input={})]])
def test_content_is_one_block_or_a_list_and_stays_so(content: SamplingContent | list[SamplingContent]) -> None:
    message = SamplingMessage(role="user", content=content)
    assert msgspec.json.decode(msgspec.json.encode(message), type=SamplingMessage) == message
    result = CreateMessageResult(role="assistant", content=content, model="m")
    assert msgspec.json.decode(msgspec.json.encode(result), type=CreateMessageResult) == result


def test_a_link_is_not_sampling_content() -> None:
    text = b'{"role":"user","content":{"type":"resource_link","uri":"a://b","name":"b"}}'
    with pytest.raises(msgspec.ValidationError, match="resource_link"):
        msgspec.json.decode(text, type=SamplingMessage)


def test_messages_and_max_tokens_are_required() -> None:
    assert (
        msgspec.json.encode(CreateMessageRequestParams(messages=[], max_tokens=0)) == b'{"messages":[],"maxTokens":0}'
    )
    for text in (b'{"messages":[]}', b'{"maxTokens":1}', b'{"messages":[],"maxTokens":"1"}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=CreateMessageRequestParams)


def test_zero_is_a_temperature_and_a_priority() -> None:
    params = CreateMessageRequestParams(
        messages=[], max_tokens=1, temperature=0, model_preferences=ModelPreferences(cost_priority=0)
    )
    assert msgspec.json.decode(msgspec.json.encode(params)) == {
        "messages": [],
        "maxTokens": 1,
        "temperature": 0,
        "modelPreferences": {"costPriority": 0},
    }


def test_tools_are_chosen_by_the_model_unless_said() -> None:
    assert msgspec.json.decode(b"{}", type=ToolChoice).mode == "auto"
    assert msgspec.json.encode(ToolChoice(mode="required")) == b'{"mode":"required"}'
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"mode":"any"}', type=ToolChoice)

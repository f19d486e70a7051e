import msgspec
import pytest

from dovetail.wire.prompts import GetPromptParams, GetPromptResult, ListPromptsResult, PromptArgument, PromptMessage


def test_empty_lists_are_sent() -> None:
    assert msgspec.json.encode(ListPromptsResult(prompts=[])) == b'{"prompts":[]}'
    assert msgspec.json.encode(GetPromptResult(messages=[])) == b'{"messages":[]}'


def test_an_argument_is_optional_unless_said() -> None:
    assert msgspec.json.encode(PromptArgument(name="a", required=True)) == b'{"name":"a","required":true}'
    assert msgspec.json.decode(b'{"name":"a"}', type=PromptArgument).required is False


def test_argument_values_are_text() -> None:
    with pytest.raises(msgspec.ValidationError, match="arguments"):
        msgspec.json.decode(b'{"name":"p","arguments":{"n":1}}', type=GetPromptParams)


@pytest.mark.parametrize(
    "text",
    [
        b'{"role":"system","content":{"type":"text","text":"x"}}',
        b'{"role":"user","content":[{"type":"text","text":"x"}]}',
        b'{"role":"user","content":"x"}',
    ],
)
def test_a_message_is_one_block_by_user_or_assistant(text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=PromptMessage)

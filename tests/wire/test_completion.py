import msgspec
import pytest

from dovetail.wire.completion import (
    CompleteParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)


@pytest.mark.parametrize("ref", [PromptReference(name="p"), ResourceTemplateReference(uri="a://{b}")])
def test_references_are_distinguished(ref: PromptReference | ResourceTemplateReference) -> None:
    params = CompleteParams(
        ref=ref, argument=CompletionArgument(name="a", value=""), context=CompletionContext(arguments={"b": "c"})
    )
    encoded = msgspec.json.encode(params)
    assert msgspec.json.decode(encoded)["ref"]["type"] == ref.type
    assert msgspec.json.decode(encoded, type=CompleteParams) == params


def test_another_reference_is_refused() -> None:
    text = b'{"ref":{"type":"ref/tool","name":"t"},"argument":{"name":"a","value":""}}'
    with pytest.raises(msgspec.ValidationError, match="ref/tool"):
        msgspec.json.decode(text, type=CompleteParams)


def test_no_suggestion_is_an_empty_list() -> None:
    nothing = CompleteResult(completion=Completion(values=[], total=0, has_more=False))
    assert msgspec.json.encode(nothing) == b'{"completion":{"values":[],"total":0,"hasMore":false}}'

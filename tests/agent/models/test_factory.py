"""Test creating a model from a name."""

import pytest

from dovetail.agent.models.anthropic_model import AnthropicModel
from dovetail.agent.models.factory import load_model
from dovetail.agent.models.openai_model import OpenAIModel


@pytest.mark.parametrize(
    ("word", "kind", "name"),
    [
        ("openai:gpt-5", OpenAIModel, "gpt-5"),
        ("anthropic:claude-5", AnthropicModel, "claude-5"),
        ("ollama:qwen3:8b", OpenAIModel, "qwen3:8b"),
        ("http://127.0.0.1:1/v1#some/model", OpenAIModel, "some/model"),
    ],
)
def test_words(word: str, kind: type, name: str) -> None:
    model = load_model(word, api_key="k")
    assert isinstance(model, kind)
    assert model.models[0].name == name  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("word", ["gpt-5", "openai:", "http://127.0.0.1/v1", "other:m", ""])
def test_no_model(word: str) -> None:
    with pytest.raises(ValueError, match=f"{word!r}.*openai:NAME"):
        load_model(word)

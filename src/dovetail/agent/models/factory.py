"""Create a model from a name such as `openai:NAME`, `anthropic:NAME` or `URL#NAME`."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dovetail.agent.models.anthropic_model import AnthropicModel
    from dovetail.agent.models.openai_model import OpenAIModel

_LOCAL_URLS: Final = {
    "ollama": "http://127.0.0.1:11434/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "llamacpp": "http://127.0.0.1:8080/v1",
    "vllm": "http://127.0.0.1:8000/v1",
}
MODEL_NAME_HELP: Final = (
    "openai:NAME, anthropic:NAME, ollama:NAME, or URL#NAME of a server that is compatible with OpenAI"
)


def load_model(name: str, **options: Any) -> "AnthropicModel | OpenAIModel":
    """Return the model with a name such as "openai:gpt-5.2". The options are passed to the provider's client.

    Args:
        name: The provider and the model, such as "openai:NAME" or "ollama:NAME".
    """
    if name.startswith(("http://", "https://")):
        url, _, model_name = name.partition("#")
        if model_name:
            return _create_openai_model(model_name, base_url=url, **options)
    provider, _, model_name = name.partition(":")
    if model_name and provider == "openai":
        return _create_openai_model(model_name, **options)
    if model_name and provider == "anthropic":
        from dovetail.agent.models.anthropic_model import AnthropicModel

        return AnthropicModel(model_name, **options)
    if model_name and provider in _LOCAL_URLS:
        return _create_openai_model(model_name, **({"base_url": _LOCAL_URLS[provider]} | options))
    raise ValueError(f"unknown model {name!r}. The name must be {MODEL_NAME_HELP}")


def _create_openai_model(name: str, **options: Any) -> "OpenAIModel":
    from dovetail.agent.models.openai_model import OpenAIModel

    return OpenAIModel(name, **options)

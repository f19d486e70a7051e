"""Models of OpenAI and of services with the same chat completions API.

The `openai` package is imported before the first request.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from dovetail.agent.models.preferences import ModelInfo, as_model_infos, choose_model, measure_usage
from dovetail.agent.models.provider_client import ProviderClient
from dovetail.agent.models.provider_messages import ToolAliases, build_tool_call, format_result, get_blocks, get_images
from dovetail.errors import ModelError
from dovetail.host.tool_formats import parse_openai_call, to_openai_tools
from dovetail.protocol.interfaces.language_model import ModelReply
from dovetail.wire.codec import encode
from dovetail.wire.content import (
    AudioContent,
    ImageContent,
    SamplingContent,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)
from dovetail.wire.sampling import ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool

_STOP_REASONS: Final = {"stop": "endTurn", "length": "maxTokens", "tool_calls": "toolUse"}


class OpenAIModel:
    """The language models of OpenAI, or of another server with the same API.

    The first model answers, unless a server prefers another model. Other options are passed to `openai.AsyncOpenAI`.
    Without `api_key`, the client reads OPENAI_API_KEY.

    Args:
        base_url: The URL of a server with the API of OpenAI.
    """

    def __init__(self, *models: str | ModelInfo, base_url: str | None = None, **options: Any) -> None:
        self.models = as_model_infos(models)
        self.price = self.models[0].price  # The price of the default model.
        if base_url is not None:
            # The OpenAI client requires an API key, but local servers do not.
            options = {"base_url": base_url, "api_key": "none", **options}
        self._is_compatible_server = base_url is not None
        self._client = ProviderClient("openai", "AsyncOpenAI", "OpenAIError", options)

    async def create_message(
        self,
        messages: Sequence[SamplingMessage],
        tools: Sequence[Tool] = (),
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] = (),
        tool_choice: ToolChoice | None = None,
        model_preferences: ModelPreferences | None = None,
    ) -> ModelReply:
        """Return the next message of the conversation."""
        aliases, model = ToolAliases(), choose_model(self.models, model_preferences)
        request: dict[str, Any] = {"model": model.name, "messages": _to_messages(messages, system_prompt, aliases)}
        # Most servers with the API of OpenAI support only the older name of this parameter.
        request["max_tokens" if self._is_compatible_server else "max_completion_tokens"] = max_tokens
        if tools:
            request["tools"] = to_openai_tools(aliases.to_entries(tools))
            request["tool_choice"] = tool_choice.mode if tool_choice is not None else "auto"
        if temperature is not None:
            request["temperature"] = temperature
        if stop_sequences:
            request["stop"] = [*stop_sequences]
        response = await self._client.send(model.name, lambda client: client.chat.completions.create(**request))
        return _parse_response(response, aliases, model)

    async def close(self) -> None:
        """Close the connections to the provider. The next request opens new ones."""
        await self._client.close()


def _to_messages(
    messages: Sequence[SamplingMessage], system_prompt: str | None, aliases: ToolAliases
) -> list[dict[str, Any]]:
    provider_messages = [{"role": "system", "content": system_prompt}] if system_prompt is not None else []
    for message in messages:
        provider_messages += (
            _to_assistant_messages(message, aliases) if message.role == "assistant" else _to_user_messages(message)
        )
    return provider_messages


def _to_assistant_messages(message: SamplingMessage, aliases: ToolAliases) -> Iterator[dict[str, Any]]:
    text = "".join(block.text for block in get_blocks(message) if isinstance(block, TextContent))
    tool_calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": aliases.to_alias(block.name), "arguments": encode(block.input).decode()},
        }
        for block in get_blocks(message)
        if isinstance(block, ToolUseContent)
    ]
    yield {"role": "assistant", "content": text or None} | ({"tool_calls": tool_calls} if tool_calls else {})


def _to_user_messages(message: SamplingMessage) -> Iterator[dict[str, Any]]:
    """Convert a user message. Each tool result becomes a separate text message, followed by its images."""
    parts: list[dict[str, Any]] = []
    for block in get_blocks(message):
        if isinstance(block, ToolResultContent):
            result_text = format_result(block)
            text = f"The tool failed: {result_text}" if block.is_error else result_text
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
            parts += map(_to_content_part, get_images(block.content))
    parts += [_to_content_part(block) for block in get_blocks(message) if not isinstance(block, ToolResultContent)]
    if parts:
        single_text = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else None
        yield {"role": "user", "content": parts if single_text is None else single_text}


def _to_content_part(block: Any) -> dict[str, Any]:
    match block:
        case TextContent():
            return {"type": "text", "text": block.text}
        case ImageContent():
            return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}
        case AudioContent():
            audio_format = (
                "mp3" if block.mime_type in ("audio/mpeg", "audio/mp3") else block.mime_type.rpartition("/")[2]
            )
            return {"type": "input_audio", "input_audio": {"data": block.data, "format": audio_format}}
        case _:
            raise ModelError(f"a user message cannot contain {type(block).__name__}")


def _parse_response(response: Any, aliases: ToolAliases, model: ModelInfo) -> ModelReply:
    if not getattr(response, "choices", None):
        raise ModelError(f"the response of {model.name} contains no message")
    choice = response.choices[0]
    content: list[SamplingContent] = []
    if text := choice.message.content or choice.message.refusal:
        content.append(TextContent(text=text))
    invalid_calls: dict[str, str] = {}
    for call in choice.message.tool_calls or ():
        name = getattr(getattr(call, "function", None), "name", None) or ""
        content.append(build_tool_call(call.id, name, partial(parse_openai_call, call), aliases, invalid_calls))
    usage = response.usage
    return ModelReply(
        content=content,
        model=response.model or model.name,
        stop_reason=_STOP_REASONS.get(choice.finish_reason, choice.finish_reason),
        usage=measure_usage(model, usage.prompt_tokens, usage.completion_tokens)
        if usage is not None
        else measure_usage(model, 0, 0),
        invalid_calls=invalid_calls,
    )

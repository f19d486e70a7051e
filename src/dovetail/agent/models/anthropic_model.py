"""Models of Anthropic. The `anthropic` package is imported before the first request."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from dovetail.agent.models.preferences import ModelInfo, as_model_infos, choose_model, measure_usage
from dovetail.agent.models.provider_client import ProviderClient
from dovetail.agent.models.provider_messages import ToolAliases, build_tool_call, format_result, get_blocks, get_images
from dovetail.errors import ModelError
from dovetail.host.tool_formats import parse_anthropic_call, to_anthropic_tools
from dovetail.protocol.interfaces.language_model import ModelReply
from dovetail.wire.content import ImageContent, SamplingContent, TextContent, ToolResultContent, ToolUseContent
from dovetail.wire.sampling import ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool

_STOP_REASONS: Final = {
    "end_turn": "endTurn",
    "stop_sequence": "stopSequence",
    "max_tokens": "maxTokens",
    "tool_use": "toolUse",
}
_TOOL_CHOICE_TYPES: Final = {"auto": "auto", "required": "any", "none": "none"}


class AnthropicModel:
    """The language models of Anthropic. The first model that you pass is the default.

    Other options are passed to `anthropic.AsyncAnthropic`. Without `api_key`, the client reads ANTHROPIC_API_KEY. The
    temperature is not sent, because newer models reject it.
    """

    def __init__(self, *models: str | ModelInfo, **options: Any) -> None:
        self.models = as_model_infos(models)
        self.price = self.models[0].price  # The price of the default model.
        self._client = ProviderClient("anthropic", "AsyncAnthropic", "AnthropicError", options)

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
        request: dict[str, Any] = {"model": model.name, "max_tokens": max_tokens}
        request["messages"] = [*_to_messages(messages, aliases)]
        if tools:
            request["tools"] = to_anthropic_tools(aliases.to_entries(tools))
            request["tool_choice"] = {
                "type": _TOOL_CHOICE_TYPES[tool_choice.mode if tool_choice is not None else "auto"]
            }
        if system_prompt is not None:
            request["system"] = system_prompt
        if stop_sequences:
            request["stop_sequences"] = [*stop_sequences]
        response = await self._client.send(model.name, lambda client: client.messages.create(**request))
        return _parse_response(response, aliases, model)

    async def close(self) -> None:
        """Close the connections to the provider. The next request opens new ones."""
        await self._client.close()


def _to_messages(messages: Sequence[SamplingMessage], aliases: ToolAliases) -> Iterator[dict[str, Any]]:
    """Convert messages. Leave out blank text and empty messages, because the API rejects them."""
    for message in messages:
        blocks = [block for block in get_blocks(message) if not isinstance(block, TextContent) or block.text.strip()]
        if blocks:
            yield {"role": message.role, "content": [_to_block(block, aliases) for block in blocks]}


def _to_block(block: Any, aliases: ToolAliases) -> dict[str, Any]:
    match block:
        case TextContent():
            return {"type": "text", "text": block.text}
        case ImageContent():
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            return {"type": "image", "source": source}
        case ToolUseContent():
            return {"type": "tool_use", "id": block.id, "name": aliases.to_alias(block.name), "input": block.input}
        case ToolResultContent():
            text = format_result(block)
            content = [{"type": "text", "text": text}] if text.strip() else []
            content += [_to_block(image, aliases) for image in get_images(block.content)]
            tool_result = {"type": "tool_result", "tool_use_id": block.tool_use_id, "content": content}
            return tool_result | ({"is_error": True} if block.is_error else {})
        case _:
            raise ModelError(f"Anthropic models do not accept content of type {block.type}")


def _parse_response(response: Any, aliases: ToolAliases, model: ModelInfo) -> ModelReply:
    content: list[SamplingContent] = []
    invalid_calls: dict[str, str] = {}
    for block in response.content or ():
        if block.type == "text" and block.text:
            content.append(TextContent(text=block.text))
        elif block.type == "tool_use":
            parse = partial(parse_anthropic_call, block)
            content.append(build_tool_call(block.id, block.name or "", parse, aliases, invalid_calls))
    usage = response.usage
    input_tokens = usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    return ModelReply(
        content=content,
        model=response.model,
        stop_reason=_STOP_REASONS.get(response.stop_reason, response.stop_reason),
        usage=measure_usage(model, input_tokens, usage.output_tokens),
        invalid_calls=invalid_calls,
    )

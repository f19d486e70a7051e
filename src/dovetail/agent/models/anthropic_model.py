"""Models of Anthropic. The `anthropic` package is imported before the first request."""

from collections.abc import Sequence
from typing import Any, Final

from dovetail.agent.models.preferences import ModelInfo, as_model_infos, choose_model, measure_usage
from dovetail.agent.models.provider_messages import ToolAliases, describe_failure, format_result, get_blocks, get_images
from dovetail.error_context import add_context
from dovetail.errors import ModelError
from dovetail.host.tool_formats import parse_anthropic_call, to_anthropic_tools
from dovetail.protocol.language_model import ModelReply
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
    """Models of Anthropic. The first model in the list is the default.

    Other options are passed to `anthropic.AsyncAnthropic`. Without `api_key`, the client reads ANTHROPIC_API_KEY. The
    temperature is not sent, because newer models reject it.
    """

    def __init__(self, *models: str | ModelInfo, **options: Any) -> None:
        self.models = as_model_infos(models)
        self.price = self.models[0].price  # The price of the default model.
        self._options = options
        self._client: Any = None

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
        request["messages"] = [_to_message(message, aliases) for message in messages]
        if tools:
            request["tools"] = to_anthropic_tools(aliases.to_entries(tools))
            request["tool_choice"] = {
                "type": _TOOL_CHOICE_TYPES[tool_choice.mode if tool_choice is not None else "auto"]
            }
        if system_prompt is not None:
            request["system"] = system_prompt
        if stop_sequences:
            request["stop_sequences"] = [*stop_sequences]
        return _parse_response(await self._send_request(request), aliases, model)

    async def _send_request(self, request: dict[str, Any]) -> Any:
        try:
            import anthropic
        except ImportError:
            hint = 'pip install "dovetail-mcp[anthropic]"'
            raise add_context(ModelError("the package anthropic is not installed"), hint=hint) from None
        try:
            if self._client is None:
                self._client = anthropic.AsyncAnthropic(**self._options)
            return await self._client.messages.create(**request)
        except anthropic.AnthropicError as exc:
            raise ModelError(f"{request['model']}: {describe_failure(exc)}") from exc


def _to_message(message: SamplingMessage, aliases: ToolAliases) -> dict[str, Any]:
    return {"role": message.role, "content": [_to_block(block, aliases) for block in get_blocks(message)]}


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
            content = [{"type": "text", "text": text}] if text else []
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
            try:
                name, arguments = parse_anthropic_call(block)
            except ValueError as exc:
                name, arguments = block.name or "", {}
                invalid_calls[block.id] = str(exc)
            content.append(ToolUseContent(id=block.id, name=aliases.to_name(name), input=arguments))
    usage = response.usage
    input_tokens = usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    return ModelReply(
        content=content,
        model=response.model,
        stop_reason=_STOP_REASONS.get(response.stop_reason, response.stop_reason),
        usage=measure_usage(model, input_tokens, usage.output_tokens),
        invalid_calls=invalid_calls,
    )

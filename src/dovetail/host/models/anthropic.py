"""Anthropic's models: the `anthropic` client, loaded at the first reply."""

from collections.abc import Sequence
from typing import Any, Final

from dovetail.errors import ModelError
from dovetail.host.forms import anthropic, read_anthropic
from dovetail.host.models.choosing import Variant, choose, variants
from dovetail.host.models.model import Reply
from dovetail.host.models.telling import Names, blocks, failing, pictures, result_words
from dovetail.wire.content import (
    ImageContent,
    SamplingContent,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)
from dovetail.wire.sampling import ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool

_STOPS: Final = {
    "end_turn": "endTurn",
    "stop_sequence": "stopSequence",
    "max_tokens": "maxTokens",
    "tool_use": "toolUse",
}
_CHOICES: Final = {"auto": "auto", "required": "any", "none": "none"}


class AnthropicModel:
    """Models of Anthropic, by name. The first answers, unless a server prefers another.

    Options are those of `anthropic.AsyncAnthropic`; without `api_key` the client looks for ANTHROPIC_API_KEY. A
    temperature is not passed on: the newer models refuse one.
    """

    def __init__(self, *models: str | Variant, **options: Any) -> None:
        self.models = variants(models)
        self.price = self.models[0].price  # of the one that answers, unless another is preferred
        self._options = options
        self._client: Any = None

    async def reply(
        self,
        messages: Sequence[SamplingMessage],
        tools: Sequence[Tool] = (),
        *,
        max_tokens: int = 1024,
        system: str | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        choice: ToolChoice | None = None,
        preferences: ModelPreferences | None = None,
    ) -> Reply:
        """The next message of the conversation."""
        names, model = Names(), choose(self.models, preferences)
        told: dict[str, Any] = {"model": model.name, "max_tokens": max_tokens}
        told["messages"] = [_message(one, names) for one in messages]
        if tools:
            told["tools"] = anthropic(names.offered(tools))
            told["tool_choice"] = {"type": _CHOICES[choice.mode if choice is not None else "auto"]}
        if system is not None:
            told["system"] = system
        if stop:
            told["stop_sequences"] = [*stop]
        return _read(await self._asked(told), names, model)

    async def _asked(self, told: dict[str, Any]) -> Any:
        try:
            import anthropic
        except ImportError:
            hint = 'pip install "dovetail-mcp[anthropic]"'
            raise ModelError("the package anthropic is not installed").at(hint=hint) from None
        try:
            if self._client is None:
                self._client = anthropic.AsyncAnthropic(**self._options)
            return await self._client.messages.create(**told)
        except anthropic.AnthropicError as exc:
            raise ModelError(f"{told['model']}: {failing(exc)}") from exc


def _message(message: SamplingMessage, names: Names) -> dict[str, Any]:
    return {"role": message.role, "content": [_block(one, names) for one in blocks(message)]}


def _block(block: Any, names: Names) -> dict[str, Any]:
    match block:
        case TextContent():
            return {"type": "text", "text": block.text}
        case ImageContent():
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            return {"type": "image", "source": source}
        case ToolUseContent():
            return {"type": "tool_use", "id": block.id, "name": names.told(block.name), "input": block.input}
        case ToolResultContent():
            said = result_words(block)
            content = [{"type": "text", "text": said}] if said else []
            content += [_block(one, names) for one in pictures(block.content)]
            made = {"type": "tool_result", "tool_use_id": block.tool_use_id, "content": content}
            return made | ({"is_error": True} if block.is_error else {})
        case _:
            raise ModelError(f"Anthropic's models take no {block.type}")


def _read(answer: Any, names: Names, model: Variant) -> Reply:
    content: list[SamplingContent] = []
    unread: dict[str, str] = {}
    for block in answer.content or ():
        if block.type == "text" and block.text:
            content.append(TextContent(text=block.text))
        elif block.type == "tool_use":
            try:
                name, arguments = read_anthropic(block)
            except ValueError as exc:
                name, arguments = block.name or "", {}
                unread[block.id] = str(exc)
            content.append(ToolUseContent(id=block.id, name=names.meant(name), input=arguments))
    used = answer.usage
    put = used.input_tokens + (used.cache_creation_input_tokens or 0) + (used.cache_read_input_tokens or 0)
    return Reply(
        content=content,
        model=answer.model,
        stop_reason=_STOPS.get(answer.stop_reason, answer.stop_reason),
        usage=model.usage(put, used.output_tokens),
        unread=unread,
    )

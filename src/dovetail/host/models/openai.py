"""OpenAI's models, and whatever else speaks its chat completions: the `openai` client, loaded at the first reply."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from dovetail.errors import ModelError
from dovetail.host.forms import openai, read_openai
from dovetail.host.models.choosing import Variant, choose, variants
from dovetail.host.models.model import Reply
from dovetail.host.models.telling import Names, blocks, failing, pictures, result_words
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

_STOPS: Final = {"stop": "endTurn", "length": "maxTokens", "tool_calls": "toolUse"}


class OpenAIModel:
    """Models of OpenAI, by name; with `base_url`, those of any server that speaks as OpenAI's does.

    The first answers, unless a server prefers another. Other options are those of `openai.AsyncOpenAI`; without
    `api_key` the client looks for OPENAI_API_KEY.
    """

    def __init__(self, *models: str | Variant, base_url: str | None = None, **options: Any) -> None:
        self.models = variants(models)
        self.price = self.models[0].price  # of the one that answers, unless another is preferred
        if base_url is not None:
            options = {"base_url": base_url, "api_key": "none", **options}  # local servers want none, the client does
        self._compatible = base_url is not None
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
        told: dict[str, Any] = {"model": model.name, "messages": _messages(messages, system, names)}
        # What OpenAI calls it now is unknown to most of those who speak as it did.
        told["max_tokens" if self._compatible else "max_completion_tokens"] = max_tokens
        if tools:
            told["tools"] = openai(names.offered(tools))
            told["tool_choice"] = choice.mode if choice is not None else "auto"
        if temperature is not None:
            told["temperature"] = temperature
        if stop:
            told["stop"] = [*stop]
        return _read(await self._asked(told), names, model)

    async def _asked(self, told: dict[str, Any]) -> Any:
        try:
            import openai
        except ImportError:
            hint = 'pip install "dovetail-mcp[openai]"'
            raise ModelError("the package openai is not installed").at(hint=hint) from None
        try:
            if self._client is None:
                self._client = openai.AsyncOpenAI(**self._options)
            return await self._client.chat.completions.create(**told)
        except openai.OpenAIError as exc:
            raise ModelError(f"{told['model']}: {failing(exc)}") from exc


def _messages(messages: Sequence[SamplingMessage], system: str | None, names: Names) -> list[dict[str, Any]]:
    made = [{"role": "system", "content": system}] if system is not None else []
    for message in messages:
        made += _from_model(message, names) if message.role == "assistant" else _from_user(message)
    return made


def _from_model(message: SamplingMessage, names: Names) -> Iterator[dict[str, Any]]:
    text = "".join(one.text for one in blocks(message) if isinstance(one, TextContent))
    calls = [
        {
            "id": one.id,
            "type": "function",
            "function": {"name": names.told(one.name), "arguments": encode(one.input).decode()},
        }
        for one in blocks(message)
        if isinstance(one, ToolUseContent)
    ]
    yield {"role": "assistant", "content": text or None} | ({"tool_calls": calls} if calls else {})


def _from_user(message: SamplingMessage) -> Iterator[dict[str, Any]]:
    """A result is a message of its own, and holds words alone: its pictures come after."""
    parts: list[dict[str, Any]] = []
    for one in blocks(message):
        if isinstance(one, ToolResultContent):
            said = result_words(one)
            text = f"The tool failed: {said}" if one.is_error else said
            yield {"role": "tool", "tool_call_id": one.tool_use_id, "content": text}
            parts += map(_part, pictures(one.content))
    parts += [_part(one) for one in blocks(message) if not isinstance(one, ToolResultContent)]
    if parts:
        alone = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else None
        yield {"role": "user", "content": parts if alone is None else alone}


def _part(block: Any) -> dict[str, Any]:
    match block:
        case TextContent():
            return {"type": "text", "text": block.text}
        case ImageContent():
            return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}
        case AudioContent():
            kind = "mp3" if block.mime_type in ("audio/mpeg", "audio/mp3") else block.mime_type.rpartition("/")[2]
            return {"type": "input_audio", "input_audio": {"data": block.data, "format": kind}}
        case _:
            raise ModelError(f"a user says no {type(block).__name__}")


def _read(answer: Any, names: Names, model: Variant) -> Reply:
    if not getattr(answer, "choices", None):
        raise ModelError(f"{model.name}: the answer holds no message")
    choice = answer.choices[0]
    content: list[SamplingContent] = []
    if said := choice.message.content or choice.message.refusal:
        content.append(TextContent(text=said))
    unread: dict[str, str] = {}
    for call in choice.message.tool_calls or ():
        try:
            name, arguments = read_openai(call)
        except ValueError as exc:
            name, arguments = getattr(getattr(call, "function", None), "name", None) or "", {}
            unread[call.id] = str(exc)
        content.append(ToolUseContent(id=call.id, name=names.meant(name), input=arguments))
    used = answer.usage
    return Reply(
        content=content,
        model=answer.model or model.name,
        stop_reason=_STOPS.get(choice.finish_reason, choice.finish_reason),
        usage=model.usage(used.prompt_tokens, used.completion_tokens) if used is not None else model.usage(0, 0),
        unread=unread,
    )

"""A model with prepared replies, for tests of agents and of servers that use sampling."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from dovetail.errors import ModelError
from dovetail.protocol.interfaces.language_model import ModelReply, Usage
from dovetail.wire.base import Struct, replace
from dovetail.wire.content import TextContent, ToolUseContent
from dovetail.wire.sampling import SamplingMessage
from dovetail.wire.tools import Tool


class ModelRequest(Struct, frozen=True, kw_only=True):
    """A request that a `ScriptedModel` received."""

    messages: list[SamplingMessage]  # The messages of the conversation.
    tools: list[Tool]  # The tools that the model may call.
    options: dict[str, object]  # The other options of the request.


ScriptedReply: TypeAlias = (
    str | ToolUseContent | ModelReply | Sequence[str | ToolUseContent] | Callable[[ModelRequest], Any]
)


def tool_call(tool: str, **arguments: object) -> ToolUseContent:
    """Return a model reply that calls a tool with these arguments.

    Args:
        tool: The tool as "server.tool", or the name of the tool that a model sees.
    """
    return ToolUseContent(id="", name=tool, input=arguments)


class ScriptedModel:
    """A model with prepared replies, for tests. `requests` contains the requests that the model received.

    A reply is a string, a `tool_call(...)`, a list of these, a `ModelReply`, or a function that takes the request and
    returns a reply.

    Args:
        name: The name of the model in replies.
        usage: The token usage of each reply.
        price: The price in dollars per million input tokens and per million output tokens, if `usage` has no cost.
    """

    def __init__(
        self,
        *replies: ScriptedReply,
        name: str = "scripted",
        usage: Usage | None = None,
        price: tuple[float, float] | None = None,
    ) -> None:
        self.requests: list[ModelRequest] = []
        self._replies = [*replies]
        self._name = name
        self._usage = usage or Usage(input_tokens=1, output_tokens=1, cost_usd=0.0)
        self.price = price or (None if self._usage.cost_usd is None else (0.0, 0.0))

    async def create_message(
        self, messages: Sequence[SamplingMessage], tools: Sequence[Tool] = (), **options: object
    ) -> ModelReply:
        """Return the next reply.

        Args:
            tools: The tools that the model may call.
        """
        self.requests.append(ModelRequest(messages=[*messages], tools=[*tools], options=options))
        if not self._replies:
            raise ModelError("the ScriptedModel has no more replies")
        scripted_reply: Any = self._replies.pop(0)
        return self._build_reply(scripted_reply(self.requests[-1]) if callable(scripted_reply) else scripted_reply)

    def _build_reply(self, scripted_reply: Any) -> ModelReply:
        if isinstance(scripted_reply, ModelReply):
            return scripted_reply
        parts = scripted_reply if isinstance(scripted_reply, list | tuple) else [scripted_reply]
        content = [self._build_block(part, index) for index, part in enumerate(parts)]
        has_calls = any(isinstance(block, ToolUseContent) for block in content)
        return ModelReply(
            content=content, model=self._name, stop_reason="toolUse" if has_calls else "endTurn", usage=self._usage
        )

    def _build_block(self, part: Any, index: int) -> Any:
        if isinstance(part, str):
            return TextContent(text=part)
        if isinstance(part, ToolUseContent) and not part.id:
            return replace(part, id=f"call-{len(self.requests)}-{index}")
        return part

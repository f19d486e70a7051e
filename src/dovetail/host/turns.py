"""Turns: one reply of a model and the calls in it, of which each gets exactly one result. Pure."""

from uuid import uuid4

from dovetail.host.models.model import Reply
from dovetail.server.tool import build_error_result
from dovetail.wire.content import SamplingContent, ToolResultContent, ToolUseContent
from dovetail.wire.sampling import SamplingMessage
from dovetail.wire.shape import Struct, field, replace
from dovetail.wire.tools import CallToolResult


class Turn(Struct, kw_only=True):
    """The calls of one reply, in order: those that have a result, those that wait, and those still to be made."""

    content: list[SamplingContent]
    invalid_calls: dict[str, str]  # why a call cannot be made, by its id
    started_ids: set[str] = field(default_factory=set[str])
    results: dict[str, ToolResultContent] = field(default_factory=dict[str, ToolResultContent])
    waiting_by_ticket: dict[str, ToolUseContent] = field(default_factory=dict[str, ToolUseContent])  # by ticket

    @property
    def calls(self) -> list[ToolUseContent]:
        """What the model wants called."""
        return [block for block in self.content if isinstance(block, ToolUseContent)]

    def finish(self, call: ToolUseContent, result: CallToolResult) -> None:
        """A call has its result."""
        self.results[call.id] = ToolResultContent(
            tool_use_id=call.id,
            content=result.content,
            structured_content=result.structured_content,
            is_error=bool(result.is_error),
        )

    def interrupt(self) -> None:
        """Whatever has no result, and waits for nobody, gets none any more: the model must know what may have run."""
        waiting_ids = {call.id for call in self.waiting_by_ticket.values()}
        for call in self.calls:
            if call.id not in self.results and call.id not in waiting_ids:
                self.finish(call, build_error_result(_MAY_HAVE_RUN if call.id in self.started_ids else _NOT_MADE))

    def to_messages(self) -> list[SamplingMessage]:
        """What joins the conversation once every call has its result."""
        if not self.content:
            return []  # makers refuse a message that holds nothing
        assistant_message = SamplingMessage(role="assistant", content=[*self.content])
        results = [self.results[call.id] for call in self.calls]
        return [assistant_message, SamplingMessage(role="user", content=[*results])] if results else [assistant_message]


_MAY_HAVE_RUN = "This call was interrupted: it may have run, and what came of it is not known."
_NOT_MADE = "This call was not made: the conversation was interrupted before."


def create_turn(reply: Reply, used_ids: set[str]) -> Turn:
    """The turn of a reply. Some makers leave the id of a call empty, or use one twice: such a call gets one of its own.

    `taken` has the ids of the conversation, and gets the new ones.
    """
    turn = Turn(content=[], invalid_calls={})
    for block in reply.content:
        if isinstance(block, ToolUseContent):
            original_id, block = block.id, _ensure_unique_id(block, used_ids)
            if (problem := _explain_invalid_call(original_id, reply)) is not None:
                turn.invalid_calls[block.id] = problem
        turn.content.append(block)
    return turn


def _ensure_unique_id(call: ToolUseContent, used_ids: set[str]) -> ToolUseContent:
    if not call.id or call.id in used_ids:
        call = replace(call, id=f"call_{uuid4().hex}")
    used_ids.add(call.id)
    return call


def _explain_invalid_call(call_id: str, reply: Reply) -> str | None:
    if call_id in reply.unread:
        return f"The call could not be read: {reply.unread[call_id]}"
    if reply.stop_reason == "maxTokens":
        return "The call was cut off: the reply became too long."
    return None

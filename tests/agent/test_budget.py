"""Test the agent's budget: counted tokens, estimates and the remainder."""

import pytest

from dovetail.agent.budget import AgentUsage, Budget, estimate_message_tokens
from dovetail.agent.models.openai_model import OpenAIModel
from dovetail.agent.models.preferences import ModelInfo
from dovetail.errors import ModelError
from dovetail.protocol.interfaces.language_model import ModelReply, Usage
from dovetail.testing.scripted_model import ScriptedModel
from dovetail.wire.content import ImageContent, TextContent, ToolResultContent, ToolUseContent
from dovetail.wire.sampling import SamplingMessage


@pytest.mark.parametrize(
    ("spent", "put", "room"),
    [
        (AgentUsage(), 0, 100),
        (AgentUsage(input_tokens=400, output_tokens=400), 120, 80),
        (AgentUsage(input_tokens=500, output_tokens=300), 184, 16),
        (
            AgentUsage(input_tokens=500, output_tokens=300),
            185,
            "token_budget",
        ),  # a maker may refuse to be asked for less than 16
        (AgentUsage(cost_usd=0.5), 0, 50),
        (AgentUsage(cost_usd=0.5), 300, 20),
        (AgentUsage(cost_usd=0.5), 400, "cost_budget"),
        (AgentUsage(cost_usd=1.0), 0, "cost_budget"),
    ],
)
def test_room(spent: AgentUsage, put: int, room: int | str) -> None:
    budget = Budget(ScriptedModel(price=(1_000.0, 10_000.0)), 100, 1_000, 1.0)
    assert budget.get_reply_limit(spent, put) == room


def test_a_short_reply_may_be_as_short_as_one_wants() -> None:
    assert Budget(ScriptedModel(), 4, 100, None).get_reply_limit(AgentUsage(), 96) == 4


def test_the_price_is_known_before_the_first_reply() -> None:
    with pytest.raises(ModelError, match="price"):
        Budget(OpenAIModel("some"), 100, None, 1.0)
    assert (
        Budget(OpenAIModel(ModelInfo("some", price=(1.0, 2.0))), 100, None, 1.0).get_reply_limit(AgentUsage(), 0) == 100
    )


def test_what_a_reply_took() -> None:
    budget = Budget(ScriptedModel(price=(1.0, 2.0)), 100, None, None)
    text = [TextContent(text="x" * 40)]
    own = budget.measure_usage(
        ModelReply(content=[*text], model="m", usage=Usage(input_tokens=7, output_tokens=8, cost_usd=9.0)), 100
    )
    ours = budget.measure_usage(ModelReply(content=[*text], model="m"), 100)
    assert (own.input_tokens, own.output_tokens, own.cost_usd) == (7, 8, 9.0)
    assert (ours.input_tokens, ours.output_tokens, ours.cost_usd) == (100, 10, pytest.approx(0.00012))


def test_a_picture_counts_by_what_is_seen_of_it() -> None:
    picture = ImageContent(data="A" * 1_000_000, mime_type="image/png")
    result = ToolResultContent(tool_use_id="a", content=[TextContent(text="ab" * 20), picture])
    call = ToolUseContent(id="a", name="draw", input={"what": "x" * 400})
    assert estimate_message_tokens([SamplingMessage(role="user", content=picture)]) == 1_600
    assert estimate_message_tokens([SamplingMessage(role="user", content=[result])]) == 1_610
    assert 100 < estimate_message_tokens([SamplingMessage(role="assistant", content=[call])]) < 120
    assert estimate_message_tokens([], "be brief") == 2

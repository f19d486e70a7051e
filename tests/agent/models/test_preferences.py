"""Test the choice of a model: hints before priorities, earlier hints before later ones, then the user's order."""

import pytest

from dovetail.agent.models.preferences import ModelInfo, as_model_infos, choose_model, measure_usage
from dovetail.wire.sampling import ModelHint, ModelPreferences

BIG = ModelInfo("opus-5", intelligence=1.0, cost=0.1, speed=0.2, aliases=("gpt-5",))
QUICK = ModelInfo("haiku-5", intelligence=0.4, cost=0.9, speed=0.9)
ALL = (BIG, QUICK)


def hints(*names: str | None, **priorities: float) -> ModelPreferences:
    return ModelPreferences(hints=[ModelHint(name=one) for one in names], **priorities)


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (None, BIG),
        (ModelPreferences(), BIG),
        (hints("haiku"), QUICK),
        (hints("HAIKU"), QUICK),
        (hints("unknown", "haiku"), QUICK),
        (hints("haiku", "opus"), QUICK),
        (hints("gpt-5"), BIG),
        (hints("", None), BIG),
        (hints("unknown", cost_priority=1.0), QUICK),
        (hints("opus", cost_priority=1.0), BIG),
        (ModelPreferences(speed_priority=0.5, intelligence_priority=0.1), QUICK),
        (ModelPreferences(speed_priority=0.1, intelligence_priority=0.9), BIG),
    ],
)
def test_the_model_that_suits(preferences: ModelPreferences | None, chosen: ModelInfo) -> None:
    assert choose_model(ALL, preferences) is chosen


def test_without_a_price_no_money_is_counted() -> None:
    assert measure_usage(QUICK, 10, 10).cost_usd is None


def test_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="model"):
        as_model_infos(())

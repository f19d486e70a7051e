"""Choose a model by the preferences of a server: cost, speed, intelligence and name hints."""

from collections.abc import Sequence

from dovetail.protocol.interfaces.language_model import Usage
from dovetail.wire.base import Struct
from dovetail.wire.sampling import ModelPreferences


class ModelInfo(Struct, frozen=True):
    """A model that a provider offers, with its price and scores. Scores range from 0 to 1."""

    name: str  # The name of the model.
    # The price in dollars per million input tokens and per million output tokens.
    price: tuple[float, float] | None = None
    cost: float = 0.5  # The score for low cost. 1 is the cheapest.
    speed: float = 0.5  # The score for speed. 1 is the fastest.
    intelligence: float = 0.5  # The score for capability. 1 is the most capable.
    aliases: tuple[str, ...] = ()  # Other names that servers may use for this model.


def measure_usage(model: ModelInfo, input_tokens: int, output_tokens: int) -> Usage:
    """Return the token usage of one reply, with its cost if the price is known."""
    cost_usd = None
    if model.price is not None:
        cost_usd = (input_tokens * model.price[0] + output_tokens * model.price[1]) / 1_000_000
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost_usd)


def as_model_infos(models: Sequence[str | ModelInfo]) -> tuple[ModelInfo, ...]:
    """Convert model names to ModelInfo objects. Raise ValueError if there are no names."""
    if not models:
        raise ValueError("pass at least one model name. The first model is the default")
    return tuple(ModelInfo(model) if isinstance(model, str) else model for model in models)


def choose_model(models: Sequence[ModelInfo], model_preferences: ModelPreferences | None) -> ModelInfo:
    """Choose the model that best matches the server's preferences.

    Hints take precedence over priorities, and earlier hints over later hints.
    A hint matches a model if it is part of the model's name. spec: sampling#model-preferences
    """
    if model_preferences is None:
        return models[0]
    for hint in model_preferences.hints or ():
        hint_name = (hint.name or "").lower()
        for model in models:
            if hint_name and any(hint_name in name.lower() for name in (model.name, *model.aliases)):
                return model
    cost, speed, intelligence = (
        priority or 0.0
        for priority in (
            model_preferences.cost_priority,
            model_preferences.speed_priority,
            model_preferences.intelligence_priority,
        )
    )
    # If several models have the same score, `max` returns the first.
    return max(models, key=lambda model: cost * model.cost + speed * model.speed + intelligence * model.intelligence)

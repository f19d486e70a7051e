"""Choose a model by the preferences of a server: cost, speed, intelligence and name hints. Pure."""

from collections.abc import Sequence

from dovetail.protocol.language_model import Usage
from dovetail.wire.base import Struct
from dovetail.wire.sampling import ModelPreferences


class ModelInfo(Struct, frozen=True):
    """One model of a maker. Grades run from 0 to 1; the price is dollars for a million tokens, in and out."""

    name: str
    price: tuple[float, float] | None = None
    cost: float = 0.5
    speed: float = 0.5
    intelligence: float = 0.5
    aliases: tuple[str, ...] = ()  # hints it answers to beside its own name


def measure_usage(model: ModelInfo, input_tokens: int, output_tokens: int) -> Usage:
    """Return the usage of one reply, with its cost if the price is known."""
    cost_usd = None
    if model.price is not None:
        cost_usd = (input_tokens * model.price[0] + output_tokens * model.price[1]) / 1_000_000
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost_usd)


def as_model_infos(models: Sequence[str | ModelInfo]) -> tuple[ModelInfo, ...]:
    """Models by name, or with all that is known of them; ValueError if there is none."""
    if not models:
        raise ValueError("which model? Give the name of one, or several of which the first answers")
    return tuple(ModelInfo(model) if isinstance(model, str) else model for model in models)


def choose_model(models: Sequence[ModelInfo], model_preferences: ModelPreferences | None) -> ModelInfo:
    """The model that suits best: a hint counts before the priorities, an earlier hint before a later one.

    A hint is part of a name. spec: sampling#model-preferences
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
    return max(
        models, key=lambda model: cost * model.cost + speed * model.speed + intelligence * model.intelligence
    )  # the first of equals

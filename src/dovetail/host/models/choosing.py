"""Choosing: which of a maker's models answers, by what a server prefers. Pure; their order is the user's."""

from collections.abc import Sequence

from dovetail.host.models.model import Usage
from dovetail.wire.sampling import ModelPreferences
from dovetail.wire.shape import Struct


class Variant(Struct, frozen=True):
    """One model of a maker. Grades run from 0 to 1; the price is dollars for a million tokens, in and out."""

    name: str
    price: tuple[float, float] | None = None
    cheap: float = 0.5
    fast: float = 0.5
    clever: float = 0.5
    stands_for: tuple[str, ...] = ()  # hints it answers to beside its own name

    def usage(self, put: int, got: int) -> Usage:
        """What a reply took."""
        usd = None if self.price is None else (put * self.price[0] + got * self.price[1]) / 1_000_000
        return Usage(input=put, output=got, usd=usd)


def variants(given: Sequence[str | Variant]) -> tuple[Variant, ...]:
    """Models by name, or with all that is known of them; ValueError if there is none."""
    if not given:
        raise ValueError("which model? Give the name of one, or several of which the first answers")
    return tuple(Variant(one) if isinstance(one, str) else one for one in given)


def choose(among: Sequence[Variant], preferences: ModelPreferences | None) -> Variant:
    """The model that suits best: a hint counts before the priorities, an earlier hint before a later one.

    A hint is part of a name. spec: sampling#model-preferences
    """
    if preferences is None:
        return among[0]
    for hint in preferences.hints or ():
        wanted = (hint.name or "").lower()
        for one in among:
            if wanted and any(wanted in name.lower() for name in (one.name, *one.stands_for)):
                return one
    cost, speed, wits = (
        priority or 0.0
        for priority in (preferences.cost_priority, preferences.speed_priority, preferences.intelligence_priority)
    )
    return max(among, key=lambda one: cost * one.cheap + speed * one.fast + wits * one.clever)  # the first of equals

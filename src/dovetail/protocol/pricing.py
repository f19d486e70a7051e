"""What checking one value against one schema costs at worst, found without checking it.

A value is walked once. Each place in it is in a state: which parts of the schema apply there, and how often. Places
with the same state share it, so references that double, recursion that branches and unions of unions are seen as
numbers that grow, not as work that is done.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Final

from dovetail.protocol.schemas import Part, Plan, SchemaLimits, Unusable, extreme

_NODE: Final = 20  # this walk's own cost for one place
_CONTAINER: Final = 40  # and for one array or object
_STATE: Final = 500  # and for one new state
_ENTRY: Final = 100  # and for one part in it
_HASH: Final = 10  # one value within an array of unique items
_LARGE: Final = 150  # two integers of more than 64 bits compared there: each with each
_COPY: Final = 80  # one value copied into an error
_MOST_ENTRIES: Final = 20_000  # kept between checks
_CHARS: Final = 1000  # characters of a text that cost as much to copy as a value
_EXTREME: Final = 15  # how much slower numbers with many zeros are
_LARGEST: Final = 2**140  # about forty digits


class State:
    """The parts that apply at one place and how often, with their costs added up."""

    __slots__ = (
        "_parts",
        "applied",
        "char",
        "each",
        "integer",
        "known",
        "name",
        "name_char",
        "number",
        "object",
        "rest",
        "unique",
    )

    def __init__(self, parts: list[tuple[Part, int]], unique: int) -> None:
        self._parts = parts
        self.unique = unique  # arrays here and above that hash this
        self.applied = self.each = self.integer = self.number = self.object = self.char = 0
        self.name = self.name_char = 0  # for each name, and each character of one
        self.known: dict[str | int, State | None] = {}  # the states of members and items that some part names
        self.rest: dict[type, State] = {}  # of the other members (dict) and items (list)
        for part, count in parts:
            self.unique += part.unique * count
            self.applied += count
            self.each += part.each * count
            self.integer += part.integer * count
            self.number += part.number * count
            self.object += part.object * count
            self.char += part.char * count
            if part.named:
                self.known.update(dict.fromkeys(part.named))
            if part.places:
                self.known.update(dict.fromkeys(range(len(part.places))))
        self.each += self.unique * _HASH

    def entering(self, key: str | int | None, kind: type) -> dict[int, int]:
        """How often each part is applied to a member or an item, before those parts apply others."""
        counts: dict[int, int] = {}
        for part, count in self._parts:
            for number in _led_to(part, key, kind):
                counts[number] = counts.get(number, 0) + count
        return counts

    def name_chars(self) -> int:
        """What the patterns of this place's members cost for each character of a name."""
        return sum(part.name_char * count for part, count in self._parts)


def _led_to(part: Part, key: str | int | None, kind: type) -> list[int]:
    if kind is dict:
        named = part.named.get(key) if isinstance(key, str) else None
        return [*part.members, named] if named is not None else part.members + part.other_members
    if kind is list:
        placed = part.places[key] if isinstance(key, int) and key < len(part.places) else None
        return [*part.items, placed] if placed is not None else part.items + part.other_items
    return part.names


class Pricing:
    """Prices values for one plan; remembers the states it has met."""

    def __init__(self, plan: Plan, limits: SchemaLimits) -> None:
        self._plan = plan
        self._most = limits.cost
        self._depth = limits.depth
        self._states: dict[tuple[Any, int], State] = {}
        self._entries = 0
        self._spent = 0  # on the value at hand
        self._copied = 0  # values that an error about it may copy
        self._large = 0  # integers of more than 64 bits in it

    def price(self, value: Any) -> tuple[int, int]:
        """What a verdict costs, and what finding the reason of a bad one adds. Unusable if a verdict costs too much."""
        self._spent = self._copied = self._large = 0
        if self._entries > _MOST_ENTRIES:
            self._states.clear()
            self._entries = 0
        start = State([], 0)
        start.rest[list] = self._state({0: 1}, 0)
        level: list[tuple[Any, State, int]] = [([value], start, 0)]
        for _ in range(self._depth + 1):
            inner: list[tuple[Any, State, int]] = []
            for one, state, above in level:
                self._look_into(one, state, above, inner)
                self._check()
            level = inner
            if not level:
                return self._spent, self._copied * _COPY
        raise Unusable(f"the value is nested deeper than {self._depth}")

    def _look_into(self, value: Any, state: State, above: int, inner: list[tuple[Any, State, int]]) -> None:
        """Add up what an array or an object holds; the arrays and objects among it go to `inner`."""
        kind = type(value)
        rest = state.rest.get(kind) or self._rest(state, kind)
        above += state.applied if self._plan.choices else 0
        spent, copied = _CONTAINER + _NODE * len(value), 0
        self._check(spent)
        if kind is dict:
            spent += state.object + state.name * len(value)
            spent += state.name_char * sum(map(len, value)) if state.name_char else 0
        known = state.known
        for key, one in value.items() if kind is dict else enumerate(value):
            there = known.get(key, rest) or self._known(state, key, kind)
            spent += there.each
            copied += above + there.applied
            held = type(one)
            if held is str:
                if there.char:
                    spent += there.char * len(one)
                if len(one) > _CHARS:
                    copied += (above + 1) * len(one) // _CHARS
            elif held is dict or held is list:
                inner.append((one, there, above))
            elif held is int:
                spent += there.integer if -(2**53) <= one <= 2**53 else self._large_number(one, there)
            elif held is float:
                spent += there.number * _EXTREME if extreme(one) else there.number
        self._spent += spent
        self._copied += copied

    def _large_number(self, number: int, state: State) -> int:
        if not -_LARGEST < number < _LARGEST:
            raise Unusable("too costly to check: a number of more than forty digits")
        self._large += 1
        return state.number + _LARGE * self._large * state.unique

    def _check(self, more: int = 0) -> None:
        if self._spent + more > self._most:
            raise Unusable("too costly to check: the schema asks for too much work for this value")

    def _known(self, state: State, key: str | int, kind: type) -> State:
        found = state.known[key] = self._state(state.entering(key, kind), state.unique)
        return found

    def _rest(self, state: State, kind: type) -> State:
        if kind is dict:
            names = self._state(state.entering(None, str), 0)
            state.name = names.each
            state.name_char = names.char + state.name_chars()
        found = state.rest[kind] = self._state(state.entering(None, kind), state.unique)
        return found

    def _state(self, entering: dict[int, int], unique: int) -> State:
        key = (frozenset(entering.items()), unique)
        state = self._states.get(key)
        if state is None:
            parts = self._applied(entering)
            state = self._states[key] = State(parts, unique)
            self._entries += 1 + len(parts) + len(state.known)
            self._spent += _STATE + _ENTRY * len(state.known) // 10
        return state

    def _applied(self, entering: dict[int, int]) -> list[tuple[Part, int]]:
        """All parts applied to the same value, and how often: each after those that apply it."""
        parts = self._plan.parts
        counts = dict(entering)
        waiting = [(parts[number].rank, number) for number in counts]
        heapify(waiting)
        applied: list[tuple[Part, int]] = []
        while waiting:
            _, number = heappop(waiting)
            part, count = parts[number], counts[number]
            applied.append((part, count))
            self._spent += max(_ENTRY, count)
            self._check()
            for inner in part.here:
                if inner not in counts:
                    counts[inner] = 0
                    heappush(waiting, (parts[inner].rank, inner))
                counts[inner] += count * self._plan.again
        return applied

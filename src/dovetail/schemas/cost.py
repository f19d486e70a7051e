"""Estimate the maximum cost of validating a value against a schema, without validating the value.

The estimate visits each part of the value once. At each position it computes a state: the subschemas that apply there,
and how often. Equal states are shared. References that double, branching recursion and nested unions therefore only
increase a number, but do not take long to estimate.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Final

from dovetail.schemas.untrusted_schema import SchemaLimits, SchemaPlan, Subschema, UnusableSchema, is_extreme

_NODE_COST: Final = 20  # Cost of one value.
_CONTAINER_COST: Final = 40  # Cost of one array or object.
_STATE_COST: Final = 500  # Cost of creating one state.
_ENTRY_COST: Final = 100  # Cost that each subschema adds to the creation of a state.
_HASH_COST: Final = 10  # Cost of hashing one value in an array of unique items.
# Cost of comparing two integers of more than 64 bits. In an array of unique items, all pairs are compared.
_LARGE_INTEGER_COST: Final = 150
_COPY_COST: Final = 80  # Cost of copying one value into an error message.
_MAX_CACHED_ENTRIES: Final = 20_000  # The cache contains at most this many subschemas.
_CHARS_PER_COPY: Final = 1000  # Copying this many characters counts as copying one value.
_EXTREME_FACTOR: Final = 15  # Checking a number with many zeros takes this many times as long.
_TOO_COSTLY: Final = "too costly to check: the schema needs too much work for this value"
_MAX_INTEGER: Final = 2**140  # 2**140 has about forty digits.


class State:
    """The subschemas that apply to a value, with their counts and their total cost."""

    __slots__ = (
        "_parts",
        "applied_count",
        "char_cost",
        "integer_cost",
        "name_char_cost",
        "name_cost",
        "named_states",
        "number_cost",
        "object_cost",
        "rest_states",
        "unique_count",
        "value_cost",
    )

    def __init__(self, parts: list[tuple[Subschema, int]], unique_count: int) -> None:
        self._parts = parts
        self.unique_count = unique_count
        self.applied_count = self.value_cost = self.integer_cost = self.number_cost = self.object_cost = (
            self.char_cost
        ) = 0
        self.name_cost = self.name_char_cost = 0
        # The states of the members and items with separate subschemas. The keys are names and indexes.
        self.named_states: dict[str | int, State | None] = {}
        self.rest_states: dict[type, State] = {}
        for part, count in parts:
            self.unique_count += part.unique_count * count
            self.applied_count += count
            self.value_cost += part.value_cost * count
            self.integer_cost += part.integer_cost * count
            self.number_cost += part.number_cost * count
            self.object_cost += part.object_cost * count
            self.char_cost += part.char_cost * count
            if part.named_members:
                self.named_states.update(dict.fromkeys(part.named_members))
            if part.positional_items:
                self.named_states.update(dict.fromkeys(range(len(part.positional_items))))
        self.value_cost += self.unique_count * _HASH_COST

    def count_entering(self, key: str | int | None, kind: type) -> dict[int, int]:
        """Return how often each subschema is applied to the member or item `key`."""
        counts: dict[int, int] = {}
        for part, count in self._parts:
            for part_index in _list_subschemas(part, key, kind):
                counts[part_index] = counts.get(part_index, 0) + count
        return counts

    def get_name_pattern_cost(self) -> int:
        """Return the cost of matching one character of a member name with all patterns."""
        return sum(part.name_char_cost * count for part, count in self._parts)


def _list_subschemas(part: Subschema, key: str | int | None, kind: type) -> list[int]:
    if kind is dict:
        named_index = part.named_members.get(key) if isinstance(key, str) else None
        return [*part.every_member, named_index] if named_index is not None else part.every_member + part.other_members
    if kind is list:
        item_index = part.positional_items[key] if isinstance(key, int) and key < len(part.positional_items) else None
        return [*part.every_item, item_index] if item_index is not None else part.every_item + part.other_items
    return part.member_names


class CostEstimator:
    """Estimates the cost of validating values against a schema."""

    def __init__(self, plan: SchemaPlan, limits: SchemaLimits) -> None:
        self._plan = plan
        self._max_cost = limits.max_cost
        self._max_depth = limits.max_depth
        self._states: dict[tuple[Any, int], State] = {}
        self._start_state: State | None = None
        self._entry_count = 0
        self._cost = 0
        self._copied_count = 0  # Number of values that an error message may contain.
        self._large_integer_count = 0  # Number of integers of more than 64 bits.

    def estimate(self, value: Any) -> tuple[int, int]:
        """Return the cost of validating a value, and the additional cost of explaining a failure.

        Raise UnusableSchema if the cost is too high.
        """
        self._cost = self._copied_count = self._large_integer_count = 0
        if self._entry_count > _MAX_CACHED_ENTRIES:
            self._states.clear()
            self._entry_count = 0
            self._start_state = None
        level: list[tuple[Any, State, int]] = [([value], self._start_state or self._create_start_state(), 0)]
        for _ in range(self._max_depth + 1):
            next_level: list[tuple[Any, State, int]] = []
            for container, state, applied_above in level:
                self._add_container(container, state, applied_above, next_level)
            self._check_cost()
            level = next_level
            if not level:
                return self._cost, self._copied_count * _COPY_COST
        raise UnusableSchema(f"the value is nested deeper than {self._max_depth}")

    def _create_start_state(self) -> State:
        state = self._start_state = State([], 0)
        state.rest_states[list] = self._get_state({0: 1}, 0)
        return state

    def _add_container(
        self, value: Any, state: State, applied_above: int, next_level: list[tuple[Any, State, int]]
    ) -> None:
        container_type = type(value)
        rest_state = state.rest_states.get(container_type) or self._get_rest_state(state, container_type)
        applied_above += state.applied_count if self._plan.has_branches else 0
        cost, copied_count = _CONTAINER_COST + _NODE_COST * len(value), 0
        if self._cost + cost > self._max_cost:
            raise UnusableSchema(_TOO_COSTLY)
        if container_type is dict:
            cost += state.object_cost + state.name_cost * len(value)
            cost += state.name_char_cost * sum(map(len, value)) if state.name_char_cost else 0
        named_states = state.named_states
        for key, item in value.items() if container_type is dict else enumerate(value):
            item_state = named_states.get(key, rest_state) or self._get_named_state(state, key, container_type)
            cost += item_state.value_cost
            copied_count += applied_above + item_state.applied_count
            item_type = type(item)
            if item_type is str:
                if item_state.char_cost:
                    cost += item_state.char_cost * len(item)
                if len(item) > _CHARS_PER_COPY:
                    copied_count += (applied_above + 1) * len(item) // _CHARS_PER_COPY
            elif item_type is dict or item_type is list:
                next_level.append((item, item_state, applied_above))
            elif item_type is int:
                cost += (
                    item_state.integer_cost
                    if -(2**53) <= item <= 2**53
                    else self._get_large_integer_cost(item, item_state)
                )
            elif item_type is float:
                cost += item_state.number_cost * _EXTREME_FACTOR if is_extreme(item) else item_state.number_cost
        self._cost += cost
        self._copied_count += copied_count

    def _get_large_integer_cost(self, number: int, state: State) -> int:
        if not -_MAX_INTEGER < number < _MAX_INTEGER:
            raise UnusableSchema("the value contains a number of more than 40 digits")
        self._large_integer_count += 1
        return state.number_cost + _LARGE_INTEGER_COST * self._large_integer_count * state.unique_count

    def _check_cost(self) -> None:
        if self._cost > self._max_cost:
            raise UnusableSchema(_TOO_COSTLY)

    def _get_named_state(self, state: State, key: str | int, kind: type) -> State:
        named_state = state.named_states[key] = self._get_state(state.count_entering(key, kind), state.unique_count)
        return named_state

    def _get_rest_state(self, state: State, kind: type) -> State:
        if kind is dict:
            name_state = self._get_state(state.count_entering(None, str), 0)
            state.name_cost = name_state.value_cost
            state.name_char_cost = name_state.char_cost + state.get_name_pattern_cost()
        rest_state = state.rest_states[kind] = self._get_state(state.count_entering(None, kind), state.unique_count)
        return rest_state

    def _get_state(self, entering: dict[int, int], unique: int) -> State:
        key = (frozenset(entering.items()), unique)
        state = self._states.get(key)
        if state is None:
            parts = self._expand_parts(entering)
            state = self._states[key] = State(parts, unique)
            self._entry_count += 1 + len(parts) + len(state.named_states)
            self._cost += _STATE_COST + _ENTRY_COST * len(state.named_states) // 10
        return state

    def _expand_parts(self, entering: dict[int, int]) -> list[tuple[Subschema, int]]:
        """Return all subschemas that apply to a value, and how often each of them applies.

        A subschema comes after the subschemas that refer to it.
        """
        parts = self._plan.parts
        counts = dict(entering)
        queue = [(parts[index].rank, index) for index in counts]
        heapify(queue)
        applied: list[tuple[Subschema, int]] = []
        while queue:
            _, index = heappop(queue)
            part, count = parts[index], counts[index]
            applied.append((part, count))
            self._cost += max(_ENTRY_COST, count)
            self._check_cost()
            for sub_index in part.same_value:
                if sub_index not in counts:
                    counts[sub_index] = 0
                    heappush(queue, (parts[sub_index].rank, sub_index))
                counts[sub_index] += count * self._plan.repeat_factor
        return applied

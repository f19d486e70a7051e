"""Test that the estimated cost of a check grows with the actual work."""

from typing import Any

import pytest

from dovetail.schemas.cost import CostEstimator
from dovetail.schemas.untrusted_schema import SchemaLimits, UnusableSchema, read_schema

AMPLE = SchemaLimits(max_cost=10**15)


def cost(schema: dict[str, Any], value: Any) -> int:
    """The cost of a second check, when everything the schema leads to has been met."""
    pricing = CostEstimator(read_schema(schema, AMPLE), AMPLE)
    pricing.estimate(value)
    return pricing.estimate(value)[0]


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def test_the_cost_of_a_list_grows_with_its_length() -> None:
    schema = {"items": {"type": "integer"}}
    assert cost(schema, [1] * 200) - cost(schema, [1] * 100) == cost(schema, [1] * 300) - cost(schema, [1] * 200) > 0


def test_recursion_that_branches_doubles_with_each_level_and_one_that_does_not_does_not() -> None:
    def tree(branches: int) -> dict[str, Any]:
        return {"properties": {"a": {"allOf": [{"$ref": "#"} for _ in range(branches)]}}}

    steps = [cost(tree(2), deep(depth + 1)) - cost(tree(2), deep(depth)) for depth in (10, 11, 12)]
    assert steps[1] > 1.8 * steps[0]
    assert steps[2] > 1.8 * steps[1]
    assert cost(tree(1), deep(12)) - cost(tree(1), deep(11)) == cost(tree(1), deep(11)) - cost(tree(1), deep(10))


def test_a_member_is_charged_for_the_schemas_of_its_own_name() -> None:
    schema = {"properties": {"cheap": {}, "dear": {"enum": [number + 0.5 for number in range(100)]}}}
    assert cost(schema, {"dear": 1}) > 50 * cost(schema, {"cheap": 1})
    assert cost(schema, {"other": 1}) <= cost(schema, {"cheap": 1})


@pytest.mark.parametrize(
    ("schema", "cheap", "dear"),
    [
        ({"multipleOf": 2}, 4, 4.0),
        ({"multipleOf": 0.5}, 4.5, 1e300),
        ({"multipleOf": 2}, 4, 10**30),
        ({"maximum": 3}, 1, 1.5),
        ({"pattern": "a+b"}, "a", "a" * 100),
        ({"propertyNames": {"pattern": "a+b"}}, {"a": 1}, {"a" * 100: 1}),
        ({"patternProperties": {"a+b": {}}}, {"a": 1}, {"a" * 100: 1}),
        ({"uniqueItems": True}, [1, 2, 3, 4], [10**30, 10**31, 10**32, 10**33]),
        ({"required": ["a"] * 100}, [], {}),
        ({"additionalProperties": {"required": ["a"] * 100}, "properties": {"x": {}}}, {"x": {}}, {"y": {}}),
        ({"prefixItems": [{}, {"required": ["a"] * 100}]}, [{}], [{}, {}]),
        ({"items": {"required": ["a"] * 100}}, {"a": {}}, [{}]),
    ],
)
def test_some_values_cost_more(schema: dict[str, Any], cheap: Any, dear: Any) -> None:
    assert cost(schema, dear) > cost(schema, cheap)


def test_saying_why_is_dearer_where_there_are_alternatives() -> None:
    def reason(schema: dict[str, Any]) -> int:
        return CostEstimator(read_schema(schema, AMPLE), AMPLE).estimate([[1] * 100])[1]

    assert reason({"anyOf": [{"maxItems": 0} for _ in range(50)]}) > 20 * reason({"allOf": [{"maxItems": 0}]})


def test_neither_the_length_nor_the_depth_of_a_value_is_walked_in_vain() -> None:
    pricing = CostEstimator(read_schema({}, SchemaLimits()), SchemaLimits())
    for value in ([None] * 1_000_000, dict.fromkeys(map(str, range(200_000))), deep(5000)):
        with pytest.raises(UnusableSchema):
            pricing.estimate(value)

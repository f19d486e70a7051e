"""T24: an input schema that is costly to check, or arguments made to be costly, hold nobody up."""

from lab import Client, Start

BOMB = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}


def test_a_pattern_that_backtracks_elsewhere(start: Start) -> None:
    client = Client(start(schemas={"bomb": BOMB}))
    assert client.call("bomb", {"a": "a" * 100_000 + "!"}).message["result"]["isError"]

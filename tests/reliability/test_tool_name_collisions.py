"""A name leads to one tool of one server, whatever servers and tools are called."""

import itertools
import random

from harness import record_measurement

from dovetail.host.catalog import Catalog, ServerDefinitions
from dovetail.host.qualified_names import check_server_name, make_full_name, make_model_name, make_server_name
from dovetail.types import Tool

# Separators, ends, case, look-alikes (Cyrillic and full-width), blanks that nobody sees, lengths around the limit.
PIECES = ("a", "A", "b", "_", "__", "-", ".", "\u0430", "\uff41", "\u200b", " ", "9")
LONG = tuple("a" * size + end for size in (19, 20, 30, 57, 58, 64, 65, 200) for end in ("", "_", "_b", "__b"))


def tool(name: str, description: str = "") -> Tool:
    return Tool(name=name, description=description, input_schema={"type": "object"})


def tool_names() -> list[str]:
    short = ["".join(parts) for size in (1, 2, 3) for parts in itertools.product(PIECES, repeat=size)]
    return sorted({*random.Random(44).sample(short, 500), *PIECES, *LONG, ""})


def server_names() -> list[str]:
    alike = ["".join(parts) for parts in itertools.product(("a", "A", "b", "_", "-", "9"), repeat=2)]
    return sorted({*alike, "a__b", "a_b", "ab", "a" * 64, "a" * 63, "a" * 20, "a" * 21})


def test_no_two_tools_have_one_name() -> None:
    servers, tools = server_names(), tool_names()
    routes: dict[str, set[tuple[str, str]]] = {}
    for server, name in itertools.product(servers, tools):
        for spelling in (make_model_name(server, name), make_full_name(server, name)):
            routes.setdefault(spelling, set()).add((server, name))
    ambiguous = [one for one in routes.values() if len(one) > 1]
    record_measurement(
        f"ambiguous names of {len(servers) * len(tools)} tools of {len(servers)} servers", len(ambiguous), ""
    )
    assert not ambiguous
    assert max(map(len, (one for one in routes if "." not in one))) <= 64


def test_a_server_cannot_take_another_ones_names_by_joining() -> None:
    chance, names = random.Random(4), [one for one in tool_names() if one]
    captured = rounds = 0
    for _ in range(300):
        victim = {"git": ServerDefinitions(tools=[tool(one) for one in chance.sample(names, 5)])}
        before = {one.model_name: one.full_name for one in Catalog.from_servers(victim).tools}
        aims = [*before, *before.values(), *(one.partition("__")[2] for one in before), *chance.sample(names, 5)]
        joined = Catalog.from_servers(
            victim
            | {
                chance.choice(["g", "gi", "git_", "git-", "Git", "zgit"]): ServerDefinitions(
                    tools=[tool(one) for one in {*aims}]
                )
            }
        )
        for name, home in before.items():
            rounds += 1
            found = joined.find(name)
            captured += found is None or found.full_name != home
    record_measurement(f"names captured by a server that joined, of {rounds}", captured, "")
    assert captured == 0


def test_two_tools_with_one_name_are_reported_and_neither_is_offered() -> None:
    made = Catalog.from_servers(
        {
            "a": ServerDefinitions(tools=[tool("x", "one"), tool("y"), tool("x", "other")]),
            "b": ServerDefinitions(tools=[tool("x")]),
        }
    )
    assert [one.full_name for one in made.tools] == ["a.y", "b.x"]
    (problem,) = made.problems
    assert "tool 'x'" in problem


def test_names_of_servers_that_look_alike_do_not_become_one() -> None:
    alike = ["github", "g\u0456thub", "g\u00edthub", "\uff47ithub", "git\u200bhub", "git.hub", "git hub", "Github"]
    made = [make_server_name(one) for one in alike]
    assert all(check_server_name(one) for one in made)
    assert (
        len({*made}) == len(alike) - 1
    )  # "git.hub" and "git hub" are told apart by the file's reader: the second is refused

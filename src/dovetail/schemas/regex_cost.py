"""Estimate the maximum cost per character of a regular expression, for a regex engine with linear run time.

The run time is proportional to the length of the text and to the number of states that the engine can be in at once.
This module computes an upper bound of that number from the pattern. A pattern with unknown syntax gets the
highest value.
"""

import re
from typing import Final, NamedTuple

MAX_STATES: Final = 10_000  # No pattern within the size limit has more states than this.
_MAX_NESTING: Final = 50  # The parser calls itself for each open parenthesis.

# These escapes always match exactly one character.
# Other escapes, such as \A, match no character or have another meaning.
_TOKEN: Final = re.compile(
    r"""(?P<simple>\\(?:[pP]\{\w+\}|u\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|c[A-Za-z]|[dDwWsStnrfv]
          |[ !-/:;=?@\[-`{-~])
        |\[(?!\^?\])(?:\\[^Q]|[^\]\[\\&~-]|-(?!-))*+\]|[^\\\[\](){}|*+?^$])
      |(?P<edge>\^|\$|\\[bB])|(?P<open>\((?:\?:)?(?!\?))|(?P<close>\))|(?P<alternation>\|)
      |(?P<repeat>[*+?]|\{(?P<minimum>\d{1,4})(?P<comma>,?)(?P<maximum>\d{0,4})\})\??""",
    re.VERBOSE | re.DOTALL,
)


class _PatternCost(NamedTuple):
    states: int
    concurrent_states: int  # the maximum number of states at once, if the match starts at a fixed position
    width: int | None  # the number of characters in a match, or None if it varies
    is_anchored: bool = False  # A match can start only at the beginning of the text.


def count_concurrent_states(pattern: str) -> int:
    """Return the maximum number of states that a regex engine can be in at the same time."""
    tokens: list[re.Match[str]] = []
    position = nesting = 0
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            return MAX_STATES
        nesting += bool(token["open"]) - bool(token["close"])
        if nesting > _MAX_NESTING:
            return MAX_STATES
        tokens.append(token)
        position = token.end()
    tokens.reverse()
    branches = _parse_branches(tokens)
    if tokens:  # The pattern has an unmatched parenthesis.
        return MAX_STATES
    # Without an anchor, a match can start at every character.
    return min(
        MAX_STATES, 1 + sum(branch.concurrent_states if branch.is_anchored else branch.states for branch in branches)
    )


def _parse_branches(tokens: list[re.Match[str]]) -> list[_PatternCost]:
    branches = [_parse_sequence(tokens)]
    while tokens and tokens[-1]["alternation"]:
        tokens.pop()
        branches.append(_parse_sequence(tokens))
    return branches


def _parse_sequence(tokens: list[re.Match[str]]) -> _PatternCost:
    states = concurrent_states = 0
    width: int | None = 0
    # A quantifier after `^`, as in `^?`, makes the anchor optional, so that a match can start anywhere in the text.
    is_anchored = bool(tokens) and tokens[-1].group() == "^" and not (len(tokens) > 1 and tokens[-2]["repeat"])
    while tokens and not tokens[-1]["alternation"] and not tokens[-1]["close"]:
        atom = _parse_atom(tokens)
        states = min(MAX_STATES, states + atom.states)
        # After a part of variable length, such as `a*`, several parts of the pattern can match at the same position.
        concurrent_states = (
            max(concurrent_states, atom.concurrent_states)
            if width is not None
            else min(MAX_STATES, concurrent_states + atom.states)
        )
        width = None if width is None or atom.width is None else width + atom.width
    return _PatternCost(states, concurrent_states, width, is_anchored)


def _parse_atom(tokens: list[re.Match[str]]) -> _PatternCost:
    token = tokens.pop()
    if token["open"]:
        branches = _parse_branches(tokens)
        if not tokens:
            return _PatternCost(MAX_STATES, MAX_STATES, None)
        tokens.pop()
        widths = {branch.width for branch in branches}
        states = sum(branch.states for branch in branches)
        concurrent_states = sum(branch.concurrent_states for branch in branches)
        cost = _PatternCost(states, concurrent_states, widths.pop() if len(widths) == 1 else None)
    elif token["simple"]:
        # The engine matches bytes, so a character outside ASCII needs more states.
        state_count = 2 if _may_match_non_ascii(token.group()) else 1
        cost = _PatternCost(state_count, state_count, 1)
    else:
        cost = _PatternCost(0, 0, 0)
    while tokens and tokens[-1]["repeat"]:
        cost = _repeat_cost(cost, tokens.pop())
    return cost


def _may_match_non_ascii(simple: str) -> bool:
    return (
        not simple.isascii()
        or simple.startswith((".", "[^", "\\p", "\\P", "\\u", "\\W", "\\D", "\\s", "\\S"))
        or (simple.startswith("[") and "\\" in simple)
    )


def _repeat_cost(cost: _PatternCost, token: re.Match[str]) -> _PatternCost:
    minimum = int(token["minimum"] or 0)
    maximum = int(token["maximum"] or minimum) if token["minimum"] else 1
    states = min(MAX_STATES, cost.states * max(1, maximum))
    if cost.width is None:
        return _PatternCost(states, states, None)
    is_exact = token["minimum"] and not token["comma"]
    return _PatternCost(states, cost.concurrent_states, cost.width * minimum if is_exact else None)

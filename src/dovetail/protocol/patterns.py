"""How much a linear regex engine can be made to do for one character of a text.

Its time grows with the text only, but by as much as the pattern has places it can be in at once. That number is
bounded here from the pattern's form; a pattern that is not understood counts as the worst one.
"""

import re
from typing import Final, NamedTuple

WORST: Final = 10_000  # no pattern has more of them within the size it may have when compiled

_TOKEN: Final = re.compile(
    r"""(?P<simple>\\(?:[pP]\{\w+\}|u\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[^pPuxbB0-9kQE])
        |\[(?!\^?\])(?:\\[^Q]|[^\]\[\\&~-]|-(?!-))*+\]|[^\\\[\](){}|*+?^$])
      |(?P<edge>\^|\$|\\[bB])|(?P<open>\((?:\?:)?(?!\?))|(?P<close>\))|(?P<either>\|)
      |(?P<repeat>[*+?]|\{(?P<least>\d{1,4})(?P<comma>,?)(?P<most>\d{0,4})\})\??""",
    re.VERBOSE | re.DOTALL,
)


class _Form(NamedTuple):
    places: int  # that the engine can be in
    at_once: int  # of them, at one time, if it enters this at one point of the text
    width: int | None  # in characters, if there is only one
    fixed: bool = False  # to the beginning of the text


def places_at_once(pattern: str) -> int:
    """How many places of the pattern the engine may have to follow at the same time."""
    tokens: list[re.Match[str]] = []
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return WORST
        tokens.append(token)
        at = token.end()
    tokens.reverse()
    branches = _branches(tokens)
    if tokens:  # a parenthesis too many
        return WORST
    # Where nothing fixes it, the engine enters the pattern anew at each character.
    return min(WORST, 1 + sum(one.at_once if one.fixed else one.places for one in branches))


def _branches(tokens: list[re.Match[str]]) -> list[_Form]:
    branches = [_sequence(tokens)]
    while tokens and tokens[-1]["either"]:
        tokens.pop()
        branches.append(_sequence(tokens))
    return branches


def _sequence(tokens: list[re.Match[str]]) -> _Form:
    places = at_once = 0
    width: int | None = 0
    fixed = bool(tokens) and tokens[-1].group() == "^"
    while tokens and not tokens[-1]["either"] and not tokens[-1]["close"]:
        one = _atom(tokens)
        places = min(WORST, places + one.places)
        # As long as widths are known, the point in the text tells which atom it is at; after that it may be at any.
        at_once = max(at_once, one.at_once) if width is not None else min(WORST, at_once + one.places)
        width = None if width is None or one.width is None else width + one.width
    return _Form(places, at_once, width, fixed)


def _atom(tokens: list[re.Match[str]]) -> _Form:
    token = tokens.pop()
    if token["open"]:
        branches = _branches(tokens)
        if not tokens:
            return _Form(WORST, WORST, None)
        tokens.pop()
        widths = {branch.width for branch in branches}
        places = sum(branch.places for branch in branches)
        at_once = sum(branch.at_once for branch in branches)
        form = _Form(places, at_once, widths.pop() if len(widths) == 1 else None)
    elif token["simple"]:
        bytes_too = 2 if token.group().startswith((".", "[^", "\\p", "\\P", "\\W", "\\D", "\\S")) else 1
        form = _Form(bytes_too, bytes_too, 1)  # a class of most characters is followed byte by byte
    else:
        form = _Form(0, 0, 0)
    while tokens and tokens[-1]["repeat"]:
        form = _repeated(form, tokens.pop())
    return form


def _repeated(form: _Form, token: re.Match[str]) -> _Form:
    least = int(token["least"] or 0)
    most = int(token["most"] or least) if token["least"] else 1
    places = min(WORST, form.places * max(1, most))
    if form.width is None:
        return _Form(places, places, None)
    exact = token["least"] and not token["comma"]
    return _Form(places, form.at_once, form.width * least if exact else None)

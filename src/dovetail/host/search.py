"""Search over the words of tools, ranked by BM25: rare words count more, long descriptions less."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from typing import Any, Final

from dovetail.wire.tools import Tool

_SATURATION: Final = 1.2  # the usual constants of BM25
_LENGTH: Final = 0.75
_NAME_WEIGHT: Final = 4
_TITLE_WEIGHT: Final = 2
_MOST_WORDS: Final = 2000  # of one tool: a longer text is no better a match
_MOST_CHARS: Final = 20_000
_MOST_ASKED: Final = 64

_EMPTY: Final = frozenset(
    ("a", "an", "and", "are", "be", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that", "the", "this",
     "to", "with", "you")
)  # fmt: skip

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD: Final = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The words of a text that say something, of names written together too, without the endings of plurals."""
    found = (one.lower() for one in _WORD.findall(_HUMP.sub(" ", text[:_MOST_CHARS])))
    return [_stem(one) for one in found if one not in _EMPTY]


def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


class Index:
    """The words of some tools."""

    def __init__(self, tools: Sequence[Tool], servers: Sequence[str] = ()) -> None:
        counts = [_counted(one) for one in tools]
        for count, server in zip(counts, servers, strict=False):
            count.update(words(server))
        self._sizes = [sum(one.values()) for one in counts]
        self._mean = sum(self._sizes) / len(counts) if counts else 0.0
        self._places: dict[str, list[tuple[int, int]]] = {}
        for at, one in enumerate(counts):
            for word, count in one.items():
                self._places.setdefault(word, []).append((at, count))

    def search(self, text: str, limit: int) -> list[int]:
        """The places of the tools that fit best; of equal ones, the first."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words(text)[:_MOST_ASKED]):
            found = self._places.get(word, ())
            rare = math.log(1 + (len(self._sizes) - len(found) + 0.5) / (len(found) + 0.5))
            for at, count in found:
                room = _SATURATION * (1 - _LENGTH + _LENGTH * self._sizes[at] / self._mean)
                scores[at] = scores.get(at, 0.0) + rare * count * (_SATURATION + 1) / (count + room)
        return nsmallest(max(limit, 0), scores, key=lambda at: (-scores[at], at))


def _counted(tool: Tool) -> Counter[str]:
    found = words(tool.name) * _NAME_WEIGHT + words(tool.title or "") * _TITLE_WEIGHT + words(tool.description or "")
    for text in _parameters(tool.input_schema):
        if len(found) > _MOST_WORDS:
            break
        found += words(text)
    return Counter(found[:_MOST_WORDS])


def _parameters(schema: Any) -> Iterator[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for name, one in _pairs(properties):
        yield name
        if isinstance(one, dict) and isinstance(one.get("description"), str):
            yield one["description"]


def _pairs(given: Any) -> Iterable[tuple[str, Any]]:
    return given.items() if isinstance(given, dict) else ()

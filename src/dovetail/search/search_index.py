"""Search for tools by words. The BM25 ranking gives rare words more weight and long descriptions less."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from dovetail.wire.tools import Tool

_SATURATION: Final = 1.2  # This is the usual value of the constant `k1` in the BM25 ranking.
_LENGTH_WEIGHT: Final = 0.75
_NAME_WEIGHT: Final = 4
_TITLE_WEIGHT: Final = 2
_MAX_INDEXED_WORDS: Final = 2000  # the maximum number of indexed words of one tool
_MIN_INDEXED_WORDS: Final = 20  # With very many tools, this many words of each tool are indexed.
_MAX_WORDS_PER_SERVER: Final = 100_000
_CHARS_PER_WORD: Final = 10  # For each indexed word, at most this many characters of the tool are read.
_MAX_TEXT_CHARS: Final = 20_000
_MAX_QUERY_WORDS: Final = 64

_STOP_WORDS: Final = frozenset(
    ("a", "an", "and", "are", "be", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that", "the", "this",
     "to", "with", "you")
)  # fmt: skip

_CAMEL_CASE_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD_PATTERN: Final = re.compile(r"[^\W_]+")


def extract_words(text: str) -> list[str]:
    """Split a text into words. Leave out stop words and plural endings, and split camelCase names."""
    raw_words = (word.lower() for word in _WORD_PATTERN.findall(_CAMEL_CASE_BOUNDARY.sub(" ", text[:_MAX_TEXT_CHARS])))
    return [_stem(word) for word in raw_words if word not in _STOP_WORDS]


def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


class SearchIndex:
    """A BM25 search index for tools."""

    def __init__(self, tools: Sequence[Tool], servers: Sequence[str] = ()) -> None:
        owners = servers if len(servers) == len(tools) else ("",) * len(tools)
        tool_counts = Counter(owners)
        counters = [
            _count_words(tool, _compute_share(tool_counts[owner])) for tool, owner in zip(tools, owners, strict=True)
        ]
        for count, server in zip(counters, servers, strict=False):
            count.update(extract_words(server))
        self._word_counts = [sum(counter.values()) for counter in counters]
        self._mean_word_count = sum(self._word_counts) / len(counters) if counters else 0.0
        self._postings: dict[str, list[tuple[int, int]]] = {}
        for position, counter in enumerate(counters):
            for word, count in counter.items():
                self._postings.setdefault(word, []).append((position, count))

    def search(self, text: str, limit: int) -> list[int]:
        """Return the positions of the tools that best match a text. Equally good tools keep their order."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(extract_words(text)[:_MAX_QUERY_WORDS]):
            postings = self._postings.get(word, ())
            rarity = math.log(1 + (len(self._word_counts) - len(postings) + 0.5) / (len(postings) + 0.5))
            for position, count in postings:
                saturation = _SATURATION * (
                    1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * self._word_counts[position] / self._mean_word_count
                )
                scores[position] = scores.get(position, 0.0) + rarity * count * (_SATURATION + 1) / (count + saturation)
        return nsmallest(max(limit, 0), scores, key=lambda position: (-scores[position], position))


def _compute_share(tool_count: int) -> int:
    """Return how many words of each tool are indexed.

    The tools of one server share a limit, so that one server cannot delay all searches.
    """
    return max(_MIN_INDEXED_WORDS, min(_MAX_INDEXED_WORDS, _MAX_WORDS_PER_SERVER // tool_count))


def _count_words(tool: Tool, max_words: int) -> Counter[str]:
    max_chars = max_words * _CHARS_PER_WORD
    tool_words = (
        extract_words(tool.name[:max_chars]) * _NAME_WEIGHT
        + extract_words((tool.title or "")[:max_chars]) * _TITLE_WEIGHT
        + extract_words((tool.description or "")[:max_chars])
    )
    for text in islice(_iter_parameter_texts(tool.input_schema), max_words):
        if len(tool_words) > max_words:
            break
        tool_words += extract_words(text[:max_chars])
    return Counter(tool_words[:max_words])


def _iter_parameter_texts(schema: Any) -> Iterator[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for name, property_schema in _iter_items(properties):
        yield name
        if isinstance(property_schema, dict) and isinstance(property_schema.get("description"), str):
            yield property_schema["description"]


def _iter_items(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()

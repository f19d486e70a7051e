"""Test pages whose boundaries stay in place while items change."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import InvalidParams
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.server.items.page_cache import PageCache
from dovetail.server.items.resource import CacheHint
from dovetail.wire.tools import ListToolsResult, Tool
from server.direct_client import LATEST_HANDSHAKE, NEWEST

LIFE = CacheHint(5, "public")


class Entry:
    def __init__(self, name: str, title: str = "T") -> None:
        self.declaration = Tool(name=name, input_schema={"type": "object"}, title=title)


def entries(*names: str) -> dict[str, Entry]:
    return {name: Entry(name) for name in names}


def page(pages: PageCache, items: dict[str, Entry], cursor: Any = None, revision: str = NEWEST, **params: Any) -> Any:
    given = params | ({} if cursor is None else {"cursor": cursor})
    exchange = IncomingExchange(1, "tools/list", given, {}, Caller(revision, revision == NEWEST))
    return json.loads(pages.get_page(pages.current, exchange, items, "tools", ListToolsResult, LIFE))


def names(found: Any) -> list[str]:
    return [tool["name"] for tool in found["tools"]]


@settings(max_examples=50)
@given(st.integers(1, 6), st.lists(st.text(min_size=1, max_size=5), max_size=20, unique=True))
def test_the_pages_together_are_the_list(size: int, listed: list[str]) -> None:
    pages, items, cursor, found = PageCache(size, 4096), entries(*listed), None, []
    for _ in range(len(listed) + 1):
        one = page(pages, items, cursor)
        found.append(names(one))
        cursor = one.get("nextCursor")
        if cursor is None:
            break
    assert [name for part in found for name in part] == listed
    assert all(len(part) == size for part in found[:-1])
    assert len(found[-1]) <= size


def test_without_a_size_there_is_one_page() -> None:
    found = page(PageCache(None, 4096), entries(*map(str, range(1000))))
    assert (len(found["tools"]), "nextCursor" in found) == (1000, False)


def test_a_page_continues_after_its_last_item_whatever_came_before_it() -> None:
    pages = PageCache(2, 4096)
    cursor = page(pages, entries("a", "b", "c", "d"))["nextCursor"]
    pages.clear()
    assert names(page(pages, entries("new", "b", "c", "d"), cursor)) == ["c", "d"]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "!!!",
        "é",
        base64.urlsafe_b64encode(b'["tools/list","gone"]').decode(),
        base64.urlsafe_b64encode(b'["prompts/list","a"]').decode(),
        base64.urlsafe_b64encode(b'["tools/list","a"]').decode() * 500,
        5,
        [],
    ],
)
def test_a_cursor_that_was_never_issued_is_refused(cursor: Any) -> None:
    with pytest.raises(InvalidParams, match="Invalid params"):
        page(PageCache(1, 4096), entries("a", "b"), cursor)


def test_a_page_is_encoded_once_until_the_list_changes() -> None:
    pages, items = PageCache(None, 4096), entries("a")
    assert names(page(pages, items)) == ["a"]
    items["b"] = Entry("b")
    assert names(page(pages, items)) == ["a"]
    pages.clear()
    assert names(page(pages, items)) == ["a", "b"]


def test_each_revision_has_pages_in_its_own_words() -> None:
    pages, items = PageCache(None, 4096), entries("a")
    newest, last, first = (
        page(pages, items),
        page(pages, items, None, LATEST_HANDSHAKE),
        page(pages, items, None, "2024-11-05"),
    )
    assert (newest["ttlMs"], newest["cacheScope"]) == (5, "public")
    assert set(last) == set(first) == {"tools"}
    assert ["title" in one["tools"][0] for one in (newest, last, first)] == [True, True, False]


def test_somebody_who_tries_cursors_does_not_fill_the_memory() -> None:
    pages = PageCache(1, 4096)
    items = {str(number): Entry(str(number), title="x" * 1_000_000) for number in range(30)}

    def kept() -> int:
        return sum(map(len, pages.current.pages.values()))

    cursor = None
    for _ in items:
        cursor = page(pages, items, cursor).get("nextCursor")
    assert 8_000_000 < kept() <= 16 * 2**20
    assert page(pages, items)["nextCursor"]  # the oldest, made anew
    assert kept() <= 16 * 2**20


def test_one_page_is_kept_however_large() -> None:
    pages, items = PageCache(None, 4096), {"a": Entry("a", title="x" * 17_000_000)}
    assert names(page(pages, items)) == ["a"]
    items["b"] = Entry("b")
    assert names(page(pages, items)) == ["a"]


def test_a_cursor_has_one_spelling() -> None:
    pages, items = PageCache(1, 4096), entries("ab", "b", "c")
    cursor = page(pages, items)["nextCursor"]
    stem = cursor.rstrip("=")
    assert stem != cursor
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for letter in alphabet.replace(stem[-1], ""):
        with pytest.raises(InvalidParams):
            page(pages, items, stem[:-1] + letter + cursor[len(stem) :])
    assert names(page(pages, items, cursor)) == ["b"]


@pytest.mark.parametrize("size", [0, -1])
def test_a_page_holds_something(size: int) -> None:
    with pytest.raises(ValueError, match="page_size"):
        PageCache(size, 4096)

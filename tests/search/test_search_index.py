"""Test the ranking of tool search, and that tools cannot improve their rank with repeated words."""

from typing import Any

import pytest

from dovetail.search.search_index import SearchIndex, extract_words
from dovetail.types import Tool


def tool(name: str, description: str = "", **properties: Any) -> Tool:
    return Tool(name=name, description=description, input_schema={"type": "object", "properties": properties})


TOOLS = [
    tool("create_issue", "Create a new issue in a repository", title={"type": "string"}),
    tool("list_issues", "List the issues of a repository"),
    tool("sendMail", "Send a message to somebody", bcc={"type": "string", "description": "blind copy"}),
    tool("get-weather", "The weather of a city today"),
    tool("query", "Run SQL against the database"),
]
INDEX = SearchIndex(TOOLS)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("create issue", "create_issue"),
        ("show me all open issues", "list_issues"),
        ("mail", "sendMail"),
        ("SENDMAIL message", "sendMail"),
        ("blind copy", "sendMail"),
        ("what's the weather in Paris?", "get-weather"),
        ("databases", "query"),
    ],
)
def test_the_best_comes_first(text: str, first: str) -> None:
    assert TOOLS[INDEX.search(text, 5)[0]].name == first


@pytest.mark.parametrize("text", ["", "   ", "zebra", "!?"])
def test_what_fits_nothing_finds_nothing(text: str) -> None:
    assert INDEX.search(text, 5) == []


def test_there_may_be_nothing_to_find() -> None:
    assert SearchIndex([]).search("x", 5) == []
    assert INDEX.search("issue", 0) == []


def test_equal_ones_come_in_the_order_of_the_catalog() -> None:
    index = SearchIndex([tool("a", "same words"), tool("b", "same words"), tool("c", "same words")])
    assert index.search("same", 2) == [0, 1]


def test_saying_a_word_often_does_not_buy_the_first_place() -> None:
    honest = tool("send_mail", "Send a mail")
    stuffed = tool("evil", "mail " * 5000 + "send " * 5000)
    assert SearchIndex([stuffed, honest]).search("send mail", 2) == [1, 0]


def test_words() -> None:
    assert extract_words("getHTTPResponse_v2 queries-the boxes, Größe") == [
        "get", "httpresponse", "v2", "query", "boxe", "größe",
    ]  # fmt: skip
    assert len(extract_words("w " * 100_000)) == 10_000


def test_the_server_counts_too() -> None:
    assert SearchIndex([tool("search", "Search"), tool("search", "Search")], ["github", "docs"]).search(
        "search docs", 1
    ) == [1]


def test_schemas_of_any_make_are_read() -> None:
    odd: list[Any] = [
        {},
        {"properties": None},
        {"properties": {"a": True, "b": {"description": 5}}},
        {"properties": []},
    ]
    assert SearchIndex([Tool(name="x", input_schema=one) for one in odd]).search("b", 5) == [2]

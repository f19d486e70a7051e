"""Test prompts and the completion of their arguments, over HTTP and in memory, in both eras."""

import pytest

from dovetail import Client, TextContent
from dovetail.errors import NotFound


async def test_the_list(client: Client) -> None:
    (prompt,) = await client.list_prompts()
    assert (prompt.name, prompt.description) == ("review", "Review a book.")
    assert [(argument.name, argument.required) for argument in prompt.arguments or []] == [
        ("book", True),
        ("stars", False),
    ]


async def test_a_prompt_has_messages_of_both_roles(client: Client) -> None:
    result = await client.get_prompt("review", {"book": "Emma", "stars": "5"})
    contents = [message.content for message in result.messages]
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert [content.text for content in contents if isinstance(content, TextContent)] == [
        "Review Emma with 5 stars.",
        "I have read it.",
    ]


async def test_an_unknown_prompt_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound):
        await client.get_prompt("unknown")


async def test_completion_of_an_argument(client: Client) -> None:
    assert (await client.complete("book", "E", prompt="review")).values == ["Emma"]

"""Test resources, templates and completion, over HTTP and in memory, in both eras."""

import pytest

from core.library_server import PNG
from dovetail import Client
from dovetail.errors import NotFound


async def test_the_lists(client: Client) -> None:
    resources = {resource.name: resource for resource in await client.list_resources()}
    assert {"opening_hours", "logo", "shelf"} == resources.keys()
    assert resources["opening_hours"].mime_type == "text/plain"
    assert resources["opening_hours"].description == "When the library is open."
    assert [template.uri_template for template in await client.list_resource_templates()] == [
        "library://books/{number}"
    ]


async def test_reading_text_bytes_templates_and_parts(client: Client) -> None:
    assert await client.read("library://opening-hours") == "9 to 18"
    assert await client.read("library://logo") == PNG
    assert await client.read("library://books/2") == "Dracula"
    parts = (await client.read_resource("library://shelf")).contents
    assert [(part.uri, part.text) for part in parts] == [
        ("library://books/1", "Emma"),
        ("library://books/2", "Dracula"),
    ]


@pytest.mark.parametrize("uri", ["library://books/3", "library://books/x", "library://cellar"])
async def test_a_missing_resource_is_not_found(client: Client, uri: str) -> None:
    with pytest.raises(NotFound):
        await client.read(uri)


async def test_completion_of_a_variable(client: Client) -> None:
    completion = await client.complete("number", "1", template="library://books/{number}")
    assert completion.values == ["1"]

"""Test pagination: cursors cover the whole list, keep their position and cannot be forged."""

import base64
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import expect_error, list_names
from dovetail import Server
from support.driver import connect

METHODS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


def server(page_size: int | None, items: int = 7) -> Server:
    app = Server("pages", page_size=page_size)
    for number in range(items):
        add(app, f"item{number}")
    return app


def add(app: Server, name: str) -> None:
    app.add_tool(lambda: "x", name=name)
    app.add_prompt(lambda: "x", name=name)
    app.add_resource(lambda: "x", f"x:{name}", name=name)
    app.add_resource(lambda v: v, f"x:{name}/{{v}}", name=name)


@requirement("pagination.complete")
async def test_cursors_lead_through_the_whole_list(revision: str, transport: str) -> None:
    for items, page_size, pages in ((7, 3, 3), (6, 3, 2), (1, 3, 1), (3, 1, 3), (4, 100, 1)):
        async with connect(server(page_size, items), transport, revision) as peer:
            for method in METHODS:
                before = len(peer.messages)
                assert await list_names(peer, method) == [f"item{number}" for number in range(items)]
                assert len(peer.messages) - before == pages, (items, page_size, method)


@requirement("pagination.one-page")
async def test_without_a_page_size_a_list_is_one_page(revision: str, transport: str) -> None:
    async with connect(server(None, 60), transport, revision) as peer:
        for method, field in METHODS.items():
            page = await peer.request(method)
            assert len(page[field]) == 60
            assert "nextCursor" not in page


@requirement("pagination.invalid")
async def test_a_cursor_of_ones_own_making_is_refused(revision: str, transport: str) -> None:
    async with connect(server(3), transport, revision) as peer:
        genuine = (await peer.request("tools/list"))["nextCursor"]
        wrong: list[Any] = ["", "3", "abc", "=" * 5, genuine + "A", genuine[:-2], genuine.upper(), "\u00fc", "x" * 9999]
        wrong += [base64.urlsafe_b64encode(b'["tools/list","none"]').decode(), 5, True, ["a"], {}]
        for cursor in wrong:
            assert (await expect_error(peer.request("tools/list", {"cursor": cursor}))).code == -32602, cursor
        for method in METHODS:
            if method != "tools/list":
                assert (await expect_error(peer.request(method, {"cursor": genuine}))).code == -32602, method
        assert (await peer.request("tools/list", {"cursor": genuine}))["tools"][0]["name"] == "item3"


@requirement("pagination.stable")
async def test_a_cursor_keeps_its_place(revision: str, transport: str) -> None:
    app = server(3)
    async with connect(app, transport, revision) as peer:
        first = await peer.request("tools/list")
        add(app, "late")
        app.remove_tool("item0")
        app.remove_tool("item4")
        second = await peer.request("tools/list", {"cursor": first["nextCursor"]})
        assert [one["name"] for one in second["tools"]] == ["item3", "item5", "item6"]
        third = await peer.request("tools/list", {"cursor": second["nextCursor"]})
        assert [one["name"] for one in third["tools"]] == ["late"]
        assert "nextCursor" not in third
        assert [one["name"] for one in (await peer.request("tools/list"))["tools"]] == ["item1", "item2", "item3"]


@pytest.mark.parametrize("size", [0, -1])
@requirement("pagination.page-size")
def test_a_page_holds_something(size: int) -> None:
    with pytest.raises(ValueError, match="page_size"):
        Server("pages", page_size=size)

"""Test resources and templates: declarations, function parameters and cache lifetimes."""

import functools
from typing import Any

import pytest

from dovetail import Annotations, CacheHint, Context, Icon, ResourceContents, Server
from dovetail.errors import ResourceNotFound
from dovetail.server.items.resource import Resource, ResourceTemplate
from dovetail.wire.resources import ReadResourceResult
from server.direct_client import LATEST_HANDSHAKE, Client
from support.mentions import values


def read() -> str:
    """What there is."""
    return "text"


OPTIONS: dict[str, Any] = {
    "name": "n",
    "title": "N",
    "description": "",
    "mime_type": "text/plain",
    "icons": [Icon(src="a:b")],
    "annotations": Annotations(priority=0.5),
    "meta": {"x": 1},
}


def test_a_resource_declares_what_its_function_says() -> None:
    declared = Resource(read, "a:b").declaration
    assert (declared.uri, declared.name, declared.description) == ("a:b", "read", "What there is.")
    assert (declared.mime_type, declared.size, declared.title) == (None, None, None)
    for one in (Resource(read, "a:b"), ResourceTemplate(lambda x: x, "a:{x}")):
        assert (one.runner.run_in_thread, one.runner.timeout, one.cache_hint) == (True, None, None)


def test_a_function_without_a_name_leaves_it_to_the_uri() -> None:
    assert Resource(lambda: "x", "a:b").declaration.name == "a:b"
    assert Resource(functools.partial(read), "a:b").declaration.name == "a:b"
    assert ResourceTemplate(lambda x: x, "a:{x}").declaration.name == "a:{x}"


def test_options_come_first() -> None:
    resource = Resource(read, "a:b", size=5, cache_hint=CacheHint(1), timeout=2.0, run_in_thread=False, **OPTIONS)
    template = ResourceTemplate(
        lambda x: x, "a:{x}", cache_hint=CacheHint(1), timeout=2.0, run_in_thread=False, **OPTIONS
    )
    for one in (resource, template):
        assert {name: getattr(one.declaration, name) for name in OPTIONS} == OPTIONS
        assert (one.cache_hint, one.runner.timeout, one.runner.run_in_thread) == (CacheHint(1), 2.0, False)
    assert resource.declaration.size == 5
    assert template.declaration.uri_template == "a:{x}"


def test_a_fixed_resource_takes_only_the_context() -> None:
    async def fine(ctx: Context) -> str:
        return "x"

    def wrong(city: str) -> str:
        return city

    assert Resource(fine, "a:b").signature.context == "ctx"
    with pytest.raises(TypeError, match=values("wrong", "a:b", "city")):
        Resource(wrong, "a:b")


def test_variables_and_parameters_agree() -> None:
    ResourceTemplate(lambda x, y="1": x, "a:{x}")
    ResourceTemplate(lambda **given: given, "a:{x}/{y}", name="open")
    for function, uri in ((lambda x: x, "a:{y}"), (lambda x, y: x, "a:{x}"), (lambda x: x, "a:{x}/{y}")):
        with pytest.raises(TypeError, match=values(uri)):
            ResourceTemplate(function, uri)


def test_a_broken_template_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\S"):
        ResourceTemplate(lambda x: x, "a:{x")


@pytest.mark.parametrize(("ttl", "scope"), [(-1, "public"), (1, "everyone")])
def test_a_lifetime_makes_sense(ttl: int, scope: Any) -> None:
    with pytest.raises(ValueError, match=r"ttl_ms|scope"):
        CacheHint(ttl, scope)


# Reading


def library(**options: Any) -> Server:
    app = Server("library", **options)
    app.add_resource(read, "a:fixed", mime_type="text/plain")
    app.add_resource(lambda: b"\x00\x01", "a:bytes", name="bytes")
    app.add_resource(lambda: {"x": 1}, "a:json", name="json")
    app.add_resource(lambda: ["one", ResourceContents(uri="a:other", text="two")], "a:several", name="several")
    app.add_resource(lambda number: f"item {number + 1}", "a:item/{number}", name="item")

    @app.resource("a:user/{id}")
    def user(id: int) -> str:
        return f"user {id + 1}"

    @app.resource("a:user/me")
    def me() -> str:
        return "me"

    @app.resource("a:user/{id}/{field}")
    def field(id: int, field: str) -> str:
        return f"{field} of {id}"

    return app


@pytest.mark.parametrize(
    ("uri", "contents"),
    [
        ("a:fixed", [{"uri": "a:fixed", "mimeType": "text/plain", "text": "text"}]),
        ("a:bytes", [{"uri": "a:bytes", "blob": "AAE="}]),
        ("a:json", [{"uri": "a:json", "mimeType": "application/json", "text": '{"x":1}'}]),
        ("a:several", [{"uri": "a:several", "text": "one"}, {"uri": "a:other", "text": "two"}]),
        ("a:user/6", [{"uri": "a:user/6", "text": "user 7"}]),
        ("a:user/me", [{"uri": "a:user/me", "text": "me"}]),
        ("a:user/6/name", [{"uri": "a:user/6/name", "text": "name of 6"}]),
    ],
)
async def test_what_is_read(uri: str, contents: list[dict[str, Any]]) -> None:
    assert (await Client(library()).request("resources/read", {"uri": uri}))["contents"] == contents
    assert await Client(library(), LATEST_HANDSHAKE).request("resources/read", {"uri": uri}) == {"contents": contents}


@pytest.mark.parametrize("uri", ["a:", "b:fixed", "a:Fixed", "a:fixed/", "a:user/", "a:user/six", "a:user/6/7/8"])
async def test_what_is_not_there(uri: str) -> None:
    with pytest.raises(ResourceNotFound) as caught:
        await Client(library()).request("resources/read", {"uri": uri})
    assert caught.value.data == {"uri": uri}


@pytest.mark.parametrize("uri", [None, 5, [], {}])
async def test_a_uri_is_text(uri: Any) -> None:
    with pytest.raises(Exception, match=values("uri")) as caught:
        await Client(library()).request("resources/read", {"uri": uri})
    assert getattr(caught.value, "code", None) == -32602


async def test_a_resource_that_is_gone_is_not_read() -> None:
    app = library()
    app.remove_resource("a:fixed")
    app.remove_resource("a:user/{id}")
    for uri in ("a:fixed", "a:user/6"):
        with pytest.raises(ResourceNotFound):
            await Client(app).request("resources/read", {"uri": uri})
    with pytest.raises(ValueError, match=values("a:fixed")):
        app.remove_resource("a:fixed")


# Lifetimes


async def lifetime(app: Server, uri: str = "a:x") -> tuple[Any, Any]:
    result = await Client(app).request("resources/read", {"uri": uri})
    return result["ttlMs"], result["cacheScope"]


async def test_the_nearest_word_about_a_lifetime_counts() -> None:
    short, long = CacheHint(10, "public"), CacheHint(99)
    app = Server("library", cache_hints={"resources/read": long, "tools/list": short})
    app.add_resource(read, "a:x")
    app.add_resource(read, "a:y", cache_hint=short)
    app.add_resource(lambda z: "z", "a:z/{z}", name="z", cache_hint=short)
    own = ReadResourceResult(contents=[], ttl_ms=7, cache_scope="private")
    app.add_resource(lambda: own, "a:w", name="w", cache_hint=short)
    assert await lifetime(app, "a:x") == (99, "private")
    assert await lifetime(app, "a:y") == (10, "public")
    assert await lifetime(app, "a:z/1") == (10, "public")
    assert await lifetime(app, "a:w") == (7, "private")


async def test_without_a_word_nothing_is_kept() -> None:
    app = Server("library")
    app.add_resource(read, "a:x")
    assert await lifetime(app) == (0, "private")
    everywhere = Server("library", cache_hints=CacheHint(5, "public"))
    everywhere.add_resource(read, "a:x")
    assert await lifetime(everywhere) == (5, "public")
    listed = await Client(everywhere).request("resources/list")
    assert (listed["ttlMs"], listed["cacheScope"]) == (5, "public")

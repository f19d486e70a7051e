"""Test that resource rules apply to every spelling of a URI, in reads and subscriptions."""

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from dovetail import Client, Server, Transform
from dovetail.auth import Principal
from dovetail.errors import InsufficientScope, MCPError, ResourceNotFound
from dovetail.middleware import ResponseCache
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.server.server import get_dispatcher
from dovetail.wire.codec import decode, to_plain

NEWEST = "2026-07-28"
ADMIN = Principal("root", scopes=["admin"])
BOB = Principal("bob", scopes=["read"])

SPELLINGS = [
    "notes://private",
    "notes://privat%65",
    "NOTES://private",
    "notes://PRIVATE",
    "Notes://%50rivate",
    "notes://%70%72%69%76%61%74%65",
]


def is_admin(principal: Principal | None) -> bool:
    return principal is not None and "admin" in principal.scopes


def notes(**private: Any) -> Server:
    """A template, and one note of its own if it has options."""
    app = Server("notes")

    @app.resource("notes://{id}")
    def note(id: str) -> str:
        return f"note {id}"

    if private:
        app.add_resource(lambda: "the private note", "notes://private", **private)
    return app


def exchange(who: Principal | None, method: str, params: dict[str, Any]) -> IncomingExchange:
    return IncomingExchange(1, method, params, {}, Caller(NEWEST, is_stateless=True, principal=who))


async def read(app: Server, uri: str, who: Principal | None = BOB) -> str:
    result = await get_dispatcher(app).handle(exchange(who, "resources/read", {"uri": uri}))
    (content,) = (decode(result) if isinstance(result, bytes) else to_plain(result))["contents"]
    assert content["uri"] == uri
    return content["text"]


def restricted(rule: str, **private: Any) -> Server:
    app = notes(**private)
    app.restrict(rule, scopes=["admin"])
    return app


def mounted(far: bool, **options: Any) -> Server:
    app, inner = Server("outer"), notes(name="private")
    app.mount(Client(inner) if far else inner, "in", **options)
    return app


@pytest.mark.parametrize("uri", SPELLINGS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: notes(scopes=["admin"]),
        lambda: notes(visible_to=is_admin),
        lambda: restricted("notes://private"),
        lambda: restricted("NOTES://privat%65"),
        lambda: restricted("NOTES://privat%65", name="private"),
    ],
    ids=["scopes", "visible", "restrict", "restrict-spelled", "restrict-spelled-registered"],
)
async def test_no_spelling_evades_a_rule(make: Callable[[], Server], uri: str) -> None:
    with pytest.raises((InsufficientScope, ResourceNotFound)):
        await read(make(), uri)
    assert "private" in (await read(make(), uri, ADMIN)).lower()


@pytest.mark.parametrize("uri", [*SPELLINGS, "notes:///private", "notes://private#x"])
@pytest.mark.parametrize("far", [False, True])
async def test_no_spelling_evades_the_rules_about_what_is_mounted(uri: str, *, far: bool) -> None:
    restricting, disabling = mounted(far), mounted(far)
    restricting.restrict("in+notes://private", scopes=["admin"])
    disabling.disable("in+notes://private")
    hiding = mounted(far, transforms={"notes://private": Transform(hide=True)})
    moving = mounted(far, transforms={"notes://private": Transform(name="moved://here")})
    for app in (restricting, disabling, hiding, moving):
        for prefix in ("in+", "IN+"):
            with pytest.raises(MCPError):
                await read(app, prefix + uri)
        await app.stop()


async def test_what_has_moved_is_read_in_every_spelling() -> None:
    app = mounted(False, transforms={"notes://private": Transform(name="moved://here")})
    for uri in ("in+moved://here", "IN+MOVED://h%65re"):
        assert await read(app, uri) == "the private note"


@pytest.mark.parametrize("uri", SPELLINGS)
async def test_no_spelling_evades_a_rule_about_a_tag(uri: str) -> None:
    app = Server("outer")
    app.mount(notes(tags=["secret"]), "in")
    app.restrict(tags=["secret"], scopes=["admin"])
    with pytest.raises(MCPError):
        await read(app, f"in+{uri}")
    assert await read(app, f"in+{uri}", ADMIN) == "the private note"


async def test_rules_about_tags_follow_what_a_mounted_server_lists() -> None:
    inner, app = notes(), Server("outer")
    app.mount(inner, "in")
    app.restrict(tags=["secret"], scopes=["admin"])
    for _ in range(2):
        assert await read(app, "in+notes://privat%65") == "note private"
        inner.add_resource(lambda: "the private note", "notes://private", tags=["secret"])
        with pytest.raises(InsufficientScope):
            await read(app, "in+notes:///private")
        with pytest.raises(InsufficientScope):
            await read(app, "in+notes://privat%65")
        assert await read(app, "in+notes://privat%65", ADMIN) == "the private note"
        inner.remove_resource("notes://private")


async def count_calls_of_a_miss(resources: int) -> int:
    """Return how many functions a read calls that finds nothing on a mounted server with so many resources."""
    inner, app = Server("inner"), Server("outer")
    for number in range(resources):
        inner.add_resource(lambda: "text", f"notes://item/{number}", name=f"item{number}")
    app.mount(inner, "in")
    with pytest.raises(ResourceNotFound):
        await read(app, "in+nothing://a")
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        await read(app, "in+nothing://b")
    except ResourceNotFound:
        return calls
    finally:
        sys.setprofile(previous)
    raise AssertionError("nothing:// was found")


async def test_what_a_miss_costs_does_not_depend_on_the_number_of_resources() -> None:
    assert await count_calls_of_a_miss(1000) < await count_calls_of_a_miss(10) + 100


def test_rules_forget_resources_that_were_removed() -> None:
    app = Server("notes")
    app.restrict("notes://private", scopes=["admin"])

    def use(numbers: range) -> int:
        for number in numbers:
            uri = f"notes://item/{number}/{'x' * 1000}"  # too long to be in a cache
            app.add_resource(lambda: "text", uri, name="item", scopes=["admin"])
            app.remove_resource(uri)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        use(range(100))
        before = use(range(100, 110))
        assert use(range(200, 500)) - before < 100_000
    finally:
        tracemalloc.stop()


def files() -> Server:
    app = Server("files")

    @app.resource("files://{+path}")
    def file(path: str) -> str:
        return path

    return app


@pytest.mark.parametrize(
    "uri",
    [
        "files://admin/x",
        "files://%61dmin/x",
        "files://ADMIN/x",
        "files://admin%2Fx",
        "files://admin//x",
        "files://admin//a%3Fb",
        "files://admin%2F100%25",
        "files://%61dmin//caf\u00e9",
    ],
)
@pytest.mark.parametrize("far", [False, True])
async def test_no_spelling_evades_a_pattern(uri: str, *, far: bool) -> None:
    by_pattern, by_template, outer = files(), files(), Server("outer")
    by_pattern.restrict("files://admin/{name}", scopes=["admin"])
    by_template.add_resource(lambda name: name, "files://admin/{name}", scopes=["admin"])
    outer.mount(Client(files()) if far else files())
    outer.restrict("files://admin/{name}", scopes=["admin"])
    for app in (by_pattern, by_template, outer):
        with pytest.raises(InsufficientScope):
            await read(app, uri)
        assert await read(app, "files://public/x")
        await read(app, uri, ADMIN)
        await app.stop()


@pytest.mark.parametrize(
    "uri", ["file:///etc%2Fpasswd", "file:///etc//passwd", "file:///etc/passwd/", "FILE:///etc/passwd"]
)
async def test_values_that_a_template_decodes_are_asked_about(uri: str) -> None:
    for rule in ("file:///etc/passwd", "file:///etc/{name}"):
        app = Server("disk")
        app.add_resource(lambda path: path, "file:///{+path}")
        app.restrict(rule, scopes=["admin"])
        with pytest.raises(InsufficientScope):
            await read(app, uri)
    fixed = Server("disk")
    fixed.add_resource(lambda path: path, "file:///{+path}")
    fixed.add_resource(lambda: "passwd", "file:///etc/passwd", scopes=["admin"])
    with pytest.raises(InsufficientScope):
        await read(fixed, uri)
    fixed.remove_resource("file:///etc/passwd")
    assert "passwd" in await read(fixed, uri)


async def test_the_order_of_a_query_evades_no_rule() -> None:
    app = Server("query")
    app.add_resource(lambda a, b: a + b, "q://x{?a,b}")
    app.restrict("q://x?a=1&b=2", scopes=["admin"])
    for uri in ("q://x?a=1&b=2", "q://x?b=2&a=1"):
        with pytest.raises(InsufficientScope):
            await read(app, uri)
    assert await read(app, "q://x?b=1&a=2") == "21"


async def test_a_pattern_restricts_what_was_registered_before_it() -> None:
    app = files()
    app.add_resource(lambda: "fixed", "files://admin/fixed")
    app.restrict("files://admin/{name}", scopes=["admin"])
    with pytest.raises(InsufficientScope):
        await read(app, "files://admin/fixed")


async def test_what_is_kept_of_a_hidden_uri_is_not_shared() -> None:
    app = Server("notes", middleware=[ResponseCache(["notes://private"], shared=True)])
    app.add_resource(lambda id: f"note {id}", "notes://{id}")
    app.restrict("notes://private", visible_to=is_admin)
    assert await read(app, "notes://private", ADMIN) == "note private"
    with pytest.raises(ResourceNotFound):
        await read(app, "notes://private", BOB)


async def test_what_is_kept_of_a_uri_is_forgotten_in_every_spelling() -> None:
    values = iter("abc")
    app = Server("notes", middleware=[ResponseCache(["notes://Today"], shared=True)])
    app.add_resource(lambda: next(values), "notes://Today")
    assert [await read(app, "notes://Today") for _ in range(2)] == ["a", "a"]
    app.notify_resource_updated("NOTES://today")
    assert await read(app, "notes://Today") == "b"


async def test_functions_get_what_the_caller_wrote() -> None:
    app = notes()
    for spelling, value in (("notes://Oslo", "Oslo"), ("NOTES://%4Fslo", "Oslo"), ("notes://S%C3%A3o", "S\u00e3o")):
        assert await read(app, spelling) == f"note {value}"


async def test_a_fixed_resource_is_found_in_every_spelling() -> None:
    app = notes(name="private")
    for uri in SPELLINGS:
        assert await read(app, uri) == "the private note"


async def test_two_resources_with_one_key_are_distinguished_by_their_exact_uris() -> None:
    app = notes()
    app.add_resource(lambda: "upper", "notes://Todo")
    app.add_resource(lambda: "lower", "notes://todo", scopes=["admin"])
    assert await read(app, "notes://Todo") == "upper"
    with pytest.raises(InsufficientScope):
        await read(app, "notes://todo")
    with pytest.raises((ResourceNotFound, InsufficientScope)):
        await read(app, "notes://TODO", ADMIN)


async def test_paths_and_tools_are_case_sensitive() -> None:
    app = Server("x")
    app.add_resource(lambda name: name, "docs://a/{name}")
    app.add_tool(lambda: "ran", name="Fs:run")
    app.restrict("docs://a/README", "fs:run", scopes=["admin"])
    assert await read(app, "docs://a/readme") == "readme"
    result = await get_dispatcher(app).handle(exchange(BOB, "tools/call", {"name": "Fs:run"}))
    assert to_plain(result)["content"][0]["text"] == "ran"


async def listen(app: Server, changes: Server, who: Principal, *uris: str) -> tuple[list[str], list[str]]:
    """The URIs that were agreed to, and those of the notices after one update of `notes://private`."""
    notices: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def emit(data: bytes) -> None:
        notices.put_nowait(decode(data))

    asked = exchange(who, "subscriptions/listen", {"notifications": {"resourceSubscriptions": [*uris]}})
    asked.emit = emit
    task = asyncio.create_task(get_dispatcher(app).handle(asked))
    agreed = (await notices.get())["params"]["notifications"].get("resourceSubscriptions") or []
    changes.notify_resource_updated("notes://private")
    heard = [(await notices.get())["params"]["uri"] for _ in agreed]
    task.cancel()
    await asyncio.wait([task])
    return agreed, heard


async def test_listeners_of_every_spelling_hear_in_their_own() -> None:
    app = notes(scopes=["admin"])
    assert await listen(app, app, ADMIN, *SPELLINGS) == (SPELLINGS, SPELLINGS)
    assert await listen(app, app, BOB, *SPELLINGS) == ([], [])


async def test_listeners_of_what_is_mounted() -> None:
    inner, app = notes(name="private"), Server("outer")
    app.mount(inner, "in")
    app.restrict("in+notes://private", scopes=["admin"])
    uris = [f"in+{uri}" for uri in SPELLINGS]
    assert await listen(app, inner, ADMIN, *uris) == (uris, uris)
    assert await listen(app, inner, BOB, *uris) == ([], [])
    hiding = Server("outer")
    hiding.mount(inner, "in", transforms={"notes://private": Transform(hide=True)})
    assert await listen(hiding, inner, ADMIN, *uris) == ([], [])

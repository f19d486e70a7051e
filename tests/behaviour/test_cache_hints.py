"""Test that exactly the cacheable results have cache hints."""

from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import call
from dovetail import CacheHint, Context, Server
from support.driver import connect

PROMPT = {"name": "prompt", "arguments": {"kind": "a"}}


def server(**options: Any) -> Server:
    app = Server("cached", **options)
    app.add_tool(lambda: "tool", name="tool")
    app.add_resource(lambda: "plain", "x:plain", name="plain")
    app.add_resource(lambda: "own", "x:own", name="own", cache_hint=CacheHint(ttl_ms=50, scope="public"))
    app.add_resource(lambda v: v, "x:of/{v}", name="of", cache_hint=CacheHint(ttl_ms=60))

    @app.prompt
    def prompt(kind: str) -> str:
        return kind

    @app.completion("prompt", "kind")
    def kinds(value: str) -> list[str]:
        return [value]

    return app


async def hints(peer: Any) -> dict[str, tuple[int, str]]:
    """The hints of every cacheable method; a result without them fails."""
    found = {}
    for method in ("server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"):
        result = await peer.request(method)
        found[method] = (result["ttlMs"], result["cacheScope"])
    for uri in ("x:plain", "x:own", "x:of/1"):
        result = await peer.request("resources/read", {"uri": uri})
        found[uri] = (result["ttlMs"], result["cacheScope"])
    return found


@requirement("caching.hints")
async def test_what_may_be_kept_says_how_long(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        found = await hints(peer)
        assert found.pop("x:own") == (50, "public")
        assert found.pop("x:of/1") == (60, "private")
        assert set(found.values()) == {(0, "private")}, "unless said otherwise nothing is kept or shared"
        complete = {"ref": {"type": "ref/prompt", "name": "prompt"}, "argument": {"name": "kind", "value": "a"}}
        for result in (
            await call(peer, "tool"),
            await peer.request("prompts/get", PROMPT),
            await peer.request("completion/complete", complete),
        ):
            assert not result.keys() & {"ttlMs", "cacheScope"}


@requirement("caching.hints", transports=("memory",))
async def test_a_result_that_asks_is_not_kept(revision: str, transport: str) -> None:
    app = Server("asking", cache_hints=CacheHint(ttl_ms=1000))

    @app.resource("x:who")
    async def who(ctx: Context) -> str:
        return str(await ctx.elicit("Who?", str))

    async with connect(app, transport, revision, capabilities={"elicitation": {}}) as peer:
        result = await peer.request("resources/read", {"uri": "x:who"})
        assert result["resultType"] == "input_required"
        assert not result.keys() & {"ttlMs", "cacheScope"}
        ((key, _),) = result["inputRequests"].items()
        answer = {key: {"action": "accept", "content": {"value": "me"}}}
        params = {"uri": "x:who", "inputResponses": answer, "requestState": result["requestState"]}
        assert (await peer.request("resources/read", params))["ttlMs"] == 1000


@requirement("caching.choice")
async def test_the_nearest_hint_counts(revision: str, transport: str) -> None:
    async with connect(server(cache_hints=CacheHint(ttl_ms=5, scope="public")), transport, revision) as peer:
        found = await hints(peer)
        assert found.pop("x:own") == (50, "public")
        assert found.pop("x:of/1") == (60, "private")
        assert set(found.values()) == {(5, "public")}
    by_method = {"tools/list": CacheHint(ttl_ms=300_000, scope="public"), "resources/read": CacheHint(ttl_ms=9)}
    async with connect(server(cache_hints=by_method), transport, revision) as peer:
        found = await hints(peer)
        assert found["tools/list"] == (300_000, "public")
        assert found["x:plain"] == (9, "private")
        assert found["x:own"] == (50, "public")
        assert found["prompts/list"] == found["server/discover"] == (0, "private")


@requirement("caching.pages")
async def test_all_pages_have_one_scope(revision: str, transport: str) -> None:
    app = Server("pages", page_size=1, cache_hints={"tools/list": CacheHint(ttl_ms=7, scope="public")})
    for name in "abc":
        app.add_tool(lambda: "x", name=name)
    async with connect(app, transport, revision) as peer:
        pages = [await peer.request("tools/list")]
        while cursor := pages[-1].get("nextCursor"):
            pages.append(await peer.request("tools/list", {"cursor": cursor}))
        assert [(page["ttlMs"], page["cacheScope"]) for page in pages] == [(7, "public")] * 3


@requirement("caching.not-before")
async def test_handshake_revisions_have_no_hints(revision: str, transport: str) -> None:
    async with connect(server(cache_hints=CacheHint(ttl_ms=5, scope="public")), transport, revision) as peer:
        results = [await peer.request(method) for method in ("tools/list", "prompts/list", "resources/list")]
        results.append(await peer.request("resources/templates/list"))
        results += [await peer.request("resources/read", {"uri": uri}) for uri in ("x:plain", "x:own", "x:of/1")]
        for result in results:
            assert not result.keys() & {"ttlMs", "cacheScope"}


@requirement("caching.never-negative")
def test_a_hint_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="ttl_ms"):
        CacheHint(ttl_ms=-1)
    with pytest.raises(ValueError, match="scope"):
        CacheHint(scope="shared")  # type: ignore[arg-type]

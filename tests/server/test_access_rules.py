"""Test access rules: the same for lists and calls, and only public results are shared."""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dovetail import CacheHint, Client, Context, Server
from dovetail.auth import Guard, Principal, StaticTokenVerifier
from dovetail.errors import InsufficientScope, InvalidParams, NotFound, PromptNotFound, ResourceNotFound, ToolNotFound
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.server.server import get_dispatcher
from dovetail.wire.codec import decode, to_plain
from support.mentions import mentions, values

NEWEST = "2026-07-28"
ADA = Principal("ada", scopes=["read", "write"], claims={"team": "red"})
BOB = Principal("bob", scopes=["read"], claims={"team": "blue"})


def red(principal: Principal | None) -> bool:
    return principal is not None and principal.claims["team"] == "red"


def app(**options: Any) -> Server:
    made = Server("x", **options)

    @made.tool
    def free() -> str:
        return "free"

    @made.tool(scopes=["read", "write"])
    def write() -> str:
        return "written"

    @made.tool(visible_to=red)
    def secret(ctx: Context) -> str:
        assert ctx.principal is not None
        return ctx.principal.subject

    @made.tool
    def dynamic(scope: str, ctx: Context) -> str:
        ctx.require_scopes(scope, "more") if scope == "both" else ctx.require_scopes(scope)
        return "done"

    @made.resource("file://plain", cache_hint=CacheHint(60_000, "public"))
    def plain_file() -> str:
        return "plain"

    @made.resource("file://red", visible_to=red, cache_hint=CacheHint(60_000, "public"))
    def red_file() -> str:
        return "red"

    @made.resource("row://{id}", scopes=["write"])
    def row(id: str) -> str:
        return id

    @made.prompt(scopes="write")
    def letter(tone: str) -> str:
        return tone

    @made.completion("letter", "tone")
    def tones(value: str) -> list[str]:
        return ["kind"]

    return made


async def ask(server: Server, who: Principal | None, method: str, revision: str = NEWEST, **params: Any) -> Any:
    caller = Caller(revision, revision == NEWEST, principal=who)
    result = await get_dispatcher(server).handle(IncomingExchange(1, method, params, {}, caller))
    return decode(result) if isinstance(result, bytes) else to_plain(result)


async def listed(server: Server, who: Principal | None) -> Any:
    """The list of tools as it is sent: the same object if it was made once."""
    return await get_dispatcher(server).handle(
        IncomingExchange(1, "tools/list", {}, {}, Caller(NEWEST, True, principal=who))
    )


async def names(server: Server, who: Principal | None, what: str = "tools") -> list[str]:
    method = "resources/templates/list" if what == "resourceTemplates" else f"{what}/list"
    return [one["name"] for one in (await ask(server, who, method))[what]]


async def test_lists_show_what_a_caller_may_use() -> None:
    server = app()
    assert await names(server, ADA) == ["free", "write", "secret", "dynamic"]
    assert await names(server, BOB) == ["free", "dynamic"]
    assert await names(server, None) == ["free", "dynamic"]
    assert await names(server, ADA, "resources") == ["plain_file", "red_file"]
    assert await names(server, BOB, "resources") == ["plain_file"]
    assert await names(server, BOB, "resourceTemplates") == []
    assert await names(server, ADA, "resourceTemplates") == ["row"]
    assert await names(server, BOB, "prompts") == []
    assert await names(server, ADA, "prompts") == ["letter"]


async def test_what_is_locked_can_be_shown() -> None:
    server = app(auth=Guard(StaticTokenVerifier({}), list_restricted=True))
    assert await names(server, BOB) == ["free", "write", "dynamic"]
    with pytest.raises(InsufficientScope):
        await ask(server, BOB, "tools/call", name="write")


async def test_calls_follow_the_same_rule() -> None:
    server = app()
    assert (await ask(server, ADA, "tools/call", name="write"))["content"][0]["text"] == "written"
    assert (await ask(server, ADA, "tools/call", name="secret"))["content"][0]["text"] == "ada"
    for who in (BOB, None):
        with pytest.raises(InsufficientScope) as refusal:
            await ask(server, who, "tools/call", name="write")
        assert refusal.value.scopes == ("read", "write")  # all that it takes, in one answer
        assert refusal.value.data == {"requiredScopes": ["read", "write"]}
        with pytest.raises(ToolNotFound) as hidden:
            await ask(server, who, "tools/call", name="secret")
        with pytest.raises(ToolNotFound) as absent:
            await ask(server, who, "tools/call", name="secre7")
        assert str(hidden.value).replace("secret", "") == str(absent.value).replace("secre7", "")


async def test_resources_and_prompts_too() -> None:
    server = app()
    assert (await ask(server, ADA, "resources/read", uri="file://red"))["contents"][0]["text"] == "red"
    with pytest.raises(ResourceNotFound):
        await ask(server, BOB, "resources/read", uri="file://red")
    with pytest.raises(InsufficientScope):
        await ask(server, BOB, "resources/read", uri="row://7")
    assert (await ask(server, ADA, "resources/read", uri="row://7"))["contents"][0]["text"] == "7"
    with pytest.raises(InsufficientScope):
        await ask(server, BOB, "prompts/get", name="letter", arguments={"tone": "kind"})
    assert (await ask(server, ADA, "prompts/get", name="letter", arguments={"tone": "kind"}))["messages"]
    completing = {"ref": {"type": "ref/prompt", "name": "letter"}, "argument": {"name": "tone", "value": ""}}
    with pytest.raises(InsufficientScope):
        await ask(server, BOB, "completion/complete", **completing)
    assert (await ask(server, ADA, "completion/complete", **completing))["completion"]["values"] == ["kind"]


async def test_a_hidden_prompt_has_no_completions() -> None:
    server = Server("x")

    @server.prompt(visible_to=red)
    def quiet(tone: str) -> str:
        return tone

    server.completion("quiet", "tone")(lambda value: ["x"])
    completing = {"ref": {"type": "ref/prompt", "name": "quiet"}, "argument": {"name": "tone", "value": ""}}
    with pytest.raises(InvalidParams, match=values("quiet")):
        await ask(server, BOB, "completion/complete", **completing)
    with pytest.raises(PromptNotFound):
        await ask(server, BOB, "prompts/get", name="quiet", arguments={"tone": ""})


async def test_a_function_can_ask_for_scopes_by_its_arguments() -> None:
    server = app()
    assert (await ask(server, BOB, "tools/call", name="dynamic", arguments={"scope": "read"}))["content"]
    with pytest.raises(InsufficientScope) as refusal:
        await ask(server, BOB, "tools/call", name="dynamic", arguments={"scope": "both"})
    assert refusal.value.scopes == ("both", "more")
    with pytest.raises(InsufficientScope):
        await ask(server, None, "tools/call", name="dynamic", arguments={"scope": "read"})


async def test_filtered_results_are_private_and_kept_apart() -> None:
    server = app(cache_hints=CacheHint(1000, "public"))
    ada, bob = await ask(server, ADA, "tools/list"), await ask(server, BOB, "tools/list")
    assert ada["cacheScope"] == bob["cacheScope"] == "private"
    assert ada["ttlMs"] == 1000
    assert await ask(server, ADA, "tools/list") == ada
    assert (await ask(server, ADA, "resources/read", uri="file://red"))["cacheScope"] == "private"
    assert (await ask(server, BOB, "resources/read", uri="file://plain"))["cacheScope"] == "public"
    open_to_all = Server("y", cache_hints=CacheHint(1000, "public"))
    open_to_all.add_tool(lambda: "x", name="one")
    assert (await ask(open_to_all, BOB, "tools/list"))["cacheScope"] == "public"


async def test_the_bytes_of_a_list_are_made_once_for_all_who_see_the_same() -> None:
    server, made = app(), list[Any]()
    for number in range(5):
        made.append(await listed(server, Principal(f"user {number}", scopes=["read"], claims={"team": "blue"})))
        boss = Principal(f"boss {number}", scopes=["read", "write"], claims={"team": "red"})
        made.append(await listed(server, boss))
    assert len({id(one) for one in made}) == 2


async def test_cursors_lead_through_what_is_shown() -> None:
    server = app(page_size=1)
    first = await ask(server, ADA, "tools/list")
    second = await ask(server, ADA, "tools/list", cursor=first["nextCursor"])
    assert second["tools"][0]["name"] == "write"
    after_free = await ask(server, BOB, "tools/list", cursor=first["nextCursor"])
    assert after_free["tools"][0]["name"] == "dynamic"  # not one item of another's list
    with pytest.raises(InvalidParams, match="cursor"):  # it ends at something that is not there for this caller
        await ask(server, BOB, "tools/list", cursor=second["nextCursor"])


async def test_a_rule_that_fails_hides(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("x")
    server.add_tool(lambda: "x", name="odd", visible_to=lambda principal: principal.claims["missing"])
    with caplog.at_level(logging.CRITICAL):
        assert await names(server, BOB) == []
        with pytest.raises(ToolNotFound):
            await ask(server, BOB, "tools/call", name="odd")


async def test_a_removed_rule_is_forgotten() -> None:
    server = Server("x")
    server.add_tool(lambda: "x", name="one", scopes=["a"])
    server.remove_tool("one")
    server.add_tool(lambda: "x", name="one")
    assert await names(server, None) == ["one"]
    assert (await ask(server, None, "tools/call", name="one"))["content"]


def test_rules_are_checked_where_they_are_written() -> None:
    server = Server("x")
    with pytest.raises(ValueError, match="two words"):
        server.add_tool(lambda: "x", name="one", scopes=["two words"])
    with pytest.raises(TypeError, match="visible_to"):
        server.add_tool(lambda: "x", name="two", visible_to=True)


async def test_changes_of_a_hidden_resource_are_not_sent() -> None:
    server = app()
    assert get_dispatcher(server).can_subscribe("file://red", ADA)
    assert not get_dispatcher(server).can_subscribe("file://red", BOB)
    with pytest.raises(InsufficientScope, match="write"):  # as for reading it
        get_dispatcher(server).can_subscribe("row://1", BOB)
    assert get_dispatcher(server).can_subscribe("row://1", ADA)
    assert get_dispatcher(server).can_subscribe("file://plain", None)
    assert get_dispatcher(Server("y")).can_subscribe("anything://at/all", None)


def tagged() -> Server:
    made = Server("x")

    @made.tool(tags=["admin"])
    def wipe() -> str:
        return "gone"

    @made.tool
    def look() -> str:
        return "seen"

    @made.resource("file://log", tags=["admin"])
    def log_file() -> str:
        return "log"

    @made.resource("row://{id}", tags=["admin"])
    def row(id: str) -> str:
        return id

    @made.prompt(tags=["admin", "team"])
    def letter() -> str:
        return "x"

    return made


async def test_a_tag_restricts_what_has_it_now_and_later() -> None:
    server = tagged()
    server.restrict(tags=["admin"], scopes=["write"])
    server.restrict("letter", visible_to=red)

    @server.tool(tags=["admin"], scopes=["read"])
    def later() -> str:
        return "later"

    assert await names(server, ADA) == ["wipe", "look", "later"]
    assert await names(server, BOB) == ["look"]
    assert await names(server, BOB, "resources") == []
    assert await names(server, ADA, "prompts") == ["letter"]
    with pytest.raises(InsufficientScope) as refusal:
        await ask(server, None, "tools/call", name="later")
    assert refusal.value.scopes == ("read", "write")
    with pytest.raises(PromptNotFound):
        await ask(server, Principal("cy", scopes=["write"], claims={"team": "blue"}), "prompts/get", name="letter")
    assert (await ask(server, ADA, "tools/call", name="later"))["content"][0]["text"] == "later"


async def nothing_for_bob(outer: Server) -> None:
    """What is mounted and not for him is not there for him, whatever it is."""
    for method, params, error in (
        ("tools/call", {"name": "in_wipe"}, ToolNotFound),
        ("resources/read", {"uri": "in+file://log"}, ResourceNotFound),
        ("resources/read", {"uri": "in+row://1"}, ResourceNotFound),
        ("prompts/get", {"name": "in_letter"}, PromptNotFound),
    ):
        with pytest.raises(error):
            await ask(outer, BOB, method, **params)
    assert not get_dispatcher(outer).can_subscribe("in+file://log", BOB)


@pytest.mark.parametrize("far", [False, True])
async def test_rules_by_tag_hold_for_what_is_mounted(far: bool) -> None:
    outer = Server("outer")
    outer.mount(Client(tagged()) if far else tagged(), "in")
    outer.restrict(tags=["admin"], visible_to=red)
    assert await names(outer, ADA) == ["in_wipe", "in_look"]
    assert await names(outer, BOB) == ["in_look"]
    assert (await ask(outer, ADA, "tools/call", name="in_wipe"))["content"][0]["text"] == "gone"
    assert (await ask(outer, BOB, "tools/call", name="in_look"))["content"][0]["text"] == "seen"
    await nothing_for_bob(outer)
    await outer.stop()


@pytest.mark.parametrize("far", [False, True])
async def test_a_whole_mount_may_be_for_some(far: bool) -> None:
    outer = Server("outer")
    outer.mount(Client(tagged()) if far else tagged(), "in", scopes=["write"])
    outer.mount(Client(tagged()) if far else tagged(), "red", visible_to=red)
    assert await names(outer, ADA) == ["in_wipe", "in_look", "red_wipe", "red_look"]
    assert await names(outer, BOB) == []
    assert (await ask(outer, ADA, "resources/read", uri="red+file://log"))["contents"][0]["text"] == "log"
    with pytest.raises(InsufficientScope):
        await ask(outer, BOB, "tools/call", name="in_look")
    with pytest.raises(ToolNotFound):
        await ask(outer, BOB, "tools/call", name="red_look")
    assert get_dispatcher(outer).can_subscribe("red+file://log", ADA)
    assert not get_dispatcher(outer).can_subscribe("red+file://log", BOB)
    assert not get_dispatcher(outer).can_subscribe("green+file://log", ADA)
    await outer.stop()


async def test_a_restriction_by_name_outlives_what_has_it() -> None:
    server = Server("x")

    def danger() -> str:
        return "boom"

    server.add_tool(danger)
    server.restrict("danger", "later", scopes=["write"])
    server.remove_tool("danger")
    server.add_tool(danger)
    server.add_tool(danger, name="later")
    assert get_dispatcher(server).list_used_scopes() == ("write",)
    for name in ("danger", "later"):
        with pytest.raises(InsufficientScope):
            await ask(server, BOB, "tools/call", name=name)
        assert (await ask(server, ADA, "tools/call", name=name))["content"][0]["text"] == "boom"
    assert await names(server, BOB) == []


@pytest.mark.parametrize("far", [False, True])
async def test_rules_by_name_hold_for_what_is_mounted(far: bool) -> None:
    outer = Server("outer")
    outer.restrict("in_wipe", "in+file://log", "in+row://{id}", "in_letter", visible_to=red)
    outer.mount(Client(tagged()) if far else tagged(), "in")
    assert await names(outer, ADA) == ["in_wipe", "in_look"]
    assert await names(outer, BOB) == ["in_look"]
    assert await names(outer, BOB, "resources") == []
    assert (await ask(outer, ADA, "tools/call", name="in_wipe"))["content"][0]["text"] == "gone"
    assert (await ask(outer, ADA, "resources/read", uri="in+row://1"))["contents"][0]["text"] == "1"
    await nothing_for_bob(outer)
    await outer.stop()


async def test_what_is_hidden_is_not_reached_by_a_template() -> None:
    server = Server("x")

    @server.resource("file:///secret", visible_to=red)
    def secret() -> str:
        return "secret"

    @server.resource("file:///{path}", cache_hint=CacheHint(60_000, "public"))
    def files(path: str) -> str:
        return f"template: {path}"

    server.restrict("file:///plan", visible_to=red)
    for uri in ("file:///secret", "file:///plan"):
        with pytest.raises(ResourceNotFound):
            await ask(server, BOB, "resources/read", uri=uri)
        assert not get_dispatcher(server).can_subscribe(uri, BOB)
    assert (await ask(server, ADA, "resources/read", uri="file:///secret"))["contents"][0]["text"] == "secret"
    plan = await ask(server, ADA, "resources/read", uri="file:///plan")
    assert (plan["contents"][0]["text"], plan["cacheScope"]) == ("template: plan", "private")
    other = await ask(server, BOB, "resources/read", uri="file:///other")
    assert (other["contents"][0]["text"], other["cacheScope"]) == ("template: other", "public")


def test_a_restriction_says_whom_and_what() -> None:
    server = tagged()
    for words, wrong in (
        ("scopes=.*visible_to=", lambda: server.restrict(tags=["admin"])),
        ("tags=", lambda: server.restrict(visible_to=red)),
        ("two words", lambda: server.restrict(tags=["admin"], scopes=["two words"])),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    with pytest.raises(TypeError, match=r"tags=\['admin'\]"):
        server.restrict(tags="admin", visible_to=red)


# Changes from other threads


def in_a_thread(act: Callable[[], Any]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


class Meanwhile:
    """A function that, the first time it is called, does something in another thread before or after."""

    def __init__(self, function: Any, act: Callable[[], Any], *, after: bool = False) -> None:
        self.function, self.act, self.after, self.done = function, act, after, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.done:
            return self.function(*args, **kwargs)
        self.done = True
        if not self.after:
            in_a_thread(self.act)
        found = self.function(*args, **kwargs)
        if self.after:
            in_a_thread(self.act)
        return found


@pytest.mark.parametrize("act", ["disable", "remove_tool"])
async def test_a_list_for_everyone_made_during_a_change_is_not_kept(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("y")
    server.add_tool(lambda: "", name="free")
    server.add_tool(lambda: "", name="other")
    # As in the next test, the change has to come at one moment while the list is made.
    visibility = get_dispatcher(server).visibility
    change = Meanwhile(visibility.get_cache_hint, lambda: getattr(server, act)("free"))
    monkeypatch.setattr(visibility, "get_cache_hint", change)
    assert await names(server, BOB) == ["free", "other"]
    assert await names(server, BOB) == ["other"]


@pytest.mark.parametrize("act", ["disable", "restrict", "remove_tool"])
@pytest.mark.parametrize("where", ["registry.get_items", "visibility.get_cache_hint"])
async def test_a_list_made_during_a_change_is_not_kept(act: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = app()
    options: Any = {"scopes": ["write"]} if act == "restrict" else {}
    part_name, _, method = where.partition(".")
    part = getattr(get_dispatcher(server), part_name)
    change = Meanwhile(getattr(part, method), lambda: getattr(server, act)("free", **options), after=True)
    monkeypatch.setattr(part, method, change)
    await names(server, BOB)
    assert change.done
    assert await names(server, BOB) == ["dynamic"]
    assert await names(server, BOB) == ["dynamic"]


async def test_what_is_taken_away_is_never_offered_without_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    server, seen = app(), list[bool]()
    rules = get_dispatcher(server).registry.access_rules
    assert rules is not None
    drop = rules.remove

    def watched(kind: str, name: str) -> None:
        drop(kind, name)
        seen.append("write" in get_dispatcher(server).registry.list_registered("tool"))

    monkeypatch.setattr(rules, "remove", watched)
    server.remove_tool("write")
    assert seen == [False]


@pytest.mark.parametrize(
    ("what", "method", "params", "error"),
    [
        ("write", "tools/call", {"name": "write"}, ToolNotFound),
        ("row://{id}", "resources/read", {"uri": "row://1"}, ResourceNotFound),
        ("file://red", "resources/read", {"uri": "file://red"}, ResourceNotFound),
        ("letter", "prompts/get", {"name": "letter", "arguments": {"tone": "a"}}, PromptNotFound),
    ],
)
async def test_a_call_during_a_removal_does_not_slip_past_the_rule(
    what: str, method: str, params: dict[str, Any], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = app()
    rules = get_dispatcher(server).registry.access_rules
    assert rules is not None
    remove = {"tools/call": server.remove_tool, "prompts/get": server.remove_prompt}
    change = Meanwhile(rules.check, lambda: remove.get(method, server.remove_resource)(what))
    monkeypatch.setattr(rules, "check", change)
    with pytest.raises(error):
        await ask(server, None, method, **params)
    assert change.done


async def test_a_list_during_a_removal_does_not_show_what_was_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    server = app()
    rules = get_dispatcher(server).registry.access_rules
    assert rules is not None
    change = Meanwhile(rules.take_snapshot, lambda: server.remove_tool("write"))
    monkeypatch.setattr(rules, "take_snapshot", change)
    assert await names(server, None) == ["free", "dynamic"]
    assert change.done


async def test_lists_are_read_while_threads_register() -> None:
    server = app()
    for number in range(200):
        server.add_tool(lambda: "", name=f"early{number}")
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def register(part: int) -> None:
        for number in range(40):
            server.add_tool(lambda: "", name=f"t{part}_{number}", description="")

    threads = [threading.Thread(target=register, args=(part,)) for part in range(3)]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            await names(server, BOB)
            await asyncio.sleep(0)
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(switch)
    assert len(await names(server, BOB)) == 322
    assert set(await names(server, BOB)) == set(get_dispatcher(server).registry.list_registered("tool")) - {
        "write",
        "secret",
    }


# What is kept of lists


async def test_a_list_by_scopes_is_made_once_for_those_who_hold_the_same() -> None:
    made, only_scopes = list[Any](), Server("y")
    only_scopes.add_tool(lambda: "", name="free")
    only_scopes.add_tool(lambda: "", name="locked", scopes=["write"])
    for number in range(50):
        who = Principal(f"user{number}", scopes=[f"other{number}", *(["write"] if number % 2 else [])])
        assert await names(only_scopes, who) == (["free", "locked"] if number % 2 else ["free"])
        made.append(await listed(only_scopes, who))
    assert len({id(one) for one in made}) == 2


def test_callers_with_different_scopes_are_remembered_within_bounds() -> None:
    server = Server("y")
    for number in range(200):
        server.add_tool(lambda: "", name=f"t{number}", scopes=[f"s{number}"])
    registry = get_dispatcher(server).registry
    assert registry.access_rules is not None
    sight = registry.access_rules.take_snapshot("tool", registry.list_registered("tool"))
    assert sight is not None
    for number in range(200):
        _, hidden = sight.find_hidden(Principal("p", scopes=[f"s{number}"]))
        assert set(get_dispatcher(server).registry.list_registered("tool")) - hidden == {f"t{number}"}
    assert len(sight._hidden_by_scopes) == 64  # private: nothing else shows what is remembered


@pytest.mark.parametrize("first", ["start", "list", "call"])
async def test_a_rule_that_matches_nothing_is_reported(first: str, caplog: pytest.LogCaptureFixture) -> None:
    server = app()
    server.restrict("fre", "later", "row://7", "file://{any}", "dynamic", scopes=["write"])
    server.add_tool(lambda: "x", name="later")
    assert not caplog.records
    if first == "start":
        await server.start()
    elif first == "list":
        await ask(server, ADA, "tools/list")
    else:
        await ask(server, ADA, "tools/call", name="dynamic", arguments={"scope": "read"})
        await ask(server, ADA, "tools/call", name="dynamic", arguments={"scope": "read"})
    (told,) = [one.getMessage() for one in caplog.records]
    assert mentions(told, "fre", "free")


async def test_a_function_reads_resources_with_the_rights_of_its_caller() -> None:
    server = app()

    @server.tool
    async def show(uri: str, ctx: Context) -> str:
        return (await ctx.read_resource(uri)).contents[0].text or ""

    async def read(who: Principal | None, uri: str) -> str:
        return (await ask(server, who, "tools/call", name="show", arguments={"uri": uri}))["content"][0]["text"]

    assert await read(BOB, "file://plain") == "plain"
    assert await read(ADA, "file://red") == "red"
    assert await read(ADA, "row://7") == "7"
    with pytest.raises(ResourceNotFound):
        await read(BOB, "file://red")
    with pytest.raises(InsufficientScope):
        await read(BOB, "row://7")


async def test_a_hidden_resource_does_not_exist_although_a_template_matches() -> None:
    hiding = Server("hiding")
    hiding.add_resource(lambda: "hidden", "notes://private", visible_to=lambda principal: False)

    @hiding.resource("notes://{name}")
    def read_note(name: str) -> str:
        return f"template {name}"

    other = Server("other")
    other.add_resource(lambda: "other", "notes://private")
    app = Server("app")
    app.mount(hiding)
    app.mount(other)
    async with Client(app) as client:
        assert await client.read("notes://private") == "other"
        assert await client.read("notes://public") == "template public"


async def test_a_template_does_not_make_a_disabled_resource_readable() -> None:
    app = Server("notes")
    app.add_resource(lambda: "fixed", "notes://private")

    @app.resource("notes://{name}")
    def read_note(name: str) -> str:
        return f"template {name}"

    async with Client(app) as client:
        assert await client.read("notes://private") == "fixed"
        app.disable("notes://private")
        for uri in ("notes://private", "NOTES://private", "notes://%70rivate"):
            with pytest.raises(NotFound):
                await client.read(uri)
        assert await client.read("notes://other") == "template other"
        app.enable("notes://private")
        assert await client.read("notes://private") == "fixed"
        app.remove_resource("notes://private")
        assert await client.read("notes://private") == "template private"


async def test_items_that_are_added_later_stay_disabled() -> None:
    app = Server("later")
    app.add_tool(lambda: "x", name="a")
    app.disable("a", tags=["beta"])
    app.remove_tool("a")
    app.add_tool(lambda: "x", name="a")
    app.add_tool(lambda: "x", name="b", tags=["beta"])
    app.add_tool(lambda: "x", name="c")
    async with Client(app) as client:
        assert [tool.name for tool in await client.list_tools()] == ["c"]
        app.enable("a", tags=["beta"])
        assert [tool.name for tool in await client.list_tools()] == ["a", "b", "c"]

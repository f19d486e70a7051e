"""Test that each entry point for a resource URI or a URI template treats equivalent spellings as the same."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dovetail import Client, Host, Policy, ResourceLink, Server, Transform, rule
from dovetail.auth import Principal
from dovetail.errors import MCPError, ResourceNotFound
from dovetail.host import Grant
from dovetail.host.consent.grants import GrantStore
from dovetail.host.policy.policy import PolicyRequest
from dovetail.middleware import ResponseCache
from dovetail.mounts.mountable import ResourceWatch
from dovetail.mounts.name_map import NameMap
from dovetail.mounts.remote_subscriptions import RemoteSubscription, RemoteSubscriptions
from dovetail.mounts.resolver import Mount
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.protocol.uri_key import template_key, uri_key
from dovetail.server.server import get_dispatcher
from dovetail.wire.codec import decode, to_plain
from support.scripted_server import ScriptedServer, serve_on_socket

TIMEOUT_S = 30.0
NEWEST, HANDSHAKE = "2026-07-28", "2025-11-25"

URI = "notes://desk/to-do"
SPELLINGS = [URI, "NOTES://desk/to-do", "notes://DESK/to-do", "notes://desk/to%2Ddo", "Notes://%64esk/t%6f-d%6F"]
TEMPLATE = "notes://desk/{Name}"
TEMPLATE_SPELLINGS = [TEMPLATE, "NOTES://desk/{Name}", "notes://DESK/{Name}", "notes://%64esk/{Name}"]


def exchange(method: str, params: dict[str, Any]) -> IncomingExchange:
    return IncomingExchange(1, method, params, {}, Caller(NEWEST, is_stateless=True, principal=Principal("bob")))


async def request(app: Server, method: str, params: dict[str, Any]) -> dict[str, Any]:
    result = await get_dispatcher(app).handle(exchange(method, params))
    return decode(result) if isinstance(result, bytes) else to_plain(result)


async def read(app: Server, uri: str) -> str:
    (content,) = (await request(app, "resources/read", {"uri": uri}))["contents"]
    assert content["uri"] == uri  # the caller gets the URI as it wrote it
    return content["text"]


def make_notes(*, fixed: bool = True, template: bool = False) -> Server:
    app = Server("notes")
    if fixed:
        app.add_resource(lambda: "the note", URI)
    if template:
        app.add_resource(lambda Name: f"note {Name}", TEMPLATE)  # noqa: N803 - the case of a variable counts
    return app


async def is_missing(app: Server, uri: str) -> bool:
    try:
        await read(app, uri)
    except MCPError:
        return True
    return False


# Entry points of a server


async def remove_resource(uri: str) -> None:
    app = make_notes()
    app.remove_resource(uri)
    assert await is_missing(app, URI)


async def disable_and_enable(uri: str) -> None:
    app = make_notes()
    app.disable(uri)
    assert await is_missing(app, URI)
    app.enable(uri)
    assert await read(app, URI) == "the note"


async def read_fixed_resource(uri: str) -> None:
    assert await read(make_notes(), uri) == "the note"


async def read_by_template(uri: str) -> None:
    assert await read(make_notes(fixed=False, template=True), uri) == "note to-do"


async def restrict_resource(uri: str) -> None:
    app = make_notes()
    app.restrict(uri, visible_to=lambda principal: False)
    assert await is_missing(app, URI)


async def read_restricted_resource(uri: str) -> None:
    app = make_notes()
    app.restrict(URI, visible_to=lambda principal: False)
    assert await is_missing(app, uri)


async def cache_responses(uri: str) -> None:
    values = iter("abc")
    app = Server("notes", middleware=[ResponseCache([URI], shared=True)])
    app.add_resource(lambda: next(values), URI)
    assert [await read(app, uri) for _ in range(2)] == ["a", "a"]
    app.notify_resource_updated(URI)
    assert await read(app, uri) == "b"


async def listen(app: Server, uri: str, notify: Callable[[], None]) -> list[str]:
    """Return the URIs of the notices after one update."""
    notices: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def emit(data: bytes) -> None:
        notices.put_nowait(decode(data))

    listening = exchange("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}})
    listening.emit = emit
    task = asyncio.create_task(get_dispatcher(app).handle(listening))
    async with asyncio.timeout(TIMEOUT_S):
        acknowledged = await notices.get()
        assert acknowledged["params"]["notifications"]["resourceSubscriptions"] == [uri]
        notify()
        notice = await notices.get()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [notice["params"]["uri"]]


async def listen_to_resource(uri: str) -> None:
    app = make_notes()
    assert await listen(app, uri, lambda: app.notify_resource_updated(URI)) == [uri]


async def notify_of_update(uri: str) -> None:
    app = make_notes()
    assert await listen(app, URI, lambda: app.notify_resource_updated(uri)) == [URI]


async def subscribe_in_session(uri: str) -> None:
    app = make_notes()
    async with (
        asyncio.timeout(TIMEOUT_S),
        Client(app, protocol_version=HANDSHAKE) as client,
        client.listen(tools=False, prompts=False, resources=False, uris=[uri]) as changes,
    ):
        app.notify_resource_updated(URI)
        assert (await anext(aiter(changes))).uri == uri


# Entry points of mounts


def mounted(*, is_remote: bool, **options: Any) -> tuple[Server, Server]:
    app, inner = Server("outer"), make_notes()
    app.mount(Client(inner) if is_remote else inner, "in", **options)
    return app, inner


async def read_mounted_resource(uri: str) -> None:
    for is_remote in (False, True):
        app, _ = mounted(is_remote=is_remote)
        for prefix in ("in+", "IN+"):
            assert await read(app, prefix + uri) == "the note"
        await app.stop()


async def read_renamed_resource(uri: str) -> None:
    for is_remote in (False, True):
        app, _ = mounted(is_remote=is_remote, transforms={URI: Transform(name="moved://Here/x")})
        for moved in ("in+moved://Here/x", "IN+MOVED://here/%78"):
            assert await read(app, moved) == "the note"
        assert await is_missing(app, f"in+{uri}")
        await app.stop()


async def read_hidden_resource(uri: str) -> None:
    for is_remote in (False, True):
        app, _ = mounted(is_remote=is_remote, transforms={URI: Transform(hide=True)})
        assert await is_missing(app, f"in+{uri}")
        await app.stop()


async def listen_to_mounted_resource(uri: str) -> None:
    for is_remote in (False, True):
        app, inner = mounted(is_remote=is_remote)
        outer_uri = f"IN+{uri}"

        def notify(inner: Server = inner) -> None:
            inner.notify_resource_updated(URI)

        assert await listen(app, outer_uri, notify) == [outer_uri]
        await app.stop()


async def subscription_that_the_server_spells_differently(uri: str) -> None:
    """A mounted server may acknowledge a URI in another spelling."""

    class Target:
        name, is_remote = "far", True

        async def watch_resources(self, uris: list[str], principal: Any) -> ResourceWatch:
            return ResourceWatch([URI], lambda: None)

    mount = Mount(Target(), NameMap("in", {}, ()), lambda: None)  # type: ignore[arg-type]
    subscriptions = RemoteSubscriptions([mount], None, lambda uri: None)  # type: ignore[arg-type]
    assert await subscriptions.open(RemoteSubscription([f"in+{uri}"], None)) == {f"in+{uri}"}


# Entry points of a client, a host and a gateway


async def unsubscribe_client(uri: str) -> None:
    """The client ends a subscription in the spelling that the server knows."""
    requests: list[tuple[str, str]] = []

    def record(message: dict[str, Any]) -> dict[str, Any]:
        requests.append((message["method"], message["params"]["uri"]))
        return {}

    script = ScriptedServer("handshake", {"resources/subscribe": record, "resources/unsubscribe": record})
    async with serve_on_socket(script) as target, Client(target, protocol_version=HANDSHAKE) as client:
        async with asyncio.timeout(TIMEOUT_S):
            await client.subscribe_resource(URI)
            async with client.listen(tools=False, prompts=False, resources=False, uris=[uri]):
                pass
            await client.unsubscribe_resource(uri)
    assert requests[0] == ("resources/subscribe", URI)
    assert {sent for _, sent in requests} == {URI}
    assert [method for method, _ in requests].count("resources/unsubscribe") == 1


async def decide_by_policy(uri: str) -> None:
    for action in ("deny", "hide", "ask"):
        policy = Policy("allow", [rule(action, tool=URI)])
        assert policy.decide(PolicyRequest(server="far", tool=uri, kind="resource.read")).action == action


async def find_grant(uri: str) -> None:
    for scope in ("session", "always"):
        store = GrantStore()
        stored = PolicyRequest(server="far", tool=URI, kind="resource.read", server_identity="id")
        store.add(Grant.from_request(stored, "", scope=scope))  # type: ignore[arg-type]
        requested = PolicyRequest(server="far", tool=uri, kind="resource.read", server_identity="id")
        assert store.find(requested, "") is not None
        assert store.revoke(tool=uri) == 1
        assert store.find(requested, "") is None


async def read_through_gateway(uri: str) -> None:
    async with Host(policy=Policy("allow")) as host:
        host.add("far", make_notes())
        app = host.as_server()
        async with asyncio.timeout(TIMEOUT_S):
            for prefix in ("far+", "FAR+"):
                assert await read(app, prefix + uri) == "the note"
        await app.stop()


async def read_denied_through_gateway(uri: str) -> None:
    async with Host(policy=Policy("allow", [rule("deny", tool=URI)])) as host:
        host.add("far", make_notes())
        app = host.as_server()
        async with asyncio.timeout(TIMEOUT_S):
            assert await is_missing(app, f"FAR+{uri}")
        await app.stop()


EntryPoint = Callable[[str], Awaitable[None]]

URI_ENTRY_POINTS: list[EntryPoint] = [
    remove_resource,
    disable_and_enable,
    read_fixed_resource,
    read_by_template,
    restrict_resource,
    read_restricted_resource,
    cache_responses,
    listen_to_resource,
    notify_of_update,
    subscribe_in_session,
    read_mounted_resource,
    read_renamed_resource,
    read_hidden_resource,
    listen_to_mounted_resource,
    subscription_that_the_server_spells_differently,
    unsubscribe_client,
    decide_by_policy,
    find_grant,
    read_through_gateway,
    read_denied_through_gateway,
]


@pytest.mark.parametrize("uri", SPELLINGS)
@pytest.mark.parametrize("entry_point", URI_ENTRY_POINTS, ids=lambda entry_point: entry_point.__name__)
async def test_equivalent_uris_are_the_same(entry_point: EntryPoint, uri: str) -> None:
    await entry_point(uri)


# Templates


async def complete(app: Server, template: str) -> list[str]:
    params = {"ref": {"type": "ref/resource", "uri": template}, "argument": {"name": "Name", "value": ""}}
    return (await request(app, "completion/complete", params))["completion"]["values"]


def make_completed(template: str = TEMPLATE) -> Server:
    app = make_notes(fixed=False, template=True)
    app.completion(template, "Name")(lambda value: ["one", "two"])
    return app


async def register_completion(template: str) -> None:
    assert await complete(make_completed(template), TEMPLATE) == ["one", "two"]


async def complete_template(template: str) -> None:
    assert await complete(make_completed(), template) == ["one", "two"]


async def remove_template(template: str) -> None:
    app = make_notes(template=True, fixed=False)
    app.remove_resource(template)
    assert await is_missing(app, URI)


async def complete_mounted_template(template: str) -> None:
    for is_remote in (False, True):
        for prefix in ("", "in"):
            app, inner = Server("outer"), make_completed()
            app.mount(Client(inner) if is_remote else inner, prefix)
            outer_prefixes = ("in+", "IN+") if prefix else ("",)
            for outer_prefix in outer_prefixes:
                assert await complete(app, outer_prefix + template) == ["one", "two"]
            await app.stop()


async def complete_renamed_template(template: str) -> None:
    app = Server("outer")
    app.mount(make_completed(), "in", transforms={TEMPLATE: Transform(name="moved://x/{Name}")})
    assert await complete(app, "IN+MOVED://X/{Name}") == ["one", "two"]
    with pytest.raises(MCPError):
        await complete(app, f"in+{template}")


async def complete_through_gateway(template: str) -> None:
    async with Host(policy=Policy("allow")) as host:
        host.add("far", make_completed())
        app = host.as_server()
        async with asyncio.timeout(TIMEOUT_S):
            assert await complete(app, f"FAR+{template}") == ["one", "two"]
        await app.stop()


TEMPLATE_ENTRY_POINTS: list[EntryPoint] = [
    register_completion,
    complete_template,
    remove_template,
    complete_mounted_template,
    complete_renamed_template,
    complete_through_gateway,
]


@pytest.mark.parametrize("template", TEMPLATE_SPELLINGS)
@pytest.mark.parametrize("entry_point", TEMPLATE_ENTRY_POINTS, ids=lambda entry_point: entry_point.__name__)
async def test_equivalent_templates_are_the_same(entry_point: EntryPoint, template: str) -> None:
    await entry_point(template)


@pytest.mark.parametrize("uri", SPELLINGS)
def test_equivalent_uris_have_one_key(uri: str) -> None:
    assert uri_key(uri) == template_key(uri) == URI


@pytest.mark.parametrize("template", TEMPLATE_SPELLINGS)
def test_equivalent_templates_have_one_key(template: str) -> None:
    assert template_key(template) == TEMPLATE


def test_the_variables_of_a_template_are_case_sensitive() -> None:
    assert template_key("NOTES://{Host}/{+Path}{?Query*}") == "notes://{Host}/{+Path}{?Query*}"
    assert template_key("notes://{host}") != template_key("notes://{Host}")


async def test_links_to_web_pages_keep_their_scheme_in_every_spelling() -> None:
    inner, app = Server("inner"), Server("outer")
    inner.add_tool(lambda: ResourceLink(uri="HTTPS://example.com/", name="page"), name="link")
    app.mount(inner, "in")
    result = await request(app, "tools/call", {"name": "in_link"})
    assert result["content"][0]["uri"] == "HTTPS://example.com/"


async def test_resources_of_another_uri_are_not_found() -> None:
    with pytest.raises(ResourceNotFound):
        await read(make_notes(), "notes://desk/To-do")

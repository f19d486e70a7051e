"""Test that no spelling of a URI evades a rule."""

from typing import Any
from urllib.parse import urlsplit

import pytest

from dovetail import Client, MCPError, Policy, PolicyError, ResourceContents, Server, rule
from dovetail.host.host import Host
from dovetail.host.policy.policy import PolicyRequest
from dovetail.types import ReadResourceResult

SECRET = [
    "file:///srv/secret/key",
    "FILE:///srv/secret/key",
    "file:/srv/secret/key",
    "file:srv/secret/key",
    "file:////srv/secret/key",
    "file://localhost/srv/secret/key",
    "file://LOCALHOST/srv/secret/key",
    "file://127.0.0.1/srv/secret/key",
    "file://[::1]/srv/secret/key",
    "file://other.example/srv/secret/key",
    " file:///srv/secret/key",
    "\x01file:///srv/secret/key",
    "fi\tle:///srv/secret/key",
    "file:///srv/se\tcret/key",
    "file:///srv/se\ncret/key",
    "file:///srv/se\rcret/key",
    "file:///srv//secret//key",
    "file:///srv/%73ecret/key",
    "file:///srv/secret%2Fkey",
    "file:///srv/%2573ecret/key",
    "file:///srv/docs/../secret/key",
    "file:///srv/docs/%2e%2e/secret/key",
    "file:///srv/docs/..%2fsecret/key",
    "file:///srv/docs/.\t./secret/key",
    "file:///srv/docs\\..\\secret\\key",
    "file:\\\\\\srv\\secret\\key",
    "file:///srv/secret//../key",
    "file:///srv/secret/key/",
    "file:///srv/secret/key?x",
    "file:///srv/secret/key#x",
]


def verdict(policy: Policy, uri: str, kind: str = "resource.read") -> str:
    return policy.decide(PolicyRequest(server="fs", tool=uri, kind=kind)).action


@pytest.mark.parametrize("uri", SECRET)
@pytest.mark.parametrize(
    "glob",
    [
        "file:///srv/secret/*",
        "file:///srv/secret/key",
        "file:/srv/secret/*",
        "file://localhost/srv/secret/*",
        "fs.file:///srv/secret/*",
        "file:///srv/s%65cret/*",
        "*/secret/*",
    ],
)
def test_no_spelling_evades_a_rule_that_tightens(uri: str, glob: str) -> None:
    for one in ("ask", "deny", "hide"):
        assert verdict(Policy("allow", [rule(one, tool=glob)]), uri) == one
    assert verdict(Policy("allow", [rule("deny", tool=glob)]), "file:///srv/docs/a") == "allow"


@pytest.mark.parametrize(
    ("glob", "uri"),
    [
        ("https://evil.example/*", "https://evil.example"),
        ("https://evil.example/*", "https:evil.example/a"),
        ("https://evil.example/*", "https:\\\\evil.example\\a"),
        ("https://evil.example/*", "https://evil.example./a"),
        ("https://evil.example/*", "https://evil.example:443/a"),
        ("https://evil.example:443/*", "https://evil.example/a"),
        ("https://evil.example/*", "https://someone@evil.example/a"),
        ("https://evil.example/*", "https://evil\u3002example/a"),
        ("notes://private", "NOTES:///privat%65"),
        ("notes:private", "notes://private"),
        ("notes://private", "notes://private?x=1"),
        ("https://evil.example/a", "https://evil.example/a?x=1"),
        ("file://server/share/*", "file://someone@server:445/share/a"),
        ("urn:isbn:*", "URN:%69sbn:1"),
    ],
)
def test_other_schemes_have_spellings_too(glob: str, uri: str) -> None:
    assert verdict(Policy("allow", [rule("deny", tool=glob)]), uri) == "deny"


@pytest.mark.parametrize(
    ("glob", "uri", "other"),
    [
        ("file:///srv/%5Bsecret%5D/*", "file:///srv/[secret]/key", "file:///srv/s/key"),
        ("file:///srv/%5bsecret%5d/*", "file:///srv/%5Bsecret%5D/key", "file:///srv/s/key"),
        ("file:///srv/[[]secret]/*", "file:///srv/%5Bsecret%5D/key", "file:///srv/s/key"),
        ("file:///srv/[%73]/*", "file:///srv/s/key", "file:///srv/t/key"),
        ("file:///srv/%2A/key", "file:///srv/*/key", "file:///srv/docs/key"),
        ("file:///srv/a%3F", "file:///srv/a%3f", "file:///srv/ab"),
        ("file:///srv/caf\u00e9/*", "file:///srv/cafe%CC%81/key", "file:///srv/cafe/key"),
        ("file:///srv/cafe\u0301/*", "file:///srv/caf%C3%A9/key", "file:///srv/cafe/key"),
        ("file:///srv/cafe%CC%81/*", "file:///srv/caf\u00e9/key", "file:///srv/cafe/key"),
        ("http://[::1]/*", "http://[::1]:80/key", "http://[::2]/key"),
    ],
)
def test_a_glob_may_be_spelled_in_other_ways_too(glob: str, uri: str, other: str) -> None:
    policy = Policy("allow", [rule("deny", tool=glob)])
    assert verdict(policy, uri) == "deny"
    assert verdict(policy, other) == "allow"


def test_a_uri_too_long_to_read_is_never_allowed() -> None:
    uri = "notes://public/" + "%25" * 3000
    assert verdict(Policy("deny", [rule("allow", tool="notes://public/*")]), uri) == "hide"
    assert verdict(Policy("allow", [rule("deny", tool="notes://private/*")]), uri) == "hide"


DATABASE = [
    "db://prod/users",
    "DB://PROD/users",
    "db://someone@prod/users",
    "db://someone:password@prod/users",
    "db://someone%40prod/users",
    "db://prod:5432/users",
    "db://prod%3A5432/users",
    "db://prod:/users",
    "db://prod.:5432/users",
    "db://a@b@prod:5432/users",
    "db:prod:5432/users",
    "db:/prod:5432/users",
    "db:///someone@prod/users",
    "db://prod/users?x=1",
    "db://prod/users#x",
    "db://prod/x/../users",
    "db://prod//users/",
]


@pytest.mark.parametrize("uri", DATABASE)
@pytest.mark.parametrize("glob", ["db://prod/*", "db://prod/users", "fs.db://prod/*", "db://p%72od/users"])
def test_no_user_or_port_evades_a_rule_about_a_host(uri: str, glob: str) -> None:
    for one in ("ask", "deny", "hide"):
        assert verdict(Policy("allow", [rule(one, tool=glob)]), uri) == one
    for other in ("db://test/users", "db://prod@test/users", "db://test:5432/users", "db://prod.example/users"):
        assert verdict(Policy("allow", [rule("deny", tool=glob)]), other) == "allow"


async def test_a_server_that_reads_by_the_host_name_keeps_its_secret() -> None:
    app = Server("database")
    app.add_resource(lambda rest: urlsplit(f"db://{rest}").hostname, "db://{+rest}")
    async with Host(policy=Policy("allow", [rule("deny", tool="db://prod/*")])) as host:
        host.add("db", app)
        for uri in DATABASE:
            with pytest.raises((PolicyError, MCPError)):
                await host.read_resource("db", uri)
        assert (await host.read_resource("db", "db://someone@test:5432/users")).contents[0].text == "test"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("file:///srv/docs/a.txt", "allow"),
        ("file:///srv/docs/a%20b/100%25", "allow"),
        ("file:///srv/docs/a b", "deny"),
        ("file:///srv/docs/.\t./secret/key", "deny"),
        ("file:///srv/docs/.\n./secret/key", "deny"),
        ("file:///srv/docs/.%09./secret/key", "deny"),
        ("file:///srv/docs/..\\secret\\key", "deny"),
        ("file:///srv/docs/a\x7f", "deny"),
        ("FILE:///srv/docs/a.txt", "deny"),
        ("file:/srv/docs/a.txt", "deny"),
    ],
)
def test_a_rule_that_allows_means_it_exactly(uri: str, expected: str) -> None:
    assert verdict(Policy("deny", [rule("allow", tool="file:///srv/docs/*")]), uri) == expected


@pytest.mark.parametrize(
    ("glob", "uri", "expected"),
    [
        ("https://*.good.example/*", "https://a.good.example/b/c", "allow"),
        ("https://*.good.example/*", "https://evil.example/.good.example/", "deny"),
        ("https://*.good.example/*", "https://evil.example?.good.example/", "deny"),
        ("https://*.good.example/*", "https://evil.example#.good.example/", "deny"),
        ("https://*.good.example/*", "https://evil.example\\.good.example/", "deny"),
        ("https://*.good.example/*", "https://evil.example%2F.good.example/", "deny"),
        ("https://*.good.example/*", "https://evil.example\uff0f.good.example/", "deny"),
        ("https://*.good.example", "https://evil.example/.good.example", "deny"),
        ("notes://*", "notes://a/b", "allow"),
        ("*/srv/*", "file:///srv/a.txt", "allow"),
        ("memo:*", "memo:a", "allow"),
        ("memo:*", "memo:../a", "deny"),
    ],
)
def test_an_allowed_host_does_not_match_a_path(glob: str, uri: str, expected: str) -> None:
    assert verdict(Policy("deny", [rule("allow", tool=glob)]), uri) == expected


def test_names_that_are_no_uris_are_what_they_were() -> None:
    policy = Policy("deny", [rule("allow", tool="Review: code", kind=["prompt.get", "tool.call"])])
    for kind in ("prompt.get", "tool.call"):
        assert verdict(policy, "Review: code", kind) == "allow"


def lenient() -> Server:
    """A server that reads what it is asked for, however that is spelled."""
    app = Server("files")
    app.add_resource(lambda path: path, "file:///{+path}")

    @app.middleware
    async def read(exchange: Any, call_next: Any) -> Any:
        if exchange.method != "resources/read":
            return await call_next(exchange)
        return ReadResourceResult(contents=[ResourceContents(uri="file:///x", text="read")])

    return app


async def test_reading_by_the_host_and_by_a_gateway() -> None:
    async with Host(policy=Policy("allow", [rule("deny", tool="file:///srv/secret/*")])) as host:
        host.add("fs", lenient())
        app = host.as_server()
        async with Client(app) as client:
            for uri in SECRET:
                with pytest.raises(PolicyError):
                    await host.read_resource("fs", uri)
                with pytest.raises(MCPError):
                    await client.read_resource(f"fs+{uri}")
            assert (await host.read_resource("fs", "file:///srv/docs/a")).contents[0].text == "read"
            assert (await client.read_resource("fs+file:///srv/docs/a")).contents[0].text == "read"
            async with client.listen(uris=[f"fs+{uri}" for uri in SECRET]) as listening:
                assert listening.acknowledged_filter is not None
                assert not listening.acknowledged_filter.resource_subscriptions
        await app.stop()

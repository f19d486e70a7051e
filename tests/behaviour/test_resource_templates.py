"""Test listing and matching resource templates, and path traversal attempts."""

from datetime import date
from typing import Literal

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import expect_error
from dovetail import Annotations, Server
from support.driver import STATELESS, connect


def server() -> Server:
    app = Server("city")

    @app.resource(
        "city://{name}/profile",
        name="profile",
        title="Profile",
        mime_type="text/plain",
        annotations=Annotations(priority=0.5),
        meta={"com.example/m": True},
    )
    def profile(name: str) -> str:
        """Who lives there."""
        return f"profile of {name}"

    @app.resource("city://{name}/days/{day}{?unit,limit}")
    def day(name: str, day: date, unit: Literal["C", "F"] = "C", limit: int = 3) -> str:
        return f"{name} {day:%d.%m.} {unit} {limit}"

    @app.resource("disk:///{+path}")
    def disk(path: str) -> str:
        return f"file {path}"

    @app.resource("list://{ids*}")
    def several(ids: list[int]) -> str:
        return str(sum(ids))

    return app


async def read(app: Server, uri: str, transport: str = "memory", revision: str = STATELESS) -> str:
    async with connect(app, transport, revision) as peer:
        (content,) = (await peer.request("resources/read", {"uri": uri}))["contents"]
        assert content["uri"] == uri
        return content["text"]


@requirement("templates.declaration")
async def test_templates_have_a_list_of_their_own(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        listed = (await peer.request("resources/templates/list"))["resourceTemplates"]
        assert (await peer.request("resources/list"))["resources"] == []
    expected = {
        "uriTemplate": "city://{name}/profile",
        "name": "profile",
        "description": "Who lives there.",
        "mimeType": "text/plain",
        "annotations": {"priority": 0.5},
    }
    if revision not in ("2024-11-05", "2025-03-26"):
        expected |= {"title": "Profile", "_meta": {"com.example/m": True}}
    assert listed[0] == expected
    assert [one["uriTemplate"] for one in listed[1:]] == [
        "city://{name}/days/{day}{?unit,limit}",
        "disk:///{+path}",
        "list://{ids*}",
    ]


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("city://Oslo/profile", "profile of Oslo"),
        ("city://S%C3%A3o%20Paulo/profile", "profile of S\u00e3o Paulo"),
        ("city://a%2Cb%25/profile", "profile of a,b%"),
        ("city://Oslo/days/2025-01-31", "Oslo 31.01. C 3"),
        ("city://Oslo/days/2025-01-31?unit=F", "Oslo 31.01. F 3"),
        ("city://Oslo/days/2025-01-31?limit=9&unit=F", "Oslo 31.01. F 9"),
        ("disk:///a/b/c.txt", "file a/b/c.txt"),
        ("disk:///.hidden/..x/y..", "file .hidden/..x/y.."),
        ("list://1,2,39", "42"),
    ],
)
@requirement("templates.match")
async def test_variables_reach_the_function_in_its_types(uri: str, said: str, revision: str, transport: str) -> None:
    assert await read(server(), uri, transport, revision) == said


@pytest.mark.parametrize(
    "uri",
    [
        "city:///profile",
        "city://Oslo/profile/",
        "city://Oslo/x/profile",
        "city://Oslo/days/yesterday",
        "city://Oslo/days/2025-13-01",
        "city://Oslo/days/2025-01-31?unit=K",
        "city://Oslo/days/2025-01-31?limit=many",
        "city://Oslo/profile#part",
        "disk:///",
        "list://1,two",
    ],
)
@requirement("templates.misfit")
async def test_a_variable_that_does_not_fit_names_nothing(uri: str, revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        error = await expect_error(peer.request("resources/read", {"uri": uri}))
        assert error.code == (-32602 if revision == STATELESS else -32002)
        assert error.data == {"uri": uri}


@requirement("resources.spellings")
async def test_every_equivalent_spelling_reads_the_same(revision: str, transport: str) -> None:
    app = server()
    app.add_resource(lambda: "fixed", "city://oslo/fixed/%C3%A9")
    for uri in ("city://oslo/fixed/%C3%A9", "CITY://OSLO/fixed/%c3%A9", "city://%6Fslo/f%69xed/%C3%A9"):
        assert await read(app, uri, transport, revision) == "fixed"
    assert await read(app, "CITY://Oslo/profile", transport, revision) == "profile of Oslo"
    assert await read(app, "city://%4Fslo/pr%6Ffile", transport, revision) == "profile of Oslo"


@requirement("templates.precedence")
async def test_the_nearest_description_of_a_uri_counts() -> None:
    app = Server("precedence")
    app.add_resource(lambda rest: f"general {rest}", "a://{+rest}")
    app.add_resource(lambda name: f"of {name}", "a://x/{name}")
    app.add_resource(lambda name: f"special {name}", "a://x/y-{name}")
    app.add_resource(lambda: "fixed", "a://x/y-fixed")
    assert await read(app, "a://x/y-fixed") == "fixed"
    assert await read(app, "a://x/y-z") == "special z"
    assert await read(app, "a://x/z") == "of z"
    assert await read(app, "a://x/z/w") == "general x/z/w"
    app.remove_resource("a://x/y-fixed")
    assert await read(app, "a://x/y-fixed") == "special fixed"


@pytest.mark.parametrize(
    "path",
    [
        "../etc/passwd",
        "a/../../etc/passwd",
        "a/..",
        "..",
        ".",
        "a/./b",
        "%2e%2e/etc/passwd",
        "%2E%2E%2Fetc%2Fpasswd",
        "a/%2e%2E/b",
        "..%2fetc",
        "..%5cetc",
        "..\\etc",
        "a\\..\\b",
        "/etc/passwd",
        "%2Fetc/passwd",
        "C:/Windows",
        "c%3A/Windows",
        "a%00b",
        "\x00",
        "%ff%fe",
    ],
)
@requirement("templates.traversal", revisions=("2025-11-25", STATELESS))
async def test_no_path_climbs_out(path: str, revision: str) -> None:
    async with connect(server(), "memory", revision) as peer:
        for uri in (f"disk:///{path}", f"city://{path}/profile"):
            error = await expect_error(peer.request("resources/read", {"uri": uri}))
            assert error.code == (-32602 if revision == STATELESS else -32002), uri


@requirement("templates.traversal", revisions=(STATELESS, "2025-06-18"), transports=("http",))
async def test_no_path_climbs_out_over_http(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for path in ("../etc/passwd", "%2e%2e/etc/passwd", "a/%2e%2e/b", "..%5cetc", "/etc/passwd"):
            error = await expect_error(peer.request("resources/read", {"uri": f"disk:///{path}"}))
            assert error.code == (-32602 if revision == STATELESS else -32002), path

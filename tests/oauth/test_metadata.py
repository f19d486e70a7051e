"""Test metadata documents: their locations, their order and invalid ones."""

import contextlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import LoginFailed
from dovetail.oauth.flow import FetchResponse
from dovetail.oauth.metadata import (
    AuthorizationServerMetadata,
    ProtectedResourceMetadata,
    check_resource,
    discover_fallback_server,
    fetch_resource_metadata,
    fetch_server_metadata,
    is_secure_url,
    parse_web_url,
)
from oauth.flow_environment import (
    ISSUER,
    RESOURCE_METADATA_URL,
    SERVER,
    SERVER_METADATA_URL,
    FlowEnvironment,
    json_answer,
    resource_metadata,
    server_metadata,
)

# The protected resource


@pytest.mark.parametrize(
    ("url", "places"),
    [
        (
            "https://a.example/mcp",
            ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"],
        ),
        ("https://a.example/", ["/.well-known/oauth-protected-resource"]),
        ("https://a.example", ["/.well-known/oauth-protected-resource"]),
        (
            "https://a.example/x/mcp/",
            ["/.well-known/oauth-protected-resource/x/mcp", "/.well-known/oauth-protected-resource"],
        ),
    ],
)
def test_the_well_known_places_of_a_resource(url: str, places: list[str]) -> None:
    world = FlowEnvironment()
    assert world.run_flow(fetch_resource_metadata(url, None)) is None
    assert world.urls == ["https://a.example" + place for place in places]


def test_the_place_named_comes_first_and_is_enough() -> None:
    world = FlowEnvironment({"https://mcp.example.com/here": resource_metadata()})
    assert world.run_flow(fetch_resource_metadata(SERVER, "https://mcp.example.com/here")).resource == SERVER
    assert world.urls == ["https://mcp.example.com/here"]


def test_a_named_place_where_nothing_is_does_not_end_the_search() -> None:
    world = FlowEnvironment({RESOURCE_METADATA_URL: resource_metadata()})
    assert world.run_flow(fetch_resource_metadata(SERVER, "https://proxy.internal/here")).resource == SERVER


@pytest.mark.parametrize(
    "bad", [json_answer([]), json_answer({"resource": 7}), FetchResponse(200, {}, b"<html>"), json_answer({}, 500)]
)
def test_an_invalid_document_is_skipped(bad: FetchResponse) -> None:
    root = "https://mcp.example.com/.well-known/oauth-protected-resource"
    world = FlowEnvironment({RESOURCE_METADATA_URL: bad, root: resource_metadata(resource="https://mcp.example.com")})
    assert world.run_flow(fetch_resource_metadata(SERVER, None)).resource == "https://mcp.example.com"


@pytest.mark.parametrize(
    "bad",
    [
        json_answer([]), json_answer({"resource": 7}), json_answer({}), FetchResponse(200, {}, b"<html>"),
        FetchResponse(204),
        FetchResponse(307, {"location": RESOURCE_METADATA_URL + "/x"}), FetchResponse(302),
        FetchResponse(429), FetchResponse(408), FetchResponse(503),
    ],
)  # fmt: skip
def test_what_may_be_a_document_is_not_taken_for_none(bad: FetchResponse) -> None:
    """Else whoever gets a server to answer so once would have logins go by the rules of 2025-03."""
    with pytest.raises(LoginFailed, match=re.escape(RESOURCE_METADATA_URL)):
        FlowEnvironment({RESOURCE_METADATA_URL: bad}).run_flow(fetch_resource_metadata(SERVER, None))
    old = "https://mcp.example.com/.well-known/oauth-authorization-server"
    with pytest.raises(LoginFailed, match=re.escape(old)):
        FlowEnvironment({old: bad}).run_flow(discover_fallback_server(SERVER))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410])
def test_a_server_may_say_that_there_is_none(status: int) -> None:
    assert (
        FlowEnvironment({RESOURCE_METADATA_URL: FetchResponse(status)}).run_flow(fetch_resource_metadata(SERVER, None))
        is None
    )


def test_unused_metadata_may_have_any_type() -> None:
    odd = resource_metadata(scopes_supported="read", dpop_bound_access_tokens_required="x", x=[])
    assert FlowEnvironment({RESOURCE_METADATA_URL: odd}).run_flow(
        fetch_resource_metadata(SERVER, None)
    ) == ProtectedResourceMetadata(SERVER, [ISSUER])
    odd = server_metadata(scopes_supported=7, registration_endpoint=[], userinfo_endpoint={})
    found = FlowEnvironment({SERVER_METADATA_URL: odd}).run_flow(fetch_server_metadata(ISSUER))
    assert (found.issuer, found.scopes_supported, found.registration_endpoint) == (ISSUER, None, None)


@pytest.mark.parametrize(
    "said",
    [SERVER, SERVER + "/", "https://mcp.example.com", "https://MCP.example.com/", "https://mcp.example.com:443/mcp"],
)
def test_a_resource_that_is_the_server_or_holds_it(said: str) -> None:
    assert check_resource(ProtectedResourceMetadata(said), SERVER).resource == said


@pytest.mark.parametrize(
    "said",
    [
        "https://evil.example/mcp",
        "http://mcp.example.com/mcp",
        "https://mcp.example.com:8443/mcp",
        "https://mcp.example.com/mc",
        "https://mcp.example.com/mcp/more",
        "https://mcp.example.com.evil.example/mcp",
        "https://mcp.example.com@evil.example/mcp",
        "https://mcp.example.com:x/mcp",
        "https://[::1/mcp",
        "https:///mcp",
        "mcp.example.com",
        "",
    ],
)
def test_a_resource_that_is_another(said: str) -> None:
    with pytest.raises(LoginFailed) as refused:
        check_resource(ProtectedResourceMetadata(said), SERVER)
    assert said in str(refused.value)
    assert said in str(refused.value.hint)


# The authorization server


@pytest.mark.parametrize(
    ("issuer", "places"),
    [
        (
            "https://a.example",
            ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"],
        ),
        (
            "https://a.example/t1",
            [
                "/.well-known/oauth-authorization-server/t1",
                "/.well-known/openid-configuration/t1",
                "/t1/.well-known/openid-configuration",
            ],
        ),
        (
            "https://a.example/t1/",
            [
                "/.well-known/oauth-authorization-server/t1",
                "/.well-known/openid-configuration/t1",
                "/t1/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_the_well_known_places_of_an_authorization_server(issuer: str, places: list[str]) -> None:
    world = FlowEnvironment()
    assert world.run_flow(fetch_server_metadata(issuer)) is None
    assert world.urls == ["https://a.example" + place for place in places]
    for place in places:
        assert (
            FlowEnvironment({"https://a.example" + place: server_metadata(issuer)})
            .run_flow(fetch_server_metadata(issuer))
            .issuer
            == issuer
        )


@pytest.mark.parametrize("said", [ISSUER + "/", ISSUER.upper(), ISSUER + ":443", "https://evil.example", ""])
def test_an_issuer_is_compared_to_the_letter(said: str) -> None:
    with pytest.raises(LoginFailed, match=f"{re.escape(ISSUER)}.*{re.escape(said)}"):
        FlowEnvironment({SERVER_METADATA_URL: server_metadata() | {"issuer": said}}).run_flow(
            fetch_server_metadata(ISSUER)
        )


def test_a_document_cannot_say_that_it_is_none() -> None:
    """What we make up for servers without documents is not checked for PKCE."""
    assert (
        FlowEnvironment({SERVER_METADATA_URL: server_metadata(assumed=True)})
        .run_flow(fetch_server_metadata(ISSUER))
        .assumed
        is False
    )


# Without resource metadata: the rules of 2025-03


def test_a_server_without_any_document_has_default_places() -> None:
    world = FlowEnvironment()
    assert world.run_flow(discover_fallback_server(SERVER)) == AuthorizationServerMetadata(
        issuer="https://mcp.example.com",
        authorization_endpoint="https://mcp.example.com/authorize",
        token_endpoint="https://mcp.example.com/token",
        registration_endpoint="https://mcp.example.com/register",
        assumed=True,
    )
    assert world.urls == ["https://mcp.example.com/.well-known/oauth-authorization-server"]


@pytest.mark.parametrize("issuer", ["https://mcp.example.com", "https://mcp.example.com/"])
def test_a_server_may_be_its_own_authorization_server(issuer: str) -> None:
    found = server_metadata(issuer, assumed=True)
    place = "https://mcp.example.com/.well-known/oauth-authorization-server"
    assert FlowEnvironment({place: found}).run_flow(discover_fallback_server(SERVER)).issuer == issuer


@pytest.mark.parametrize("issuer", [ISSUER, "https://mcp.example.com/mcp", "https://mcp.example.com//"])
def test_a_server_cannot_speak_for_another_issuer(issuer: str) -> None:
    """Credentials are kept by issuer: whoever could claim one would be shown them."""
    place = "https://mcp.example.com/.well-known/oauth-authorization-server"
    with pytest.raises(LoginFailed, match=rf"https://mcp\.example\.com.*{re.escape(issuer)}"):
        FlowEnvironment({place: server_metadata(issuer)}).run_flow(discover_fallback_server(SERVER))


# Addresses


@pytest.mark.parametrize("url", ["https://a.example/x", "http://localhost:1/", "http://127.0.0.1/", "http://[::1]:9/x"])
def test_where_credentials_may_go(url: str) -> None:
    assert is_secure_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/", "http://127.0.0.2/", "http://localhost.evil.example/", "ftp://localhost/", "file:///etc/x",
        "javascript:alert(1)", "https://", "https:///x", "//a.example/", "https://a.example:0/", "https://a.example:x/",
        "https://[::1/", "", "http://[::1].evil.example/", "http://[::1]x:80/",
    ],
)  # fmt: skip
def test_where_credentials_may_not_go(url: str) -> None:
    assert not is_secure_url(url)


URLS = st.one_of(
    st.text(),
    st.builds("{}://{}:{}/{}".format, st.sampled_from(["http", "https", "x"]), st.text(), st.text(), st.text()),
    st.builds("https://[{}]/".format, st.text()),
)


@given(URLS)
def test_no_address_is_too_odd(url: str) -> None:
    assert parse_web_url(url) is None or not is_secure_url(url) or url.lower().lstrip().startswith("http")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["resource", "authorization_servers", "scopes_supported", "issuer", "token_endpoint", "x"])


@given(st.dictionaries(FIELDS, JSON | st.lists(URLS)))
def test_no_document_is_too_odd(document: dict[str, Any]) -> None:
    """Whatever a server publishes, the search ends with a document, with nothing, or with a refusal."""
    world = FlowEnvironment({RESOURCE_METADATA_URL: document, SERVER_METADATA_URL: document})
    for flow in (
        fetch_resource_metadata(SERVER, None),
        fetch_server_metadata(ISSUER),
        discover_fallback_server(SERVER),
    ):
        with contextlib.suppress(LoginFailed):
            world.run_flow(flow)

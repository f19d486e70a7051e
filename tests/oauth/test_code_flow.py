"""Test the authorization code flow with PKCE: its requests, the expected responses and its errors."""

import hashlib
import re
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey

from dovetail.errors import LoginFailed
from dovetail.oauth.challenge import Challenge, parse_challenge
from dovetail.oauth.flow import FetchResponse
from dovetail.oauth.login.code_flow import choose_scopes, is_login_for, log_in, read_redirect
from dovetail.oauth.login.login_settings import ClientCredentials, OAuth, get_signer
from dovetail.oauth.login.saved_login import ClientRegistration, SavedLogin, Token
from dovetail.oauth.metadata import AuthorizationServerMetadata, ProtectedResourceMetadata
from dovetail.oauth.token_request import refresh_login
from dovetail.wire.base import replace
from oauth.flow_environment import (
    ISSUER,
    REDIRECT,
    RESOURCE_METADATA_URL,
    SERVER,
    SERVER_METADATA_URL,
    FlowEnvironment,
    create_working_environment,
    json_answer,
    parse_form,
    resource_metadata,
    server_metadata,
)

TOKEN = f"{ISSUER}/token"


def attempt(
    world: FlowEnvironment, challenge: Challenge | None = None, known: SavedLogin | None = None, **settings: Any
) -> SavedLogin:
    return world.run_flow(log_in(SERVER, challenge or Challenge(), OAuth(**settings), known))


def earlier(issuer: str = ISSUER, **changes: Any) -> SavedLogin:
    client = ClientRegistration(issuer=issuer, client_id="earlier", redirect_uris=[REDIRECT])
    return SavedLogin(
        resource=SERVER, server=AuthorizationServerMetadata(**server_metadata(issuer)), client=client, **changes
    )


# The way through


def test_a_login_from_a_challenge_to_a_token() -> None:
    world = create_working_environment()
    login = attempt(world, parse_challenge(f'Bearer resource_metadata="{RESOURCE_METADATA_URL}", scope="a b"'))
    assert world.urls == [RESOURCE_METADATA_URL, SERVER_METADATA_URL, f"{ISSUER}/register", TOKEN]
    (query,) = world.visited_queries
    fields = parse_form(world.calls[-1])
    digest = hashlib.sha256(fields["code_verifier"].encode()).digest()
    assert query == {
        "response_type": "code",
        "client_id": "registered",
        "redirect_uri": REDIRECT,
        "state": query["state"],
        "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
        "resource": SERVER,
        "scope": "a b",
    }
    assert fields == {
        "grant_type": "authorization_code",
        "code": "the-code",
        "redirect_uri": REDIRECT,
        "code_verifier": fields["code_verifier"],
        "resource": SERVER,
        "client_id": "registered",
    }
    assert login.token == Token(access_token="the-token", expires_at=1060.0)
    assert (login.resource, login.scopes, login.client.client_id, login.server.issuer) == (
        SERVER, ["a", "b"], "registered", ISSUER,
    )  # fmt: skip


def test_no_two_logins_share_a_secret() -> None:
    """A verifier kept where another login could overwrite it made both fail; here each has its own."""
    worlds = [create_working_environment() for _ in range(50)]
    for world in worlds:
        attempt(world)
    assert len({world.visited_queries[0]["state"] for world in worlds}) == 50
    assert len({parse_form(world.calls[-1])["code_verifier"] for world in worlds}) == 50
    assert all(len(world.visited_queries[0]["state"]) >= 32 for world in worlds)
    assert all(43 <= len(parse_form(world.calls[-1])["code_verifier"]) <= 128 for world in worlds)


def test_an_endpoint_with_a_query_keeps_it() -> None:
    world = create_working_environment(
        **{SERVER_METADATA_URL: server_metadata(authorization_endpoint=f"{ISSUER}/go?tenant=7")}
    )
    attempt(world)
    assert world.visited_queries[0]["tenant"] == "7"
    assert world.visited_queries[0]["response_type"] == "code"


def test_what_is_known_saves_registering_again() -> None:
    world = create_working_environment()
    assert attempt(world, known=earlier()).client.client_id == "earlier"
    assert world.known_redirect_uris == [[REDIRECT]]
    assert f"{ISSUER}/register" not in world.urls


def test_a_client_registers_again_with_a_server_that_moved() -> None:
    moved = "https://new.example.com"
    world = create_working_environment(
        **{
            RESOURCE_METADATA_URL: resource_metadata(authorization_servers=[moved]),
            f"{moved}/.well-known/oauth-authorization-server": server_metadata(moved),
            f"{moved}/register": json_answer({"client_id": "there"}, 201),
            f"{moved}/token": {"access_token": "t", "token_type": "Bearer"},
        }
    )
    login = attempt(world, known=earlier())
    assert (login.client.client_id, login.client.issuer, login.server.issuer) == ("there", moved, moved)
    assert not [url for url in world.urls if url.startswith(ISSUER)]


def test_the_issuer_wanted_or_known_is_chosen_of_several() -> None:
    other = "https://other.example.com"
    listed = {RESOURCE_METADATA_URL: resource_metadata(authorization_servers=[other, ISSUER])}
    assert attempt(create_working_environment(**listed), issuer=ISSUER).server.issuer == ISSUER
    assert attempt(create_working_environment(**listed), known=earlier()).server.issuer == ISSUER
    world = create_working_environment(**listed)
    with pytest.raises(LoginFailed, match=r"other\.example\.com") as caught:
        attempt(world)
    assert caught.value.hint is None


def test_an_authorization_server_that_was_left_out_is_hinted_at() -> None:
    here = RESOURCE_METADATA_URL.partition("/.well-known")[0]
    with pytest.raises(LoginFailed, match=r"mcp\.example\.com") as caught:
        attempt(create_working_environment(**{RESOURCE_METADATA_URL: resource_metadata(authorization_servers=[here])}))
    assert "fallback=authority" in str(caught.value.hint)


def test_without_any_metadata_the_server_guards_itself() -> None:
    origin = "https://mcp.example.com"
    world = FlowEnvironment(
        {
            f"{origin}/register": json_answer({"client_id": "c"}),
            f"{origin}/token": {"access_token": "t", "token_type": "bearer"},
        }
    )
    login = attempt(world)
    assert login.server.assumed
    assert world.visited_queries[0]["resource"] == SERVER


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://MCP.Example.com/Mcp#x", "https://mcp.example.com/Mcp"),
        ("https://mcp.example.com", "https://mcp.example.com"),
    ],
)
def test_the_resource_is_named_canonically(url: str, said: str) -> None:
    origin = url[: url.index("com") + 3]
    world = FlowEnvironment(
        {f"{origin}/register": json_answer({"client_id": "c"}), f"{origin}/token": {"access_token": "t"}}
    )
    assert world.run_flow(log_in(url, Challenge(), OAuth(), None)).resource == said


# What ends it before it begins


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({RESOURCE_METADATA_URL: resource_metadata(authorization_servers=[])}, "authorization server"),
        (
            {RESOURCE_METADATA_URL: resource_metadata(authorization_servers=["javascript:alert(1)"])},
            "javascript:alert(1)",
        ),
        ({RESOURCE_METADATA_URL: resource_metadata(authorization_servers=["https://[::1"])}, "https://[::1"),
        ({RESOURCE_METADATA_URL: resource_metadata(authorization_servers=[""])}, "authorization server"),
        ({RESOURCE_METADATA_URL: resource_metadata(resource="https://evil.example/mcp")}, "https://evil.example/mcp"),
        ({SERVER_METADATA_URL: json_answer({}, 404)}, ISSUER),
        ({SERVER_METADATA_URL: server_metadata("https://evil.example")}, "https://evil.example"),
        ({SERVER_METADATA_URL: server_metadata(code_challenge_methods_supported=None)}, "PKCE"),
        ({SERVER_METADATA_URL: server_metadata(code_challenge_methods_supported=["plain"])}, "PKCE"),
        ({SERVER_METADATA_URL: server_metadata(code_challenge_methods_supported=None, assumed=True)}, "PKCE"),
        ({SERVER_METADATA_URL: server_metadata(authorization_endpoint=None)}, "authorization endpoint"),
        (
            {SERVER_METADATA_URL: server_metadata(authorization_endpoint="javascript:alert(1)")},
            "authorization endpoint",
        ),
        ({SERVER_METADATA_URL: server_metadata(authorization_endpoint="file:///bin/sh")}, "authorization endpoint"),
        (
            {SERVER_METADATA_URL: server_metadata(authorization_endpoint="http://login.example.com/authorize")},
            "authorization endpoint",
        ),
        ({SERVER_METADATA_URL: server_metadata(token_endpoint=None)}, "token endpoint"),
        ({SERVER_METADATA_URL: server_metadata(token_endpoint="http://login.example.com/token")}, "token endpoint"),
    ],
)
def test_what_cannot_be_trusted_ends_it(changes: dict[str, Any], why: str) -> None:
    world = create_working_environment(**changes)
    with pytest.raises(LoginFailed, match=re.escape(why)):
        attempt(world)
    assert not world.calls_to(TOKEN)
    assert "token" in why or not world.visited_queries


# What comes back


def described(**changes: Any) -> AuthorizationServerMetadata:
    return AuthorizationServerMetadata(**server_metadata(**changes))


@pytest.mark.parametrize("advertised", [True, False])
@pytest.mark.parametrize(
    ("iss", "good"),
    [(ISSUER, True), (ISSUER + "/", False), (ISSUER.upper(), False), ("https://evil.example", False), ("", False)],
)
def test_a_returned_issuer_must_be_the_expected_one(advertised: bool, iss: str, good: bool) -> None:
    found = described(authorization_response_iss_parameter_supported=advertised)
    redirect = {"code": "c", "state": "s", "iss": iss}
    if good:
        assert read_redirect(redirect, "s", found) == "c"
    else:
        with pytest.raises(LoginFailed):
            read_redirect(redirect, "s", found)


def test_an_issuer_that_should_be_said_must_be() -> None:
    assert read_redirect({"code": "c", "state": "s"}, "s", described()) == "c"
    with pytest.raises(LoginFailed):
        read_redirect({"code": "c", "state": "s"}, "s", described(authorization_response_iss_parameter_supported=True))


@given(st.text())
def test_only_the_state_that_was_sent_is_taken(state: str) -> None:
    for redirect in ({"code": "c", "state": state}, {"code": "c"}, {"error": "e", "state": state}):
        with pytest.raises(LoginFailed) as refused:
            read_redirect(redirect, state + "x", described())
        assert refused.value.oauth_error is None


def test_a_refusal_keeps_its_message() -> None:
    redirect = {"error": "access_denied", "error_description": "Not \x1b[31mtoday", "state": "s"}
    with pytest.raises(LoginFailed, match=r"access_denied.*Not") as refused:
        read_redirect(redirect, "s", described())
    assert refused.value.oauth_error == "access_denied"
    assert str(refused.value).isprintable()


def test_the_words_of_another_issuer_are_not_shown() -> None:
    redirect = {"error": "call 555-1234", "error_description": "evil", "state": "s", "iss": "https://evil.example"}
    with pytest.raises(LoginFailed) as refused:
        read_redirect(redirect, "s", described())
    assert "555" not in str(refused.value)
    assert "evil" not in str(refused.value)


@pytest.mark.parametrize("redirect", [{"state": "s"}, {"state": "s", "code": ""}])
def test_a_redirect_without_a_code_is_none(redirect: dict[str, str]) -> None:
    with pytest.raises(LoginFailed, match="code"):
        read_redirect(redirect, "s", described())


def test_a_code_never_travels_after_a_bad_redirect() -> None:
    world = create_working_environment()
    world.redirect = {"code": "stolen", "state": "another"}
    with pytest.raises(LoginFailed):
        attempt(world)
    assert not world.calls_to(TOKEN)


# Scopes


def scopes(header: str = "Bearer", known: SavedLogin | None = None, **changes: Any) -> list[str] | None:
    listed, offered = changes.pop("listed", None), changes.pop("offered", None)
    document = ProtectedResourceMetadata(SERVER, [ISSUER], listed)
    return choose_scopes(
        parse_challenge(header), document, described(scopes_supported=offered), OAuth(**changes), known
    )


def test_scopes_come_from_the_challenge_then_from_the_resource() -> None:
    assert scopes('Bearer scope="a b"', listed=["x", "y"]) == ["a", "b"]
    assert scopes(listed=["x", "y"]) == ["x", "y"]
    assert scopes('Bearer scope=""', listed=["x"]) is None
    assert scopes() is None
    assert scopes(offered=["everything", "else"]) is None


def test_scopes_asked_before_are_asked_again() -> None:
    assert scopes('Bearer scope="b c"', earlier(scopes=["a", "b"])) == ["a", "b", "c"]


def test_the_users_own_scopes_are_added() -> None:
    assert scopes('Bearer scope="a"', scopes=["z", "a"]) == ["a", "z"]


def test_the_users_own_scopes_may_be_one_text() -> None:
    assert choose_scopes(Challenge(), None, described(), OAuth(scopes="c d"), None) == ["c", "d"]


def test_offline_access_is_asked_for_only_where_it_is_offered() -> None:
    assert scopes('Bearer scope="a"', offered=["a", "offline_access"]) == ["a", "offline_access"]
    assert scopes('Bearer scope="a"', offered=["a"]) == ["a"]
    assert scopes('Bearer scope="a"', offered=["offline_access"], offline_access=False) == ["a"]
    assert choose_scopes(
        parse_challenge("Bearer scope=a"),
        None,
        described(scopes_supported=["offline_access"]),
        ClientCredentials(client_id="c", client_secret="s"),
        None,
    ) == ["a"]


def test_offline_access_asks_for_consent() -> None:
    world = create_working_environment(**{SERVER_METADATA_URL: server_metadata(scopes_supported=["offline_access"])})
    attempt(world, parse_challenge('Bearer scope="a"'))
    assert world.visited_queries[0]["scope"] == "a offline_access"
    assert world.visited_queries[0]["prompt"] == "consent"
    world = create_working_environment()
    attempt(world, parse_challenge('Bearer scope="a"'))
    assert "prompt" not in world.visited_queries[0]


# DPoP


@pytest.mark.parametrize(
    ("challenge", "document", "wanted", "bound_to_key"),
    [
        ("Bearer", {}, None, False),
        ("DPoP", {}, None, True),
        ("Bearer", {"dpop_bound_access_tokens_required": True}, None, True),
        ("Bearer", {}, True, True),
        ("DPoP", {}, False, False),
    ],
)
def test_a_key_is_used_where_it_is_wanted(
    challenge: str, document: dict[str, Any], wanted: bool | None, bound_to_key: bool
) -> None:
    kind = "DPoP" if bound_to_key else "Bearer"
    world = create_working_environment(
        **{RESOURCE_METADATA_URL: resource_metadata(**document), TOKEN: {"access_token": "t", "token_type": kind}}
    )
    login = attempt(world, parse_challenge(challenge), dpop=wanted)
    assert (login.key is not None) is bound_to_key
    assert ("dpop" in world.calls[-1].headers) is bound_to_key


def test_a_key_is_kept_from_login_to_login() -> None:
    world = create_working_environment(**{TOKEN: {"access_token": "t", "token_type": "DPoP"}})
    first = attempt(world, dpop=True)
    assert attempt(world, dpop=True, known=first).key == first.key


# A stored login


@pytest.mark.parametrize(
    ("url", "settings", "good"),
    [
        (SERVER, OAuth(), True),
        ("https://MCP.example.com/other", OAuth(), True),
        ("http://mcp.example.com/mcp", OAuth(), False),
        ("https://mcp.example.com:8443/mcp", OAuth(), False),
        ("https://evil.example/mcp", OAuth(), False),
        (SERVER, OAuth(client_id="earlier", issuer=ISSUER), True),
        (SERVER, OAuth(client_id="another"), False),
        (SERVER, OAuth(client_id="earlier", issuer="https://other.example"), False),
    ],
)
def test_a_stored_login_is_for_one_server_and_client(url: str, settings: OAuth, good: bool) -> None:
    assert is_login_for(earlier(), url, settings) is good


def test_a_stored_login_with_an_invalid_resource_is_not_used() -> None:
    login = SavedLogin(
        resource="https://[::1", server=described(), client=ClientRegistration(issuer=ISSUER, client_id="c")
    )
    assert not is_login_for(login, SERVER, OAuth())


# A client with a key


@pytest.mark.parametrize("by_document", [True, False])
def test_a_client_with_a_key_proves_itself_by_it(by_document: bool) -> None:
    key = ECKey.generate_key("P-384")
    who = {"client_metadata_url": "https://my.app/client.json"} if by_document else {"client_id": "mine"}
    settings = OAuth(private_key=key.as_pem(private=True).decode(), **who)
    world = create_working_environment(
        **{SERVER_METADATA_URL: server_metadata(client_id_metadata_document_supported=True)}
    )
    login: SavedLogin = world.run_flow(log_in(SERVER, Challenge(), settings, None))
    name = next(iter(who.values()))
    sent = parse_form(world.calls_to(f"{ISSUER}/token")[0])
    claims = jwt.decode(sent["client_assertion"], key, algorithms=["ES384"]).claims
    assert (claims["iss"], claims["sub"], claims["aud"]) == (name, name, ISSUER)
    assert (sent["client_id"], login.client.method) == (name, "private_key_jwt")
    token = Token(access_token="old", refresh_token="r")
    world.run_flow(refresh_login(replace(login, token=token), get_signer(settings)))
    again = parse_form(world.calls_to(f"{ISSUER}/token")[1])
    assert jwt.decode(again["client_assertion"], key, algorithms=["ES384"]).claims["jti"] != claims["jti"]


def test_what_was_given_without_an_issuer_stays_with_the_first() -> None:
    """A server that names another authorization server later does not get the secret there."""
    settings = OAuth(client_id="mine", client_secret="s3cret")
    known: SavedLogin = create_working_environment().run_flow(log_in(SERVER, Challenge(), settings, None))
    other = "https://other.example"
    world = create_working_environment(
        **{
            RESOURCE_METADATA_URL: resource_metadata(authorization_servers=[other]),
            f"{other}/.well-known/oauth-authorization-server": server_metadata(other),
            f"{other}/token": {"access_token": "x", "token_type": "Bearer"},
        }
    )
    with pytest.raises(LoginFailed, match=r"https://login\.example\.com.*https://other\.example"):
        world.run_flow(log_in(SERVER, Challenge(), settings, known))
    assert not world.visited_queries
    assert not world.calls_to(f"{other}/token")


@pytest.mark.parametrize(
    "nothing", [FetchResponse(0, error="no answer came in time"), FetchResponse(503)], ids=["0", "503"]
)
@pytest.mark.parametrize("where", [RESOURCE_METADATA_URL, SERVER_METADATA_URL], ids=["resource", "server"])
def test_what_cannot_be_fetched_is_not_taken_for_what_is_not_there(where: str, nothing: FetchResponse) -> None:
    """Without a document weaker rules would hold, which a failing network must not choose."""
    world = create_working_environment(**{where: nothing})
    with pytest.raises(LoginFailed, match=f"{re.escape(where)}.*(no answer came in time|503)"):
        attempt(world)
    assert not world.visited_queries
    assert not world.calls_to(f"{ISSUER}/register")


def test_another_place_may_have_the_document_that_cannot_be_fetched_at_one() -> None:
    root = "https://mcp.example.com/.well-known/oauth-protected-resource"
    world = create_working_environment(**{RESOURCE_METADATA_URL: FetchResponse(0), root: resource_metadata()})
    assert attempt(world).server.issuer == ISSUER


def test_the_rule_of_old_needs_a_server_that_answers() -> None:
    old = "https://mcp.example.com/.well-known/oauth-authorization-server"
    with pytest.raises(LoginFailed, match=re.escape(old)):
        attempt(FlowEnvironment({old: FetchResponse(0)}))


def test_why_a_document_cannot_be_fetched_comes_with_what_to_try() -> None:
    with pytest.raises(LoginFailed) as failed:
        attempt(
            create_working_environment(
                **{
                    SERVER_METADATA_URL: FetchResponse(
                        0, error="it is in this network", hint="pass allow_private_network=True"
                    )
                }
            )
        )
    assert "it is in this network" in str(failed.value)
    assert failed.value.hint == "pass allow_private_network=True"


def test_a_login_belongs_to_its_server_with_or_without_a_port() -> None:
    login = attempt(create_working_environment())
    for url in (SERVER, "https://mcp.example.com:443/mcp", "https://MCP.example.com/mcp"):
        assert is_login_for(login, url, OAuth())
    for url in ("https://mcp.example.com:8443/mcp", "http://mcp.example.com/mcp", "https://x.example.com/mcp"):
        assert not is_login_for(login, url, OAuth())

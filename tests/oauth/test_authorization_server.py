"""Test every endpoint and refusal of the authorization server, without I/O."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.auth.flow_runner import FlowRunner
from dovetail.auth.shared_store import SharedStateStore
from dovetail.auth.sqlite_store import SQLiteStore
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.oauth import proofs
from dovetail.oauth.authorization_server.clients import (
    InvalidClient,
    RegisteredClient,
    check_redirect_uri,
    get_client_record,
    is_document_url,
    match_redirect_uri,
)
from dovetail.oauth.authorization_server.responses import csp_source
from dovetail.oauth.authorization_server.store import InMemoryStore, StoreFull
from dovetail.oauth.authorization_server.token_issuer import OAuthTokenIssuer, WrongSecretKey
from dovetail.oauth.flow import FetchResponse
from dovetail.oauth.guard import keys
from dovetail.oauth.guard.claims import TokenRejected, VerificationUnavailable
from dovetail.protocol.interfaces.http_types import HTTPResponse
from dovetail.protocol.principal import Principal
from dovetail.protocol.sealer import Sealer
from dovetail.wire.codec import encode
from oauth.server_harness import (
    EDITOR,
    ISSUER,
    NOW,
    REDIRECT_URI,
    RESOURCE,
    Browser,
    ServerHarness,
    basic_credentials,
    decode_body,
    get_header,
    parse_redirect,
)

EVIL = "https://evil.example/take"


# What everyone may know


def test_the_metadata() -> None:
    response = ServerHarness(scopes_supported=("read",), introspection_clients={"rs": "s"}).send_request(
        "GET", "/.well-known/oauth-authorization-server"
    )
    document = decode_body(response)
    assert document["issuer"] == ISSUER
    assert document["code_challenge_methods_supported"] == ["S256"]
    assert document["response_types_supported"] == ["code"]
    assert document["authorization_response_iss_parameter_supported"] is True
    assert document["client_id_metadata_document_supported"] is True
    assert document["registration_endpoint"] == ISSUER + "/register"
    assert document["introspection_endpoint"] == ISSUER + "/introspect"
    assert "registration_endpoint" not in decode_body(
        ServerHarness(allow_registration=False).send_request("GET", "/.well-known/oauth-authorization-server")
    )


def test_keys_are_public_ones() -> None:
    jwk = decode_body(ServerHarness().send_request("GET", "/jwks"))["keys"][0]
    assert "d" not in jwk
    assert jwk["kid"]


def test_paths_and_methods_that_are_not_there() -> None:
    desk = ServerHarness(allow_registration=False)
    assert desk.send_request("GET", "/nothing").status_code == 404
    for method, path in (("GET", "/token"), ("POST", "/authorize"), ("PUT", "/consent"), ("GET", "/revoke")):
        assert desk.send_request(method, path).status_code == 405
    for path in ("/register", "/introspect", "/callback"):
        assert desk.send_request("POST", path).status_code == 404


def test_pages_of_others_may_fetch_tokens_but_not_decide() -> None:
    desk = ServerHarness()
    for path in ("/token", "/register", "/revoke", "/jwks", "/.well-known/oauth-authorization-server"):
        assert desk.send_request("OPTIONS", path).status_code == 204
        for method in ("OPTIONS", "GET", "POST"):
            assert get_header(desk.send_request(method, path), "access-control-allow-origin") == "*"
    for path in ("/authorize", "/consent", "/callback"):
        for method in ("OPTIONS", "GET", "POST"):
            assert "access-control-allow-origin" not in desk.send_request(method, path).headers


# From the request to the code


def test_from_consent_to_token() -> None:
    desk = ServerHarness()
    browser = Browser(desk)
    shown = browser.open()
    text = shown.body.decode()
    for word in ("The Editor", "127.0.0.1", RESOURCE, "read", "Development mode", "on this computer"):
        assert word in text
    target, answer = parse_redirect(browser.submit_consent())
    assert target == REDIRECT_URI
    assert (answer["state"], answer["iss"]) == ("s&1", ISSUER)
    response = desk.token(
        grant_type="authorization_code", code=answer["code"], code_verifier=browser.verifier, redirect_uri=REDIRECT_URI,
        resource=RESOURCE,
    )  # fmt: skip
    assert response.status_code == 200
    assert get_header(response, "cache-control") == "no-store"
    token = decode_body(response)
    assert (token["token_type"], token["expires_in"], token["scope"]) == ("Bearer", 900, "read")
    principal = desk.run_flow(desk.verifier.verify(token["access_token"], (RESOURCE,)))
    assert (principal.subject, principal.client_id, principal.scopes) == ("developer", "editor", {"read"})
    assert keys.read_header(token["access_token"])["typ"] == "at+jwt"
    with pytest.raises(TokenRejected, match="audience"):  # for the resource that was asked for, not for its origin
        desk.run_flow(desk.verifier.verify(token["access_token"], ("https://mcp.example",)))


def test_the_consent_page_cannot_be_framed_or_scripted() -> None:
    response = Browser(ServerHarness()).open()
    policy = get_header(response, "content-security-policy")
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "form-action 'self' http://127.0.0.1:7777" in policy
    assert get_header(response, "x-frame-options") == "DENY"
    assert get_header(response, "referrer-policy") == "no-referrer"
    assert get_header(response, "cache-control") == "no-store"
    cookie = get_header(response, "set-cookie")
    for rule in ("__Host-", "Secure", "HttpOnly", "SameSite=Lax", "Path=/"):
        assert rule in cookie


def test_names_are_escaped() -> None:
    desk = ServerHarness(
        clients=(RegisteredClient("x", redirect_uris=[REDIRECT_URI], client_name="<script>alert(1)</script>\"'"),)
    )
    text = Browser(desk).open(client_id="x", scope="<b>").body.decode()
    assert "<script>" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("by_document", [True, False])
def test_what_a_client_says_of_itself_becomes_no_script(by_document: bool) -> None:
    """Its addresses are not shown at all; of its name and its host, only as text."""
    script = "javascript:alert(1)"
    about = dict.fromkeys(("client_uri", "logo_uri", "tos_uri", "policy_uri", "website_url"), script)
    about["client_name"] = f'"><a href="{script}">App'
    desk = ServerHarness()
    if by_document:
        name = DOCUMENT
        desk.documents[DOCUMENT] = describing(**about)
    else:
        name = decode_body(desk.register({"redirect_uris": [REDIRECT_URI], **about}))["client_id"]
    text = Browser(desk).open(client_id=name, redirect_uri=REDIRECT_URI).body.decode()
    assert "<a" not in text
    assert text.count(script) == 1  # the name, escaped
    assert "href" not in text.replace("&lt;a href=", "")


@pytest.mark.parametrize(
    "uri",
    [
        EVIL, REDIRECT_URI + "/", REDIRECT_URI + "?a=1", "http://127.0.0.1:7777/other", "http://localhost:7777/callback",
        "https://127.0.0.1:7777/callback", "http://127.0.0.1.evil.example:7777/callback", "https://editor.example/back/",
        "https://editor.example/back?next=x", "https://editor.example:444/back", "//evil.example",
        "javascript:alert(1)", "https://editor.example@evil.example/back", "HTTPS://EDITOR.EXAMPLE/back", "",
    ],
)  # fmt: skip
def test_a_redirect_to_an_unknown_place_is_never_followed(uri: str) -> None:
    response = Browser(ServerHarness()).open(redirect_uri=uri)
    assert response.status_code == 400
    assert "location" not in response.headers


def test_the_port_of_this_machine_may_be_another() -> None:
    browser = Browser(ServerHarness())
    browser.open(redirect_uri="http://127.0.0.1:50123/callback")
    assert parse_redirect(browser.submit_consent())[0] == "http://127.0.0.1:50123/callback"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": None}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"resource": "https://other.example/mcp"}, "invalid_target"),
        ({"resource": "https://mcp.example"}, "invalid_target"),
        ({"prompt": "none"}, "interaction_required"),
    ],
)
def test_errors_that_are_sent_to_the_client(changes: dict[str, str | None], error: str) -> None:
    target, answer = parse_redirect(Browser(ServerHarness()).open(**changes))
    assert target == REDIRECT_URI
    assert (answer["error"], answer["state"], answer["iss"]) == (error, "s&1", ISSUER)
    # A user is not led to a strange site by a link that never showed them anything.
    elsewhere = Browser(ServerHarness()).open(**changes | {"redirect_uri": "https://editor.example/back"})
    assert elsewhere.status_code == 400


def test_unknown_and_repeated_parameters() -> None:
    desk = ServerHarness()
    assert desk.send_request("GET", "/authorize", "client_id=editor&client_id=editor").status_code == 400
    assert Browser(desk).open(client_id="stranger").status_code == 400
    assert Browser(desk).open(client_id=None).status_code == 400
    assert Browser(desk).open(state="x" * 5000).status_code == 400
    assert Browser(desk).open(scope="read " * 500).status_code == 200
    assert Browser(desk).open(resource=None).status_code == 200  # there is only one it can be for


def test_resources_of_the_same_origin_unless_some_are_named() -> None:
    desk = ServerHarness(resources=())
    assert Browser(desk).open(resource=ISSUER + "/mcp").status_code == 200
    for other in ("https://other.example/mcp", ISSUER + ".evil.example/mcp", "https://x@login.example/mcp", None):
        assert parse_redirect(Browser(desk).open(resource=other))[1]["error"] == "invalid_target"


def test_scopes_that_are_not_offered_are_left_out() -> None:
    desk = ServerHarness(scopes_supported=("read",))
    assert Browser(desk).request_tokens(scope="read write admin")["scope"] == "read"


# Whose decision it is


def test_no_means_no() -> None:
    browser = Browser(ServerHarness())
    browser.open()
    target, answer = parse_redirect(browser.submit_consent("deny"))
    assert target == REDIRECT_URI
    assert (answer["error"], answer["iss"], answer["state"]) == ("access_denied", ISSUER, "s&1")
    assert browser.submit_consent().status_code == 400  # it is over


def test_another_browser_cannot_decide() -> None:
    desk = ServerHarness()
    mine, theirs = Browser(desk), Browser(desk)
    mine.open()
    theirs.open()
    stolen = mine.form
    theirs.form = stolen
    assert theirs.submit_consent().status_code == 403
    theirs.cookie = None
    assert theirs.submit_consent().status_code == 403
    assert parse_redirect(mine.submit_consent())[1]["code"]


def test_a_decision_without_its_token() -> None:
    browser = Browser(ServerHarness())
    browser.open()
    good = browser.form
    for csrf in ("", "x", good["csrf"][:-1]):
        browser.form = good | {"csrf": csrf}
        assert browser.submit_consent().status_code == 403
    browser.form = good | {"request": "unknown"}
    assert browser.submit_consent().status_code == 400


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}],
)
def test_a_decision_from_another_page(headers: dict[str, str]) -> None:
    browser = Browser(ServerHarness())
    browser.open()
    assert browser.submit_consent(headers=headers).status_code == 403
    assert parse_redirect(browser.submit_consent(headers={"origin": "null", "sec_fetch_site": "same-origin"}))[1][
        "code"
    ]


def test_consent_is_asked_for_every_time() -> None:
    """Nothing remembered can be ridden by a page in between: with the cookie of an earlier consent, one is asked."""
    browser = Browser(ServerHarness())
    browser.request_tokens()
    again = browser.open()
    assert again.status_code == 200
    assert b"<form" in again.body


def test_a_request_is_decided_once_and_in_time() -> None:
    desk = ServerHarness()
    browser = Browser(desk)
    browser.open()
    assert parse_redirect(browser.submit_consent())[1]["code"]
    assert browser.submit_consent().status_code == 400
    browser.open()
    desk.now += 700
    assert browser.submit_consent().status_code == 400


@pytest.mark.parametrize("decision", ["allow", "deny"])
def test_another_spelling_of_a_decided_request_is_refused(decision: str) -> None:
    browser = Browser(ServerHarness())
    browser.open()
    browser.submit_consent(decision=decision)
    sealed = browser.form["request"]
    other = sealed.replace("-", "+").replace("_", "/")
    for spelling in {sealed, f"{sealed}=", sealed.rstrip("="), f"{sealed}\n", f" {sealed}", f"{sealed}!", other}:
        response = browser.submit_consent(request=spelling, decision="allow")
        assert response.status_code == 400
        assert "location" not in response.headers


def test_two_cookies_of_one_name_are_none() -> None:
    browser = Browser(ServerHarness())
    browser.open()
    assert browser.cookie is not None
    browser.cookie = f"{browser.cookie}; {browser.cookie}"
    assert browser.submit_consent().status_code == 403


def test_passwords() -> None:
    desk = ServerHarness(has_passwords=True)
    browser = Browser(desk)
    assert b"developer" not in browser.open().body
    wrong = browser.submit_consent(username="ada", password="no")
    assert wrong.status_code == 403
    assert NOTE.encode() in wrong.body
    answer = parse_redirect(browser.submit_consent(username="ada", password="pw"))[1]
    assert answer["code"]
    token = decode_body(
        desk.token(grant_type="authorization_code", code=answer["code"], code_verifier=browser.verifier)
    )
    assert desk.run_flow(desk.verifier.verify(token["access_token"], (RESOURCE,))).subject == "ada"


def test_no_minute_allows_more_failures_than_the_limit() -> None:
    desk = ServerHarness(has_passwords=True)
    browser = Browser(desk)
    browser.open()
    statuses = []
    for number in range(59):
        statuses.append(browser.submit_consent(username="ada", password=str(number)).status_code)
        desk.now += 1
    assert statuses.count(403) == 10


def test_passwords_cannot_be_tried_without_end() -> None:
    desk = ServerHarness(has_passwords=True)
    browser = Browser(desk)
    browser.open()
    answers = [browser.submit_consent(username="ada", password=str(number)).status_code for number in range(12)]
    assert answers == [403] * 10 + [429] * 2
    assert browser.submit_consent(username="ada", password="pw").status_code == 429
    desk.now += 61
    assert parse_redirect(browser.submit_consent(username="ada", password="pw"))[1]["code"]


# Codes


def redeem(desk: ServerHarness, browser: Browser, code: str, /, **changes: str) -> Any:
    fields = {
        "grant_type": "authorization_code",
        "code": code,
        "code_verifier": browser.verifier,
        "redirect_uri": REDIRECT_URI,
    }
    return desk.token(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code_verifier": "x" * 43}, "invalid_grant"),
        ({"code_verifier": ""}, "invalid_grant"),
        ({"redirect_uri": "https://editor.example/back"}, "invalid_grant"),
        ({"resource": "https://other.example"}, "invalid_target"),
        ({"code": "guessed"}, "invalid_grant"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"grant_type": "client_credentials"}, "unauthorized_client"),
        ({"client_id": "nobody"}, "invalid_client"),
        ({"client_secret": "made up"}, "invalid_client"),
    ],
)
def test_a_code_in_wrong_hands(changes: dict[str, str], error: str) -> None:
    desk = ServerHarness()
    browser = Browser(desk)
    code = browser.request_code()
    response = redeem(desk, browser, code, **changes)
    assert (response.status_code, decode_body(response)["error"]) == (401 if error == "invalid_client" else 400, error)
    assert get_header(response, "cache-control") == "no-store"


def test_the_code_of_another_client() -> None:
    other = RegisteredClient("other", redirect_uris=[REDIRECT_URI])
    desk = ServerHarness(clients=(EDITOR, other))
    browser = Browser(desk)
    assert decode_body(redeem(desk, browser, browser.request_code(), client_id="other"))["error"] == "invalid_grant"


def test_a_code_is_good_once_and_shown_twice_ends_everything() -> None:
    desk = ServerHarness()
    browser = Browser(desk)
    code = browser.request_code()
    token = decode_body(redeem(desk, browser, code))["access_token"]
    assert desk.run_flow(desk.verifier.verify(token, (RESOURCE,)))
    assert decode_body(redeem(desk, browser, code))["error"] == "invalid_grant"
    with pytest.raises(TokenRejected, match="revoked"):
        desk.run_flow(desk.verifier.verify(token, (RESOURCE,)))


def test_a_code_does_not_wait() -> None:
    desk = ServerHarness()
    browser = Browser(desk)
    code = browser.request_code()
    desk.now += 61
    assert decode_body(redeem(desk, browser, code))["error"] == "invalid_grant"


def test_failures_at_the_token_endpoint_are_slowed_down() -> None:
    desk = ServerHarness()
    statuses = [desk.token(grant_type="authorization_code", code=str(number)).status_code for number in range(300)]
    assert statuses == [400] * 10 + [429] * 290
    assert desk.post("/token", {"client_id": "other", "grant_type": "x"}).status_code != 429  # others are not held up
    desk.now += 61
    assert Browser(desk).request_tokens()["access_token"]


def test_long_names_of_clients_take_little_memory() -> None:
    desk = ServerHarness()
    desk.post("/token", {"client_id": "warm up", "grant_type": "x"})
    tracemalloc.start()
    try:
        for number in range(300):
            name = f"{number}{chr(0x1F600)}" + "x" * 20_000
            desk.post("/token", {"client_id": name, "grant_type": "x"})
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 300 * 2000


def test_long_names_that_begin_alike_have_separate_limits() -> None:
    desk = ServerHarness()
    first, second = ("x" * 10_000 + end for end in "ab")
    assert [desk.post("/token", {"client_id": first, "grant_type": "x"}).status_code for _ in range(11)][-1] == 429
    assert desk.post("/token", {"client_id": second, "grant_type": "x"}).status_code != 429


# Refreshing


def refresh(desk: ServerHarness, token: str, **fields: str) -> Any:
    return desk.token(grant_type="refresh_token", refresh_token=token, **fields)


def test_refresh_tokens_turn() -> None:
    desk = ServerHarness()
    first = Browser(desk).request_tokens(scope="read write")
    second = decode_body(refresh(desk, first["refresh_token"], resource=RESOURCE))
    assert second["refresh_token"] != first["refresh_token"]
    assert second["scope"] == "read write"
    narrow = decode_body(refresh(desk, second["refresh_token"], scope="read"))
    assert narrow["scope"] == "read"
    wide = decode_body(refresh(desk, narrow["refresh_token"]))
    assert wide["scope"] == "read write"


def test_a_refresh_token_shown_twice_ends_the_family() -> None:
    desk = ServerHarness()
    first = Browser(desk).request_tokens()
    second = decode_body(refresh(desk, first["refresh_token"]))
    assert decode_body(refresh(desk, first["refresh_token"]))["error"] == "invalid_grant"
    assert decode_body(refresh(desk, second["refresh_token"]))["error"] == "invalid_grant"
    for token in (first["access_token"], second["access_token"]):
        with pytest.raises(TokenRejected, match="revoked"):
            desk.run_flow(desk.verifier.verify(token, (RESOURCE,)))


def test_a_refresh_token_in_wrong_hands() -> None:
    desk = ServerHarness(clients=(EDITOR, RegisteredClient("other", redirect_uris=[REDIRECT_URI])))
    token = Browser(desk).request_tokens()["refresh_token"]
    assert decode_body(refresh(desk, token, client_id="other"))["error"] == "invalid_grant"
    assert decode_body(refresh(desk, token, scope="read admin"))["error"] == "invalid_scope"
    assert decode_body(refresh(desk, token, resource="https://other.example"))["error"] == "invalid_target"
    assert decode_body(refresh(desk, token))["access_token"]  # none of that used it up


def test_refresh_tokens_end() -> None:
    desk = ServerHarness()
    token = Browser(desk).request_tokens()["refresh_token"]
    desk.now += 86401
    assert decode_body(refresh(desk, token))["error"] == "invalid_grant"


def test_a_client_without_refreshing_gets_no_refresh_token() -> None:
    desk = ServerHarness()
    made = decode_body(desk.register({"redirect_uris": [REDIRECT_URI]}))
    browser = Browser(desk)
    code = browser.request_code(client_id=made["client_id"])
    assert "refresh_token" not in decode_body(redeem(desk, browser, code, client_id=made["client_id"]))


# Revoking and asking


def test_revoking_either_token_ends_both() -> None:
    for which in ("access_token", "refresh_token"):
        desk = ServerHarness(introspection_clients={"rs": "s3cret"})
        tokens = Browser(desk).request_tokens()

        def active(desk: ServerHarness = desk, token: str = tokens["access_token"]) -> bool:
            return decode_body(
                desk.post("/introspect", {"token": token}, authorization=basic_credentials("rs", "s3cret"))
            )["active"]

        assert active()
        assert desk.post("/revoke", {"client_id": "other", "token": tokens[which]}).status_code == 401
        assert active()
        assert desk.post("/revoke", {"client_id": "editor", "token": tokens[which]}).status_code == 200
        assert not active()
        assert decode_body(refresh(desk, tokens["refresh_token"]))["error"] == "invalid_grant"
        assert desk.post("/revoke", {"client_id": "editor", "token": "anything"}).status_code == 200


def test_only_those_named_may_ask() -> None:
    desk = ServerHarness(introspection_clients={"rs": "s3cret"})
    token = Browser(desk).request_tokens()["access_token"]
    for authorization in ("", basic_credentials("rs", "wrong"), basic_credentials("other", "s3cret"), "Basic !!"):
        assert desk.post("/introspect", {"token": token}, authorization=authorization).status_code == 401
    answer = decode_body(desk.post("/introspect", {"token": token}, authorization=basic_credentials("rs", "s3cret")))
    assert (answer["active"], answer["sub"], answer["aud"]) == (True, "developer", RESOURCE)
    for other in ("", "x", token[:-4] + "AAAA", token + "x"):
        assert decode_body(
            desk.post("/introspect", {"token": other}, authorization=basic_credentials("rs", "s3cret"))
        ) == {"active": False}
    desk.now += 901
    assert decode_body(desk.post("/introspect", {"token": token}, authorization=basic_credentials("rs", "s3cret"))) == {
        "active": False
    }


# Clients that register themselves


@pytest.mark.parametrize(
    ("sent", "repeated"),
    [
        ({"application_type": "native", "scope": "a b", "client_uri": "https://a.example/x"}, True),
        ({"application_type": "toaster", "client_uri": "javascript:x", "scope": 5}, False),
        ({"scope": "x" * 10_000, "client_uri": ["https://a.example"]}, False),
        ({"scope": "a\nb", "application_type": []}, False),
    ],
)
def test_a_registration_repeats_valid_metadata(sent: dict[str, Any], repeated: bool) -> None:
    response = ServerHarness().register({"redirect_uris": [REDIRECT_URI]} | sent)
    data = decode_body(response)
    assert response.status_code == 201
    assert {name: data[name] for name in ("application_type", "scope", "client_uri") if name in data} == (
        sent if repeated else {}
    )


def test_registration() -> None:
    desk = ServerHarness()
    response = desk.register(
        {"redirect_uris": [REDIRECT_URI], "client_name": "Tool", "grant_types": ["authorization_code", "x"]}
    )
    made = decode_body(response)
    assert response.status_code == 201
    assert made["token_endpoint_auth_method"] == "none"
    assert "client_secret" not in made
    assert b"Tool" in Browser(desk).open(client_id=made["client_id"]).body


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
def test_a_client_with_a_secret_must_show_it_its_own_way(method: str) -> None:
    desk = ServerHarness()
    made = decode_body(desk.register({"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": method}))
    ways: dict[str, Any] = {
        "client_secret_basic": ({}, {"authorization": basic_credentials(made["client_id"], made["client_secret"])}),
        "client_secret_post": ({"client_id": made["client_id"], "client_secret": made["client_secret"]}, {}),
        "none": ({"client_id": made["client_id"]}, {}),
        "wrong": ({"client_id": made["client_id"], "client_secret": "wrong"}, {}),
    }
    for way, (fields, headers) in ways.items():
        browser = Browser(desk)
        form = {
            "grant_type": "authorization_code",
            "code": browser.request_code(client_id=made["client_id"]),
            "code_verifier": browser.verifier,
        }
        response = desk.post("/token", form | fields, **headers)
        assert response.status_code == (200 if way == method else 401), way


def test_a_known_client_may_show_its_secret_either_way() -> None:
    desk = ServerHarness(clients=(RegisteredClient("nightly", client_secret="s3cret", scopes="read"),))
    form = {"grant_type": "client_credentials"}
    assert desk.post("/token", form, authorization=basic_credentials("nightly", "s3cret")).status_code == 200
    assert desk.post("/token", form | {"client_id": "nightly", "client_secret": "s3cret"}).status_code == 200
    assert desk.post("/token", form | {"client_id": "nightly", "client_secret": "wrong"}).status_code == 401
    assert desk.post("/token", form | {"client_id": "nightly"}).status_code == 401


BAD_REDIRECTS = [
    "javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "file:///etc/passwd", "vbscript:x", "http://x.example/",
    "http://localhost.evil.example/", "https://x.example/#part", "https://x.example/#", "https://user@x.example/", "https://",
    "http://[::1].evil.com/cb", "https://[::1].evil.com/cb",
    "https:///path", "about:blank", "blob:https://x", "ftp://x.example", "//x.example", "/path", "", "https://x.example/*",
    "https://x.example/\n", "https://x.example/ ", "https://x.example\\@y", "http://[::1", "https://x.example:99999/",
    "https://x.example/'><script>", "mailto:a@b", "myapp:", "myapp:///", "c:/x", "intent://x", "ms-settings:x", "view-source:https://x",
    "search-ms:x", "chrome-extension://x/y", "shell:x", "applescript://x/y", "x-man-page://ls", "terminal://x",
    "microsoft-edge:https://x", "jnlp://x/y", "afp://x/y", "nfs://x/y", "shortcuts://run", "res://x/y", "hcp://x",
    "app+x:cb", "dict://x/y", "ws://x.example", "tel:1", "x" * 3000, "https://ex\u00e4mple.com/",
    7, None,
]  # fmt: skip


@pytest.mark.parametrize("uri", BAD_REDIRECTS)
def test_redirects_that_cannot_be_registered(uri: Any) -> None:
    response = ServerHarness().register({"redirect_uris": [uri]})
    assert (response.status_code, decode_body(response)["error"]) == (400, "invalid_redirect_uri")


@pytest.mark.parametrize(
    "uri",
    [
        REDIRECT_URI, "http://localhost/cb", "http://[::1]:5/cb", "https://x.example/cb?a=1", "com.example.app:/cb",
        "cursor://anysphere.cursor-retrieval/oauth/cb", "vscode://x/cb", "vscode-insiders://x/cb",
    ],
)  # fmt: skip
def test_redirects_that_can(uri: str) -> None:
    assert ServerHarness().register({"redirect_uris": [uri]}).status_code == 201


def test_a_client_registered_by_hand_may_have_any_private_scheme() -> None:
    assert RegisteredClient("app", redirect_uris=["myapp://done"])
    with pytest.raises(InvalidClient):
        RegisteredClient("app", redirect_uris=["javascript:alert(1)"])


@settings(max_examples=300)
@given(st.text(max_size=60) | st.from_regex(r"[a-z]{2,10}:/{0,3}[a-z0-9@.:\[\]%#?-]{0,30}", fullmatch=True))
def test_only_safe_redirects_pass(uri: str) -> None:
    try:
        check_redirect_uri(uri)
    except InvalidClient:
        return
    scheme = uri.partition(":")[0].lower()
    assert scheme not in ("javascript", "data", "vbscript", "file", "blob", "about", "ws", "wss", "ftp")
    assert scheme != "http" or uri.lower().startswith(("http://127.0.0.1", "http://localhost", "http://[::1]"))
    assert "#" not in uri
    assert "'" not in csp_source(uri)
    assert ";" not in csp_source(uri)


@pytest.mark.parametrize(
    "changes",
    [
        {"redirect_uris": [REDIRECT_URI] * 6}, {"redirect_uris": []}, {"redirect_uris": REDIRECT_URI},
        {"redirect_uris": [REDIRECT_URI] * 20_000},
        {"client_name": "x" * 129}, {"client_name": "x" * 24_000}, {"client_name": 5}, {"client_name": "a\nb"},
        {"grant_types": ["client_credentials"]}, {"response_types": ["token"]}, {"token_endpoint_auth_method": "tls"},
    ],
)  # fmt: skip
def test_registrations_out_of_bounds(changes: dict[str, Any]) -> None:
    assert ServerHarness().register({"redirect_uris": [REDIRECT_URI]} | changes).status_code == 400


def test_limits_of_registration_just_under_and_at() -> None:
    told: list[str] = []
    desk = ServerHarness(warn=told.append)
    assert desk.register({"redirect_uris": [REDIRECT_URI] * 5, "client_name": "x" * 128}).status_code == 201
    for _ in range(9):
        assert desk.register({"redirect_uris": [REDIRECT_URI]}).status_code == 201
    refused = desk.register({"redirect_uris": [REDIRECT_URI]})
    assert refused.status_code == 429
    assert get_header(refused, "retry-after")
    assert "10" in decode_body(refused)["error_description"]
    assert desk.register({"redirect_uris": [REDIRECT_URI]}).status_code == 429
    (words,) = told
    assert re.search(r"1\.2\.3\.4.*10", words)
    assert "max_registrations_per_hour=" in words
    assert desk.register({"redirect_uris": [REDIRECT_URI]}, address="5.6.7.8").status_code == 201
    desk.now += 3601
    assert desk.register({"redirect_uris": [REDIRECT_URI]}).status_code == 201


def test_an_invalid_registration() -> None:
    desk = ServerHarness()
    for body in (b"", b"[]", b"{", b"x" * 100):
        assert desk.send_request("POST", "/register", body=body, content_type="application/json").status_code == 400
    assert (
        desk.send_request(
            "POST", "/register", body=encode({"redirect_uris": [REDIRECT_URI]}), content_type="text/plain"
        ).status_code
        == 400
    )


# Clients known by their document

DOCUMENT = "https://app.example/client.json"
NOTE = 'class="note"'


def describing(**changes: Any) -> FetchResponse:
    good = {"client_id": DOCUMENT, "client_name": "App", "redirect_uris": [REDIRECT_URI, "https://app.example/cb"]}
    return FetchResponse(200, {"cache-control": "max-age=120"}, encode(good | changes))


def test_a_client_by_its_document() -> None:
    desk = ServerHarness()
    desk.documents[DOCUMENT] = describing()
    browser = Browser(desk)
    notes = browser.open(client_id=DOCUMENT, redirect_uri="https://app.example/cb").body.decode().count(NOTE)
    text = browser.open(client_id=DOCUMENT).body.decode()
    assert "app.example" in text
    assert text.count(NOTE) == notes + 1  # its redirect is on localhost, where anyone can listen
    assert parse_redirect(browser.submit_consent())[1]["code"]
    browser.open(client_id=DOCUMENT)
    assert desk.fetched_urls == [DOCUMENT]  # kept as long as it says
    desk.now += 121
    browser.open(client_id=DOCUMENT)
    assert desk.fetched_urls == [DOCUMENT] * 2


@pytest.mark.parametrize(
    "answer",
    [
        FetchResponse(0), FetchResponse(302, {"location": "http://169.254.169.254/"}),
        FetchResponse(200, {}, b"<html>"),
        describing(client_id="https://app.example/other.json"), describing(client_id="https://APP.example/client.json"),
        describing(redirect_uris=[]), describing(redirect_uris=["javascript:alert(1)"]), describing(client_name=""),
        describing(client_secret="x"), describing(token_endpoint_auth_method="client_secret_post"),
    ],
)  # fmt: skip
def test_documents_that_describe_no_client(answer: FetchResponse) -> None:
    desk = ServerHarness()
    desk.documents[DOCUMENT] = answer
    response = Browser(desk).open(client_id=DOCUMENT)
    assert response.status_code == 400
    assert b"169.254" not in response.body


@pytest.mark.parametrize(
    "client_id",
    [
        "http://app.example/c.json", "https://app.example", "https://app.example/", "https://app.example/../c.json",
        "https://app.example/./c", "https://u:p@app.example/c", "https://app.example/c#x", "https:///c", "file:///c",
        "https://app.example/c d", "https://[::1/c", "https://app.example/" + "c" * 3000,
    ],
)  # fmt: skip
def test_ids_that_name_no_document_are_not_fetched(client_id: str) -> None:
    desk = ServerHarness()
    assert Browser(desk).open(client_id=client_id).status_code == 400
    assert desk.fetched_urls == []
    assert not is_document_url(client_id)


def test_fetches_of_client_documents_are_limited() -> None:
    """Or this server would knock at any door of the web as often as somebody unknown likes."""
    desk = ServerHarness()
    for number in range(30):
        assert Browser(desk).open(client_id=f"https://victim.example/{number}").status_code == 400
    refused = Browser(desk).open(client_id="https://victim.example/more")
    assert refused.status_code == 429
    assert get_header(refused, "retry-after") == "2"
    assert len(desk.fetched_urls) == 30
    desk.documents[DOCUMENT] = describing()
    query = urlencode(
        {
            "response_type": "code", "client_id": DOCUMENT, "redirect_uri": REDIRECT_URI, "code_challenge": "x" * 43,
            "code_challenge_method": "S256", "resource": RESOURCE,
        }
    )  # fmt: skip
    assert desk.send_request("GET", "/authorize", query, address="5.6.7.8").status_code == 200
    assert Browser(desk).open(client_id=DOCUMENT).status_code == 200  # known by now, and so not fetched
    desk.now += 61
    assert Browser(desk).open(client_id="https://victim.example/more").status_code == 400
    assert len(desk.fetched_urls) == 32


def test_only_trusted_hosts_if_some_are_named() -> None:
    desk = ServerHarness(is_trusted_client=lambda host: host == "good.example")
    assert Browser(desk).open(client_id=DOCUMENT).status_code == 400
    assert desk.fetched_urls == []


def test_a_redirect_outside_the_document() -> None:
    desk = ServerHarness()
    desk.documents[DOCUMENT] = describing()
    assert Browser(desk).open(client_id=DOCUMENT, redirect_uri=EVIL).status_code == 400
    assert match_redirect_uri(get_client_record(EDITOR), None) is None


# Tokens bound to keys


def test_tokens_can_be_bound() -> None:
    desk = ServerHarness()
    browser, key = Browser(desk), proofs.generate_key()
    fields = {"grant_type": "authorization_code", "code_verifier": "", "client_id": "editor"}

    def proof(key: dict[str, Any] = key) -> str:
        return proofs.create_dpop_proof(key, "POST", ISSUER + "/token", desk.now)

    form = fields | {"code": browser.request_code(), "code_verifier": browser.verifier}
    tokens = decode_body(desk.post("/token", form, dpop=proof()))
    assert tokens["token_type"] == "DPoP"
    assert keys.read_unverified_claims(tokens["access_token"])["cnf"]["jkt"]
    refreshing = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"], "client_id": "editor"}
    assert decode_body(desk.post("/token", refreshing))["error"] == "invalid_grant"
    assert decode_body(desk.post("/token", refreshing, dpop=proof(proofs.generate_key())))["error"] == "invalid_grant"
    assert decode_body(desk.post("/token", refreshing, dpop=proof()))["token_type"] == "DPoP"
    assert decode_body(desk.post("/token", refreshing, dpop="nonsense"))["error"] == "invalid_dpop_proof"


# What is remembered


@pytest.fixture(params=["memory", "sqlite", "shared"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param != "sqlite":
        yield InMemoryStore() if request.param == "memory" else SharedStateStore(MemoryBackend(), ISSUER)
        return
    made = SQLiteStore(tmp_path / "kept.db")
    yield made
    made.close()


async def test_what_is_stored_is_there_until_its_time(store: Any) -> None:
    await store.put("a", "k", b"1", NOW + 10, NOW)
    await store.put("b", "k", b"2", NOW + 10, NOW)
    assert await store.get("a", "k", NOW) == b"1"
    assert await store.get("a", "k", NOW + 10) is None
    await store.put("a", "k", b"3", NOW + 20, NOW)
    assert await store.take("a", "k", NOW) == b"3"
    assert await store.take("a", "k", NOW) is None
    assert await store.get("b", "k", NOW) == b"2"
    assert await store.take("b", "k", NOW + 11) is None


async def test_what_is_added_is_the_first_of_its_time(store: Any) -> None:
    assert await store.add("a", "k", b"1", NOW + 10, NOW) is None
    assert await store.add("a", "k", b"2", NOW + 10, NOW) == b"1"
    assert await store.get("a", "k", NOW) == b"1"
    assert await store.add("a", "k", b"3", NOW + 20, NOW + 10) is None
    assert await store.get("a", "k", NOW + 10) == b"3"


async def test_an_id_is_used_once_until_it_expires(store: Any) -> None:
    assert await store.use_once("a", "k", NOW, NOW + 10, NOW)
    assert not await store.use_once("a", "k", NOW, NOW + 10, NOW)
    assert await store.use_once("b", "k", NOW, NOW + 10, NOW)


def test_processes_that_start_together_sign_with_one_key(tmp_path: Path) -> None:
    stores = [SQLiteStore(tmp_path / "kept.db") for _ in range(8)]
    begin = threading.Barrier(len(stores))

    def key(store: SQLiteStore) -> str:
        issuing = OAuthTokenIssuer(
            ISSUER, store, Sealer("a secret of 16 bytes", purpose="test"), access_token_ttl=60, refresh_token_ttl=60
        )
        begin.wait(10)
        return asyncio.run(FlowRunner({}).run(issuing.build_jwks(NOW)))["keys"][0]["kid"]

    with ThreadPoolExecutor(len(stores)) as threads:
        assert len(set(threads.map(key, stores))) == 1
    for store in stores:
        store.close()


FORKED = """
import asyncio, multiprocessing, os, sys
from dovetail.auth.sqlite_store import SQLiteStore

store = SQLiteStore(sys.argv[1])
asyncio.run(store.put("a", "k", b"1", 9e9, 1.0))
fork = multiprocessing.get_context("fork")
told = fork.SimpleQueue()

async def add_all(number):
    won = [str(key) for key in range(200) if await store.add("code", str(key), b"%d" % number, 9e9, 1.0) is None]
    return won, [await store.get("code", key, 1.0) == b"%d" % number for key in won]

def work(number):
    won, kept = asyncio.run(add_all(number))
    told.put((len(won), all(kept)))

with store._database._writer_lock:  # whoever held it in the parent will never let go of it in a child
    children = [fork.Process(target=work, args=(number,)) for number in range(2)]
    for child in children:
        child.start()
for child in children:
    child.join(20)
    if child.is_alive():
        child.kill()
        sys.exit("stuck")
results = [told.get() for _ in children]
assert sum(count for count, _ in results) == 200 and all(kept for _, kept in results), results
assert asyncio.run(store.get("a", "k", 1.0)) == b"1"
assert store._database._writer.execute("SELECT count(*) FROM kept WHERE kind = 'code'").fetchone() == (200,)
assert store._database._writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_file_is_opened_again_after_a_fork(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "kept.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_server_with_another_secret_keeps_the_signing_key(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "kept.db")
    desk = ServerHarness(store=store)
    tokens = Browser(desk).request_tokens()
    other = ServerHarness(store=store, sealer=Sealer("another secret of letters", purpose="test"))
    with pytest.raises(WrongSecretKey, match="secret_key"):
        other.run_flow(other.issuing.build_jwks(NOW))
    with pytest.raises(VerificationUnavailable):
        other.run_flow(other.verifier.verify(tokens["access_token"], (RESOURCE,)))
    assert other.token(grant_type="refresh_token", refresh_token=tokens["refresh_token"]).status_code == 503
    again = ServerHarness(store=store)
    assert again.run_flow(again.verifier.verify(tokens["access_token"], (RESOURCE,))).subject == "developer"
    assert decode_body(refresh(again, tokens["refresh_token"]))["access_token"]  # It was not used up.
    store.close()


def test_a_file_survives_and_holds_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    first = SQLiteStore(path)
    tokens = Browser(ServerHarness(store=first)).request_tokens()
    first.close()
    assert path.stat().st_mode & 0o077 == 0
    content = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    for secret in (tokens["access_token"], tokens["refresh_token"], tokens["access_token"].rpartition(".")[2]):
        assert secret.encode() not in content
    assert b'"d":' not in content  # nor the key that signs
    second = SQLiteStore(path)
    again = ServerHarness(store=second)
    assert again.run_flow(again.verifier.verify(tokens["access_token"], (RESOURCE,))).subject == "developer"
    assert decode_body(refresh(again, tokens["refresh_token"]))["access_token"]
    second.close()


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.oauth.authorization_server import store as module

    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    shelf = InMemoryStore()
    for number in range(3):
        await shelf.put("a", str(number), b"", NOW + 10, NOW)
    with pytest.raises(StoreFull):
        await shelf.put("a", "more", b"", NOW + 10, NOW)
    await shelf.put("a", "2", b"again", NOW + 20, NOW)
    await shelf.put("a", "later", b"", NOW + 30, NOW + 15)
    desk = ServerHarness(store=InMemoryStore())
    for _ in range(3):
        Browser(desk).request_code()
    browser = Browser(desk)
    browser.open()
    assert browser.submit_consent().status_code == 503


# Programs

NIGHTLY = RegisteredClient("nightly", client_secret="s3cret", scopes="read write")


def by_itself(desk: ServerHarness, client: str = "nightly", secret: str = "s3cret", **fields: str) -> HTTPResponse:
    return desk.post(
        "/token", {"grant_type": "client_credentials"} | fields, authorization=basic_credentials(client, secret)
    )


def test_a_program_acts_for_itself() -> None:
    desk = ServerHarness(clients=(NIGHTLY,))
    response = by_itself(desk, resource=RESOURCE, scope="read admin")
    token = decode_body(response)
    assert (token["scope"], "refresh_token" in token) == ("read", False)
    principal = desk.run_flow(desk.verifier.verify(token["access_token"], (RESOURCE,)))
    assert (principal.client_id, principal.scopes) == ("nightly", {"read"})
    assert principal != Principal("nightly", issuer=ISSUER)  # a user of the same name is somebody else
    assert decode_body(by_itself(desk))["scope"] == "read write"
    metadata = decode_body(desk.send_request("GET", "/.well-known/oauth-authorization-server"))
    assert "client_credentials" in metadata["grant_types_supported"]


def test_who_does_not_act_for_itself() -> None:
    editor = RegisteredClient("editor", redirect_uris=[REDIRECT_URI], client_secret="s3cret")
    desk = ServerHarness(clients=(NIGHTLY, editor))
    assert decode_body(by_itself(desk, "editor"))["error"] == "unauthorized_client"
    assert decode_body(by_itself(desk, secret="wrong"))["error"] == "invalid_client"
    assert decode_body(by_itself(desk, resource="https://other.example"))["error"] == "invalid_target"
    document = {"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": "client_secret_basic"}
    grants = ["authorization_code", "client_credentials"]
    made = decode_body(desk.register(document | {"grant_types": grants}))
    assert decode_body(by_itself(desk, made["client_id"], made["client_secret"]))["error"] == "unauthorized_client"
    assert Browser(desk).open(client_id="nightly").status_code == 400  # there is nowhere to send a user back to
    plain = decode_body(ServerHarness().send_request("GET", "/.well-known/oauth-authorization-server"))
    assert "client_credentials" not in plain["grant_types_supported"]


def test_known_clients_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="client_secret="):
        RegisteredClient("x")
    with pytest.raises(ValueError, match=r"scopes=.*redirect_uris="):
        RegisteredClient("x", redirect_uris=[REDIRECT_URI], scopes=["a"])

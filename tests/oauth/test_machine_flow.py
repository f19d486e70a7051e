"""Test logins without a local browser: their requests and their errors."""

import json
from base64 import urlsafe_b64decode
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from dovetail.errors import LoginFailed
from dovetail.oauth.challenge import Challenge, parse_challenge
from dovetail.oauth.flow import FetchResponse, Flow
from dovetail.oauth.login.login_settings import ClientCredentials, DeviceLogin, EnterpriseLogin, WorkloadIdentity
from dovetail.oauth.login.machine_flow import (
    log_in_with_credentials,
    log_in_with_device_code,
    log_in_with_enterprise_idp,
    log_in_with_workload_identity,
)
from dovetail.oauth.login.saved_login import SavedLogin, Token
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.wire.base import replace
from oauth.flow_environment import (
    ISSUER,
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
SCOPED = parse_challenge('Bearer scope="a b"')

# A program


def test_by_secret() -> None:
    world = create_working_environment()
    login = world.run_flow(
        log_in_with_credentials(
            SERVER, SCOPED, ClientCredentials(client_id="me", client_secret="s", issuer=ISSUER), None
        )
    )
    (call,) = world.calls_to(TOKEN)
    assert parse_form(call) == {
        "grant_type": "client_credentials",
        "resource": SERVER,
        "scope": "a b",
        "client_id": "me",
    }
    assert call.headers["authorization"].startswith("Basic ")
    assert login.token == Token(access_token="the-token", expires_at=1060.0)
    assert not world.visited_queries


def test_by_key() -> None:
    world = create_working_environment()
    key = ECKey.generate_key("P-256")
    settings = ClientCredentials(client_id="me", private_key=key.as_pem(private=True).decode())
    world.run_flow(log_in_with_credentials(SERVER, Challenge(), settings, None))
    sent = parse_form(world.calls_to(TOKEN)[0])
    claims = jwt.decode(sent["client_assertion"], key).claims
    assert (claims["iss"], claims["aud"], claims["iat"]) == ("me", ISSUER, 1000)
    assert sent["client_assertion_type"].endswith("jwt-bearer")


def test_with_a_proof() -> None:
    world = create_working_environment(**{TOKEN: {"access_token": "t", "token_type": "DPoP"}})
    settings = ClientCredentials(client_id="me", client_secret="s", issuer=ISSUER, dpop=True)
    login: SavedLogin = world.run_flow(log_in_with_credentials(SERVER, Challenge(), settings, None))
    assert login.key is not None
    assert "dpop" in world.calls_to(TOKEN)[0].headers


def test_a_secret_is_not_shown_to_an_unsafe_place() -> None:
    world = create_working_environment(
        **{SERVER_METADATA_URL: server_metadata(token_endpoint="http://login.example.com/token")}
    )
    with pytest.raises(LoginFailed, match="token endpoint"):
        world.run_flow(
            log_in_with_credentials(
                SERVER, SCOPED, ClientCredentials(client_id="me", client_secret="s", issuer=ISSUER), None
            )
        )
    assert world.urls == [RESOURCE_METADATA_URL, SERVER_METADATA_URL]


def test_a_secret_for_one_issuer_is_not_shown_to_another() -> None:
    world = create_working_environment()
    settings = ClientCredentials(client_id="me", client_secret="s", issuer="https://other.example")
    with pytest.raises(LoginFailed, match=r"https://other\.example.*https://login\.example\.com"):
        world.run_flow(log_in_with_credentials(SERVER, SCOPED, settings, None))
    assert not world.calls_to(TOKEN)


# A company

IDP = "https://idp.example.com/token"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
COMPANY = EnterpriseLogin(
    client_id="me",
    client_secret="s",
    idp_client_id="there",
    idp_client_secret="i",
    idp_token_endpoint=IDP,
    id_token="id",
    issuer=ISSUER,
)


def test_by_the_companys_identity_provider() -> None:
    world = create_working_environment(
        **{IDP: {"access_token": "grant", "issued_token_type": ID_JAG, "token_type": "N_A"}}
    )
    world.run_flow(log_in_with_enterprise_idp(SERVER, SCOPED, COMPANY, None, "id"))
    assert parse_form(world.calls_to(IDP)[0]) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": ID_JAG,
        "audience": ISSUER,
        "resource": SERVER,
        "subject_token": "id",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "client_id": "there",
        "client_secret": "i",
        "scope": "a b",
    }
    assert parse_form(world.calls_to(TOKEN)[0]) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": "grant",
        "resource": SERVER,
        "scope": "a b",
        "client_id": "me",
    }


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (json_answer({"error": "invalid_grant"}, 400), "invalid_grant"),
        (json_answer({"issued_token_type": ID_JAG}), "200"),
        (json_answer({"access_token": "g", "issued_token_type": "other"}), "identity provider"),
        (json_answer({"access_token": "g"}), "identity provider"),
    ],
)
def test_what_an_identity_provider_may_not_say(said: FetchResponse, why: str) -> None:
    world = create_working_environment(**{IDP: said})
    with pytest.raises(LoginFailed, match=why):
        world.run_flow(log_in_with_enterprise_idp(SERVER, SCOPED, COMPANY, None, "id"))
    assert not world.calls_to(TOKEN)


@pytest.mark.parametrize("secret", ["s", None])
def test_a_companys_secret_is_not_sent_to_an_issuer_that_the_server_chose(secret: str | None) -> None:
    world = create_working_environment(**{IDP: {"access_token": "grant", "issued_token_type": ID_JAG}})
    settings = replace(COMPANY, issuer=None, client_secret=secret)
    with pytest.raises(LoginFailed, match=r"https://login\.example\.com"):
        world.run_flow(log_in_with_enterprise_idp(SERVER, SCOPED, settings, None, "id"))
    assert not world.calls_to(IDP)
    assert not world.calls_to(TOKEN)


def test_a_companys_grant_is_for_the_issuer_that_was_named() -> None:
    world = create_working_environment(**{IDP: {"access_token": "grant", "issued_token_type": ID_JAG}})
    with pytest.raises(LoginFailed, match=r"https://other\.example.*https://login\.example\.com"):
        world.run_flow(
            log_in_with_enterprise_idp(SERVER, SCOPED, replace(COMPANY, issuer="https://other.example"), None, "id")
        )
    assert not world.calls_to(IDP)
    world.run_flow(log_in_with_enterprise_idp(SERVER, SCOPED, replace(COMPANY, issuer=ISSUER), None, "id"))


# A workload


def test_a_workloads_token_is_shown_to_the_issuer_that_was_named() -> None:
    """It is worth as much as the workload: a server must not be able to have it sent elsewhere."""
    world = create_working_environment()
    with pytest.raises(LoginFailed, match=r"https://other\.example.*https://login\.example\.com"):
        world.run_flow(
            log_in_with_workload_identity(
                SERVER, SCOPED, WorkloadIdentity(assertion="t", issuer="https://other.example"), None, "t"
            )
        )
    assert not world.calls_to(TOKEN)


def test_a_server_does_not_choose_who_sees_a_secret() -> None:
    """Without a word of the user it is shown to the server's own origin alone, or stays on this machine."""
    world = create_working_environment()
    with pytest.raises(LoginFailed, match=r"assertion=[\s\S]*issuer='https://login\.example\.com'"):
        world.run_flow(log_in_with_workload_identity(SERVER, SCOPED, WorkloadIdentity(assertion="t"), None, "t"))
    with pytest.raises(LoginFailed, match=r"client_secret="):
        world.run_flow(
            log_in_with_credentials(SERVER, SCOPED, ClientCredentials(client_id="me", client_secret="s"), None)
        )
    assert not world.calls_to(TOKEN)
    for url, issuer in (
        (SERVER, "https://mcp.example.com:443"),
        ("http://127.0.0.1:8000/mcp", "http://localhost:9000"),
    ):
        root = url.removesuffix("/mcp")
        near = FlowEnvironment(
            {
                f"{root}/.well-known/oauth-protected-resource/mcp": resource_metadata(
                    resource=url, authorization_servers=[issuer]
                ),
                f"{issuer}/.well-known/oauth-authorization-server": server_metadata(issuer),
                f"{issuer}/token": {"access_token": "x", "token_type": "Bearer"},
            }
        )
        assert (
            near.run_flow(log_in_with_workload_identity(url, SCOPED, WorkloadIdentity(assertion="t"), None, "t")).token
            is not None
        )


def test_by_the_platforms_token() -> None:
    world = create_working_environment()
    world.run_flow(
        log_in_with_workload_identity(
            SERVER, SCOPED, WorkloadIdentity(client_id="me", assertion="jwt", issuer=ISSUER), None, "jwt"
        )
    )
    assert parse_form(world.calls_to(TOKEN)[0]) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": "jwt",
        "resource": SERVER,
        "scope": "a b",
        "client_id": "me",
    }


def test_an_unnamed_workload_sends_no_name() -> None:
    world = create_working_environment()
    world.run_flow(
        log_in_with_workload_identity(
            SERVER, Challenge(), WorkloadIdentity(assertion="jwt", issuer=ISSUER), None, "jwt"
        )
    )
    assert "client_id=" not in world.calls_to(TOKEN)[0].body.decode()


def test_a_refused_workload_tries_nothing_else() -> None:
    world = create_working_environment(**{TOKEN: json_answer({"error": "invalid_grant"}, 400)})
    with pytest.raises(LoginFailed, match="invalid_grant"):
        world.run_flow(
            log_in_with_workload_identity(SERVER, SCOPED, WorkloadIdentity(assertion="jwt", issuer=ISSUER), None, "jwt")
        )
    assert len(world.calls_to(TOKEN)) == 1


# Another device

DEVICE = f"{ISSUER}/device"
SAID: dict[str, Any] = {
    "device_code": "dev",
    "user_code": "ABCD-1234",
    "verification_uri": f"{ISSUER}/enter",
    "verification_uri_complete": f"{ISSUER}/enter?code=ABCD-1234",
    "interval": 2,
    "expires_in": 60,
}
PENDING = json_answer({"error": "authorization_pending"}, 400)
SLOWER = json_answer({"error": "slow_down"}, 400)
GOOD = json_answer({"access_token": "t", "token_type": "Bearer"})


def device(*answers: FetchResponse, **changes: Any) -> FlowEnvironment:
    left = iter(answers)
    said = {name: value for name, value in (SAID | changes).items() if value is not None}
    return create_working_environment(**{
        SERVER_METADATA_URL: server_metadata(device_authorization_endpoint=DEVICE),
        DEVICE: said, TOKEN: lambda _: next(left, PENDING),
    })  # fmt: skip


def on_device(world: FlowEnvironment, **settings: Any) -> SavedLogin:
    return world.run_flow(log_in_with_device_code(SERVER, SCOPED, DeviceLogin(**settings), None))


def test_a_code_is_shown_and_waited_for() -> None:
    world = device(PENDING, SLOWER, PENDING, GOOD)
    assert on_device(world, client_id="me").token == Token(access_token="t")
    assert parse_form(world.calls_to(DEVICE)[0]) == {"resource": SERVER, "scope": "a b", "client_id": "me"}
    assert [(one.url, one.code, one.complete_url) for one in world.shown_codes] == [
        (f"{ISSUER}/enter", "ABCD-1234", f"{ISSUER}/enter?code=ABCD-1234")
    ]
    assert world.pauses == [2.0, 2.0, 7.0, 7.0]
    assert parse_form(world.calls_to(TOKEN)[0]) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "device_code": "dev",
        "resource": SERVER,
        "client_id": "me",
    }


def test_a_client_for_devices_is_registered_as_one() -> None:
    world = device(GOOD)
    on_device(world)
    sent: HTTPRequest = world.calls_to(f"{ISSUER}/register")[0]
    assert b'"grant_types":["urn:ietf:params:oauth:grant-type:device_code","refresh_token"]' in sent.body


def test_an_endpoint_that_does_not_answer_is_asked_less_often() -> None:
    world = device(FetchResponse(0), FetchResponse(0), GOOD)
    on_device(world, client_id="me")
    assert world.pauses == [2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("said", "pause"), [(None, 5.0), ("3", 3.0), (0, 5.0), (0.01, 1.0), (-4, 5.0), (9999, 60.0), ([], 5.0), ("x", 5.0)]
)
def test_how_often_it_is_asked(said: Any, pause: float) -> None:
    world = device(GOOD, interval=said, expires_in=100)
    on_device(world, client_id="me")
    assert world.pauses == [pause]


def test_it_ends_when_the_code_does() -> None:
    world = device(expires_in=20)
    with pytest.raises(LoginFailed):
        on_device(world, client_id="me")
    assert sum(world.pauses) == 22.0


def test_it_ends_when_the_user_said_so() -> None:
    world = device(expires_in=None)
    with pytest.raises(LoginFailed):
        on_device(world, client_id="me", timeout=9.0)
    assert sum(world.pauses) == 10.0


@pytest.mark.parametrize("code", ["access_denied", "expired_token", "invalid_grant"])
def test_it_ends_with_a_refusal(code: str) -> None:
    with pytest.raises(LoginFailed, match=code):
        on_device(device(PENDING, json_answer({"error": code}, 400)), client_id="me")


@pytest.mark.parametrize(
    "changes",
    [
        {"device_authorization_endpoint": None},
        {"device_authorization_endpoint": "http://login.example.com/device"},
        {"device_authorization_endpoint": DEVICE, "token_endpoint": "http://login.example.com/token"},
        {"device_authorization_endpoint": DEVICE, "token_endpoint": None},
    ],
)
def test_without_safe_endpoints_it_is_not_offered(changes: dict[str, Any]) -> None:
    world = create_working_environment(
        **{RESOURCE_METADATA_URL: resource_metadata(), SERVER_METADATA_URL: server_metadata(**changes)}
    )
    with pytest.raises(LoginFailed):
        on_device(world, client_id="me")
    assert world.urls == [RESOURCE_METADATA_URL, SERVER_METADATA_URL]


def test_a_code_cannot_paint_the_terminal() -> None:
    world = device(GOOD, user_code="\x1b[2J" + "x" * 999, verification_uri_complete=7)
    on_device(world, client_id="me")
    assert world.shown_codes[0].code.isprintable()
    assert len(world.shown_codes[0].code) < 999
    assert world.shown_codes[0].complete_url is None


def test_a_device_login_that_is_refused_says_so() -> None:
    world = create_working_environment(**{
        SERVER_METADATA_URL: server_metadata(device_authorization_endpoint=DEVICE),
        DEVICE: json_answer({"error": "invalid_client"}, 401),
    })  # fmt: skip
    with pytest.raises(LoginFailed, match=r"401.*invalid_client"):
        on_device(world, client_id="me")


# Tokens bound to a key


def log_in(
    kind: str, challenge: Challenge, known: SavedLogin | None = None, dpop: bool | None = None
) -> Flow[SavedLogin]:
    """A login of each kind."""
    match kind:
        case "program":
            program = ClientCredentials(client_id="me", client_secret="s", issuer=ISSUER, dpop=dpop)
            return log_in_with_credentials(SERVER, challenge, program, known)
        case "company":
            return log_in_with_enterprise_idp(SERVER, challenge, replace(COMPANY, dpop=dpop), known, "id")
        case "workload":
            workload = WorkloadIdentity(assertion="jwt", issuer=ISSUER, dpop=dpop)
            return log_in_with_workload_identity(SERVER, challenge, workload, known, "jwt")
        case _:
            return log_in_with_device_code(SERVER, challenge, DeviceLogin(client_id="me", dpop=dpop), known)


def binding(**changes: Any) -> FlowEnvironment:
    """A world that binds tokens to the key of whoever shows one."""

    def issued(call: HTTPRequest) -> dict[str, str]:
        return {"access_token": "the-token", "token_type": "DPoP" if "dpop" in call.headers else "Bearer"}

    return create_working_environment(**{
        SERVER_METADATA_URL: server_metadata(device_authorization_endpoint=DEVICE), DEVICE: SAID, TOKEN: issued,
        IDP: {"access_token": "grant", "issued_token_type": ID_JAG},
    } | changes)  # fmt: skip


BOUND = json_answer({"access_token": "t", "token_type": "DPoP"})
KINDS = pytest.mark.parametrize("kind", ["program", "company", "workload", "device"])


@KINDS
@pytest.mark.parametrize(
    ("challenge", "required"), [(Challenge("dpop"), False), (Challenge(), True)], ids=["challenge", "metadata"]
)
def test_tokens_are_bound_where_the_server_asks_for_it(kind: str, challenge: Challenge, required: bool) -> None:
    world = binding(**{RESOURCE_METADATA_URL: resource_metadata(dpop_bound_access_tokens_required=required)})
    login: SavedLogin = world.run_flow(log_in(kind, challenge))
    assert login.key is not None
    proof = jwt.decode(world.calls_to(TOKEN)[0].headers["dpop"], ECKey.import_key(login.key))
    assert (proof.claims["htm"], proof.claims["htu"]) == ("POST", TOKEN)
    assert world.run_flow(log_in(kind, challenge, login)).key == login.key
    assert world.run_flow(log_in(kind, challenge, dpop=False)).key is None


@KINDS
def test_tokens_are_bound_where_the_user_insists(kind: str) -> None:
    assert binding().run_flow(log_in(kind, Challenge())).key is None
    assert binding().run_flow(log_in(kind, Challenge(), dpop=True)).key is not None


@KINDS
def test_a_token_that_is_not_bound_is_not_taken_for_one(kind: str) -> None:
    world = binding(**{TOKEN: {"access_token": "t", "token_type": "Bearer"}})
    with pytest.raises(LoginFailed, match="Bearer"):
        world.run_flow(log_in(kind, Challenge("dpop")))


@KINDS
def test_a_proof_repeats_the_nonce_that_is_asked_for(kind: str) -> None:
    answers = iter([json_answer({"error": "use_dpop_nonce"}, 400, {"dpop-nonce": "n1"}), BOUND])
    world = binding(**{TOKEN: lambda _: next(answers)})
    world.run_flow(log_in(kind, Challenge("dpop")))
    assert nonces(world) == [None, "n1"]


def test_waiting_for_a_device_keeps_the_nonce() -> None:
    answers = iter([
        json_answer({"error": "use_dpop_nonce"}, 400, {"dpop-nonce": "n1"}), PENDING, PENDING,
        json_answer({"error": "authorization_pending"}, 400, {"dpop-nonce": "n2"}), BOUND,
    ])  # fmt: skip
    world = binding(**{TOKEN: lambda _: next(answers)})
    world.run_flow(log_in("device", Challenge("dpop")))
    assert nonces(world) == [None, "n1", "n1", "n1", "n2"]
    assert len(world.pauses) == 4


def nonces(world: FlowEnvironment) -> list[str | None]:
    return [_said(call.headers["dpop"]).get("nonce") for call in world.calls_to(TOKEN)]


def _said(proof: str) -> dict[str, Any]:
    part = proof.split(".")[1]
    return json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def test_the_token_is_for_the_resource_of_the_document() -> None:
    resource = "https://mcp.example.com/"
    world = create_working_environment(**{RESOURCE_METADATA_URL: resource_metadata(resource=resource)})
    settings = ClientCredentials(client_id="me", client_secret="s", issuer=ISSUER)
    world.run_flow(log_in_with_credentials(SERVER, Challenge(), settings, None))
    assert parse_form(world.calls_to(TOKEN)[0])["resource"] == resource

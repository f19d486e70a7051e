"""Logins without a browser here: what each sends, and what ends it."""

import json
from base64 import urlsafe_b64decode
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from auth.world import ASM, ISSUER, PRM, SERVER, World, answer, form, guarded, resource, server
from dovetail.auth.challenge import Challenge, parse
from dovetail.auth.flow import Flow, HttpAnswer, HttpCall
from dovetail.auth.login import Login, Token
from dovetail.auth.machine_flow import by_credentials, by_device, by_enterprise, by_workload
from dovetail.auth.settings import ClientCredentials, DeviceLogin, EnterpriseLogin, WorkloadIdentity
from dovetail.errors import LoginFailed
from dovetail.wire.shape import replace

TOKEN = f"{ISSUER}/token"
SCOPED = parse('Bearer scope="a b"')

# A program


def test_by_secret() -> None:
    world = guarded()
    login = world.run(
        by_credentials(SERVER, SCOPED, ClientCredentials(client_id="me", client_secret="s", issuer=ISSUER), None)
    )
    (call,) = world.sent_to(TOKEN)
    assert form(call) == {
        "grant_type": "client_credentials",
        "resource": SERVER,
        "scope": "a b",
        "client_id": "me",
    }
    assert call.headers["authorization"].startswith("Basic ")
    assert login.token == Token(access_token="the-token", expires_at=1060.0)
    assert not world.visited


def test_by_key() -> None:
    world = guarded()
    key = ECKey.generate_key("P-256")
    settings = ClientCredentials(client_id="me", private_key=key.as_pem(private=True).decode())
    world.run(by_credentials(SERVER, Challenge(), settings, None))
    sent = form(world.sent_to(TOKEN)[0])
    claims = jwt.decode(sent["client_assertion"], key).claims
    assert (claims["iss"], claims["aud"], claims["iat"]) == ("me", ISSUER, 1000)
    assert sent["client_assertion_type"].endswith("jwt-bearer")


def test_with_a_proof() -> None:
    world = guarded(**{TOKEN: {"access_token": "t", "token_type": "DPoP"}})
    settings = ClientCredentials(client_id="me", client_secret="s", issuer=ISSUER, dpop=True)
    login: Login = world.run(by_credentials(SERVER, Challenge(), settings, None))
    assert login.key is not None
    assert "dpop" in world.sent_to(TOKEN)[0].headers


def test_a_secret_is_not_shown_to_an_unsafe_place() -> None:
    world = guarded(**{ASM: server(token_endpoint="http://login.example.com/token")})
    with pytest.raises(LoginFailed, match="token endpoint"):
        world.run(
            by_credentials(SERVER, SCOPED, ClientCredentials(client_id="me", client_secret="s", issuer=ISSUER), None)
        )
    assert world.urls == [PRM, ASM]


def test_a_secret_for_one_issuer_is_not_shown_to_another() -> None:
    world = guarded()
    settings = ClientCredentials(client_id="me", client_secret="s", issuer="https://other.example")
    with pytest.raises(LoginFailed, match=r"https://other\.example.*https://login\.example\.com"):
        world.run(by_credentials(SERVER, SCOPED, settings, None))
    assert not world.sent_to(TOKEN)


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
)


def test_by_the_companys_identity_provider() -> None:
    world = guarded(**{IDP: {"access_token": "grant", "issued_token_type": ID_JAG, "token_type": "N_A"}})
    world.run(by_enterprise(SERVER, SCOPED, COMPANY, None, "id"))
    assert form(world.sent_to(IDP)[0]) == {
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
    assert form(world.sent_to(TOKEN)[0]) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": "grant",
        "resource": SERVER,
        "scope": "a b",
        "client_id": "me",
    }


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer({"error": "invalid_grant"}, 400), "invalid_grant"),
        (answer({"issued_token_type": ID_JAG}), "200"),
        (answer({"access_token": "g", "issued_token_type": "other"}), "identity provider"),
        (answer({"access_token": "g"}), "identity provider"),
    ],
)
def test_what_an_identity_provider_may_not_say(said: HttpAnswer, why: str) -> None:
    world = guarded(**{IDP: said})
    with pytest.raises(LoginFailed, match=why):
        world.run(by_enterprise(SERVER, SCOPED, COMPANY, None, "id"))
    assert not world.sent_to(TOKEN)


def test_a_companys_grant_is_for_the_issuer_that_was_named() -> None:
    world = guarded(**{IDP: {"access_token": "grant", "issued_token_type": ID_JAG}})
    with pytest.raises(LoginFailed, match=r"https://other\.example.*https://login\.example\.com"):
        world.run(by_enterprise(SERVER, SCOPED, replace(COMPANY, issuer="https://other.example"), None, "id"))
    assert not world.sent_to(IDP)
    world.run(by_enterprise(SERVER, SCOPED, replace(COMPANY, issuer=ISSUER), None, "id"))


# A workload


def test_a_workloads_token_is_shown_to_the_issuer_that_was_named() -> None:
    """It is worth as much as the workload: a server must not be able to have it sent elsewhere."""
    world = guarded()
    with pytest.raises(LoginFailed, match=r"https://other\.example.*https://login\.example\.com"):
        world.run(
            by_workload(SERVER, SCOPED, WorkloadIdentity(assertion="t", issuer="https://other.example"), None, "t")
        )
    assert not world.sent_to(TOKEN)


def test_a_server_does_not_choose_who_sees_a_secret() -> None:
    """Without a word of the user it is shown to the server's own origin alone, or stays on this machine."""
    world = guarded()
    with pytest.raises(LoginFailed, match=r"assertion=[\s\S]*issuer='https://login\.example\.com'"):
        world.run(by_workload(SERVER, SCOPED, WorkloadIdentity(assertion="t"), None, "t"))
    with pytest.raises(LoginFailed, match=r"client_secret="):
        world.run(by_credentials(SERVER, SCOPED, ClientCredentials(client_id="me", client_secret="s"), None))
    assert not world.sent_to(TOKEN)
    for url, issuer in (
        (SERVER, "https://mcp.example.com:443"),
        ("http://127.0.0.1:8000/mcp", "http://localhost:9000"),
    ):
        root = url.removesuffix("/mcp")
        near = World(
            {
                f"{root}/.well-known/oauth-protected-resource/mcp": resource(
                    resource=url, authorization_servers=[issuer]
                ),
                f"{issuer}/.well-known/oauth-authorization-server": server(issuer),
                f"{issuer}/token": {"access_token": "x", "token_type": "Bearer"},
            }
        )
        assert near.run(by_workload(url, SCOPED, WorkloadIdentity(assertion="t"), None, "t")).token is not None


def test_by_the_platforms_token() -> None:
    world = guarded()
    world.run(
        by_workload(SERVER, SCOPED, WorkloadIdentity(client_id="me", assertion="jwt", issuer=ISSUER), None, "jwt")
    )
    assert form(world.sent_to(TOKEN)[0]) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": "jwt",
        "resource": SERVER,
        "scope": "a b",
        "client_id": "me",
    }


def test_a_workload_nobody_named_sends_no_name() -> None:
    world = guarded()
    world.run(by_workload(SERVER, Challenge(), WorkloadIdentity(assertion="jwt", issuer=ISSUER), None, "jwt"))
    assert "client_id=" not in world.sent_to(TOKEN)[0].body.decode()


def test_a_refused_workload_tries_nothing_else() -> None:
    world = guarded(**{TOKEN: answer({"error": "invalid_grant"}, 400)})
    with pytest.raises(LoginFailed, match="invalid_grant"):
        world.run(by_workload(SERVER, SCOPED, WorkloadIdentity(assertion="jwt", issuer=ISSUER), None, "jwt"))
    assert len(world.sent_to(TOKEN)) == 1


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
PENDING = answer({"error": "authorization_pending"}, 400)
SLOWER = answer({"error": "slow_down"}, 400)
GOOD = answer({"access_token": "t", "token_type": "Bearer"})


def device(*answers: HttpAnswer, **changes: Any) -> World:
    left = iter(answers)
    said = {name: value for name, value in (SAID | changes).items() if value is not None}
    return guarded(**{
        ASM: server(device_authorization_endpoint=DEVICE), DEVICE: said, TOKEN: lambda _: next(left, PENDING),
    })  # fmt: skip


def on_device(world: World, **settings: Any) -> Login:
    return world.run(by_device(SERVER, SCOPED, DeviceLogin(**settings), None))


def test_a_code_is_shown_and_waited_for() -> None:
    world = device(PENDING, SLOWER, PENDING, GOOD)
    assert on_device(world, client_id="me").token == Token(access_token="t")
    assert form(world.sent_to(DEVICE)[0]) == {"resource": SERVER, "scope": "a b", "client_id": "me"}
    assert [(one.url, one.code, one.complete) for one in world.shown] == [
        (f"{ISSUER}/enter", "ABCD-1234", f"{ISSUER}/enter?code=ABCD-1234")
    ]
    assert world.paused == [2.0, 2.0, 7.0, 7.0]
    assert form(world.sent_to(TOKEN)[0]) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "device_code": "dev",
        "resource": SERVER,
        "client_id": "me",
    }


def test_a_client_for_devices_is_registered_as_one() -> None:
    world = device(GOOD)
    on_device(world)
    sent: HttpCall = world.sent_to(f"{ISSUER}/register")[0]
    assert b'"grant_types":["urn:ietf:params:oauth:grant-type:device_code","refresh_token"]' in sent.body


def test_an_endpoint_that_does_not_answer_is_asked_less_often() -> None:
    world = device(HttpAnswer(0), HttpAnswer(0), GOOD)
    on_device(world, client_id="me")
    assert world.paused == [2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("said", "pause"), [(None, 5.0), ("3", 3.0), (0, 5.0), (0.01, 1.0), (-4, 5.0), (9999, 60.0), ([], 5.0), ("x", 5.0)]
)
def test_how_often_it_is_asked(said: Any, pause: float) -> None:
    world = device(GOOD, interval=said, expires_in=100)
    on_device(world, client_id="me")
    assert world.paused == [pause]


def test_it_ends_when_the_code_does() -> None:
    world = device(expires_in=20)
    with pytest.raises(LoginFailed):
        on_device(world, client_id="me")
    assert sum(world.paused) == 22.0


def test_it_ends_when_the_user_said_so() -> None:
    world = device(expires_in=None)
    with pytest.raises(LoginFailed):
        on_device(world, client_id="me", timeout=9.0)
    assert sum(world.paused) == 10.0


@pytest.mark.parametrize("code", ["access_denied", "expired_token", "invalid_grant"])
def test_it_ends_with_a_refusal(code: str) -> None:
    with pytest.raises(LoginFailed, match=code):
        on_device(device(PENDING, answer({"error": code}, 400)), client_id="me")


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
    world = guarded(**{PRM: resource(), ASM: server(**changes)})
    with pytest.raises(LoginFailed):
        on_device(world, client_id="me")
    assert world.urls == [PRM, ASM]


def test_a_code_cannot_paint_the_terminal() -> None:
    world = device(GOOD, user_code="\x1b[2J" + "x" * 999, verification_uri_complete=7)
    on_device(world, client_id="me")
    assert world.shown[0].code.isprintable()
    assert len(world.shown[0].code) < 999
    assert world.shown[0].complete is None


def test_a_device_login_that_is_refused_says_so() -> None:
    world = guarded(**{
        ASM: server(device_authorization_endpoint=DEVICE), DEVICE: answer({"error": "invalid_client"}, 401),
    })  # fmt: skip
    with pytest.raises(LoginFailed, match=r"401.*invalid_client"):
        on_device(world, client_id="me")


# Tokens bound to a key


def log_in(kind: str, challenge: Challenge, known: Login | None = None, dpop: bool | None = None) -> Flow[Login]:
    """A login of each kind."""
    match kind:
        case "program":
            program = ClientCredentials(client_id="me", client_secret="s", issuer=ISSUER, dpop=dpop)
            return by_credentials(SERVER, challenge, program, known)
        case "company":
            return by_enterprise(SERVER, challenge, replace(COMPANY, dpop=dpop), known, "id")
        case "workload":
            workload = WorkloadIdentity(assertion="jwt", issuer=ISSUER, dpop=dpop)
            return by_workload(SERVER, challenge, workload, known, "jwt")
        case _:
            return by_device(SERVER, challenge, DeviceLogin(client_id="me", dpop=dpop), known)


def binding(**changes: Any) -> World:
    """A world that binds tokens to the key of whoever shows one."""

    def issued(call: HttpCall) -> dict[str, str]:
        return {"access_token": "the-token", "token_type": "DPoP" if "dpop" in call.headers else "Bearer"}

    return guarded(**{
        ASM: server(device_authorization_endpoint=DEVICE), DEVICE: SAID, TOKEN: issued,
        IDP: {"access_token": "grant", "issued_token_type": ID_JAG},
    } | changes)  # fmt: skip


BOUND = answer({"access_token": "t", "token_type": "DPoP"})
KINDS = pytest.mark.parametrize("kind", ["program", "company", "workload", "device"])


@KINDS
@pytest.mark.parametrize(
    ("challenge", "required"), [(Challenge("dpop"), False), (Challenge(), True)], ids=["challenge", "metadata"]
)
def test_tokens_are_bound_where_the_server_asks_for_it(kind: str, challenge: Challenge, required: bool) -> None:
    world = binding(**{PRM: resource(dpop_bound_access_tokens_required=required)})
    login: Login = world.run(log_in(kind, challenge))
    assert login.key is not None
    proof = jwt.decode(world.sent_to(TOKEN)[0].headers["dpop"], ECKey.import_key(login.key))
    assert (proof.claims["htm"], proof.claims["htu"]) == ("POST", TOKEN)
    assert world.run(log_in(kind, challenge, login)).key == login.key
    assert world.run(log_in(kind, challenge, dpop=False)).key is None


@KINDS
def test_tokens_are_bound_where_the_user_insists(kind: str) -> None:
    assert binding().run(log_in(kind, Challenge())).key is None
    assert binding().run(log_in(kind, Challenge(), dpop=True)).key is not None


@KINDS
def test_a_token_that_is_not_bound_is_not_taken_for_one(kind: str) -> None:
    world = binding(**{TOKEN: {"access_token": "t", "token_type": "Bearer"}})
    with pytest.raises(LoginFailed, match="Bearer"):
        world.run(log_in(kind, Challenge("dpop")))


@KINDS
def test_a_proof_repeats_the_nonce_that_is_asked_for(kind: str) -> None:
    answers = iter([answer({"error": "use_dpop_nonce"}, 400, {"dpop-nonce": "n1"}), BOUND])
    world = binding(**{TOKEN: lambda _: next(answers)})
    world.run(log_in(kind, Challenge("dpop")))
    assert nonces(world) == [None, "n1"]


def test_waiting_for_a_device_keeps_the_nonce() -> None:
    answers = iter([
        answer({"error": "use_dpop_nonce"}, 400, {"dpop-nonce": "n1"}), PENDING, PENDING,
        answer({"error": "authorization_pending"}, 400, {"dpop-nonce": "n2"}), BOUND,
    ])  # fmt: skip
    world = binding(**{TOKEN: lambda _: next(answers)})
    world.run(log_in("device", Challenge("dpop")))
    assert nonces(world) == [None, "n1", "n1", "n1", "n2"]
    assert len(world.paused) == 4


def nonces(world: World) -> list[str | None]:
    return [_said(call.headers["dpop"]).get("nonce") for call in world.sent_to(TOKEN)]


def _said(proof: str) -> dict[str, Any]:
    part = proof.split(".")[1]
    return json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))

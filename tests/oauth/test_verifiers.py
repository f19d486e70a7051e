"""Test token verifiers: which tokens are accepted."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import RSAKey

from dovetail.oauth.flow import AcquireLock, FetchResponse, Now
from dovetail.oauth.guard.claims import TokenRejected, VerificationUnavailable, check_claims
from dovetail.oauth.guard.keys import ASYMMETRIC_ALGORITHMS
from dovetail.oauth.guard.verifiers import IntrospectionVerifier, JWTVerifier, StaticTokenVerifier, select_verifiers
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.protocol.principal import Principal
from dovetail.wire.codec import encode
from support.fake_issuer import ISSUER, NOW, RESOURCE, UNREADABLE, Issuer, run_flow, sign_with_secret


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    made = Issuer()
    made.add_key("rsa", "RSA")
    made.add_key("ed", "OKP")
    return made


def verifier(issuer: Issuer, **options: Any) -> JWTVerifier:
    return JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks(), **options)


def principal(issuer: Issuer, token: str, **options: Any) -> Principal:
    return run_flow(verifier(issuer, **options).verify(token, (RESOURCE,)))


@pytest.mark.parametrize("name", UNREADABLE)
def test_claims_that_cannot_be_read_are_refused(issuer: Issuer, name: str) -> None:
    """Though its issuer signed them."""
    payload = UNREADABLE[name]
    if name == "surrogate":
        payload = json.dumps(issuer.claims(sub="\ud800")).encode()
    with pytest.raises(TokenRejected, match="claims"):
        principal(issuer, issuer.sign_payload({"alg": "ES256", "kid": "one", "typ": "at+jwt"}, payload))


# Tokens that are good


@pytest.mark.parametrize(("by", "alg"), [("one", "ES256"), ("rsa", "RS256"), ("rsa", "PS512"), ("ed", "Ed25519")])
def test_a_good_token_is_its_principal(issuer: Issuer, by: str, alg: str) -> None:
    found = principal(issuer, issuer.token(by, alg=alg))
    assert (found.subject, found.issuer, found.client_id, found.scopes) == ("ada", ISSUER, "editor", {"files:read"})
    assert found == f"{ISSUER}#ada"
    assert found.claims["aud"] == RESOURCE


@pytest.mark.parametrize("typ", [None, "JWT", "at+jwt", "application/at+jwt", "AT+JWT"])
def test_kinds_of_access_tokens(issuer: Issuer, typ: str | None) -> None:
    assert principal(issuer, issuer.token(typ=typ)).subject == "ada"


@pytest.mark.parametrize("said", [RESOURCE, [RESOURCE], ["https://other.example", RESOURCE], RESOURCE + "/"])
def test_audiences_that_name_this_server(issuer: Issuer, said: Any) -> None:
    assert principal(issuer, issuer.token(aud=said)).subject == "ada"


def test_scopes_as_text_or_list(issuer: Issuer) -> None:
    assert principal(issuer, issuer.token(scope="a b  a")).scopes == {"a", "b"}
    assert principal(issuer, issuer.token(scope=None, scp=["a", 3, "b"])).scopes == {"a", "b"}
    assert principal(issuer, issuer.token(scope=None)).scopes == frozenset()
    assert principal(issuer, issuer.token(roles=["x"]), scope_claims=["roles"]).scopes == {"x"}


def test_a_program_is_not_a_user_of_the_same_name(issuer: Issuer) -> None:
    program = principal(issuer, issuer.token(sub=None, client_id="ada"))
    user = principal(issuer, issuer.token(client_id="ada"))
    assert program.subject == user.subject == "ada"
    assert program != user


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_two_principals_share_a_name(one: str, other: str) -> None:
    made = {
        Principal(one, issuer=ISSUER), Principal(other, issuer=ISSUER), Principal("", client_id=one, issuer=ISSUER),
        Principal("", client_id=other, issuer=ISSUER), Principal(one, issuer=ISSUER + "/x"),
    }  # fmt: skip
    assert len(made) == (3 if one == other else 5)


def test_a_known_token_is_not_checked_twice(issuer: Issuer) -> None:
    one, token = verifier(issuer), issuer.token()
    first = run_flow(one.verify(token, (RESOURCE,)))
    assert run_flow(one.verify(token, (RESOURCE,))) is first
    with pytest.raises(TokenRejected, match="audience"):
        run_flow(one.verify(token, ("https://elsewhere.example",)))
    with pytest.raises(TokenRejected, match="expired"):
        run_flow(one.verify(token, (RESOURCE,)), now=NOW + 400)


# Tokens that are not


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": "https://mcp.example"}, "audience"),  # the origin is not the resource
        ({"aud": "https://mcp.example/mcp2"}, "audience"),
        ({"aud": "https://MCP.example/mcp/../mcp"}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": {"x": RESOURCE}}, "audience"),
        ({"aud": [[RESOURCE]]}, "audience"),
        ({"iss": "https://login.example/"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"iss": ["https://login.example"]}, "issuer"),
        ({"exp": int(NOW) - 3600}, "expired"),
        ({"exp": None}, "token"),
        ({"exp": "4000000000"}, "exp"),
        ({"exp": True}, "exp"),
        ({"nbf": int(NOW) + 3600}, "valid"),
        ({"nbf": "soon"}, "nbf"),
        ({"iat": int(NOW) + 3600}, "valid"),
        ({"sub": None, "client_id": None}, "token"),
        ({"sub": 7}, "sub"),
    ],
)
def test_claims_that_are_refused(issuer: Issuer, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(TokenRejected, match=why):
        principal(issuer, issuer.token(**changes))


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub"]),
        st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.lists(st.text()),
    )
)
def test_only_right_claims_pass(changes: dict[str, Any]) -> None:
    claims: dict[str, Any] = {"iss": ISSUER, "aud": RESOURCE} | changes
    try:
        check_claims(claims, issuer=ISSUER, audience=[RESOURCE], now=NOW, leeway=30)
    except TokenRejected:
        return
    aud = claims["aud"]
    assert claims["iss"] == ISSUER
    assert RESOURCE in ([aud.rstrip("/")] if isinstance(aud, str) else [one.rstrip("/") for one in aud])
    assert claims["exp"] + 30 > NOW
    assert not claims.get("nbf") or claims["nbf"] <= NOW + 30


@pytest.mark.parametrize("typ", ["dpop+jwt", "logout+jwt", "secevent+jwt", "client-authentication+jwt", ""])
def test_other_kinds_of_tokens(issuer: Issuer, typ: str) -> None:
    token = issuer.token(typ=typ)
    if typ:
        with pytest.raises(TokenRejected, match="access token"):
            principal(issuer, token)
    else:
        assert principal(issuer, token)


def unsigned(issuer: Issuer, **header: Any) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part(header)}.{part(issuer.claims())}."


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None, 5, ["ES256"], "HS256", "HS512", "ES256 "])
def test_an_unsigned_token_is_refused(issuer: Issuer, alg: Any) -> None:
    with pytest.raises(TokenRejected):
        principal(issuer, unsigned(issuer, alg=alg, typ="JWT"))
    with pytest.raises(TokenRejected):
        principal(issuer, unsigned(issuer, alg=alg, typ="JWT", kid="one"))


def test_a_public_key_is_not_a_secret(issuer: Issuer) -> None:
    """A token signed by HMAC with the text of the public key, which everyone knows."""
    public: RSAKey = issuer.keys["rsa"]
    pem = public.as_pem(private=False)
    spellings = [pem, pem.strip(), json.dumps(public.as_dict(private=False)).encode()]
    for secret in spellings:
        for kid in ("rsa", "one"):
            with pytest.raises(TokenRejected):
                principal(issuer, _hmac(secret, issuer.claims(), kid))
    with pytest.raises(TokenRejected):
        run_flow(
            JWTVerifier(issuer=ISSUER, public_keys=pem.decode()).verify(_hmac(pem, issuer.claims(), "rsa"), (RESOURCE,))
        )


def _hmac(secret: bytes, claims: dict[str, Any], kid: str) -> str:
    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    signed = (
        f"{part(json.dumps({'alg': 'HS256', 'typ': 'JWT', 'kid': kid}).encode())}.{part(json.dumps(claims).encode())}"
    )
    return f"{signed}.{part(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def test_a_secret_among_the_keys_is_not_used(issuer: Issuer) -> None:
    secret = "a secret that should not stand in a public document"
    jwks = {"keys": [{"kty": "oct", "k": base64.urlsafe_b64encode(secret.encode()).decode().rstrip("="), "kid": "s"}]}
    with pytest.raises(TokenRejected):
        run_flow(
            JWTVerifier(issuer=ISSUER, public_keys=jwks).verify(
                sign_with_secret(secret, issuer.claims(), kid="s"), (RESOURCE,)
            )
        )


def test_shared_secrets_cannot_be_allowed() -> None:
    for wrong in (["HS256"], ["none"], ["ES256", "HS512"], []):
        with pytest.raises(ValueError, match=r"algorithms.*ES256"):
            JWTVerifier(issuer=ISSUER, public_keys={"keys": []}, algorithms=wrong)
    assert not [one for one in ASYMMETRIC_ALGORITHMS if one.startswith("HS")]


def test_an_algorithm_outside_the_list(issuer: Issuer) -> None:
    with pytest.raises(TokenRejected):
        principal(issuer, issuer.token("rsa", alg="RS256"), algorithms=["ES256"])


def test_a_key_of_another_kind_or_purpose(issuer: Issuer) -> None:
    with pytest.raises(TokenRejected):
        principal(issuer, jwt.encode({"alg": "RS256", "kid": "one"}, issuer.claims(), issuer.keys["rsa"]))
    for_encryption = {"keys": [{**one, "use": "enc"} for one in issuer.jwks()["keys"]]}
    with pytest.raises(TokenRejected):
        run_flow(JWTVerifier(issuer=ISSUER, public_keys=for_encryption).verify(issuer.token(), (RESOURCE,)))


def test_weak_keys_are_not_used(issuer: Issuer) -> None:
    weak = {"kty": "RSA", "n": "A" * 171, "e": "AQAB", "kid": "rsa"}
    with pytest.raises(TokenRejected, match="key"):
        run_flow(
            JWTVerifier(issuer=ISSUER, public_keys={"keys": [weak]}).verify(
                issuer.token("rsa", alg="RS256"), (RESOURCE,)
            )
        )


@given(st.data())
def test_altered_tokens(issuer: Issuer, data: st.DataObject) -> None:
    token = issuer.token()
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("Aa0-_.=z"))
    altered = data.draw(st.sampled_from([token[:place] + letter + token[place + 1 :], token[:place], token + letter]))
    if altered == token:
        return
    try:
        found = principal(issuer, altered)
    except TokenRejected:
        return
    # The last letter of a part has bits that mean nothing: the same bytes, spelled another way.
    assert found.subject == "ada"
    assert [base64.urlsafe_b64decode(one + "==") for one in altered.split(".")] == [
        base64.urlsafe_b64decode(one + "==") for one in token.split(".")
    ]


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "x" * 50, "a.b.c.d.e", "." * 20_000, "A" * 20_000])
def test_an_invalid_token(issuer: Issuer, token: str) -> None:
    with pytest.raises(TokenRejected):
        principal(issuer, token)


# Where keys come from


def test_keys_are_found_through_the_issuer() -> None:
    issuer = Issuer()
    one = JWTVerifier(issuer=ISSUER)
    for _ in range(3):
        assert run_flow(one.verify(issuer.token(sub="x"), (RESOURCE,)), issuer).subject == "x"
    assert issuer.calls == [ISSUER + "/.well-known/oauth-authorization-server", ISSUER + "/jwks"]


def test_a_new_key_is_looked_for_once_in_a_while() -> None:
    issuer = Issuer()
    one = JWTVerifier(issuer=ISSUER, jwks_uri=ISSUER + "/jwks")
    run_flow(one.verify(issuer.token(), (RESOURCE,)), issuer)
    issuer.add_key("two")
    token = issuer.token("two")
    for _ in range(5):  # too soon to look again
        with pytest.raises(TokenRejected, match="key"):
            run_flow(one.verify(token, (RESOURCE,)), issuer, now=NOW + 29)
    assert len(issuer.calls) == 1
    assert run_flow(one.verify(token, (RESOURCE,)), issuer, now=NOW + 31).subject == "ada"
    assert len(issuer.calls) == 2


@pytest.mark.parametrize("is_found", [True, False])
def test_keys_are_fetched_again_after_the_clock_was_set_back(is_found: bool) -> None:
    issuer, ahead = Issuer(), NOW + 86400
    one = JWTVerifier(issuer=ISSUER, jwks_uri=ISSUER + "/jwks")
    if is_found:
        run_flow(one.verify(issuer.token(exp=int(ahead) + 600), (RESOURCE,)), issuer, now=ahead)
        issuer.add_key("two")
    else:
        with pytest.raises(VerificationUnavailable):
            run_flow(one.verify(issuer.token(), (RESOURCE,)), lambda _: FetchResponse(503, {}, b""), now=ahead)
    token = issuer.token("two") if is_found else issuer.token()
    assert run_flow(one.verify(token, (RESOURCE,)), issuer, now=NOW).subject == "ada"


def test_a_key_that_is_gone_takes_its_tokens_with_it() -> None:
    issuer = Issuer()
    one, token = JWTVerifier(issuer=ISSUER, jwks_uri=ISSUER + "/jwks"), issuer.token(exp=int(NOW) + 9000)
    run_flow(one.verify(token, (RESOURCE,)), issuer)
    issuer.add_key("two")
    del issuer.keys["one"]
    run_flow(one.verify(issuer.token("two", exp=int(NOW) + 9000), (RESOURCE,)), issuer, now=NOW + 40)
    with pytest.raises(TokenRejected):
        run_flow(one.verify(token, (RESOURCE,)), issuer, now=NOW + 41)


def test_an_issuer_that_cannot_be_reached() -> None:
    issuer = Issuer()
    one, token = JWTVerifier(issuer=ISSUER), issuer.token(exp=int(NOW) + 9000)
    issuer.down = True
    with pytest.raises(VerificationUnavailable):
        run_flow(one.verify(token, (RESOURCE,)), issuer)
    issuer.down = False
    run_flow(one.verify(token, (RESOURCE,)), issuer, now=NOW + 40)
    issuer.down = True
    assert run_flow(one.verify(token, (RESOURCE,)), issuer, now=NOW + 700).subject == "ada"  # known keys still do
    with pytest.raises(VerificationUnavailable):  # but not for ever
        run_flow(one.verify(token, (RESOURCE,)), issuer, now=NOW + 4000)


@pytest.mark.parametrize("status", [0, 302, 401, 429, 500, 503])
def test_without_keys_no_token_is_accepted(status: int) -> None:
    """Also when whoever has them is only busy: a check that cannot be made is not skipped."""
    issuer = Issuer()
    body = encode(issuer.jwks())
    with pytest.raises(VerificationUnavailable):
        run_flow(
            JWTVerifier(issuer=ISSUER, jwks_uri=ISSUER + "/jwks").verify(issuer.token(), (RESOURCE,)),
            lambda _: FetchResponse(status, {}, body),
        )


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"keys": 3}', b"<html>", b'{"keys": [3, {"kty": "EC"}]}'])
def test_a_broken_key_document(body: bytes) -> None:
    def web(_: HTTPRequest) -> FetchResponse:
        return FetchResponse(200, {}, body)

    issuer = Issuer()
    with pytest.raises((VerificationUnavailable, TokenRejected)):
        run_flow(JWTVerifier(issuer=ISSUER, jwks_uri=ISSUER + "/jwks").verify(issuer.token(), (RESOURCE,)), web)


def test_metadata_that_names_another_issuer_or_an_unsafe_place() -> None:
    issuer = Issuer()
    for document in (
        {"issuer": "https://evil.example", "jwks_uri": ISSUER + "/jwks"},
        {"issuer": ISSUER, "jwks_uri": "http://login.example/jwks"},
        {"issuer": ISSUER},
    ):

        def web(call: HTTPRequest, document: Any = document) -> FetchResponse:
            return issuer(call) if call.url.endswith("/jwks") else FetchResponse(200, {}, encode(document))

        with pytest.raises(VerificationUnavailable):
            run_flow(JWTVerifier(issuer=ISSUER).verify(issuer.token(), (RESOURCE,)), web)
    with pytest.raises(ValueError, match=r"jwks_uri.*https"):
        JWTVerifier(issuer=ISSUER, jwks_uri="http://login.example/jwks")


# Asking the issuer


def introspection(**options: Any) -> IntrospectionVerifier:
    return IntrospectionVerifier(
        introspection_endpoint=ISSUER + "/introspect", client_id="rs", client_secret="s", **options
    )


def saying(*answers: Any) -> Any:
    """A web that gives these answers, one after the other, the last for ever."""
    left = list(answers)

    def web(call: HTTPRequest) -> FetchResponse:
        assert call.method == "POST"
        assert b"token=opaque" in call.body
        assert call.headers["authorization"].startswith("Basic ")
        said = left.pop(0) if len(left) > 1 else left[0]
        return said if isinstance(said, FetchResponse) else FetchResponse(200, {}, encode(said))

    return web


ACTIVE = {"active": True, "sub": "ada", "aud": RESOURCE, "scope": "a b", "client_id": "editor"}


def test_an_active_token() -> None:
    found = run_flow(introspection().verify("opaque", (RESOURCE,)), saying(ACTIVE))
    assert (found.subject, found.scopes, found.client_id) == ("ada", {"a", "b"}, "editor")


@pytest.mark.parametrize(
    "said",
    [
        {"active": False},
        {},
        ACTIVE | {"active": "true"},
        ACTIVE | {"active": 1},
        ACTIVE | {"aud": "https://other.example"},
        {name: value for name, value in ACTIVE.items() if name != "aud"},
        ACTIVE | {"exp": NOW - 100},
        ACTIVE | {"exp": None},
        ACTIVE | {"nbf": NOW + 100},
        {"active": True, "aud": RESOURCE},
    ],
)
def test_a_token_that_is_not_active_or_not_for_us(said: dict[str, Any]) -> None:
    with pytest.raises(TokenRejected):
        run_flow(introspection().verify("opaque", (RESOURCE,)), saying(said))


def test_an_answer_in_the_name_of_another_issuer() -> None:
    with pytest.raises(TokenRejected, match="issuer"):
        run_flow(introspection(issuer=ISSUER).verify("opaque", (RESOURCE,)), saying(ACTIVE | {"iss": "https://evil"}))


@pytest.mark.parametrize(
    "said",
    [FetchResponse(0), FetchResponse(200, {}, b"active")]
    + [FetchResponse(status, {}, b'{"active": true, "sub": "ada"}') for status in (302, 401, 429, 500, 503)],
)
def test_no_answer_is_not_permission(said: FetchResponse) -> None:
    with pytest.raises(VerificationUnavailable):
        run_flow(introspection().verify("opaque", (RESOURCE,)), saying(said))


def test_revoked_tokens_end_at_once_unless_answers_are_remembered() -> None:
    web, asking = saying(ACTIVE, {"active": False}), introspection()
    assert run_flow(asking.verify("opaque", (RESOURCE,)), web)
    with pytest.raises(TokenRejected, match="active"):
        run_flow(asking.verify("opaque", (RESOURCE,)), web)
    web, asking = saying(ACTIVE, {"active": False}), introspection(cache_ttl=20)
    assert run_flow(asking.verify("opaque", (RESOURCE,)), web)
    assert run_flow(asking.verify("opaque", (RESOURCE,)), web, now=NOW + 19)
    with pytest.raises(TokenRejected, match="active"):
        run_flow(asking.verify("opaque", (RESOURCE,)), web, now=NOW + 21)


def test_tokens_do_not_travel_in_the_open() -> None:
    with pytest.raises(ValueError, match=r"endpoint.*https"):
        IntrospectionVerifier(introspection_endpoint="http://login.example/i", client_id="rs", client_secret="s")


def test_static_tokens() -> None:
    known = StaticTokenVerifier({"s3cret": "ada", "other": Principal("bob", scopes=["a"])})
    assert run_flow(known.verify("s3cret", ())) == "ada"
    assert run_flow(known.verify("other", ())).scopes == {"a"}
    assert select_verifiers([known], "s3cret") == [known]
    assert select_verifiers([known], "s3cre") == []
    with pytest.raises(TokenRejected):
        run_flow(known.verify("s3cre", ()))


@pytest.mark.parametrize(
    ("tokens", "kind", "why"),
    [
        (["s3cret"], TypeError, "StaticTokenVerifier"),
        ({"two words": "ada"}, ValueError, "token"),
        ({"": "ada"}, ValueError, "token"),
        ({7: "ada"}, ValueError, "token"),
        ({"s3cret": 7}, TypeError, "Principal.*int"),
    ],
)
def test_invalid_static_tokens(tokens: Any, kind: type[Exception], why: str) -> None:
    with pytest.raises(kind, match=why) as refused:
        StaticTokenVerifier(tokens)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("issuer", ["login.example", "http://login.example", "", None])
def test_an_issuer_whose_keys_cannot_be_found(issuer: Any) -> None:
    with pytest.raises(ValueError, match="issuer"):
        JWTVerifier(issuer=issuer)


def test_an_issuer_is_any_text_where_the_keys_are_given() -> None:
    assert (
        JWTVerifier(issuer="kubernetes/serviceaccount", public_keys=Issuer().jwks()).issuer
        == "kubernetes/serviceaccount"
    )


@pytest.mark.parametrize("keys", [7, b"-----BEGIN", "nonsense", [7], {"keys": 7}])
def test_an_invalid_key(keys: Any) -> None:
    with pytest.raises(ValueError, match="JWK"):
        JWTVerifier(issuer="https://login.example", public_keys=keys)


def test_a_cached_key_does_not_wait_for_an_unresponsive_issuer() -> None:
    issuer = Issuer()
    one = JWTVerifier(issuer=ISSUER, jwks_uri=ISSUER + "/jwks")
    run_flow(one.verify(issuer.token(), (RESOURCE,)), issuer)
    tokens = [issuer.token(exp=int(NOW) + 9000, sub=name) for name in ("ada", "bob")]
    looking = one.verify(tokens[0], (RESOURCE,))
    assert isinstance(next(looking), Now)
    assert isinstance(looking.send(NOW + 700), AcquireLock)
    assert isinstance(looking.send(None), HTTPRequest)  # and no answer yet
    other = one.verify(tokens[1], (RESOURCE,))
    assert isinstance(next(other), Now)
    with pytest.raises(StopIteration) as done:
        other.send(NOW + 701)
    assert done.value.value.subject == "bob"
    issuer.add_key("two")
    unknown = one.verify(issuer.token("two", exp=int(NOW) + 9000), (RESOURCE,))
    assert isinstance(next(unknown), Now)
    assert isinstance(unknown.send(NOW + 701), AcquireLock)  # of a key that is not known, the news is waited for
    with pytest.raises(StopIteration) as done:
        looking.send(FetchResponse(200, {}, encode(issuer.jwks())))
    assert done.value.value.subject == "ada"
    with pytest.raises(StopIteration) as done:
        unknown.send(None)
    assert done.value.value.subject == "ada"

"""Test the guard: accepted credentials, and the responses to all others."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey

from dovetail.errors import AuthError, Unauthorized
from dovetail.oauth import proofs
from dovetail.oauth.challenge import parse_challenge
from dovetail.oauth.flow import FetchResponse
from dovetail.oauth.guard.claims import TokenRejected, parse_scopes
from dovetail.oauth.guard.dpop import DPoPChecker
from dovetail.oauth.guard.guard import (
    Guard,
    RequestHead,
    get_credential_checker,
    is_metadata_path,
    location_from_public_url,
    location_from_request,
    parse_host_name,
)
from dovetail.oauth.guard.verifiers import IntrospectionVerifier, JWTVerifier, StaticTokenVerifier
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.protocol.principal import Principal
from support.fake_issuer import ISSUER, NOW, RESOURCE, UNREADABLE, Issuer, run_flow

METADATA = "https://mcp.example/.well-known/oauth-protected-resource/mcp"


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def head(authorization: str | None, dpop: str | None = None, **changes: Any) -> RequestHead:
    facts = {"method": "POST", "url": RESOURCE, "resource": RESOURCE, "metadata_url": METADATA} | changes
    return RequestHead(authorization=authorization, dpop_proof=dpop, **facts)


def denied(guard: Guard, authorization: str | None, dpop: str | None = None, **changes: Any) -> AuthError:
    with pytest.raises(AuthError) as refusal:
        run_flow(get_credential_checker(guard).authenticate(head(authorization, dpop, **changes)))
    return refusal.value


def test_without_credentials_the_challenge_names_the_metadata() -> None:
    guard = Guard(
        StaticTokenVerifier({"t": "ada"}), required_scopes=["files:read", "mail"], authorization_servers=[ISSUER]
    )
    for authorization in (None, "", "Basic YTpi", "Bearers t"):
        refusal = denied(guard, authorization)
        said = parse_challenge(refusal.challenge)
        assert refusal.status_code == 401
        assert said.error is None
        assert said.resource_metadata == METADATA
        assert said.scopes == ("files:read", "mail")


@pytest.mark.parametrize(
    "authorization", ["Bearer", "Bearer ", "Bearer a b", "Bearer \u00e4", 'Bearer "t"', "bearer a,b"]
)
def test_malformed_credentials(authorization: str) -> None:
    refusal = denied(Guard(StaticTokenVerifier({"t": "ada"})), authorization)
    assert (refusal.status_code, parse_challenge(refusal.challenge).error) == (400, "invalid_request")


@given(st.text())
def test_a_challenge_is_one_header_whatever_came(authorization: str) -> None:
    refusal = denied(Guard(StaticTokenVerifier({"secret-token": "ada"})), authorization)
    assert refusal.challenge.isascii()
    assert refusal.challenge.isprintable()


def test_the_scheme_has_no_case() -> None:
    guard = Guard(StaticTokenVerifier({"t": "ada"}))
    assert run_flow(get_credential_checker(guard).authenticate(head("bEARER t"))) == "ada"


def test_a_wrong_token_is_invalid() -> None:
    refusal = denied(Guard(StaticTokenVerifier({"t": "ada"})), "Bearer x")
    assert (refusal.status_code, parse_challenge(refusal.challenge).error) == (401, "invalid_token")


def test_a_token_that_is_not_a_jwt(issuer: Issuer) -> None:
    guard = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()))
    with pytest.raises(Unauthorized) as opaque:
        run_flow(get_credential_checker(guard).authenticate(head("Bearer opaque")))
    with pytest.raises(Unauthorized) as foreign:
        run_flow(get_credential_checker(guard).authenticate(head(f"Bearer {issuer.token(iss='https://x.example')}")))
    assert "JWT" in str(opaque.value.challenge)
    assert "issuer" in str(foreign.value.challenge)


def test_a_token_for_another_server(issuer: Issuer) -> None:
    guard = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()))
    token = issuer.token()
    assert run_flow(get_credential_checker(guard).authenticate(head(f"Bearer {token}"))).subject == "ada"
    refusal = denied(guard, f"Bearer {token}", resource="https://mcp.example/other")
    assert (refusal.status_code, parse_challenge(refusal.challenge).error) == (401, "invalid_token")
    elsewhere = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks(), audience=["api://other"]))
    assert denied(elsewhere, f"Bearer {token}").status_code == 401
    configured = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks(), audience="api://mine"))
    assert (
        run_flow(
            get_credential_checker(configured).authenticate(head(f"Bearer {issuer.token(aud='api://mine')}"))
        ).subject
        == "ada"
    )


def test_missing_scopes_are_reported_all_at_once(issuer: Issuer) -> None:
    guard = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()), required_scopes=["files:read", "files:write"])
    refusal = denied(guard, f"Bearer {issuer.token()}")
    said = parse_challenge(refusal.challenge)
    assert (refusal.status_code, said.error) == (403, "insufficient_scope")
    assert said.scopes == ("files:read", "files:write")
    assert said.resource_metadata == METADATA


def test_broad_scopes_include_narrow_ones() -> None:
    guard = Guard(
        StaticTokenVerifier({"t": Principal("ada", scopes=["all"], claims={"x": 1})}),
        required_scopes=["files:read"],
        implied_scopes={"all": ["files", "all"], "files": ["files:read"]},
    )
    found = run_flow(get_credential_checker(guard).authenticate(head("Bearer t")))
    assert found.scopes == {"all", "files", "files:read"}
    assert (found, found.subject, found.claims) == ("ada", "ada", {"x": 1})


def test_several_verifiers_and_one_that_cannot_be_asked(issuer: Issuer) -> None:
    other = Issuer("https://other.example")
    asking = IntrospectionVerifier(introspection_endpoint=ISSUER + "/i", client_id="a", client_secret="b")
    guard = Guard(
        JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()),
        JWTVerifier(issuer=other.url, public_keys=other.jwks()),
        StaticTokenVerifier({"t": "bob"}),
        asking,
    )
    assert run_flow(get_credential_checker(guard).authenticate(head(f"Bearer {issuer.token()}"))) == f"{ISSUER}#ada"
    assert run_flow(get_credential_checker(guard).authenticate(head(f"Bearer {other.token()}"))) == f"{other.url}#ada"
    assert run_flow(get_credential_checker(guard).authenticate(head("Bearer t"))) == "bob"
    # A token of one issuer signed by the other is nobody's; where nobody who knows can be reached: not 401, not served.
    forged = other.token(iss=ISSUER)
    for token, status in ((forged, 401), ("unknown", 503)):
        refusal = denied(guard, f"Bearer {token}")
        assert (refusal.status_code, bool(getattr(refusal, "challenge", ""))) == (status, status == 401)


def test_a_forged_issuer(issuer: Issuer) -> None:
    other = Issuer("https://other.example")
    guard = Guard(
        JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()), JWTVerifier(issuer=other.url, public_keys=other.jwks())
    )
    assert denied(guard, f"Bearer {other.token(iss=ISSUER)}").status_code == 401
    assert denied(guard, f"Bearer {other.token(iss='https://third.example')}").status_code == 401


def test_an_outage_refuses_but_does_not_condemn(issuer: Issuer) -> None:
    guard = Guard(JWTVerifier(issuer=ISSUER))
    with pytest.raises(AuthError) as refusal:
        run_flow(
            get_credential_checker(guard).authenticate(head(f"Bearer {issuer.token()}")), lambda _: FetchResponse(0)
        )
    assert refusal.value.status_code == 503


def test_what_auth_may_be() -> None:
    one = StaticTokenVerifier({"t": "ada"})
    for auth in (one, [one, one], (one,)):
        assert run_flow(get_credential_checker(auth).authenticate(head("Bearer t"))) == "ada"
    guard = Guard(one)
    assert run_flow(get_credential_checker(guard).authenticate(head("Bearer t"))) == "ada"
    for wrong in ("oauth", 3, [one, "x"], object()):
        with pytest.raises(TypeError, match=r"Guard\(\.\.\.\), JWTVerifier"):
            get_credential_checker(wrong)
    with pytest.raises(ValueError, match="JWTVerifier"):
        Guard()
    for scope in ("two words", 'quo"te', "", "back\\slash", "caf\u00e9"):
        with pytest.raises(ValueError, match="scope"):
            Guard(one, required_scopes=[scope])


def test_the_document(issuer: Issuer) -> None:
    guard = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()), StaticTokenVerifier({}), required_scopes=["a"])
    said = get_credential_checker(guard).build_metadata(RESOURCE)
    assert said["resource"] == RESOURCE
    assert said["authorization_servers"] == [ISSUER]
    assert said["scopes_supported"] == ["a"]
    assert said["bearer_methods_supported"] == ["header"]
    assert "dpop_bound_access_tokens_required" not in said
    other = Guard(
        StaticTokenVerifier({}), authorization_servers=["https://x"], scopes_supported=["b"], require_dpop=True
    )
    assert get_credential_checker(other).build_metadata(RESOURCE)["authorization_servers"] == ["https://x"]
    assert get_credential_checker(other).build_metadata(RESOURCE, ["c"])["scopes_supported"] == ["b"]
    assert get_credential_checker(other).build_metadata(RESOURCE)["dpop_bound_access_tokens_required"] is True


def test_a_token_that_names_its_issuer_is_shown_to_no_other(issuer: Issuer) -> None:
    other = Issuer("https://other.example")
    elsewhere = {"introspection_endpoint": "https://old.example/i", "client_id": "a", "client_secret": "b"}
    for old in (IntrospectionVerifier(**elsewhere), IntrospectionVerifier(**elsewhere, issuer="https://old.example")):
        guard, shown = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()), old), list[str]()

        def web(call: HTTPRequest, shown: list[str] = shown) -> FetchResponse:
            shown.append(call.url)
            return FetchResponse(200, {}, b'{"active": false}')

        with pytest.raises(AuthError):
            run_flow(get_credential_checker(guard).authenticate(head(f"Bearer {other.token(iss=ISSUER)}")), web)
        assert not shown
        for _ in range(3):
            with pytest.raises(AuthError):
                run_flow(get_credential_checker(guard).authenticate(head("Bearer opaque")), web)
        assert shown == ["https://old.example/i"]  # what is not active is not asked about again at once
        with pytest.raises(AuthError):
            run_flow(get_credential_checker(guard).authenticate(head("Bearer opaque")), web, now=NOW + 6)
        assert len(shown) == 2


# Tokens bound to a key


@pytest.fixture(scope="module")
def key() -> dict[str, Any]:
    return proofs.generate_key()


def thumbprint(key: dict[str, Any]) -> str:
    from joserfc.jwk import ECKey

    return ECKey.import_key(key).thumbprint()


def bound(issuer: Issuer, key: dict[str, Any]) -> str:
    return issuer.token(cnf={"jkt": thumbprint(key)})


def test_a_bound_token_with_its_proof(issuer: Issuer, key: dict[str, Any]) -> None:
    guard, token = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks())), bound(issuer, key)
    proof = proofs.create_dpop_proof(key, "POST", RESOURCE + "?x=1", NOW, token=token)
    assert run_flow(get_credential_checker(guard).authenticate(head(f"DPoP {token}", proof))).subject == "ada"
    again = denied(guard, f"DPoP {token}", proof)
    assert (again.status_code, parse_challenge(again.challenge).scheme) == (401, "dpop")


@pytest.mark.parametrize(
    "flaw", ["bearer", "none", "other key", "other method", "other url", "other token", "no token", "old", "early"]
)
def test_a_bound_token_without_its_proof(issuer: Issuer, key: dict[str, Any], flaw: str) -> None:
    guard, token = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks())), bound(issuer, key)
    proof: str | None = proofs.create_dpop_proof(
        proofs.generate_key() if flaw == "other key" else key,
        "GET" if flaw == "other method" else "POST",
        "https://other.example/mcp" if flaw == "other url" else RESOURCE,
        NOW + {"old": -100, "early": 100}.get(flaw, 0),
        token=None if flaw == "no token" else "another" if flaw == "other token" else token,
    )
    if flaw == "none":
        proof = None
    refusal = denied(guard, f"{'Bearer' if flaw == 'bearer' else 'DPoP'} {token}", proof)
    assert (refusal.status_code, parse_challenge(refusal.challenge).error) == (401, "invalid_token")


def test_other_bindings_are_refused_for_they_cannot_be_checked(issuer: Issuer) -> None:
    guard = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()))
    for cnf in ({"x5t#S256": "abc"}, {}, "x", {"jkt": 5}):
        assert denied(guard, f"Bearer {issuer.token(cnf=cnf)}").status_code == 401


def test_an_unbound_token_is_not_made_better_by_a_proof(issuer: Issuer, key: dict[str, Any]) -> None:
    guard, token = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks())), issuer.token()
    proof = proofs.create_dpop_proof(key, "POST", RESOURCE, NOW, token=token)
    assert denied(guard, f"DPoP {token}", proof).status_code == 401


def test_binding_can_be_required_and_nonces_too(issuer: Issuer, key: dict[str, Any]) -> None:
    guard = Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()), require_dpop=True, require_dpop_nonce=True)
    assert denied(guard, f"Bearer {issuer.token()}").challenge.startswith("DPoP ")
    token = bound(issuer, key)
    refusal = denied(guard, f"DPoP {token}", proofs.create_dpop_proof(key, "POST", RESOURCE, NOW, token=token))
    assert parse_challenge(refusal.challenge).error == "use_dpop_nonce"
    assert refusal.dpop_nonce
    good = proofs.create_dpop_proof(key, "POST", RESOURCE, NOW, token=token, nonce=refusal.dpop_nonce)
    assert run_flow(get_credential_checker(guard).authenticate(head(f"DPoP {token}", good))).subject == "ada"
    stale = proofs.create_dpop_proof(key, "POST", RESOURCE, NOW + 900, token=token, nonce=refusal.dpop_nonce)
    with pytest.raises(AuthError) as late:
        run_flow(get_credential_checker(guard).authenticate(head(f"DPoP {bound(issuer, key)}", stale)), now=NOW + 900)
    assert late.value.status_code == 401


def test_processes_with_one_secret_take_one_anothers_nonces(issuer: Issuer, key: dict[str, Any]) -> None:
    def guard(secret: str | None) -> Guard:
        return Guard(JWTVerifier(issuer=ISSUER, public_keys=issuer.jwks()), require_dpop_nonce=True, secret_key=secret)

    token, shared = bound(issuer, key), "a secret of many letters"
    nonce = denied(
        guard(shared), f"DPoP {token}", proofs.create_dpop_proof(key, "POST", RESOURCE, NOW, token=token)
    ).dpop_nonce
    proof = proofs.create_dpop_proof(key, "POST", RESOURCE, NOW, token=token, nonce=nonce)
    assert run_flow(get_credential_checker(guard(shared)).authenticate(head(f"DPoP {token}", proof))).subject == "ada"
    assert denied(guard(None), f"DPoP {token}", proof).dpop_nonce != nonce
    with pytest.raises(ValueError, match="16"):
        guard("short")


def test_a_proof_made_with_a_private_key_in_it_or_without_any(key: dict[str, Any]) -> None:
    from joserfc import jwt
    from joserfc.jwk import ECKey, OctKey

    signer, facts = ECKey.import_key(key), {"htm": "POST", "htu": RESOURCE, "iat": int(NOW), "jti": "a"}
    public, shared = signer.as_dict(private=False), OctKey.import_key("a secret for both of us")
    bad: list[tuple[dict[str, Any], Any]] = [
        ({"typ": "dpop+jwt", "alg": "ES256", "jwk": signer.as_dict(private=True)}, signer),
        ({"typ": "dpop+jwt", "alg": "ES256"}, signer),
        ({"typ": "JWT", "alg": "ES256", "jwk": public}, signer),
        ({"typ": "dpop+jwt", "alg": "HS256", "jwk": shared.as_dict()}, shared),
    ]  # fmt: skip
    for header, with_key in bad:
        proof = jwt.encode(header, facts, with_key, algorithms=["ES256", "HS256"])
        with pytest.raises(Exception, match="DPoP"):
            DPoPChecker().check(proof, method="POST", url=RESOURCE, token=None, now=NOW)


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_proof_that_cannot_be_read_is_none(issuer: Issuer, name: str) -> None:
    """Anyone can sign one: the key is in it."""
    guard = Guard(StaticTokenVerifier({"tok": "ada"}))
    header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": issuer.keys["one"].as_dict(private=False)}
    payload = UNREADABLE[name]
    if name == "surrogate":
        payload = b'{"htm":"POST","htu":"%s","iat":%d,"jti":"\\ud800","ath":"%s"}'
        payload %= (RESOURCE.encode(), int(NOW), proofs.sha256_base64url("tok").encode())
    refusal = denied(guard, "DPoP tok", issuer.sign_payload(header, payload))
    assert (refusal.status_code, parse_challenge(refusal.challenge).error) == (401, "invalid_token")
    deep = {**header, "x": UNREADABLE["deep"].decode(), "y": nested(950)}
    with ThreadPoolExecutor(1) as thread:  # whose stack is empty, so that json can write what it could hardly read here
        proof = thread.submit(issuer.sign_payload, deep, b"{}").result()
    assert denied(guard, "DPoP tok", proof).status_code == 401


def nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"a": found}
    return found


def test_proofs_of_one_key_do_not_lock_out_other_keys(key: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.oauth.guard import dpop

    monkeypatch.setattr(dpop, "MAX_REMEMBERED_PROOFS", 10)
    checker, other_key = DPoPChecker(), proofs.generate_key()

    def show(proof: str, now: float) -> str:
        return checker.check(proof, method="POST", url=RESOURCE, token=None, now=now)

    def create(proof_key: dict[str, Any], now: float) -> str:
        return proofs.create_dpop_proof(proof_key, "POST", RESOURCE, now)

    first = create(other_key, NOW)
    show(first, NOW)
    used = [create(key, NOW + number) for number in range(30)]
    for number, proof in enumerate(used):
        show(proof, NOW + number)
    show(create(other_key, NOW + 30), NOW + 30)
    for proof in (first, *used):
        with pytest.raises(TokenRejected):
            show(proof, NOW + 30)


def test_a_proof_with_a_foreign_key_takes_no_memory(key: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.oauth.guard import dpop

    monkeypatch.setattr(dpop, "MAX_REMEMBERED_PROOFS", 4)
    checker = DPoPChecker()
    claims = {"cnf": {"jkt": thumbprint(key)}}

    def show(proof: str) -> str:
        return checker.check(proof, method="POST", url=RESOURCE, token=None, now=NOW, token_claims=claims)

    used = [proofs.create_dpop_proof(key, "POST", RESOURCE, NOW) for _ in range(3)]
    for proof in used:
        show(proof)
    for _ in range(10):
        with pytest.raises(TokenRejected):
            show(proofs.create_dpop_proof(proofs.generate_key(), "POST", RESOURCE, NOW))
    show(proofs.create_dpop_proof(key, "POST", RESOURCE, NOW))
    for proof in used:
        with pytest.raises(TokenRejected):
            show(proof)


# Places


@pytest.mark.parametrize(
    ("url", "path", "resource", "metadata"),
    [
        ("https://mcp.example/mcp", "/mcp", RESOURCE, METADATA),
        ("https://mcp.example", "/mcp", RESOURCE, METADATA),
        ("https://MCP.example/", "/mcp", RESOURCE, METADATA),
        (
            "https://x.example/a/b/mcp",
            "/mcp",
            "https://x.example/a/b/mcp",
            "https://x.example/a/b/.well-known/oauth-protected-resource/mcp",
        ),
        (
            "https://x.example:8443/a",
            "/mcp",
            "https://x.example:8443/a/mcp",
            "https://x.example:8443/a/.well-known/oauth-protected-resource/mcp",
        ),
        ("https://x.example", "/", "https://x.example", "https://x.example/.well-known/oauth-protected-resource"),
    ],
)
def test_the_place_behind_a_public_url(url: str, path: str, resource: str, metadata: str) -> None:
    place = location_from_public_url(url, path)
    assert (place.resource, place.metadata_url) == (resource, metadata)


def test_the_place_as_seen() -> None:
    assert location_from_request("http", "127.0.0.1", 8000, "", "/mcp").resource == "http://127.0.0.1:8000/mcp"
    assert location_from_request("https", "::1", 443, "/x/", "/mcp").resource == "https://[::1]/x/mcp"
    assert parse_host_name(b"LOCALHOST:99") == "localhost"
    assert parse_host_name(b"[::1]:99") == "::1"


def test_where_the_document_is_given_out() -> None:
    well_known = "/.well-known/oauth-protected-resource"
    for path in (well_known, well_known + "/mcp", well_known + "/a/mcp"):
        assert is_metadata_path(path, "/a", "/mcp")
    for other in ("/mcp", well_known + "/b/mcp", well_known + "x", "/.well-known/openid-configuration"):
        assert not is_metadata_path(other, "/a", "/mcp")
    assert is_metadata_path(well_known + "/a", "/a", "/")
    assert not is_metadata_path(well_known + "/a/mcp", "/a", "/")


def test_without_an_issuer_no_login_starts() -> None:
    refusal = denied(Guard(StaticTokenVerifier({"t": "ada"})), None)
    assert (refusal.status_code, refusal.challenge) == (401, "Bearer")


@pytest.mark.parametrize("wrong", [5, [5], [None]])
def test_texts_are_texts(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"\b(5|None)\b"):
        JWTVerifier(issuer="https://login.example", audience=wrong)
    with pytest.raises(TypeError, match=r"\b(5|None)\b"):
        Guard(StaticTokenVerifier({}), required_scopes=wrong)


def test_a_scope_is_one_word() -> None:
    for scope in ("read write", "", 'no"scope', "back\\slash"):
        with pytest.raises(ValueError, match="scope"):
            Principal("ada", scopes=[scope])
    assert Principal("ada", scopes="read write").scopes == {"read", "write"}
    assert parse_scopes({"scp": ["a", "b c", "", 'no"scope', 5]}, ("scp",)) == {"a"}
    assert parse_scopes({"scope": 'a no"scope b'}, ("scope",)) == {"a", "b"}


def test_an_issuer_has_no_fragment() -> None:
    with pytest.raises(ValueError, match=r"https://a\.example#b"):
        JWTVerifier(issuer="https://a.example#b", public_keys=[])
    with pytest.raises(ValueError, match=r"https://a\.example#b"):
        IntrospectionVerifier(introspection_endpoint="https://a.example#b", client_id="c", client_secret="s")


@pytest.mark.parametrize(
    ("wrong", "description"),
    [
        ("secret", r"not str\. Use StaticTokenVerifier"),
        ({"secret": "ada"}, r"not dict\. Use StaticTokenVerifier"),
        (5, "not int$"),
        (JWTVerifier, "not the class JWTVerifier itself$"),
        (Principal("secret"), r"not dovetail\.protocol\.principal\.Principal\. Use StaticTokenVerifier"),
        (print, r"not builtin_function_or_method\. A function that identifies callers must be async"),
    ],
)
def test_the_error_names_the_type_of_a_wrong_verifier(wrong: Any, description: str) -> None:
    with pytest.raises(TypeError, match=description) as info:
        get_credential_checker([wrong])
    assert "secret" not in str(info.value)


@pytest.mark.parametrize(
    ("verifier", "message", "detail"),
    [
        (StaticTokenVerifier({}), "unknown token", "its issuer is https://strange.example, expected none"),
        (
            JWTVerifier(issuer=ISSUER, public_keys=[]),
            "the token is from an unknown issuer",
            f"its issuer is https://strange.example, expected {ISSUER}",
        ),
    ],
)
def test_the_log_names_the_issuer_of_an_unknown_token(verifier: Any, message: str, detail: str) -> None:
    token = jwt.encode({"alg": "ES256"}, {"iss": "https://strange.example"}, ECKey.generate_key("P-256"))
    refusal = denied(Guard(verifier), f"Bearer {token}")
    assert message in refusal.challenge
    assert getattr(refusal.__cause__, "detail", None) == detail

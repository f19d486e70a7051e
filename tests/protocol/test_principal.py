"""Test principals: an identifier and the claims beside it."""

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.protocol.principal import Principal, as_principal, get_remaining_seconds, replace_scopes
from dovetail.protocol.request_state import compute_binding
from dovetail.server.server import get_dispatcher
from dovetail.wire.codec import to_plain


def test_the_text_is_the_same_whatever_else_is_known() -> None:
    one = Principal("ada", issuer="https://a.example", scopes=["x"], client_id="c", claims={"k": 1})
    other = Principal("ada", issuer="https://a.example")
    assert one == other == "https://a.example#ada"
    assert hash(one) == hash(other)
    assert (
        compute_binding(one, (), "m", {})
        == compute_binding(other, (), "m", {})
        == compute_binding("https://a.example#ada", (), "m", {})
    )
    wider = replace_scopes(one, ["x", "y"])
    assert wider == one
    assert (wider.scopes, wider.subject, wider.claims, wider.client_id) == ({"x", "y"}, "ada", {"k": 1}, "c")
    assert repr(one) == "Principal('https://a.example#ada')"


def test_remaining_seconds() -> None:
    principal = Principal("ada", expires_at=100.0)
    assert get_remaining_seconds(replace_scopes(principal, ["x"]), 70.0) == 30.0
    assert get_remaining_seconds(principal, 200.0) == 0.0
    assert get_remaining_seconds(Principal("ada"), 0.0) is None
    assert get_remaining_seconds(None, 0.0) is None


def test_a_name_alone() -> None:
    found = as_principal("ada")
    assert found == "ada"
    assert (found.subject, found.issuer, found.scopes) == ("ada", None, frozenset())
    assert as_principal(found) is found
    with pytest.raises(ValueError, match=r"subject.*client_id"):
        Principal("")


@pytest.mark.parametrize("value", [True, 5, None, b"ada", ["ada"]])
def test_another_value_is_not_a_principal(value: Any) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        as_principal(value)


def test_no_two_callers_have_the_same_text() -> None:
    principals = [
        Principal("ada"),
        Principal("ada", issuer="https://a"),
        Principal("https://a#ada"),
        Principal("", client_id="ada", issuer="https://a"),
        Principal("https://a##ada"),
        Principal("", client_id="ada"),
        Principal("#ada"),
        Principal("##ada"),
        Principal("%23ada"),
        Principal("#%23ada"),
        Principal("", client_id="#ada"),
        Principal("#ada", issuer="https://a"),
    ]
    assert len(set(principals)) == len(principals)


@pytest.mark.parametrize("issuer", ["", "https://a#b"])
def test_an_issuer_that_would_be_ambiguous_is_refused(issuer: str) -> None:
    with pytest.raises(ValueError, match="issuer"):
        Principal("ada", issuer=issuer)


@pytest.mark.parametrize(
    "principal",
    [Principal("a#b", scopes=["x"], claims={"k": 1}), Principal("", issuer="https://a", client_id="c", expires_at=5.0)],
)
def test_a_copy_is_the_same_principal(principal: Principal) -> None:
    for other in (copy.copy(principal), copy.deepcopy(principal), pickle.loads(pickle.dumps(principal))):  # noqa: S301
        assert (type(other), other) == (Principal, principal)
        assert all(getattr(other, name) == getattr(principal, name) for name in Principal.__slots__)


CHANGES: list[Callable[[Any], object]] = [
    lambda claims: claims.update(role="admin"),
    lambda claims: claims.setdefault("admin", True),
    lambda claims: claims.pop("role"),
    lambda claims: claims.popitem(),
    lambda claims: claims.clear(),
    lambda claims: operator.setitem(claims, "role", "admin"),
    lambda claims: operator.delitem(claims, "role"),
    lambda claims: claims.__ior__({"role": "admin"}),
    lambda claims: operator.setitem(claims["realm"], "roles", ["admin"]),
    lambda claims: claims["realm"]["roles"].append("admin"),
    lambda claims: claims["realm"]["roles"].extend(["admin"]),
    lambda claims: claims["realm"]["roles"].insert(0, "admin"),
    lambda claims: claims["realm"]["roles"].remove("a"),
    lambda claims: claims["realm"]["roles"].pop(),
    lambda claims: claims["realm"]["roles"].clear(),
    lambda claims: claims["realm"]["roles"].sort(),
    lambda claims: claims["realm"]["roles"].reverse(),
    lambda claims: operator.setitem(claims["realm"]["roles"], 0, "admin"),
    lambda claims: operator.delitem(claims["realm"]["roles"], 0),
    lambda claims: claims["realm"]["roles"].__iadd__(["admin"]),
    lambda claims: claims["realm"]["roles"].__imul__(0),
]


@pytest.mark.parametrize("change", CHANGES)
def test_claims_are_read_only(change: Callable[[Any], object]) -> None:
    claims: dict[str, Any] = {"role": "user", "realm": {"roles": ["a", "b"]}}
    principal = Principal("ada", claims=claims)
    copies = [principal, copy.deepcopy(principal), pickle.loads(pickle.dumps(principal)), replace_scopes(principal, [])]  # noqa: S301
    for same in copies:
        with pytest.raises(TypeError):
            change(same.claims)
        assert same.claims == claims
    change(copy.deepcopy(principal.claims))
    claims["realm"]["roles"].append("admin")
    assert principal.claims["realm"]["roles"] == ["a", "b"]


@pytest.mark.parametrize("name", ["subject", "issuer", "client_id", "scopes", "claims", "expires_at", "other"])
def test_attributes_are_read_only(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Principal("ada"), name, None)


async def test_claims_can_be_returned() -> None:
    app = Server("x")

    @app.tool
    def claims(ctx: Context) -> dict[str, Any]:
        assert ctx.principal is not None
        return dict(ctx.principal.claims)

    caller = Caller("2026-07-28", True, principal=Principal("ada", claims={"a": {"b": [1]}}))
    exchange = IncomingExchange(1, "tools/call", {"name": "claims"}, {}, caller)
    assert to_plain(await get_dispatcher(app).handle(exchange))["structuredContent"] == {"a": {"b": [1]}}


async def test_it_can_be_returned_as_the_text_it_is() -> None:
    app = Server("x")

    @app.tool
    def who(ctx: Context) -> str:
        return ctx.principal or ""

    @app.tool
    def about(ctx: Context) -> dict[str, str]:
        return {"who": ctx.principal or ""}

    caller = Caller("2026-07-28", True, principal=Principal("ada", issuer="https://a.example"))
    result = to_plain(await get_dispatcher(app).handle(IncomingExchange(1, "tools/call", {"name": "who"}, {}, caller)))
    assert result["content"][0]["text"] == "https://a.example#ada"
    result = to_plain(
        await get_dispatcher(app).handle(IncomingExchange(1, "tools/call", {"name": "about"}, {}, caller))
    )
    assert result["structuredContent"] == {"who": "https://a.example#ada"}

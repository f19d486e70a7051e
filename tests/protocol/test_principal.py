"""Test principals: an identifier and the claims beside it."""

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
    assert found is not None
    assert (found.subject, found.issuer, found.scopes) == ("ada", None, frozenset())
    assert as_principal(found) is found
    assert as_principal(None) is None
    with pytest.raises(ValueError, match=r"subject.*client_id"):
        Principal("")


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

"""Test that servers accept the tokens of a `TokenIssuer`, and reject the wrong ones."""

from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.errors import Forbidden, Unauthorized
from dovetail.testing import TokenIssuer, connect


def create_server(issuer: TokenIssuer) -> Server:
    app = Server("files", auth=issuer.create_verifier())

    @app.tool(scopes=["write"])
    def save(ctx: Context) -> dict[str, Any]:
        assert ctx.principal is not None
        return {"sub": ctx.principal.claims["sub"], "team": ctx.principal.claims["team"]}

    return app


async def test_a_server_accepts_the_tokens_of_its_issuer() -> None:
    issuer = TokenIssuer()
    token = issuer.create_token("ada", scopes=["write"], team="red")
    async with connect(create_server(issuer), transport="http", auth=token) as client:
        assert await client.call("save") == {"sub": "ada", "team": "red"}


async def test_a_token_without_scopes_is_forbidden() -> None:
    issuer = TokenIssuer("https://login.example", audience="https://files.example")
    async with connect(create_server(issuer), transport="http", auth=issuer.create_token(scopes="read")) as client:
        with pytest.raises(Forbidden):
            await client.call("save")


@pytest.mark.parametrize(
    "change", [{"expires_in": -60}, {"aud": "https://other.example"}, {"iss": "https://o.example"}]
)
async def test_a_wrong_token_is_rejected(change: dict[str, Any]) -> None:
    issuer = TokenIssuer()
    token = issuer.create_token(**change)
    with pytest.raises(Unauthorized):
        async with connect(create_server(issuer), transport="http", auth=token) as client:
            await client.call("save")


async def test_each_issuer_has_its_own_key() -> None:
    with pytest.raises(Unauthorized):
        async with connect(create_server(TokenIssuer()), transport="http", auth=TokenIssuer().create_token()) as client:
            await client.call("save")

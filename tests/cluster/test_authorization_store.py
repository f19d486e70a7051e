"""Test the data of an authorization server in a real back end."""

import time

import pytest

from dovetail.auth.flow_runner import FlowRunner
from dovetail.auth.shared_store import SharedStateStore
from dovetail.cluster.redis.redis_backend import RedisBackend
from dovetail.oauth.authorization_server.store import AuthorizationCode, TokenGrant
from dovetail.oauth.authorization_server.token_issuer import OAuthTokenIssuer
from dovetail.protocol.sealer import Sealer
from support.redis_servers import RedisServer

ISSUER, SECRET = "https://login.example", "a secret of 16 bytes"


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_workers_issue_redeem_and_revoke_together(redis_server: RedisServer, is_flushed: bool) -> None:
    backends = [RedisBackend(redis_server.url, prefix="test", secret_keys=[SECRET]) for _ in range(2)]
    stores = [SharedStateStore(backend, ISSUER) for backend in backends]
    first, second = (
        OAuthTokenIssuer(ISSUER, store, Sealer(SECRET, purpose="test"), access_token_ttl=60, refresh_token_ttl=3600)
        for store in stores
    )
    run, now = FlowRunner({}).run, time.time()
    grant = TokenGrant(family="f", client_id="editor", subject="ada", resource="https://mcp.example/mcp")
    code = await run(first.issue_code(AuthorizationCode(grant=grant, redirect_uri="x:y", challenge="c"), now))
    if is_flushed:
        redis_server.execute("FLUSHALL")
        assert await run(second.redeem_code(code, now)) is None
    else:
        assert await run(second.redeem_code(code, now)) is not None
        assert await run(first.redeem_code(code, now)) is None
        tokens = await run(second.issue_tokens(grant, now, refreshable=True, code=code))
        assert await run(first.verify_access_token(tokens["access_token"], now)) is not None
        renewed = await run(first.renew_tokens(tokens["refresh_token"], now))
        assert renewed is not None
        assert await run(second.revoke_user("ada")) == 1
        assert await run(first.verify_access_token(renewed["access_token"], now)) is None
        values = "".join(map(str, redis_server.execute("KEYS", "*")))
        assert "ada" not in values
    for store in stores:
        await store.close()

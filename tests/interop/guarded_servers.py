"""Guarded servers of other libraries with an authorization server: `guarded_servers.py official|fast PORT`."""

import secrets
import sys
import time
from typing import Any

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

SCOPES = ["read", "write"]


class Provider:
    """An authorization server provider for the official SDK: in memory, and every user is accepted."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(24),
            scopes=params.scopes or SCOPES,
            expires_at=time.time() + 60,
            client_id=client.client_id or "",
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        return self._issue(client, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise NotImplementedError

    def _issue(self, client: OAuthClientInformationFull, scopes: list[str], resource: str | None) -> OAuthToken:
        who: dict[str, Any] = {"client_id": client.client_id or "", "scopes": scopes, "resource": resource}
        access = AccessToken(token=secrets.token_urlsafe(24), expires_at=int(time.time()) + 600, **who)
        refresh = RefreshToken(token=secrets.token_urlsafe(24), **who)
        self.access[access.token], self.refresh[refresh.token] = access, refresh
        return OAuthToken(
            access_token=access.token, expires_in=600, scope=" ".join(scopes), refresh_token=refresh.token
        )


def official(port: int) -> None:
    from mcp.server.mcpserver import MCPServer

    provider = Provider()
    settings = AuthSettings.model_validate(
        {
            "issuer_url": f"http://127.0.0.1:{port}",
            "resource_server_url": f"http://127.0.0.1:{port}/mcp",
            "client_registration_options": ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES),
            "required_scopes": ["read"],
            "validate_token_resource": True,
        }
    )
    app = MCPServer("official", auth_server_provider=provider, auth=settings, log_level="WARNING")

    @app.tool()
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"Hello, {name}!"

    @app.tool()
    def forget() -> int:
        """Take back every token that was issued."""
        count = len(provider.access)
        provider.access.clear()
        return count

    app.run("streamable-http", port=port)


def fast(port: int) -> None:
    from fastmcp import FastMCP
    from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider

    provider = InMemoryOAuthProvider(
        base_url=f"http://127.0.0.1:{port}",
        client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES),
        required_scopes=["read"],
    )
    app = FastMCP("fast", auth=provider)

    @app.tool
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"Hello, {name}!"

    @app.tool
    def forget() -> int:
        """Take back every token that was issued."""
        count = len(provider.access_tokens)
        provider.access_tokens.clear()
        return count

    app.run("http", port=port, show_banner=False, log_level="WARNING")


if __name__ == "__main__":
    {"official": official, "fast": fast}[sys.argv[1]](int(sys.argv[2]))
